// Products of many rows by weights in block formats, on the tensor cores' int8: launch.gemv, gemm_parts and gemv_glu of
// more than 16 rows under int8 and two_pass_int8.
//
//     y[r, j] = Σ over blocks b of 32 columns: dx[r, b]·(dw[j, b]·Σ_i x[r, i]·w[j, i] + mw[j, b]·Σ_i x[r, i])
//
// with the inner sums exact in int32 (formats that change their scale after 16 values have two such terms a block).
//
// A block computes a tile of `rows` rows by 128 rows of the weight, 4 blocks of columns at a step; a warp of it 32 by 64.
// The weights of a step come in registers, are decoded to int8 in shared memory by all threads, and wait there with their
// scales; the activation's words are copied there asynchronously. Two steps are there at once: one being multiplied, one
// arriving. Rows of 128 bytes are swizzled in pieces of 16, so that neither copies nor loads of matrices collide.
//
// Of a gated pair, a warp's 64 rows of weights are 32 of the gate and 32 of the up weight, so that the same thread has
// both sums of an output; the tile is then 64 columns wide.
#pragma once

#include "gemv.cuh"
#include "mma.cuh"

namespace lane {

struct GemmShape {
  int k = 0;           // columns
  int m = 0;           // rows of the activation
  int words = 1;       // int8 words of an activation
  int rows = 128;      // of a tile: 32, 64 or 128
  bool quant = false;  // the result is (also) written quantized
  bool f32 = true;     // the result is (also) written as f32
  bool glu = false;    // the weight is a gate and an up weight

  LANE_CONSTANT int threads() const { return rows * 2; }
  LANE_CONSTANT int columns() const { return glu ? 64 : 128; }  // of the result's tile
};

constexpr int GEMM_WEIGHTS = 128;                        // rows of weights of a tile
constexpr int GEMM_BLOCKS = 4;                           // blocks of 32 columns of a step
constexpr int GEMM_STEP_BYTES = GEMM_BLOCKS * QBLOCK;    // of a row of words in shared memory
constexpr int GEMM_WARP_ROWS = 32, GEMM_WARP_WEIGHTS = 64;

// ---- What a format's units are in a tile: words less their offset, one or two scales, one or two minima. ----

// The words of four codes minus an offset, byte by byte.
template <int OFFSET>
LANE_DEVICE u32 less(int word) {
  if constexpr (OFFSET == 0) return static_cast<u32>(word);
  return ((static_cast<u32>(word) | 0x80808080u) - 0x01010101u * OFFSET) ^ 0x80808080u;
}

template <typename UNIT>
struct TileUnit;

template <int OFFSET>
struct TileUnit<Scaled<OFFSET>> {
  static constexpr bool HALVES = false, MIN = false;
  static LANE_DEVICE u32 word(const Scaled<OFFSET>& u, int i) { return less<OFFSET>(u.q[i]); }
  static LANE_DEVICE float scale(const Scaled<OFFSET>& u, int) { return u.d; }
  static LANE_DEVICE float minimum(const Scaled<OFFSET>&, int) { return 0.f; }
};
template <>
struct TileUnit<ScaledMin> {
  static constexpr bool HALVES = false, MIN = true;
  static LANE_DEVICE u32 word(const ScaledMin& u, int i) { return static_cast<u32>(u.q[i]); }
  static LANE_DEVICE float scale(const ScaledMin& u, int) { return u.d; }
  static LANE_DEVICE float minimum(const ScaledMin& u, int) { return u.m; }
};
template <int OFFSET>
struct TileUnit<ScaledHalves<OFFSET>> {
  static constexpr bool HALVES = true, MIN = false;
  static LANE_DEVICE u32 word(const ScaledHalves<OFFSET>& u, int i) { return less<OFFSET>(u.q[i]); }
  static LANE_DEVICE float scale(const ScaledHalves<OFFSET>& u, int half) { return u.d[half]; }
  static LANE_DEVICE float minimum(const ScaledHalves<OFFSET>&, int) { return 0.f; }
};
template <>
struct TileUnit<ScaledMinHalves> {
  static constexpr bool HALVES = true, MIN = true;
  static LANE_DEVICE u32 word(const ScaledMinHalves& u, int i) { return static_cast<u32>(u.q[i]); }
  static LANE_DEVICE float scale(const ScaledMinHalves& u, int half) { return u.d[half]; }
  static LANE_DEVICE float minimum(const ScaledMinHalves& u, int half) { return u.m[half]; }
};

template <typename F>
using TileUnitOf = TileUnit<decltype(F::decode(typename F::Block{}))>;

// ---- Shared memory of a block. ----

// For each of two steps: the words of the activation and of the weights, in rows of 128 bytes; the scales of both, and
// what a minimum is multiplied by, [part][row] with a part a block of columns or half of one.
template <GemmShape S, bool HALVES, bool MIN>
struct GemmShared {
  static constexpr int PARTS = HALVES ? 2 * GEMM_BLOCKS : GEMM_BLOCKS;
  static constexpr int INPUT = S.words * S.rows * GEMM_STEP_BYTES, WEIGHT = GEMM_WEIGHTS * GEMM_STEP_BYTES;
  static constexpr int INPUT_SCALES = 4 * S.words * GEMM_BLOCKS * S.rows;
  static constexpr int INPUT_SUMS = MIN ? 4 * S.words * PARTS * S.rows : 0;
  static constexpr int WEIGHT_SCALES = 4 * PARTS * GEMM_WEIGHTS, WEIGHT_MINIMA = MIN ? WEIGHT_SCALES : 0;
  static constexpr int STEP = INPUT + WEIGHT + INPUT_SCALES + INPUT_SUMS + WEIGHT_SCALES + WEIGHT_MINIMA;
  static constexpr int BYTES = 2 * STEP;

  u8* base;

  LANE_DEVICE GemmShared(int step) : base(reinterpret_cast<u8*>(shared_memory) + step % 2 * STEP) {}

  // The 16 bytes `chunk` of a row.
  static LANE_DEVICE int swizzled(int row, int chunk) { return row * GEMM_STEP_BYTES + ((chunk ^ row) % 8) * 16; }
  LANE_DEVICE u8* input(int word, int row, int chunk) const {
    return base + word * S.rows * GEMM_STEP_BYTES + swizzled(row, chunk);
  }
  LANE_DEVICE u8* weight(int row, int chunk) const { return base + INPUT + swizzled(row, chunk); }
  LANE_DEVICE float* input_scale(int word, int block, int row) const {
    return reinterpret_cast<float*>(base + INPUT + WEIGHT) + (word * GEMM_BLOCKS + block) * S.rows + row;
  }
  // The scale times the sum of a part of a row's words, over all words.
  LANE_DEVICE float* input_sum(int word, int part, int row) const {
    return reinterpret_cast<float*>(base + INPUT + WEIGHT + INPUT_SCALES) + (word * PARTS + part) * S.rows + row;
  }
  LANE_DEVICE float* weight_scale(int part, int row) const {
    return reinterpret_cast<float*>(base + INPUT + WEIGHT + INPUT_SCALES + INPUT_SUMS) + part * GEMM_WEIGHTS + row;
  }
  LANE_DEVICE float* weight_minimum(int part, int row) const { return weight_scale(part, row) + PARTS * GEMM_WEIGHTS; }
};

// ---- The activation's share of a step: copies, and what else of it a tile needs. ----

template <GemmShape S, typename Shared, bool HALVES, bool MIN>
struct GemmRows {
  static constexpr int BLOCKS = S.k / QBLOCK;
  // A thread takes half a block (both words of it) of RUNS rows, and the scales of it.
  static constexpr int RUNS = S.rows * GEMM_BLOCKS * 2 / S.threads();

  const i8* words;
  const float* scales;
  int first;  // row of the tile
  float scale[RUNS][S.words];

  static LANE_DEVICE int half() { return threadIdx.x % (2 * GEMM_BLOCKS); }
  static LANE_DEVICE int row(int run) { return (run * S.threads() + threadIdx.x) / (2 * GEMM_BLOCKS); }

  LANE_DEVICE void start(int step) {
    Shared shared(step);
    int block = step * GEMM_BLOCKS + half() / 2;
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      bool inside = first + row(run) < S.m && block < BLOCKS;
      i64 at = static_cast<i64>(first + row(run)) * BLOCKS + block;
#pragma unroll
      for (int word = 0; word < S.words; word++) {
        scale[run][word] = inside ? scales[at * S.words + word] : 0.f;
        if (inside) copy_async(shared.input(word, row(run), half()), words + (at * S.words + word) * QBLOCK + half() % 2 * 16);
      }
    }
    end_copy_group();
  }

  // Once its own copies are there, a thread adds what follows from them.
  LANE_DEVICE void finish(int step) {
    Shared shared(step);
    wait_for_copies<0>();
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
#pragma unroll
      for (int word = 0; word < S.words; word++) {
        float d = scale[run][word];
        if (half() % 2 == 0) *shared.input_scale(word, half() / 2, row(run)) = d;
        if constexpr (MIN) {
          constexpr int ONES[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
          uint4 q = *reinterpret_cast<const uint4*>(shared.input(word, row(run), half()));
          int values[4] = {static_cast<int>(q.x), static_cast<int>(q.y), static_cast<int>(q.z), static_cast<int>(q.w)};
          int sum = dot_half(values, ONES, 0);
          if constexpr (HALVES) {
            *shared.input_sum(word, half(), row(run)) = d * static_cast<float>(sum);
          } else {
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            if (half() % 2 == 0) *shared.input_sum(word, half() / 2, row(run)) = d * static_cast<float>(sum);
          }
        }
      }
    }
  }
};

// ---- The weights' share of a step: loads into registers, decoding into shared memory. ----

template <typename F, typename G, GemmShape S, typename Shared, bool HALVES, bool MIN>
struct GemmWeights {
  static constexpr int BLOCKS = S.k / QBLOCK, RUNS = GEMM_WEIGHTS * GEMM_BLOCKS / S.threads();

  Planes<F> planes;
  Planes<G> up;         // of a gated pair
  int first, count;     // the tile's first row of the weight, and its rows
  typename F::Block ahead[RUNS];
  typename G::Block ahead_up[RUNS];  // of a gated pair of two formats

  static LANE_DEVICE int block() { return threadIdx.x % GEMM_BLOCKS; }
  static LANE_DEVICE int row(int run) { return (run * S.threads() + threadIdx.x) / GEMM_BLOCKS; }
  // Of a gated pair, whether a row of the tile is of the up weight; the same for all threads of a warp.
  static LANE_DEVICE bool is_up(int run) { return S.glu && row(run) % 64 >= 32; }

  LANE_DEVICE void start(int step) {
    int at = step * GEMM_BLOCKS + block();
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      int tile_row = S.glu ? row(run) / 64 * 32 + row(run) % 32 : row(run);
      i64 unit = static_cast<i64>(min(first + tile_row, count - 1)) * BLOCKS + at;
      ahead[run] = {};
      if (at >= BLOCKS) continue;
      if constexpr (S.glu && Same<F, G>::value) {
        Planes<F> chosen;
#pragma unroll
        for (int i = 0; i < F::COUNT; i++) chosen.plane[i] = is_up(run) ? up.plane[i] : planes.plane[i];
        ahead[run] = F::load(chosen, unit);
      } else if constexpr (S.glu) {
        if (is_up(run)) {
          ahead_up[run] = G::load(up, unit);
        } else {
          ahead[run] = F::load(planes, unit);
        }
      } else {
        ahead[run] = F::load(planes, unit);
      }
    }
  }

  template <typename UNIT>
  LANE_DEVICE void store(const Shared& shared, int tile_row, const UNIT& unit) {
    using T = TileUnit<UNIT>;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      *reinterpret_cast<uint4*>(shared.weight(tile_row, 2 * block() + half)) =
          uint4{T::word(unit, 4 * half), T::word(unit, 4 * half + 1), T::word(unit, 4 * half + 2),
                T::word(unit, 4 * half + 3)};
    }
#pragma unroll
    for (int half = 0; half < (HALVES ? 2 : 1); half++) {
      int part = HALVES ? 2 * block() + half : block();
      *shared.weight_scale(part, tile_row) = T::scale(unit, half);
      if constexpr (MIN) *shared.weight_minimum(part, tile_row) = T::minimum(unit, half);
    }
  }

  LANE_DEVICE void finish(int step) {
    Shared shared(step);
    bool beyond = step * GEMM_BLOCKS + block() >= BLOCKS;
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      if constexpr (S.glu && !Same<F, G>::value) {
        if (is_up(run)) {
          if (beyond) ahead_up[run] = {};
          store(shared, row(run), G::decode(ahead_up[run]));
          continue;
        }
      }
      store(shared, row(run), F::decode(ahead[run]));
    }
  }
};

// ---- The tile. ----

// Sums of a warp's 32 rows by 64 rows of weights: [16 rows][8 rows of weights][4 as mma.cuh says].
struct GemmSums {
  float value[2][8][4];
};

// Sums in integers begin at the bits of 1.5·2^23, so that read as a float they are that plus the sum.
constexpr int SUM_BIAS_BITS = 0x4b400000;
constexpr float SUM_BIAS = 12582912.f;

template <GemmShape S, typename Shared, bool HALVES, bool MIN>
LANE_DEVICE void multiply_step(int step, GemmSums& sums) {
  Shared shared(step);
  constexpr int BIAS[4] = {SUM_BIAS_BITS, SUM_BIAS_BITS, SUM_BIAS_BITS, SUM_BIAS_BITS};
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  int first_row = warp / 2 * GEMM_WARP_ROWS, first_weight = warp % 2 * GEMM_WARP_WEIGHTS;
  // Two blocks at once give the scheduler enough; more only cost time to compile.
#pragma unroll(S.words == 1 && !HALVES ? 2 : 1)
  for (int block = 0; block < GEMM_BLOCKS; block++) {
    if (step * GEMM_BLOCKS + block >= S.k / QBLOCK) break;
    u32 w[8][2];
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
      u32 r[4];
      load_matrices(r, shared.weight(first_weight + pair * 16 + lane / 16 * 8 + lane % 8, 2 * block + lane / 8 % 2));
      w[2 * pair][0] = r[0], w[2 * pair][1] = r[1], w[2 * pair + 1][0] = r[2], w[2 * pair + 1][1] = r[3];
    }
#pragma unroll
    for (int word = 0; word < S.words; word++) {
#pragma unroll
      for (int tile = 0; tile < 2; tile++) {
        u32 x[4];
        int row = first_row + tile * 16;
        load_matrices(x, shared.input(word, row + lane % 16, 2 * block + lane / 16));
        float dx[2] = {*shared.input_scale(word, block, row + g), *shared.input_scale(word, block, row + g + 8)};
#pragma unroll
        for (int n = 0; n < 8; n++) {
          float(&sum)[4] = sums.value[tile][n];
          int column = first_weight + n * 8 + 2 * t;
#pragma unroll
          for (int half = 0; half < (HALVES ? 2 : 1); half++) {
            int part = HALVES ? 2 * block + half : block, exact[4];
            if constexpr (!HALVES) {
              mma_int8_k32(exact, x, w[n], BIAS);
            } else if (half == 0) {
              mma_int8_k16<0>(exact, x, w[n], BIAS);
            } else {
              mma_int8_k16<1>(exact, x, w[n], BIAS);
            }
            float2 dw = *reinterpret_cast<const float2*>(shared.weight_scale(part, column));
            sum[0] = fmaf(__int_as_float(exact[0]) - SUM_BIAS, dx[0] * dw.x, sum[0]);
            sum[1] = fmaf(__int_as_float(exact[1]) - SUM_BIAS, dx[0] * dw.y, sum[1]);
            sum[2] = fmaf(__int_as_float(exact[2]) - SUM_BIAS, dx[1] * dw.x, sum[2]);
            sum[3] = fmaf(__int_as_float(exact[3]) - SUM_BIAS, dx[1] * dw.y, sum[3]);
            if constexpr (MIN) {
              float low = *shared.input_sum(word, part, row + g), high = *shared.input_sum(word, part, row + g + 8);
              float2 mw = *reinterpret_cast<const float2*>(shared.weight_minimum(part, column));
              sum[0] = fmaf(low, mw.x, sum[0]);
              sum[1] = fmaf(low, mw.y, sum[1]);
              sum[2] = fmaf(high, mw.x, sum[2]);
              sum[3] = fmaf(high, mw.y, sum[3]);
            }
          }
        }
      }
    }
  }
}

// All sums of the tile that begins at row `row` of the activation; `weights` knows its rows of the weight.
template <typename F, typename G, GemmShape S, bool HALVES, bool MIN, typename Weights>
LANE_DEVICE void multiply_tile(const GemvInput& x, int row, Weights& weights, GemmSums& sums) {
  using Shared = GemmShared<S, HALVES, MIN>;
  constexpr int STEPS = ceil_div(S.k / QBLOCK, GEMM_BLOCKS);
  GemmRows<S, Shared, HALVES, MIN> rows{x.words, x.scales, row, {}};
#pragma unroll
  for (int i = 0; i < 2 * 8 * 4; i++) sums.value[i / 32][i / 4 % 8][i % 4] = 0.f;
  weights.start(0);
  wait_for_predecessor();
  rows.start(0);
#pragma unroll 1
  for (int step = 0; step < STEPS; step++) {
    weights.finish(step);
    rows.finish(step);
    __syncthreads();
    if (step + 1 < STEPS) {
      rows.start(step + 1);
      weights.start(step + 1);
    }
    multiply_step<S, Shared, HALVES, MIN>(step, sums);
  }
}

// Row and column of the tile that sum `i` of [tile][n] is.
LANE_DEVICE int sum_row(int tile, int i) {
  return threadIdx.x / WARP / 2 * GEMM_WARP_ROWS + tile * 16 + threadIdx.x % WARP / 4 + i / 2 * 8;
}

// Quantizes 32 outputs of a row, 8 of them in each of 4 neighbouring lanes: columns 8n + 2t and the next, n below 4.
template <int WORDS>
LANE_DEVICE void quantize_row(float (&value)[8], bool active, i64 block, i8* words, float* scales) {
  int t = threadIdx.x % 4;
#pragma unroll
  for (int word = 0; word < WORDS; word++) {
    u32 amax = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) amax = max(amax, magnitude(value[i]));
    BlockScale scale = block_scale(warp_max<4>(amax));
#pragma unroll
    for (int n = 0; n < 4; n++) {
      int low = quantized(value[2 * n], scale), high = quantized(value[2 * n + 1], scale);
      if (active) {
        u16 pair = static_cast<u16>((low & 0xff) | (high & 0xff) << 8);
        *reinterpret_cast<u16*>(words + (block * WORDS + word) * QBLOCK + 8 * n + 2 * t) = pair;
      }
      value[2 * n] = remainder(value[2 * n], low, scale);
      value[2 * n + 1] = remainder(value[2 * n + 1], high, scale);
    }
    if (active && t == 0) scales[block * WORDS + word] = scale.d;
  }
}

// Writes 32 columns of each of a warp's rows: from `column` of `count` on, values[tile][n][i] for n below 4.
template <GemmShape S, typename Store>
LANE_DEVICE void write_columns(const float (&values)[2][4][4], int row, int column, int count,
                               const QuantizedResult& quantized, Store store) {
  int t = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < 2; tile++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int at = row + sum_row(tile, 2 * half);
      float own[8];
#pragma unroll
      for (int n = 0; n < 4; n++) {
        own[2 * n] = values[tile][n][2 * half];
        own[2 * n + 1] = values[tile][n][2 * half + 1];
        if constexpr (S.f32) {
          int to = column + 8 * n + 2 * t;
          if (at < S.m && to < count) store(at, to, own[2 * n]);
          if (at < S.m && to + 1 < count) store(at, to + 1, own[2 * n + 1]);
        }
      }
      if constexpr (S.quant) {
        bool active = at < S.m && column < count;
        i64 block = (static_cast<i64>(at) * count + column) / QBLOCK;
        quantize_row<S.words>(own, active, block, quantized.words, quantized.scales);
      }
    }
  }
}

// ---- launch.gemv and launch.gemm_parts. ----

// blockIdx.x: tile of rows; blockIdx.y: tile of columns, of all products.
template <GemmShape S, typename... Products>
LANE_DEVICE void gemm(const GemvInput& x, const QuantizedResult& quantized, const Products&... products) {
  using F = FormatOf<Products...>;
  using Unit = TileUnitOf<F>;
  constexpr bool HALVES = Unit::HALVES, MIN = Unit::MIN;
  let_successor_start();
  GemmWeights<F, F, S, GemmShared<S, HALVES, MIN>, HALVES, MIN> weights;
  Chosen<GEMM_WEIGHTS, Products...> chosen(blockIdx.y, products...);
  int row = blockIdx.x * S.rows;
  weights.planes = chosen.template planes<F, S.k>();
  weights.first = chosen.first;
  weights.count = chosen.n;
  GemmSums sums;
  multiply_tile<F, F, S, HALVES, MIN>(x, row, weights, sums);
  chosen.land();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int column = chosen.first + threadIdx.x / WARP % 2 * GEMM_WARP_WEIGHTS + half * 32;
    float values[2][4][4];
#pragma unroll
    for (int i = 0; i < 32; i++) {
      int at = column + 8 * (i / 4 % 4) + 2 * (threadIdx.x % 4) + i % 2;
      AffineColumn affine = chosen.affine.column(at, chosen.n);
      values[i / 16][i / 4 % 4][i % 4] = affine(sums.value[i / 16][4 * half + i / 4 % 4][i % 4]);
    }
    auto to = [&](int r, int c, float value) { chosen.store(r, c, value); };
    write_columns<S>(values, row, column, chosen.n, quantized, to);
  }
}

// ---- launch.gemv_glu. ----

template <typename GATE, typename UP, GemmShape S, int N, Activation ACT>
LANE_DEVICE void gemm_glu(const GemvInput& x, const u8* gate_weight, const u8* up_weight, const Affine& gate_affine,
                          const Affine& up_affine, float* y, const QuantizedResult& quantized) {
  constexpr bool HALVES = TileUnitOf<GATE>::HALVES || TileUnitOf<UP>::HALVES;
  constexpr bool MIN = TileUnitOf<GATE>::MIN || TileUnitOf<UP>::MIN;
  let_successor_start();
  int row = blockIdx.x * S.rows, first = blockIdx.y * S.columns();
  GemmWeights<GATE, UP, S, GemmShared<S, HALVES, MIN>, HALVES, MIN> weights;
  weights.planes = planes_of<GATE, N, S.k>(gate_weight);
  weights.up = planes_of<UP, N, S.k>(up_weight);
  weights.first = first;
  weights.count = N;
  GemmSums sums;
  multiply_tile<GATE, UP, S, HALVES, MIN>(x, row, weights, sums);

  int column = first + threadIdx.x / WARP % 2 * 32;
  float values[2][4][4];
#pragma unroll
  for (int i = 0; i < 32; i++) {
    int tile = i / 16, n = i / 4 % 4, at = column + 8 * n + 2 * (threadIdx.x % 4) + i % 2;
    float gate = gate_affine.column(at, N)(sums.value[tile][n][i % 4]);
    float up = up_affine.column(at, N)(sums.value[tile][n + 4][i % 4]);
    values[tile][n][i % 4] = activate<ACT>(gate) * up;
  }
  auto to = [&](int r, int c, float value) { y[static_cast<i64>(r) * N + c] = value; };
  write_columns<S>(values, row, column, N, quantized, to);
}

}  // namespace lane
