// Products of 8 to 16 rows by weights in block formats, on the tensor cores' int8, at the speed at which the weights come
// from memory: launch.gemv, gemm_parts and gemv_glu of as many sequences, or rows of a chunk.
//
//     y[r, j] = Σ over blocks b of 32 columns: dx[r, b]·(dw[j, b]·Σ_i x[r, i]·w[j, i] + mw[j, b]·Σ_i x[r, i])
//
// with the inner sums exact in int32. The rows of the weight are the rows of the tensor cores' tiles (16), the rows of the
// activation their columns (8 or twice 8). A block computes `tiles` tiles of 16 rows of the weight; in steps of 256 columns
// each of its 8 warps multiplies one block of 32, and the warps' sums are added at the end.
//
// Weights, as they are stored, and the activation are copied asynchronously into a ring of `stages` steps in shared memory,
// so that all but one of them are on their way; scales of the block's rows are copied there at once. The first weights and
// all scales come before wait_for_predecessor. Rows of 128 bytes and more are swizzled in pieces of 16, so that neither
// copies nor loads of matrices collide.
//
// Of a gated pair, the first half of the tiles are of the gate and the others the same rows of the up weight.
//
// Limits: k a multiple of 256; formats whose scales change only after 32 values, of 4 bits or 8.
#pragma once

#include "gemm.cuh"

namespace lane {

struct GemmRowsShape {
  int k = 0;           // columns
  int m = 16;          // rows of the activation
  int words = 1;       // int8 words of an activation
  int tiles = 2;       // of 16 rows of weights
  int stages = 4;      // steps in shared memory
  bool quant = false;  // the result is (also) written quantized
  bool f32 = true;     // the result is (also) written as f32
  bool glu = false;    // the weight is a gate and an up weight

  LANE_CONSTANT int weights() const { return 16 * tiles; }                      // rows of weights of a block
  LANE_CONSTANT int columns() const { return glu ? 8 * tiles : 16 * tiles; }    // of the result
};

constexpr int GEMM_ROWS_WARPS = 8, GEMM_ROWS_THREADS = GEMM_ROWS_WARPS * WARP;
constexpr int GEMM_ROWS_UNITS = 8;  // blocks of 32 columns of a step, one a warp
constexpr int GEMM_ROWS = 16;       // rows of the activation in shared memory

// ---- Formats: planes of codes come first, 16 bytes a unit; the others are scales. ----

// Scale and minimum of unit `unit` of a row, whose fields begin at `row[i]`, of plane i.
template <typename F>
struct RowScales;
template <>
struct RowScales<Q8_0> {
  static constexpr bool MIN = false;
  static LANE_DEVICE float2 at(const u8* const (&row)[3], int unit) {
    return {to_float(reinterpret_cast<const f16*>(row[2])[unit]), 0.f};
  }
};
template <>
struct RowScales<Q4_0> {
  static constexpr bool MIN = true;
  static LANE_DEVICE float2 at(const u8* const (&row)[2], int unit) {
    float d = to_float(reinterpret_cast<const f16*>(row[1])[unit]);
    return {d, -8.f * d};
  }
};
template <>
struct RowScales<Q4_1> {
  static constexpr bool MIN = true;
  static LANE_DEVICE float2 at(const u8* const (&row)[2], int unit) {
    return halves(reinterpret_cast<const u32*>(row[1])[unit]);
  }
};
template <>
struct RowScales<Q4_K> {
  static constexpr bool MIN = true;
  static LANE_DEVICE float2 at(const u8* const (&row)[3], int unit) {
    float2 scale_min = halves(reinterpret_cast<const u32*>(row[2])[unit / 8]);
    u32 factors = reinterpret_cast<const u16*>(row[1])[unit];
    return {scale_min.x * static_cast<float>(factors & 0xff), -scale_min.y * static_cast<float>(factors >> 8)};
  }
};

template <typename F>
LANE_CONSTANT int code_planes() {
  return F::PLANES[1].bytes == 16 ? 2 : 1;
}

// ---- Shared memory: the scales of the block's rows, then the ring; at the end the warps' sums in the ring's place. ----

template <typename F, GemmRowsShape S>
struct GemmRowsShared {
  static constexpr int CODES = code_planes<F>(), ROWS = S.weights(), K = S.k;

  // Bytes of a row of plane i, and from one row to the next in shared memory: an odd multiple of 16, or of 4, bytes, so that
  // the same unit of 8 rows lies in different banks.
  static LANE_CONSTANT int row_bytes(int plane) { return K / F::PLANES[plane].values * F::PLANES[plane].bytes; }
  static LANE_CONSTANT int piece(int plane) { return row_bytes(plane) % 16 == 0 ? 16 : 4; }
  static LANE_CONSTANT int pitch(int plane) { return (row_bytes(plane) / piece(plane) | 1) * piece(plane); }
  static LANE_CONSTANT int scales_at(int plane) {
    int at = 0;
    for (int i = CODES; i < plane; i++) at += (ROWS * pitch(i) + 15) / 16 * 16;
    return at;
  }

  static constexpr int SCALES = scales_at(F::COUNT);
  static constexpr int WEIGHT = CODES * ROWS * 128, INPUT = GEMM_ROWS * 256 * S.words;
  static constexpr int INPUT_SCALES = 4 * GEMM_ROWS * GEMM_ROWS_UNITS * S.words;
  static constexpr int STAGE = WEIGHT + INPUT + INPUT_SCALES;
  static constexpr int SUM_PITCH = ROWS + 4;  // floats from the sums of one row of the activation to those of the next

  static LANE_DEVICE u8* base() { return reinterpret_cast<u8*>(shared_memory); }
  static LANE_DEVICE u8* scales(int plane, int row) { return base() + scales_at(plane) + row * pitch(plane); }
  static LANE_DEVICE u8* stage(int slot) { return base() + SCALES + slot * STAGE; }
  // 16 bytes of a row: of the codes of a unit, of half a block of a word of the activation.
  static LANE_DEVICE u8* weight(u8* stage, int code, int row, int unit) {
    return stage + code * ROWS * 128 + row * 128 + (unit ^ row % 8) * 16;
  }
  static LANE_DEVICE u8* input(u8* stage, int row, int chunk) {
    return stage + WEIGHT + row * 256 * S.words + (chunk ^ row % 8) * 16;
  }
  static LANE_DEVICE float* input_scale(u8* stage, int unit, int row) {
    return reinterpret_cast<float*>(stage + WEIGHT + INPUT) + unit * GEMM_ROWS + row;
  }
  static LANE_DEVICE float* sum(int warp, int row) {
    return reinterpret_cast<float*>(base()) + (warp * GEMM_ROWS + row) * SUM_PITCH;
  }
};

// ---- What a thread copies. ----

template <typename F, GemmRowsShape S>
struct GemmRowsCopies {
  using Shared = GemmRowsShared<F, S>;
  static constexpr int UNITS = S.k / QBLOCK, STEPS = UNITS / GEMM_ROWS_UNITS;
  static constexpr int RUNS = Shared::ROWS * GEMM_ROWS_UNITS / GEMM_ROWS_THREADS > 0
                                  ? Shared::ROWS * GEMM_ROWS_UNITS / GEMM_ROWS_THREADS
                                  : 1;
  static constexpr int SCALE_COUNT = GEMM_ROWS * GEMM_ROWS_UNITS * S.words;

  const u8* weight[Shared::CODES][RUNS];
  const i8* words;
  const float* scales;

  static LANE_DEVICE int unit() { return threadIdx.x % GEMM_ROWS_UNITS; }
  static LANE_DEVICE int row(int run) {
    return (run * GEMM_ROWS_THREADS + static_cast<int>(threadIdx.x)) / GEMM_ROWS_UNITS;
  }
  static LANE_DEVICE bool has_weights() { return row(0) < Shared::ROWS; }
  // Of the activation: row, and which pieces of 16 bytes or scales of it.
  static LANE_DEVICE int input_row() { return threadIdx.x / 16; }
  static LANE_DEVICE int chunk(int run) { return run * 16 + threadIdx.x % 16; }
  static LANE_DEVICE int scale_row() { return threadIdx.x / (GEMM_ROWS_UNITS * S.words); }
  static LANE_DEVICE int scale() { return threadIdx.x % (GEMM_ROWS_UNITS * S.words); }

  // Rows `first` on of a weight of n rows, and of its pair.
  LANE_DEVICE void start(const GemvInput& x, const Planes<F>& planes, const Planes<F>& pair, int first, int n) {
#pragma unroll
    for (int code = 0; code < Shared::CODES; code++) {
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        int at = row(run);
        bool second = S.glu && at >= S.columns();
        i64 from = min(first + (second ? at - S.columns() : at), n - 1);
        weight[code][run] = (second ? pair.plane[code] : planes.plane[code]) + (from * UNITS + unit()) * 16;
      }
    }
    words = x.words + (static_cast<i64>(min(input_row(), S.m - 1)) * UNITS * 2 * S.words + threadIdx.x % 16) * 16;
    scales = x.scales + static_cast<i64>(min(scale_row(), S.m - 1)) * UNITS * S.words + scale();
  }

  LANE_DEVICE void copy_weights(int step, u8* stage) const {
    if (!has_weights()) return;
#pragma unroll
    for (int code = 0; code < Shared::CODES; code++) {
#pragma unroll
      for (int run = 0; run < RUNS; run++) {
        copy_async(Shared::weight(stage, code, row(run), unit()), weight[code][run] + step * (GEMM_ROWS_UNITS * 16));
      }
    }
  }

  LANE_DEVICE const i8* words_of(int step, int run) const {
    return words + (step * GEMM_ROWS_UNITS * S.words * 2 + run * 16) * 16;
  }
  LANE_DEVICE const float* scale_of(int step) const { return scales + step * GEMM_ROWS_UNITS * S.words; }

  LANE_DEVICE void copy_input(int step, u8* stage) const {
#pragma unroll
    for (int run = 0; run < S.words; run++) {
      copy_async(Shared::input(stage, input_row(), chunk(run)), words_of(step, run));
    }
    if (threadIdx.x < SCALE_COUNT) copy_async_word(Shared::input_scale(stage, scale(), scale_row()), scale_of(step));
  }

  // The activation of the first steps, which is there when the threads come to a barrier.
  LANE_DEVICE void bring_input() const {
    constexpr int COUNT = min_of(S.stages - 1, STEPS);
    uint4 piece[COUNT][S.words];
    float scale_value[COUNT];
#pragma unroll
    for (int step = 0; step < COUNT; step++) {
#pragma unroll
      for (int run = 0; run < S.words; run++) piece[step][run] = *reinterpret_cast<const uint4*>(words_of(step, run));
      scale_value[step] = threadIdx.x < SCALE_COUNT ? *scale_of(step) : 0.f;
    }
#pragma unroll
    for (int step = 0; step < COUNT; step++) {
      u8* stage = Shared::stage(step);
#pragma unroll
      for (int run = 0; run < S.words; run++) {
        *reinterpret_cast<uint4*>(Shared::input(stage, input_row(), chunk(run))) = piece[step][run];
      }
      if (threadIdx.x < SCALE_COUNT) *Shared::input_scale(stage, scale(), scale_row()) = scale_value[step];
    }
  }

  // All scales of the rows.
  static LANE_DEVICE void copy_scales(const Planes<F>& planes, const Planes<F>& pair, int first, int n) {
#pragma unroll
    for (int plane = Shared::CODES; plane < F::COUNT; plane++) {
      int bytes = Shared::row_bytes(plane), each = Shared::piece(plane), pieces = bytes / each;
      for (int at = threadIdx.x; at < Shared::ROWS * pieces; at += GEMM_ROWS_THREADS) {
        int row = at / pieces, begin = at % pieces * each;
        bool second = S.glu && row >= S.columns();
        i64 from = min(first + (second ? row - S.columns() : row), n - 1);
        const u8* source = (second ? pair.plane[plane] : planes.plane[plane]) + from * bytes + begin;
        if (each == 16) {
          copy_async(Shared::scales(plane, row) + begin, source);
        } else {
          copy_async_word(Shared::scales(plane, row) + begin, source);
        }
      }
    }
  }
};

// ---- The sums of a warp: [tile][8 rows of the activation][4 as mma.cuh says]. ----

template <typename F, GemmRowsShape S>
struct GemmRowsSums {
  using Shared = GemmRowsShared<F, S>;
  static constexpr int HALVES = ceil_div(S.m, 8);  // of the rows of the activation
  static constexpr bool MIN = RowScales<F>::MIN;

  float value[S.tiles][HALVES][4];

  // Matrix `lane/8` of four: rows 0 to 7 and 8 to 15, or those of two tiles.
  static LANE_DEVICE int lane() { return threadIdx.x % WARP; }

  // The codes of a tile as the first operand.
  LANE_DEVICE void load_codes(u8* stage, int unit, int tile, u32 (&w)[4]) const {
    int row = tile * 16 + lane() / 8 % 2 * 8 + lane() % 8;
    if constexpr (Shared::CODES == 2) {
      load_matrices(w, Shared::weight(stage, lane() / 16, row, unit));
    } else {
      // The same matrices twice: nibbles of the first and of the last 16 values.
      u32 field[4];
      load_matrices(field, Shared::weight(stage, 0, row, unit));
      w[0] = field[0] & 0x0f0f0f0fu, w[1] = field[1] & 0x0f0f0f0fu;
      w[2] = field[2] >> 4 & 0x0f0f0f0fu, w[3] = field[3] >> 4 & 0x0f0f0f0fu;
    }
  }

  LANE_DEVICE void add_step(int step, u8* stage) {
    constexpr int BIAS[4] = {SUM_BIAS_BITS, SUM_BIAS_BITS, SUM_BIAS_BITS, SUM_BIAS_BITS};
    int unit = threadIdx.x / WARP, g = lane() / 4, t = lane() % 4;
    u32 x[S.words][HALVES][2];
    float2 dx[S.words][HALVES], sum_x[HALVES];  // of rows 2t and 2t + 1 of each 8; with the sums of their values
#pragma unroll
    for (int half = 0; half < HALVES; half++) sum_x[half] = {0.f, 0.f};
#pragma unroll
    for (int word = 0; word < S.words; word++) {
      u32 r[4];
      int chunk = (unit * S.words + word) * 2 + lane() / 8 % 2;
      load_matrices(r, Shared::input(stage, lane() / 16 * 8 + lane() % 8, chunk));
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        x[word][half][0] = r[2 * half], x[word][half][1] = r[2 * half + 1];
        const float* scale = Shared::input_scale(stage, unit * S.words + word, half * 8 + 2 * t);
        dx[word][half] = *reinterpret_cast<const float2*>(scale);
        if constexpr (MIN) {
          constexpr u32 ONES[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
          int sums[4];
          mma_int8_k32(sums, ONES, x[word][half], BIAS);
          sum_x[half].x = fmaf(__int_as_float(sums[0]) - SUM_BIAS, dx[word][half].x, sum_x[half].x);
          sum_x[half].y = fmaf(__int_as_float(sums[1]) - SUM_BIAS, dx[word][half].y, sum_x[half].y);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < S.tiles; tile++) {
      u32 w[4];
      load_codes(stage, unit, tile, w);
      float2 scale[2];  // of rows g and g + 8
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const u8* row[F::COUNT] = {};
#pragma unroll
        for (int plane = Shared::CODES; plane < F::COUNT; plane++) row[plane] = Shared::scales(plane, tile * 16 + i * 8 + g);
        scale[i] = RowScales<F>::at(row, step * GEMM_ROWS_UNITS + unit);
      }
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        float(&sum)[4] = value[tile][half];
#pragma unroll
        for (int word = 0; word < S.words; word++) {
          int exact[4];
          mma_int8_k32(exact, w, x[word][half], BIAS);
          float2 d = dx[word][half];
          sum[0] = fmaf(__int_as_float(exact[0]) - SUM_BIAS, d.x * scale[0].x, sum[0]);
          sum[1] = fmaf(__int_as_float(exact[1]) - SUM_BIAS, d.y * scale[0].x, sum[1]);
          sum[2] = fmaf(__int_as_float(exact[2]) - SUM_BIAS, d.x * scale[1].x, sum[2]);
          sum[3] = fmaf(__int_as_float(exact[3]) - SUM_BIAS, d.y * scale[1].x, sum[3]);
        }
        if constexpr (MIN) {
          sum[0] = fmaf(sum_x[half].x, scale[0].y, sum[0]);
          sum[1] = fmaf(sum_x[half].y, scale[0].y, sum[1]);
          sum[2] = fmaf(sum_x[half].x, scale[1].y, sum[2]);
          sum[3] = fmaf(sum_x[half].y, scale[1].y, sum[3]);
        }
      }
    }
  }

  // All warps' sums into shared memory, [warp][row of the activation][row of the weight].
  LANE_DEVICE void leave() const {
    int warp = threadIdx.x / WARP, g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int tile = 0; tile < S.tiles; tile++) {
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          Shared::sum(warp, half * 8 + 2 * t + i % 2)[tile * 16 + i / 2 * 8 + g] = value[tile][half][i];
        }
      }
    }
  }
  static LANE_DEVICE float total(int row, int weight) {
    float total = 0.f;
#pragma unroll
    for (int warp = 0; warp < GEMM_ROWS_WARPS; warp++) total += Shared::sum(warp, row)[weight];
    return total;
  }
};

// The products of the block's rows of weights with all rows of the activation; then all warps' sums are in shared memory.
template <typename F, GemmRowsShape S>
LANE_DEVICE void multiply_ring(const GemvInput& x, const Planes<F>& planes, const Planes<F>& pair, int first, int n) {
  using Copies = GemmRowsCopies<F, S>;
  static_assert(S.k % (GEMM_ROWS_UNITS * QBLOCK) == 0, "columns are whole steps");
  static_assert(S.m <= GEMM_ROWS && S.stages > 1, "rows of the activation are in one tile, steps overlap");
  Copies copies;
  copies.start(x, planes, pair, first, n);
  Copies::copy_scales(planes, pair, first, n);
#pragma unroll
  for (int step = 0; step < S.stages - 1; step++) {
    if (step < Copies::STEPS) copies.copy_weights(step, GemmRowsShared<F, S>::stage(step));
    end_copy_group();
  }
  wait_for_predecessor();
  copies.bring_input();
  GemmRowsSums<F, S> sums;
#pragma unroll
  for (int i = 0; i < S.tiles * sums.HALVES * 4; i++) sums.value[i / 4 / sums.HALVES][i / 4 % sums.HALVES][i % 4] = 0.f;
  int slot = 0, freed = S.stages - 1;  // where the step is, and the one before it was
#pragma unroll 1
  for (int step = 0; step < Copies::STEPS; step++) {
    wait_for_copies<S.stages - 2>();
    __syncthreads();  // the step is there, and the one before it is no longer read
    int next = step + S.stages - 1;
    if (next < Copies::STEPS) {
      u8* stage = GemmRowsShared<F, S>::stage(freed);
      copies.copy_weights(next, stage);
      copies.copy_input(next, stage);
    }
    end_copy_group();
    sums.add_step(step, GemmRowsShared<F, S>::stage(slot));
    freed = slot;
    slot = slot + 1 < S.stages ? slot + 1 : 0;
  }
  __syncthreads();
  sums.leave();
  __syncthreads();
}

// A warp takes a row, and its lanes 32 columns of it.
template <GemmRowsShape S, typename Value, typename Store>
LANE_DEVICE void write_block(int first, int n, const QuantizedResult& quantized, Value value, Store store) {
  constexpr int COLUMNS = S.columns(), RUNS = ceil_div(COLUMNS, WARP);
  static_assert(!S.quant || COLUMNS % QBLOCK == 0, "a block of threads owns whole blocks of outputs");
  int lane = threadIdx.x % WARP;
  for (int at = threadIdx.x / WARP; at < S.m * RUNS; at += GEMM_ROWS_WARPS) {
    int row = at / RUNS, column = at % RUNS * WARP + lane;
    bool inside = column < COLUMNS && first + column < n;
    float result = inside ? value(row, column) : 0.f;
    if constexpr (S.f32) {
      if (inside) store(row, first + column, result);
    }
    if constexpr (S.quant) {
      i64 block = (static_cast<i64>(row) * n + first + at % RUNS * WARP) / QBLOCK;
      if (first + at % RUNS * WARP < n) quantize_warp<S.words>(result, block, quantized.words, quantized.scales);
    }
  }
}

// ---- launch.gemv and launch.gemm_parts. ----

template <GemmRowsShape S, typename... Products>
LANE_DEVICE void gemm_rows(const GemvInput& x, const QuantizedResult& quantized, const Products&... products) {
  using F = FormatOf<Products...>;
  let_successor_start();
  Chosen<S.columns(), Products...> chosen(blockIdx.x, products...);
  Planes<F> planes = chosen.template planes<F, S.k>();
  multiply_ring<F, S>(x, planes, planes, chosen.first, chosen.n);
  chosen.land();
  auto value = [&](int row, int column) {
    return chosen.affine.column(chosen.first + column, chosen.n)(GemmRowsSums<F, S>::total(row, column));
  };
  write_block<S>(chosen.first, chosen.n, quantized, value, [&](int r, int c, float v) { chosen.store(r, c, v); });
}

// ---- launch.gemv_glu. ----

template <typename F, GemmRowsShape S, int N, Activation ACT>
LANE_DEVICE void gemm_rows_glu(const GemvInput& x, const u8* gate_weight, const u8* up_weight, const Affine& gate_affine,
                               const Affine& up_affine, float* y, const QuantizedResult& quantized) {
  let_successor_start();
  int first = blockIdx.x * S.columns();
  multiply_ring<F, S>(x, planes_of<F, N, S.k>(gate_weight), planes_of<F, N, S.k>(up_weight), first, N);
  auto value = [&](int row, int column) {
    float gate = GemmRowsSums<F, S>::total(row, column), up = GemmRowsSums<F, S>::total(row, S.columns() + column);
    gate = gate_affine.column(first + column, N)(gate);
    up = up_affine.column(first + column, N)(up);
    return activate<ACT>(gate) * up;
  };
  write_block<S>(first, N, quantized, value, [&](int r, int c, float v) { y[static_cast<i64>(r) * N + c] = v; });
}

}  // namespace lane
