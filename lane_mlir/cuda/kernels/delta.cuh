// launch.delta, row by row: the gated delta rule and the gated norm of what it reads out.
//
// For value head h with key head g, S [d, d] the head's state, q' = q[r, g]/√d, k = k[r, g], a and b of the row and head:
//
//     S ← a·S;   e = v - Sᵀ·k;   S ← S + k·(b·e)ᵀ;   o = Sᵀ·q'
//     out[r, h] = o/√(mean(o²) + eps)·gn·silu(z[r, h])
//
// In one pass over S, since o = (a·S)ᵀ·q' + (k·q')·b·e. The columns of S do not meet: a block takes a head's columns, or
// of SLICES parts one; grid (slices, heads, sequences). The state is in registers from the first row to the last, 4
// columns and some rows a thread, and rounded to what it is stored as once. What is read out of several slices meets in
// `partial`, and the last block of a head norms it.
//
// Limits: d/(4·slices) a power of 2.
#pragma once

#include "common.cuh"

namespace lane {

struct DeltaShape {
  int hv = 1;
  int hk = 1;
  int d = 0;
  int rows = 1;
  bool cyclic = false;  // key head h mod hk, not h div (hv/hk)
  float eps = 0.f;
  bool f32 = true;
  int words = 0;        // int8 words of the quantized result; 0: none is written
  int slices = 1;
  int threads = 256;

  LANE_CONSTANT int columns() const { return d / slices; }       // of a block
  LANE_CONSTANT int lanes() const { return columns() / 4; }      // threads along a row of the state
  LANE_CONSTANT int groups() const { return threads / lanes(); }  // rows of the state that are taken at once
  LANE_CONSTANT int held() const { return ceil_div(d, groups()); }  // rows that a thread holds
};

template <typename T>
struct DeltaOperands {
  const float* q;   // [rows, hk·d]
  const float* k;
  const float* v;   // [rows, hv·d]
  const float* z;
  const float* b;   // [rows, hv]
  const float* a;
  T* st;            // [hv, d, d]
  const float* gn;  // [d]
  float* out;
  i8* words;
  float* scales;
  float* partial;   // [sequences, hv, rows, d], if there are slices
  u32* counter;     // [sequences, hv], 0 between runs
};

LANE_DEVICE float4 fma4(float s, float4 x, float4 y) {
  return {fmaf(s, x.x, y.x), fmaf(s, x.y, y.y), fmaf(s, x.z, y.z), fmaf(s, x.w, y.w)};
}

// Norms, gates and writes what a head reads out for a row, o [d/4]. By all lanes of a warp.
template <DeltaShape S, typename T>
LANE_DEVICE void finish_delta(const DeltaOperands<T>& p, i64 row, int head, const float4* o) {
  constexpr int QUADS = S.d / 4, ROUNDS = ceil_div(QUADS, WARP);
  int lane = threadIdx.x % WARP;
  float4 value[ROUNDS];
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    int quad = i * WARP + lane;
    value[i] = quad < QUADS ? o[quad] : float4{0.f, 0.f, 0.f, 0.f};
    squares += value[i].x * value[i].x + value[i].y * value[i].y + value[i].z * value[i].z + value[i].w * value[i].w;
  }
  float factor = 1.f / sqrtf(warp_sum(squares) / S.d + S.eps);
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    int quad = i * WARP + lane;
    bool active = quad < QUADS;
    i64 at = (row * S.hv + head) * QUADS + (active ? quad : 0);
    if (active) {
      float4 w = reinterpret_cast<const float4*>(p.gn)[quad], z = reinterpret_cast<const float4*>(p.z)[at];
      value[i].x *= factor * w.x * activate<Activation::SILU>(z.x);
      value[i].y *= factor * w.y * activate<Activation::SILU>(z.y);
      value[i].z *= factor * w.z * activate<Activation::SILU>(z.z);
      value[i].w *= factor * w.w * activate<Activation::SILU>(z.w);
      if constexpr (S.f32) reinterpret_cast<float4*>(p.out)[at] = value[i];
    }
    if constexpr (S.words != 0) {
      static_assert(S.d % QBLOCK == 0, "a head is whole blocks");
      quantize_quads<S.words>(value[i], at, active, p.words, p.scales);
    }
  }
}

// Four elements of the state.
template <typename T>
LANE_DEVICE float4 load_state(const T* p) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float4*>(p);
  } else {
    uint2 pairs = *reinterpret_cast<const uint2*>(p);
    float2 low = bfloats(pairs.x), high = bfloats(pairs.y);
    return {low.x, low.y, high.x, high.y};
  }
}
template <typename T>
LANE_DEVICE void store_state(T* p, float4 v) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(p) = v;
  } else {
    u32 low = to_bf16(v.x).bits | static_cast<u32>(to_bf16(v.y).bits) << 16;
    u32 high = to_bf16(v.z).bits | static_cast<u32>(to_bf16(v.w).bits) << 16;
    *reinterpret_cast<uint2*>(p) = {low, high};
  }
}

template <DeltaShape S, typename T>
LANE_DEVICE void delta(const DeltaOperands<T>& p) {
  constexpr int LANES = S.lanes(), GROUPS = S.groups(), HELD = S.held(), WARPS = S.threads / WARP;
  int warp = threadIdx.x / WARP;
  // Rows of the state that a warp takes at once; 1 where several warps share a row.
  constexpr int WARP_GROUPS = max_of(1, WARP / LANES), SUMS = GROUPS / WARP_GROUPS;
  __shared__ float key[S.d], query[S.d], partial[WARP];
  __shared__ float4 read_out[S.d / 4];
  __shared__ float4 errors[SUMS][LANES], reads[SUMS][LANES];
  static_assert(LANES * 4 == S.columns() && LANES * GROUPS == S.threads, "threads cover whole rows");

  let_successor_start();
  wait_for_predecessor();
  int slice = blockIdx.x, head = blockIdx.y, key_head = S.cyclic ? head % S.hk : head / (S.hv / S.hk);
  int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  i64 sequence = blockIdx.z;
  T* state = p.st + (sequence * S.hv + head) * S.d * S.d + slice * S.columns() + 4 * lane;
  float4* slices = reinterpret_cast<float4*>(p.partial);
  float4 s[HELD];
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    int row = i * GROUPS + group;
    s[i] = S.d % GROUPS == 0 || row < S.d ? load_state(state + static_cast<i64>(row) * S.d) : float4{0.f, 0.f, 0.f, 0.f};
  }

  for (int r = 0; r < S.rows; r++) {
    i64 row = sequence * S.rows + r, keys_at = (row * S.hk + key_head) * S.d, values_at = (row * S.hv + head) * S.d;
    float kq = 0.f;
    for (int i = threadIdx.x; i < S.d; i += S.threads) {
      key[i] = p.k[keys_at + i];
      query[i] = p.q[keys_at + i] / sqrtf(S.d);
      kq += key[i] * query[i];
    }
    float a = p.a[row * S.hv + head], b = p.b[row * S.hv + head];
    float4 v = *reinterpret_cast<const float4*>(p.v + values_at + slice * S.columns() + 4 * lane);
    kq = block_sum<S.threads>(kq, partial);
    __syncthreads();

    float4 by_key = {0.f, 0.f, 0.f, 0.f}, by_query = by_key;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      int at = i * GROUPS + group;
      if (S.d % GROUPS != 0 && at >= S.d) continue;
      s[i] = {a * s[i].x, a * s[i].y, a * s[i].z, a * s[i].w};
      by_key = fma4(key[at], s[i], by_key);
      by_query = fma4(query[at], s[i], by_query);
    }
#pragma unroll
    for (int step = LANES; step < WARP; step *= 2) {
      by_key.x += __shfl_xor_sync(ALL_LANES, by_key.x, step), by_key.y += __shfl_xor_sync(ALL_LANES, by_key.y, step);
      by_key.z += __shfl_xor_sync(ALL_LANES, by_key.z, step), by_key.w += __shfl_xor_sync(ALL_LANES, by_key.w, step);
      by_query.x += __shfl_xor_sync(ALL_LANES, by_query.x, step);
      by_query.y += __shfl_xor_sync(ALL_LANES, by_query.y, step);
      by_query.z += __shfl_xor_sync(ALL_LANES, by_query.z, step);
      by_query.w += __shfl_xor_sync(ALL_LANES, by_query.w, step);
    }
    if (group % WARP_GROUPS == 0) {
      errors[group / WARP_GROUPS][lane] = by_key;
      reads[group / WARP_GROUPS][lane] = by_query;
    }
    __syncthreads();

    float4 error = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < SUMS; i++) error = fma4(1.f, errors[i][lane], error);
    error = {b * (v.x - error.x), b * (v.y - error.y), b * (v.z - error.z), b * (v.w - error.w)};
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      int at = i * GROUPS + group;
      if (S.d % GROUPS == 0 || at < S.d) s[i] = fma4(key[at], error, s[i]);
    }
    if (group == 0) {
      float4 o = {kq * error.x, kq * error.y, kq * error.z, kq * error.w};
#pragma unroll
      for (int i = 0; i < SUMS; i++) o = fma4(1.f, reads[i][lane], o);
      float4* to = read_out;
      if constexpr (S.slices > 1) to = slices + ((sequence * S.hv + head) * S.rows + r) * (S.d / 4) + slice * LANES;
      to[lane] = o;
    }
    __syncthreads();  // the row is done: key, query and sums may be written again
    // By one warp, while the others begin the next row.
    if (S.slices == 1 && warp == r % WARPS) finish_delta<S>(p, row, head, read_out);
  }

#pragma unroll
  for (int i = 0; i < HELD; i++) {
    int row = i * GROUPS + group;
    if (S.d % GROUPS == 0 || row < S.d) store_state(state + static_cast<i64>(row) * S.d, s[i]);
  }
  if constexpr (S.slices > 1) {
    i64 head_at = sequence * S.hv + head;
    if (!is_last_block(p.counter + head_at, S.slices)) return;
    for (int r = warp; r < S.rows; r += WARPS) {
      finish_delta<S>(p, sequence * S.rows + r, head, slices + (head_at * S.rows + r) * (S.d / 4));
    }
  }
}

}  // namespace lane
