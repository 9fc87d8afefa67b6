// launch.quant: the quantized form of a buffer from its plain one.
//
// x [n] f32, n a multiple of 32. A lane takes 4 values, 8 lanes a block of 32; threads over all of them, any grid.
#pragma once

#include "common.cuh"

namespace lane {

template <int WORDS>
LANE_DEVICE void quant(const float* x, i64 n, i8* words, float* scales) {
  let_successor_start();
  wait_for_predecessor();
  i64 quad = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  bool active = 4 * quad < n;
  float4 value = active ? reinterpret_cast<const float4*>(x)[quad] : float4{0.f, 0.f, 0.f, 0.f};
  quantize_quads<WORDS>(value, quad, active, words, scales);
}

}  // namespace lane
