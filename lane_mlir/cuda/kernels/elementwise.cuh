// launch.binary, swiglu, unary and scale: y[i] = f(a[i], b[i]) over a buffer of n values.
//
// A thread takes `vec` neighbouring values. Of b, what belongs to value i is b[i], b[i mod row] or b[i div column]. The
// result is written as values, quantized, or both.
//
// Limits: n a multiple of `vec`, and of 32 with vec = 4 if the result is quantized. In place (out = a) is fine.
#pragma once

#include "common.cuh"

namespace lane {

struct ElementwiseShape {
  i64 n = 0;
  int vec = 4;     // values of a thread: 4, or 1
  int row = 0;     // values of b, if it is one row for all
  int column = 0;  // values that share one of b
  bool f32 = true;
  int words = 0;   // int8 words of the quantized result; 0: none is written

  // Whether neighbouring values have neighbouring ones of b.
  LANE_CONSTANT bool along() const { return column == 0 && row % vec == 0; }
};

// Value i of b on.
template <ElementwiseShape S>
LANE_DEVICE void load_second(const float* b, i64 i, float* v) {
  if constexpr (S.along() && S.vec == 4) {
    float4 quad = *reinterpret_cast<const float4*>(b + (S.row != 0 ? i % S.row : i));
    v[0] = quad.x, v[1] = quad.y, v[2] = quad.z, v[3] = quad.w;
  } else {
#pragma unroll
    for (int j = 0; j < S.vec; j++) v[j] = b[S.row != 0 ? (i + j) % S.row : S.column != 0 ? (i + j) / S.column : i + j];
  }
}

template <ElementwiseShape S, typename F>
LANE_DEVICE void elementwise(const float* a, const float* b, F f, float* y, i8* words, float* scales) {
  let_successor_start();
  wait_for_predecessor();
  i64 i = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * S.vec;
  bool active = i < S.n;
  float x[4] = {}, other[4] = {};
  if (active) {
    if constexpr (S.vec == 4) {
      float4 quad = *reinterpret_cast<const float4*>(a + i);
      x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
    } else {
      x[0] = a[i];
    }
    if (b != nullptr) load_second<S>(b, i, other);
#pragma unroll
    for (int j = 0; j < S.vec; j++) x[j] = f(x[j], other[j]);
    if constexpr (S.f32) {
      if constexpr (S.vec == 4) {
        *reinterpret_cast<float4*>(y + i) = {x[0], x[1], x[2], x[3]};
      } else {
        y[i] = x[0];
      }
    }
  }
  if constexpr (S.words != 0) {
    static_assert(S.n % QBLOCK == 0 && S.vec == 4, "a quantized result is whole blocks");
    quantize_quads<S.words>({x[0], x[1], x[2], x[3]}, i / 4, active, words, scales);
  }
}

// launch.binary: act(a) ∘ b; launch.swiglu is silu(a)·b.
template <ElementwiseShape S, Activation ACT, BinaryOperator OP>
LANE_DEVICE void binary(const float* a, const float* b, float* y, i8* words, float* scales) {
  elementwise<S>(a, b, [](float x, float other) { return combine<OP>(activate<ACT>(x), other); }, y, words, scales);
}

// launch.unary: act(x).
template <ElementwiseShape S, Activation ACT>
LANE_DEVICE void unary(const float* x, float* y) {
  elementwise<S>(x, nullptr, [](float v, float) { return activate<ACT>(v); }, y, nullptr, nullptr);
}

// launch.scale: factor·x.
template <ElementwiseShape S>
LANE_DEVICE void scale(const float* x, float factor, float* y) {
  elementwise<S>(x, nullptr, [=](float v, float) { return factor * v; }, y, nullptr, nullptr);
}

}  // namespace lane
