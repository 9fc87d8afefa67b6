// Products of many rows in f32: by plain weights, and by weights in any format under dequant.
//
//     y[r, j] = Σ_i x[r, i]·w[j, i], scaled and biased (Affine)
//
// A block computes a tile of `rows` by `columns`, 32 columns of x at a step; a thread of 16 x 16 a (rows/16) x (columns/16)
// part of it, from shared memory, where both operands lie column by column. The operands of the next step are on their
// way, in registers, while a step is multiplied. Rounding: f32 throughout, one fmaf a product.
//
// `splits`: parts of the columns of x, blocks of their own; the last block of a tile to finish adds their sums up, in
// order. `transposed`: the weight is plain f32, stored [k, n].
#pragma once

#include "gemv.cuh"

namespace lane {

struct GemmF32Shape {
  int k = 0;
  int m = 0;
  int rows = 64;            // of a tile: 64 or 128
  int columns = 64;         // 64 or 128
  int splits = 1;
  bool transposed = false;
  bool aligned = true;      // rows of x begin at multiples of 16 bytes
  bool glu = false;         // the weight is a gate and an up weight, side by side in the tile
};

constexpr int GEMM_F32_STEP = 32, GEMM_F32_THREADS = 256, GEMM_F32_PAD = 4;

template <GemmF32Shape S>
struct GemmF32Shared {
  static constexpr int INPUT_PITCH = S.rows + GEMM_F32_PAD, WEIGHT_PITCH = S.columns + GEMM_F32_PAD;
  static constexpr int BYTES = 4 * GEMM_F32_STEP * (INPUT_PITCH + WEIGHT_PITCH);

  static LANE_DEVICE float* input(int k, int row) {
    return reinterpret_cast<float*>(shared_memory) + k * INPUT_PITCH + row;
  }
  static LANE_DEVICE float* weight(int k, int column) {
    return reinterpret_cast<float*>(shared_memory) + GEMM_F32_STEP * INPUT_PITCH + k * WEIGHT_PITCH + column;
  }
};

// The activation's share of a step: a thread takes quads of 4 columns.
template <GemmF32Shape S>
struct GemmF32Rows {
  static constexpr int QUADS = GEMM_F32_STEP / 4, RUNS = S.rows * QUADS / GEMM_F32_THREADS;
  const float* x;
  i64 pitch;
  int first;
  float4 ahead[RUNS];

  static LANE_DEVICE int row(int run) { return (run * GEMM_F32_THREADS + threadIdx.x) / QUADS; }
  static LANE_DEVICE int column() { return threadIdx.x % QUADS * 4; }

  LANE_DEVICE void load(int at) {
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      ahead[run] = {0.f, 0.f, 0.f, 0.f};
      const float* p = x + (first + row(run)) * pitch + at + column();
      if (first + row(run) >= S.m || at + column() >= S.k) continue;
      if constexpr (S.aligned && S.k % 4 == 0) {
        ahead[run] = *reinterpret_cast<const float4*>(p);
      } else {
        int left = S.k - at - column();
        ahead[run] = {p[0], left > 1 ? p[1] : 0.f, left > 2 ? p[2] : 0.f, left > 3 ? p[3] : 0.f};
      }
    }
  }
  LANE_DEVICE void store() const {
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      float values[4] = {ahead[run].x, ahead[run].y, ahead[run].z, ahead[run].w};
#pragma unroll
      for (int i = 0; i < 4; i++) *GemmF32Shared<S>::input(column() + i, row(run)) = values[i];
    }
  }
};

// The weights' share of a step: a thread takes units of a format.
template <typename F, GemmF32Shape S>
struct GemmF32Weights {
  static constexpr int ROW_UNITS = GEMM_F32_STEP / F::UNIT, UNITS = S.columns * ROW_UNITS;
  static constexpr int RUNS = ceil_div(UNITS, GEMM_F32_THREADS);
  static constexpr bool WHOLE = UNITS % GEMM_F32_THREADS == 0;
  Planes<F> planes, up;  // `up`: of a gated pair, its up weight
  int first, count;
  typename F::Block ahead[RUNS];

  static LANE_DEVICE int unit(int run) { return (run * GEMM_F32_THREADS + threadIdx.x) % ROW_UNITS; }
  static LANE_DEVICE int row(int run) { return (run * GEMM_F32_THREADS + threadIdx.x) / ROW_UNITS; }

  LANE_DEVICE void load(int at) {
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      ahead[run] = {};
      int column = at / F::UNIT + unit(run);
      if (!WHOLE && row(run) >= S.columns) continue;
      if (column >= S.k / F::UNIT) continue;
      bool is_up = S.glu && row(run) >= S.columns / 2;
      int w = min(first + (is_up ? row(run) - S.columns / 2 : row(run)), count - 1);
      ahead[run] = F::load(is_up ? up : planes, static_cast<i64>(w) * (S.k / F::UNIT) + column);
    }
  }
  LANE_DEVICE void store() const {
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      if (!WHOLE && row(run) >= S.columns) continue;
      auto values = F::decode(ahead[run]);
#pragma unroll
      for (int quad = 0; quad < F::UNIT / 4; quad++) {
        float4 v = values.quad(quad);
        float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) *GemmF32Shared<S>::weight(unit(run) * F::UNIT + quad * 4 + i, row(run)) = four[i];
      }
    }
  }
};

// Of a plain weight stored [k, n]: a thread takes elements of its rows.
template <GemmF32Shape S>
struct GemmF32Transposed {
  static constexpr int RUNS = GEMM_F32_STEP * S.columns / GEMM_F32_THREADS;
  const float* weight;
  int first, count;
  float ahead[RUNS];

  static LANE_DEVICE int column() { return threadIdx.x % S.columns; }
  static LANE_DEVICE int row(int run) { return (run * GEMM_F32_THREADS + threadIdx.x) / S.columns; }

  LANE_DEVICE void load(int at) {
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
      bool inside = at + row(run) < S.k && first + column() < count;
      ahead[run] = inside ? load_constant(weight + static_cast<i64>(at + row(run)) * count + first + column()) : 0.f;
    }
  }
  LANE_DEVICE void store() const {
#pragma unroll
    for (int run = 0; run < RUNS; run++) *GemmF32Shared<S>::weight(row(run), column()) = ahead[run];
  }
};

// Sums of a thread: row 16·i + threadIdx.x div 16, and column as `column_of` says, of the tile.
template <GemmF32Shape S>
struct GemmF32Sums {
  static constexpr int ROWS = S.rows / 16, COLUMNS = S.columns / 16;
  float value[ROWS][COLUMNS];

  static LANE_DEVICE int row_of(int i) { return threadIdx.x / 16 * ROWS + i; }
  // Quads of neighbouring columns, 64 apart; of a gated pair the quads of the gate come first, then those of the up.
  static LANE_DEVICE int column_of(int j) { return j / 4 * 64 + threadIdx.x % 16 * 4 + j % 4; }
};

template <GemmF32Shape S, typename Weights>
LANE_DEVICE void multiply_tile_f32(GemmF32Rows<S>& rows, Weights& weights, int split, GemmF32Sums<S>& sums) {
  using Sums = GemmF32Sums<S>;
  constexpr int STEPS = ceil_div(ceil_div(S.k, GEMM_F32_STEP), S.splits) * GEMM_F32_STEP;
  int begin = split * STEPS, end = min(begin + STEPS, S.k);
#pragma unroll
  for (int i = 0; i < Sums::ROWS * Sums::COLUMNS; i++) sums.value[i / Sums::COLUMNS][i % Sums::COLUMNS] = 0.f;
  weights.load(begin);
  wait_for_predecessor();
  rows.load(begin);
#pragma unroll 1
  for (int at = begin; at < end; at += GEMM_F32_STEP) {
    rows.store();
    weights.store();
    __syncthreads();
    if (at + GEMM_F32_STEP < end) {
      rows.load(at + GEMM_F32_STEP);
      weights.load(at + GEMM_F32_STEP);
    }
#pragma unroll
    for (int k = 0; k < GEMM_F32_STEP; k++) {
      float x[Sums::ROWS], w[Sums::COLUMNS];
#pragma unroll
      for (int i = 0; i < Sums::ROWS; i += 4) {
        float4 quad = *reinterpret_cast<const float4*>(GemmF32Shared<S>::input(k, Sums::row_of(i)));
        x[i] = quad.x, x[i + 1] = quad.y, x[i + 2] = quad.z, x[i + 3] = quad.w;
      }
#pragma unroll
      for (int j = 0; j < Sums::COLUMNS; j += 4) {
        float4 quad = *reinterpret_cast<const float4*>(GemmF32Shared<S>::weight(k, Sums::column_of(j)));
        w[j] = quad.x, w[j + 1] = quad.y, w[j + 2] = quad.z, w[j + 3] = quad.w;
      }
#pragma unroll
      for (int i = 0; i < Sums::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < Sums::COLUMNS; j++) sums.value[i][j] = fmaf(x[i], w[j], sums.value[i][j]);
      }
    }
    __syncthreads();
  }
}

// Adds up the sums of all splits of a tile, in its last block: whether this is it. `partial` has place for the tiles of
// all blocks, `counters` one for each tile.
template <GemmF32Shape S>
LANE_DEVICE bool add_splits(GemmF32Sums<S>& sums, float* partial, u32* counters, int tile, int split) {
  if constexpr (S.splits > 1) {
    constexpr int SIZE = S.rows * S.columns, ROWS = GemmF32Sums<S>::ROWS, COLUMNS = GemmF32Sums<S>::COLUMNS;
    float* own = partial + (static_cast<i64>(tile) * S.splits + split) * SIZE;
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS; i++) own[i * GEMM_F32_THREADS + threadIdx.x] = sums.value[i / COLUMNS][i % COLUMNS];
    if (!is_last_block(counters + tile, S.splits)) return false;
    const float* all = partial + static_cast<i64>(tile) * S.splits * SIZE;
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS; i++) {
      float total = 0.f;
      for (int part = 0; part < S.splits; part++) total += all[part * SIZE + i * GEMM_F32_THREADS + threadIdx.x];
      sums.value[i / COLUMNS][i % COLUMNS] = total;
    }
  }
  return true;
}

// ---- launch.gemv, gemm_parts and gemv_f32. ----

struct SplitScratch {
  float* partial = nullptr;
  u32* counters = nullptr;
};

// blockIdx.x: tile of rows; blockIdx.y: tile of columns, of all products; blockIdx.z: split.
template <GemmF32Shape S, typename... Products>
LANE_DEVICE void gemm_f32(const GemvInput& x, const SplitScratch& scratch, const Products&... products) {
  using F = FormatOf<Products...>;
  let_successor_start();
  using Weights = typename Choice<S.transposed, GemmF32Transposed<S>, GemmF32Weights<F, S>>::type;
  Weights weights;
  Chosen<S.columns, Products...> chosen(blockIdx.y, products...);
  int row = blockIdx.x * S.rows;
  if constexpr (S.transposed) {
    weights.weight = reinterpret_cast<const float*>(chosen.weight);
  } else {
    weights.planes = chosen.template planes<F, S.k>();
  }
  weights.first = chosen.first;
  weights.count = chosen.n;
  GemmF32Rows<S> rows{x.values, x.pitch != 0 ? x.pitch : S.k, row, {}};
  GemmF32Sums<S> sums;
  multiply_tile_f32<S>(rows, weights, blockIdx.z, sums);
  if (!add_splits(sums, scratch.partial, scratch.counters, blockIdx.y * gridDim.x + blockIdx.x, blockIdx.z)) return;
  chosen.land();
#pragma unroll
  for (int j = 0; j < GemmF32Sums<S>::COLUMNS; j++) {
    int column = chosen.first + sums.column_of(j);
    if (column >= chosen.n) continue;
    AffineColumn affine = chosen.affine.column(column, chosen.n);
#pragma unroll
    for (int i = 0; i < GemmF32Sums<S>::ROWS; i++) {
      if (row + sums.row_of(i) < S.m) chosen.store(row + sums.row_of(i), column, affine(sums.value[i][j]));
    }
  }
}

// ---- launch.gemv_glu. ----

// A tile is 128 columns wide: 64 of the gate, 64 of the up weight, both in one format.
template <typename F, GemmF32Shape S, int N, Activation ACT>
LANE_DEVICE void gemm_f32_glu(const GemvInput& x, const u8* gate_weight, const u8* up_weight, const Affine& gate_affine,
                              const Affine& up_affine, float* y) {
  static_assert(S.glu && S.columns == 128 && S.splits == 1, "a tile of a gated pair is 64 and 64 columns");
  let_successor_start();
  int row = blockIdx.x * S.rows, first = blockIdx.y * 64;
  GemmF32Weights<F, S> weights;
  weights.planes = planes_of<F, N, S.k>(gate_weight);
  weights.up = planes_of<F, N, S.k>(up_weight);
  weights.first = first;
  weights.count = N;
  GemmF32Rows<S> rows{x.values, x.pitch != 0 ? x.pitch : S.k, row, {}};
  GemmF32Sums<S> sums;
  multiply_tile_f32<S>(rows, weights, 0, sums);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    int column = first + sums.column_of(j);
    if (column >= N) continue;
    AffineColumn of_gate = gate_affine.column(column, N), of_up = up_affine.column(column, N);
#pragma unroll
    for (int i = 0; i < GemmF32Sums<S>::ROWS; i++) {
      int at = row + sums.row_of(i);
      if (at < S.m) {
        y[static_cast<i64>(at) * N + column] = activate<ACT>(of_gate(sums.value[i][j])) * of_up(sums.value[i][j + 4]);
      }
    }
  }
}

}  // namespace lane
