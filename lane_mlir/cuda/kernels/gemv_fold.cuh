// A product of a few rows folded with the norm of its rows: each block norms the columns that it computes.
#pragma once

#include "gemv.cuh"

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
  LANE_DEVICE void run(const Kept<S>& kept, int first, int n) const {
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

}  // namespace lane
