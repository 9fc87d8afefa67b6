// Folds of products of a few rows with what is done with their result: a norm of its rows, rotations of its heads.
//
// A norm is done by each block for the columns that it computes. Of rotations, the results are in memory, and the last block
// to write a part of what one reads does it; blocks count themselves off at counters that are zero at load and that the last
// sets back to zero.
#pragma once

#include "gemv.cuh"
#include "rope.cuh"

namespace lane {

// Each block norms the columns that it computes, undivided: s = y (+ add); s·w as f32 and quantized; and the sums of s²
// over each 32 columns, by which the readers divide. A warp takes 32 columns of a row.
template <int WORDS, bool F32>
struct NormColumns {
  const float* add;
  const float* w;
  float* sum;
  float* y;
  i8* words;
  float* scales;
  float* squares;

  template <GemvShape S>
  struct Kept {
    static constexpr int BLOCKS = S.columns() / QBLOCK, COUNT = ceil_div(S.m * BLOCKS, S.warps);
    static_assert(S.columns() % QBLOCK == 0, "a block of threads owns whole blocks of columns");
    float w[COUNT], add[COUNT];

    static LANE_DEVICE int block(int i) { return i * S.warps + static_cast<int>(threadIdx.x) / WARP; }
    static LANE_DEVICE int row(int i) { return block(i) / BLOCKS; }
    static LANE_DEVICE int column(int i, int first) { return first + block(i) % BLOCKS * QBLOCK + threadIdx.x % WARP; }
    // n, the columns of a row, is whole blocks too.
    static LANE_DEVICE bool inside(int i, int first, int n) { return block(i) < S.m * BLOCKS && column(i, first) < n; }

    LANE_DEVICE void load(const NormColumns& o, int first, int n) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        w[i] = o.w != nullptr && inside(i, first, n) ? load_constant(o.w + column(i, first)) : 1.f;
      }
    }
    LANE_DEVICE void read(const NormColumns& o, int first, int n) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        bool there = o.add != nullptr && inside(i, first, n);
        add[i] = there ? o.add[static_cast<i64>(row(i)) * n + column(i, first)] : 0.f;
      }
    }
  };

  template <GemvShape S>
  LANE_DEVICE void run(const Kept<S>& kept, int, int first, int n) const {
    static_assert(S.held, "the block's results are in shared memory");
    const float* result = reinterpret_cast<const float*>(shared_memory);
#pragma unroll
    for (int i = 0; i < Kept<S>::COUNT; i++) {
      if (!kept.inside(i, first, n)) continue;
      int row = kept.row(i), column = kept.column(i, first);
      i64 at = static_cast<i64>(row) * n + column;
      float s = result[row * S.columns() + column - first] + kept.add[i], square = warp_sum(s * s);
      if (sum != nullptr) sum[at] = s;
      if (threadIdx.x % WARP == 0) squares[at / QBLOCK] = square;
      s *= kept.w[i];
      if constexpr (F32) y[at] = s;
      if constexpr (WORDS != 0) quantize_warp<WORDS>(s, at / QBLOCK, words, scales);
    }
  }
};

// Heads of product PRODUCT are rotated by the last block to write columns of them, a warp each. Head h of a row begins
// at column FIRST + h·PITCH; of `side`, x is the result of the product. `next`: the same for another product, or nothing.
template <RopeShape R, int PRODUCT, int FIRST, int PITCH, typename SIDE, typename NEXT>
struct RopeAfter {
  RopeTables tables;
  SIDE side;
  u32* counters;  // one for each head of a row
  NEXT next;

  template <GemvShape S>
  struct Kept {
    LANE_DEVICE void load(const RopeAfter&, int, int) {}
    LANE_DEVICE void read(const RopeAfter&, int, int) {}
  };

  template <GemvShape S>
  LANE_DEVICE void run(const Kept<S>&, int product, int first, int n) const {
    if (product != PRODUCT) {
      next.template run<S>({}, product, first, n);
      return;
    }
    constexpr int COLUMNS = S.columns(), TOUCHED = COLUMNS / PITCH + 2, HEADS = SIDE::shape.per_row;
    __shared__ bool complete[TOUCHED];
    int last = min(first + COLUMNS, n);
    int from = max((first - FIRST - R.hd) / PITCH, 0);  // no head before it has columns here
    __threadfence();
    __syncthreads();
    for (int i = threadIdx.x; i < TOUCHED; i += S.threads()) {
      int head = from + i, begin = FIRST + head * PITCH, end = begin + R.hd;
      bool touched = head < HEADS && begin < last && end > first;
      u32 blocks = (end - 1) / COLUMNS - begin / COLUMNS + 1;
      complete[i] = touched && atomicInc(counters + head, blocks - 1) == blocks - 1;
    }
    __syncthreads();
    __threadfence();
    for (int i = threadIdx.x / WARP; i < TOUCHED * S.m; i += S.warps) {
      if (!complete[i % TOUCHED]) continue;
      int unit = i / TOUCHED * HEADS + from + i % TOUCHED;
      HeadValues<R> head, norm;
      if constexpr (SIDE::shape.norm) norm.load(side.norm);
      head.load(side.x + SIDE::shape.part.at(unit, R.hd, 0));
      rope_head(head, norm, side, unit, tables);
    }
  }
};

}  // namespace lane
