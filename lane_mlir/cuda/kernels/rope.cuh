// launch.rope and launch.rope_parts, and the rotation of a head as what other kernels do with it: rope_head.
//
// Head u of a side stands in row r = u div per_row, at position p = pos + r (pos[r] where rows are sequences). Where
// `norm`, h = x[u]/√(mean(x[u]²) + eps)·w, else h = x[u]. With c = cos[p, i], s = sin[p, i], pair i of the first 2·half
// columns becomes
//
//     y[u, a] = h[a]·c - h[b]·s,   y[u, b] = h[a]·s + h[b]·c      a, b = i, i + half  or  2i, 2i + 1 (interleaved)
//
// and the columns after them are copied. A warp takes a head: its lane l pairs l, l + 32, …, all in registers.
#pragma once

#include "common.cuh"

namespace lane {

enum class Pairing { HALF, INTERLEAVED };

struct RopeShape {
  int hd = 0;
  int half = 0;
  Pairing pairing = Pairing::HALF;
  bool seqs = false;  // rows are sequences, each at a position of its own

  LANE_CONSTANT int pairs() const { return ceil_div(half, WARP); }           // of a lane
  LANE_CONSTANT int copied() const { return ceil_div(hd - 2 * half, WARP); }  // columns of a lane
};

struct RopeSideShape {
  int heads = 0;
  int per_row = 1;
  bool norm = false;
  float eps = 0.f;
  Part part;   // where the heads of x lie
  Dst dst;     // where those of y land
  i64 yz = 0;  // elements between the tables of two sequences, that the heads land in; 0: all land by `dst`
};

// One side: its constants and its buffers.
template <RopeSideShape S, typename T>
struct RopeSide {
  static constexpr RopeSideShape shape = S;
  const float* x;
  const float* norm;  // [hd]
  T* y;
  const int* param;   // of `dst`; where the side has `yz`, of every sequence

  // The first element of a head of the result.
  LANE_DEVICE T* head(int unit, int hd) const {
    if constexpr (S.yz != 0) {
      int row = unit / S.per_row;
      i64 at = S.dst.row_pitch != 0 && param != nullptr ? S.dst.row_pitch * param[row] : 0;
      return y + row * S.yz + at + static_cast<i64>(unit % S.per_row) * hd;
    } else {
      return y + S.dst.start(param) + S.dst.at(unit, hd, 0);
    }
  }
};

// Where rotations stand.
struct RopeTables {
  const float* cos;  // [positions, half]
  const float* sin;
  const int* pos;    // null: 0
};

// What a lane holds of a head, or of a norm's weight.
template <RopeShape R>
struct HeadValues {
  float a[R.pairs()], b[R.pairs()], copied[R.copied() > 0 ? R.copied() : 1];

  static LANE_DEVICE int pair(int i) { return i * WARP + static_cast<int>(threadIdx.x) % WARP; }
  static LANE_DEVICE bool rotates(int i) { return R.half % WARP == 0 || pair(i) < R.half; }
  static LANE_DEVICE int first(int i) { return R.pairing == Pairing::HALF ? pair(i) : 2 * pair(i); }
  static LANE_DEVICE int second(int i) { return R.pairing == Pairing::HALF ? pair(i) + R.half : 2 * pair(i) + 1; }
  static LANE_DEVICE int column(int i) { return 2 * R.half + pair(i); }
  static LANE_DEVICE bool copies(int i) { return column(i) < R.hd; }

  LANE_DEVICE void load(const float* head) {
#pragma unroll
    for (int i = 0; i < R.pairs(); i++) {
      a[i] = rotates(i) ? head[first(i)] : 0.f;
      b[i] = rotates(i) ? head[second(i)] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < R.copied(); i++) copied[i] = copies(i) ? head[column(i)] : 0.f;
  }

  // Times the norm's factor and its weight.
  LANE_DEVICE void normalize(float eps, const HeadValues& w) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < R.pairs(); i++) squares += a[i] * a[i] + b[i] * b[i];
#pragma unroll
    for (int i = 0; i < R.copied(); i++) squares += copied[i] * copied[i];
    float factor = 1.f / sqrtf(warp_sum(squares) / R.hd + eps);
#pragma unroll
    for (int i = 0; i < R.pairs(); i++) {
      a[i] = a[i] * factor * w.a[i];
      b[i] = b[i] * factor * w.b[i];
    }
#pragma unroll
    for (int i = 0; i < R.copied(); i++) copied[i] = copied[i] * factor * w.copied[i];
  }

  template <typename T>
  LANE_DEVICE void store_rotated(const RopeTables& tables, i64 position, T* y) const {
    const float* cos = tables.cos + position * R.half;
    const float* sin = tables.sin + position * R.half;
#pragma unroll
    for (int i = 0; i < R.pairs(); i++) {
      if (!rotates(i)) continue;
      float c = load_constant(cos + pair(i)), s = load_constant(sin + pair(i));
      y[first(i)] = from_float<T>(a[i] * c - b[i] * s);
      y[second(i)] = from_float<T>(a[i] * s + b[i] * c);
    }
#pragma unroll
    for (int i = 0; i < R.copied(); i++) {
      if (copies(i)) y[column(i)] = from_float<T>(copied[i]);
    }
  }
};

// The position that head `unit` of a side stands at.
template <RopeShape R, typename Side>
LANE_DEVICE i64 position_of(const Side&, int unit, const RopeTables& tables) {
  int row = unit / Side::shape.per_row;
  if constexpr (R.seqs) return tables.pos != nullptr ? tables.pos[row] : 0;
  return (tables.pos != nullptr ? static_cast<i64>(*tables.pos) : 0) + row;
}

// Rotates head `unit` of a side, whose values a warp holds, and stores it.
template <RopeShape R, RopeSideShape S, typename T>
LANE_DEVICE void rope_head(HeadValues<R> head, const HeadValues<R>& norm, const RopeSide<S, T>& side, int unit,
                           const RopeTables& tables) {
  if constexpr (S.norm) head.normalize(S.eps, norm);
  head.store_rotated(tables, position_of<R>(side, unit, tables), side.head(unit, R.hd));
}

// launch.rope and launch.rope_parts: warp w of the grid takes head w of the sides, one side after the other.
template <RopeShape R, typename... Sides>
LANE_DEVICE void rope(const RopeTables& tables, const Sides&... sides) {
  let_successor_start();
  int warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / WARP), unit = warp;
  HeadValues<R> norm;
  auto load_norm = [&](const auto& side) {
    if (unit >= 0 && unit < side.shape.heads && side.shape.norm) norm.load(side.norm);
    unit -= side.shape.heads;
  };
  (load_norm(sides), ...);
  wait_for_predecessor();
  unit = warp;
  auto rotate = [&](const auto& side) {
    if (unit >= 0 && unit < side.shape.heads) {
      HeadValues<R> head;
      head.load(side.x + side.shape.part.at(unit, R.hd, 0));
      rope_head(head, norm, side, unit, tables);
    }
    unit -= side.shape.heads;
  };
  (rotate(sides), ...);
}

}  // namespace lane
