// Keeps what each step chose: tokens of steps that run one after the other without the host, in a ring.
#pragma once

#include "common.cuh"

namespace lane {

// ring[(steps mod CAPACITY)·count + i] = *ids[i]; then steps = steps + 1. One block of at least `count` threads.
template <int CAPACITY>
LANE_DEVICE void record(const int* const* ids, int count, int* ring, u32* steps) {
  let_successor_start();
  int i = static_cast<int>(threadIdx.x);
  const int* id = i < count ? ids[i] : nullptr;
  wait_for_predecessor();
  u32 step = *steps;
  if (i < count) ring[step % CAPACITY * static_cast<u32>(count) + static_cast<u32>(i)] = *id;
  __syncthreads();
  if (i == 0) *steps = step + 1;
}

}  // namespace lane
