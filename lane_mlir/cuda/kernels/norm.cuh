// launch.norm and launch.l2_norm, and the norm as what other kernels do with a row: norm_row.
//
//     s[r] = x[r],  x[r] + add[r],  or rms_norm(x[r], pre_w, pre_eps) + add[r]
//     y[r] = s[r]/√(mean(s[r]²) + eps)·w                          (RMS norm)
//     y[r] = (s[r] - mean(s[r]))/√(var(s[r]) + eps)·w + b         (layer norm, where `center`)
//
// A block takes a row, whose values stay in its registers: vector v of VEC columns is vector v div THREADS of thread
// v mod THREADS. The sums are taken in a fixed order. s, y as f32 (or in 16 bits where it lands in a cache) and y
// quantized are written where they are wanted.
//
// Limits: cols a multiple of `vec`, and of 32 if y is quantized, then with vec = 4.
#pragma once

#include "common.cuh"

namespace lane {

// N neighbouring columns.
template <int N>
struct alignas(4 * N) Values {
  float v[N];
};

struct NormShape {
  int cols = 0;
  int vec = 4;          // columns that are loaded at once: 4, or 1
  float eps = 0.f;
  bool center = false;  // a layer norm
  bool pre = false;     // x is normed before `add` is added
  float pre_eps = 0.f;
  int words = 0;        // int8 words of the quantized result; 0: none is written
  bool f32 = true;      // the result is written as values too
  Part part;            // where the rows of x lie
  Dst dst;              // where those of y land

  LANE_CONSTANT int vectors() const { return cols / vec; }
};

// What a norm reads and writes; null is what it has not.
template <typename T = float>
struct NormOperands {
  const float* x;
  const float* add;
  const float* pre_w;
  const float* w;
  const float* b;
  float* sum;
  T* y;
  const int* param;  // of `dst`
  i8* words;
  float* scales;
};

// The columns of a row that a thread holds.
template <NormShape S, int THREADS>
struct RowValues {
  static constexpr int COUNT = ceil_div(S.vectors(), THREADS);
  using Vector = Values<S.vec>;
  Vector value[COUNT];

  static LANE_DEVICE int vector(int i) { return i * THREADS + static_cast<int>(threadIdx.x); }
  static LANE_DEVICE bool inside(int i) { return S.vectors() % THREADS == 0 || vector(i) < S.vectors(); }

  // Of a row that other launches write.
  LANE_DEVICE void load(const float* row) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) value[i] = inside(i) ? reinterpret_cast<const Vector*>(row)[vector(i)] : Vector{};
  }

  LANE_DEVICE void store(float* row) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (inside(i)) reinterpret_cast<Vector*>(row)[vector(i)] = value[i];
    }
  }

  // Calls f(value, weight) on every value and the same column of the other.
  template <typename F>
  LANE_DEVICE void combine(const RowValues& other, F f) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
#pragma unroll
      for (int j = 0; j < S.vec; j++) value[i].v[j] = f(value[i].v[j], other.value[i].v[j]);
    }
  }

  // Σ f(value) over the row, on every thread.
  template <typename F>
  LANE_DEVICE float sum(F f, float* partial) const {
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
#pragma unroll
      for (int j = 0; j < S.vec; j++) total += inside(i) ? f(value[i].v[j]) : 0.f;
    }
    return block_sum<THREADS>(total, partial);
  }
};

// The weights of a norm that a thread needs, loaded before the wait; 1 (a bias 0) where there is none.
template <NormShape S, int THREADS>
struct NormWeights {
  using Row = RowValues<S, THREADS>;
  Row w, b, pre_w;

  template <typename T>
  LANE_DEVICE void load(const NormOperands<T>& o) {
    read(w, o.w, 1.f);
    if constexpr (S.center) read(b, o.b, 0.f);
    if constexpr (S.pre) read(pre_w, o.pre_w, 1.f);
  }

 private:
  static LANE_DEVICE void read(Row& row, const float* from, float otherwise) {
#pragma unroll
    for (int i = 0; i < Row::COUNT; i++) {
#pragma unroll
      for (int j = 0; j < S.vec; j++) row.value[i].v[j] = otherwise;
      if (from != nullptr && Row::inside(i)) {
        row.value[i] = reinterpret_cast<const typename Row::Vector*>(from)[Row::vector(i)];
      }
    }
  }
};

// 1/√(mean of squares + eps)
template <NormShape S, int THREADS>
LANE_DEVICE float inverse_rms(const RowValues<S, THREADS>& s, float eps, float* partial) {
  return 1.f / sqrtf(s.sum([](float x) { return x * x; }, partial) / S.cols + eps);
}

// Writes what a thread holds of row `row` of the result.
template <NormShape S, int THREADS, typename T>
LANE_DEVICE void store_norm(const RowValues<S, THREADS>& y, i64 row, const NormOperands<T>& o) {
  using Row = RowValues<S, THREADS>;
  if constexpr (S.f32) {
    i64 start = S.dst.start(o.param);
#pragma unroll
    for (int i = 0; i < Row::COUNT; i++) {
      if (!Row::inside(i)) continue;
      T* to = o.y + start + S.dst.at(row, S.cols, Row::vector(i) * S.vec);
      if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<typename Row::Vector*>(to) = y.value[i];
      } else {
#pragma unroll
        for (int j = 0; j < S.vec; j++) to[j] = from_float<T>(y.value[i].v[j]);
      }
    }
  }
  if constexpr (S.words != 0) {
    static_assert(S.cols % QBLOCK == 0 && S.vec == 4, "a quantized row is whole blocks");
#pragma unroll
    for (int i = 0; i < Row::COUNT; i++) {
      const float* v = y.value[i].v;
      bool inside = Row::inside(i);
      i64 quad = row * (S.cols / 4) + (inside ? Row::vector(i) : threadIdx.x % 8);
      quantize_quads<S.words>({v[0], v[1], v[2], v[3]}, quad, inside, o.words, o.scales);
    }
  }
}

// Norms a row whose x the threads hold. Called by all THREADS threads of a block; `partial` is shared memory for one
// value a warp.
template <NormShape S, int THREADS, typename T>
LANE_DEVICE void norm_row(RowValues<S, THREADS> s, i64 row, const NormWeights<S, THREADS>& weights,
                          const NormOperands<T>& o, float* partial) {
  if (o.add != nullptr) {
    RowValues<S, THREADS> added;
    added.load(o.add + row * S.cols);
    if constexpr (S.pre) {
      float factor = inverse_rms(s, S.pre_eps, partial);
      s.combine(weights.pre_w, [=](float x, float w) { return x * factor * w; });
    }
    s.combine(added, [](float x, float a) { return x + a; });
  }
  if (o.sum != nullptr) s.store(o.sum + row * S.cols);
  if constexpr (S.center) {
    float mean = s.sum([](float x) { return x; }, partial) / S.cols;
    float variance = s.sum([=](float x) { return (x - mean) * (x - mean); }, partial) / S.cols;
    float factor = 1.f / sqrtf(variance + S.eps);
    s.combine(weights.w, [=](float x, float w) { return (x - mean) * factor * w; });
    s.combine(weights.b, [](float x, float b) { return x + b; });
  } else {
    float factor = inverse_rms(s, S.eps, partial);
    s.combine(weights.w, [=](float x, float w) { return x * factor * w; });
  }
  store_norm(s, row, o);
}

// Norms row `row` of o.x; as above.
template <NormShape S, int THREADS, typename T>
LANE_DEVICE void norm_row_of(i64 row, const NormWeights<S, THREADS>& weights, const NormOperands<T>& o,
                             float* partial) {
  RowValues<S, THREADS> x;
  x.load(o.x + S.part.at(row, S.cols, 0));
  norm_row(x, row, weights, o, partial);
}

// launch.norm: one block a row.
template <NormShape S, int THREADS, typename T>
LANE_DEVICE void norm(const NormOperands<T>& o) {
  __shared__ float partial[WARP];
  let_successor_start();
  NormWeights<S, THREADS> weights;
  weights.load(o);
  wait_for_predecessor();
  norm_row_of(static_cast<i64>(blockIdx.x), weights, o, partial);
}

// launch.l2_norm: y[r] = x[r]/max(√(Σ x[r]²), eps), one block a row.
template <NormShape S, int THREADS>
LANE_DEVICE void l2_norm(const float* x, float* y) {
  __shared__ float partial[WARP];
  let_successor_start();
  wait_for_predecessor();
  i64 row = blockIdx.x;
  RowValues<S, THREADS> values;
  values.load(x + row * S.cols);
  float length = fmaxf(sqrtf(values.sum([](float v) { return v * v; }, partial)), S.eps);
  values.combine(values, [=](float v, float) { return v / length; });
  values.store(y + row * S.cols);
}

}  // namespace lane
