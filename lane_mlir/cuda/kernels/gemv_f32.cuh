// launch.gemv_f32: a product of a few rows by a weight of plain f32 values that is stored transposed.
//
//     y[r, j] = Σ_i x[r, i]·w[i, j], scaled and biased (Affine)          x [m, k], w [k, n]
//
// Such weights are small (a router, per-head gates), so what counts is how soon a block is done: a block takes 8 columns,
// 4 rows of w a warp, and every thread loads AHEAD of its elements, all of them if they are no more, before it waits.
#pragma once

#include "gemv.cuh"

namespace lane {

struct GemvF32Shape {
  int k = 0;
  int m = 1;
  int warps = 8;  // of a block, over which the sum is split

  LANE_CONSTANT int threads() const { return warps * WARP; }
};

constexpr int GEMV_F32_COLUMNS = 8;

template <GemvF32Shape S, typename P>
LANE_DEVICE void gemv_f32(const float* x, const P& product) {
  constexpr int N = P::n;
  constexpr int COLUMNS = GEMV_F32_COLUMNS, LANES = S.threads() / COLUMNS;  // threads that share a column
  constexpr int STEPS = ceil_div(S.k, LANES), AHEAD = min_of(STEPS, 16);
  __shared__ float partial[S.m][S.warps][COLUMNS];
  let_successor_start();
  Chosen<GEMV_F32_COLUMNS, P> chosen(blockIdx.x, product);
  const float* weight = reinterpret_cast<const float*>(chosen.weight);
  int lane = threadIdx.x / COLUMNS, place = threadIdx.x % COLUMNS;
  int first = blockIdx.x * COLUMNS, column = min(first + place, N - 1);
  float ahead[AHEAD], sum[S.m];
#pragma unroll
  for (int r = 0; r < S.m; r++) sum[r] = 0.f;
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    int row = i * LANES + lane;
    ahead[i] = row < S.k ? load_constant(weight + static_cast<i64>(row) * N + column) : 0.f;
  }
  wait_for_predecessor();
  chosen.land();
  for (int step = 0; step < STEPS; step += AHEAD) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      int row = (step + i) * LANES + lane, next = row + AHEAD * LANES;
      float w = ahead[i];
      if (STEPS > AHEAD) ahead[i] = next < S.k ? load_constant(weight + static_cast<i64>(next) * N + column) : 0.f;
      if (row >= S.k) continue;
#pragma unroll
      for (int r = 0; r < S.m; r++) sum[r] = fmaf(w, x[r * S.k + row], sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < S.m; r++) {
    sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 8);
    sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 16);
    if (threadIdx.x % WARP < COLUMNS) partial[r][threadIdx.x / WARP][place] = sum[r];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < S.m * COLUMNS; at += S.threads()) {
    int row = at / COLUMNS, to = first + at % COLUMNS;
    if (to >= N) continue;
    float total = 0.f;
    for (int warp = 0; warp < S.warps; warp++) total += partial[row][warp][at % COLUMNS];
    chosen.store(row, to, chosen.affine.column(to, N)(total));
  }
}

}  // namespace lane
