// Kernels that check and measure others; no step has one.
#pragma once

#include "common.cuh"

namespace lane {

// Memory to be copied: `vectors` times 16 bytes.
struct Region {
  uint4* to;
  const uint4* from;
  i64 vectors;
};

LANE_DEVICE u64 nanoseconds() {
#ifdef __CUDA_ARCH__
  u64 time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
#else
  return 0;
#endif
}

LANE_DEVICE void wait_nanoseconds(i64 wanted) {
#ifdef __CUDA_ARCH__
  u64 start = nanoseconds();
  while (nanoseconds() - start < static_cast<u64>(wanted)) __nanosleep(200);
#endif
}

// Lets its successor start at once, and only after some time writes what that one reads: by copying regions. A kernel
// that reads or writes any of them before it has waited gets, or leaves, something else. Few blocks, so that the
// successor finds room.
LANE_DEVICE void slow_copy(const Region* regions, int count, i64 delay) {
  let_successor_start();
  wait_for_predecessor();
  wait_nanoseconds(delay);
  i64 first = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x, step = static_cast<i64>(gridDim.x) * blockDim.x;
  for (int r = 0; r < count; r++) {
    for (i64 i = first; i < regions[r].vectors; i += step) regions[r].to[i] = regions[r].from[i];
  }
}

// Reads `vectors` times 16 bytes, each once, in steps of the whole grid; writes nothing for any data that there is.
template <int DEPTH>
LANE_DEVICE void read_all(const uint4* memory, i64 vectors, u32* sink) {
  i64 first = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x, step = static_cast<i64>(gridDim.x) * blockDim.x;
  u32 sum = 0;
  i64 i = first;
  for (; i + (DEPTH - 1) * step < vectors; i += DEPTH * step) {
    uint4 loaded[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) loaded[d] = load_weights(memory + i + d * step);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) sum += loaded[d].x ^ loaded[d].y ^ loaded[d].z ^ loaded[d].w;
  }
  for (; i < vectors; i += step) {
    uint4 v = load_weights(memory + i);
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

}  // namespace lane
