// The gates of the delta rule: launch.decay, launch.gates and launch.gate_proj.
//
//     beta[r, h] = sigmoid(br[r, h]),   decay[r, h] = exp(al[h]·softplus(ar[r, h] + dt[h]))
//
// gate_proj makes br = wb·x and ar = wa·x of one row itself: x [k], wb, wa [heads, k], or stored [k, heads]
// (TRANSPOSED). A block takes 32 heads and, of SPLIT parts, one of the columns; a warp some of those, for each a lane a
// head (TRANSPOSED), or a few heads, a lane some of the columns. The blocks' sums meet in `partial`, and the last block
// adds them in order.
#pragma once

#include "common.cuh"

namespace lane {

LANE_DEVICE float decay_of(float a, float dt, float al) { return expf(al * softplus(a + dt)); }

template <i64 N, int HEADS>
LANE_DEVICE void gates(const float* br, const float* ar, const float* dt, const float* al, float* beta, float* decay) {
  let_successor_start();
  i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  int head = static_cast<int>(i % HEADS);
  float dt_of = load_constant(dt + head), al_of = load_constant(al + head);
  wait_for_predecessor();
  if (i >= N) return;
  if (beta != nullptr) beta[i] = sigmoid(br[i]);
  decay[i] = decay_of(ar[i], dt_of, al_of);
}

constexpr int GATE_WARPS = 8;  // of a block of gate_proj
constexpr int GATE_HEADS = WARP;

// The sums of a warp's columns by the weights of a block's heads, that of head l on lane l.
template <int HEADS, int K, int SPLIT, bool TRANSPOSED>
struct GateColumns {
  static constexpr int PART = ceil_div(ceil_div(K, SPLIT), GATE_WARPS * WARP) * WARP;  // columns of a warp
  static constexpr int AHEAD = min_of(PART, 16);                                      // loaded before the wait
  const float* w;
  int first, end, head;  // columns of this warp, head of this lane or the block's first
  float ahead[AHEAD];

  LANE_DEVICE void start(const float* weight) {
    w = weight;
    first = (static_cast<int>(blockIdx.y) * GATE_WARPS + static_cast<int>(threadIdx.x) / WARP) * PART;
    end = min(first + PART, K);
    head = static_cast<int>(blockIdx.x) * GATE_HEADS + static_cast<int>(threadIdx.x) % WARP;
    if constexpr (TRANSPOSED) {
#pragma unroll
      for (int i = 0; i < AHEAD; i++) ahead[i] = at(first + i);
    }
  }

  LANE_DEVICE float at(int column) const {
    return head < HEADS && column < end ? load_constant(w + static_cast<i64>(column) * HEADS + head) : 0.f;
  }

  LANE_DEVICE float sum(const float* x) const {
    if constexpr (TRANSPOSED) {
      float total = 0.f;
#pragma unroll
      for (int i = 0; i < AHEAD; i++) total += first + i < end ? ahead[i] * x[first + i] : 0.f;
#pragma unroll 8
      for (int column = first + AHEAD; column < end; column++) total += at(column) * x[column];
      return total;
    } else {
      int lane = threadIdx.x % WARP, block_head = head - lane;
      float mine = 0.f;
      for (int h = 0; h < min(GATE_HEADS, HEADS - block_head); h++) {
        float total = 0.f;
        for (int column = first + lane; column < end; column += WARP) {
          total += load_constant(w + static_cast<i64>(block_head + h) * K + column) * x[column];
        }
        total = warp_sum(total);
        if (lane == h) mine = total;
      }
      return mine;
    }
  }
};

// `partial` [blocks of heads, SPLIT, 2, 32], `counter` [blocks of heads] 0 between runs; neither if SPLIT is 1.
template <int HEADS, int K, int SPLIT, bool TRANSPOSED>
LANE_DEVICE void gate_proj(const float* x, const float* wb, const float* wa, const float* dt, const float* al,
                           float* beta, float* decay, float* partial, u32* counter) {
  __shared__ float sums[2][GATE_WARPS][GATE_HEADS];
  let_successor_start();
  GateColumns<HEADS, K, SPLIT, TRANSPOSED> b, a;
  b.start(wb);
  a.start(wa);
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = b.head;
  float dt_of = head < HEADS ? load_constant(dt + head) : 0.f, al_of = head < HEADS ? load_constant(al + head) : 0.f;
  wait_for_predecessor();
  sums[0][warp][lane] = b.sum(x);
  sums[1][warp][lane] = a.sum(x);
  __syncthreads();
  float br = 0.f, ar = 0.f;
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < GATE_WARPS; i++) br += sums[0][i][lane], ar += sums[1][i][lane];
  }
  if constexpr (SPLIT > 1) {
    float* all = partial + static_cast<i64>(blockIdx.x) * SPLIT * 2 * GATE_HEADS;
    if (warp == 0) {
      all[(blockIdx.y * 2) * GATE_HEADS + lane] = br;
      all[(blockIdx.y * 2 + 1) * GATE_HEADS + lane] = ar;
    }
    if (!is_last_block(counter + blockIdx.x, SPLIT)) return;
    br = ar = 0.f;
    if (warp == 0) {
#pragma unroll 8
      for (int i = 0; i < SPLIT; i++) br += all[i * 2 * GATE_HEADS + lane], ar += all[(i * 2 + 1) * GATE_HEADS + lane];
    }
  }
  if (warp != 0 || head >= HEADS) return;
  beta[head] = sigmoid(br);
  decay[head] = decay_of(ar, dt_of, al_of);
}

}  // namespace lane
