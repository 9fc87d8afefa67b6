// Products of a few rows by weights: launch.gemv, gemm_parts and gemv_glu of at most 16 rows.
//
//     y[r, j] = Σ_i x[r, i]·w[j, i], scaled and biased (Affine)          x [m, k], w [n, k]
//
// The weights are read once, at the speed of memory; everything else is arranged around that. A group of `lanes` lanes
// shares `rows` rows of the weight: at every step each lane loads one unit of each of its rows, 16 bytes or more, `depth`
// steps ahead. The first of these loads come before wait_for_predecessor. The activation, or a tile of its columns, lies
// in shared memory, so arranged that neighbouring lanes read neighbouring 16 bytes; a lane multiplies each unit of it by
// its unit of all its rows.
//
// An activation that a norm has left undivided comes with the sums of its squares, and the results are divided, as
// launch.gemv says; the squares are summed while the weights are multiplied.
//
// Under int8 the activation is blocks of 32 int8 words with a scale (two such under two_pass_int8), and a unit's product
// is exact in integers; under dequant it is f32, and so are products by plain weights.
//
// Limits: a row is a whole number of units; `tile` a whole number of steps, these a multiple of `depth`, if not all of k.
#pragma once

#include "formats.cuh"

namespace lane {

struct GemvShape {
  int k = 0;          // columns of the activation and of the weight
  int m = 1;          // rows of the activation
  int words = 1;      // int8 words of an activation; 0: f32
  int lanes = 32;     // lanes that share rows of the weight
  int rows = 1;       // rows of the weight that they share
  int warps = 8;
  int depth = 1;      // steps that are loaded ahead
  int tile = 0;       // columns of the activation that are in shared memory at once
  bool quant = false; // the result is (also) written quantized
  bool held = false;  // the result is kept in shared memory, for what the block does after
  bool divides = false;  // the results are divided by the root mean square of the activation, with this epsilon:
  float norm_eps = 0.f;
  bool f32 = true;    // the result is (also) written as f32
  bool aligned = true; // rows of an f32 activation begin at multiples of 4 values

  LANE_CONSTANT int threads() const { return warps * WARP; }
  // Output columns of a block.
  LANE_CONSTANT int columns() const { return warps * (WARP / lanes) * rows; }
};

// The activation: words and scales, or values, f32 unless X says otherwise.
template <typename X = float>
struct GemvInputOf {
  const i8* words;
  const float* scales;
  const X* values;
  const float* squares = nullptr;  // of an undivided activation: their sums over each 32 columns, [rows][k/32]
  i64 pitch = 0;     // values from one row to the next; 0: the rows lie side by side
  int rows = 1 << 30; // that there are, if fewer than the kernel's; the others are 0
};
using GemvInput = GemvInputOf<>;

// ---- The activation in shared memory. ----

// Blocks of 32 int8: plane `low` has the first 16 words of each, plane `high` the others, `scales` its scale and sums.
template <GemvShape S>
struct SharedWords {
  static constexpr int UNITS = S.tile / QBLOCK, ALL = S.m * S.words * UNITS;
  static constexpr int BYTES = ALL * 40;

  static LANE_DEVICE uint4* halves_of(int high) { return shared_memory + high * ALL; }
  static LANE_DEVICE uint2* scales() { return reinterpret_cast<uint2*>(shared_memory + 2 * ALL); }

  // Brings columns first to first + tile of all rows, by all threads of the block; synchronized by the caller. A thread takes
  // blocks, all of whose loads are on their way before the first is used.
  static LANE_DEVICE void stage(const GemvInput& x, int first) {
    constexpr int RUNS = ceil_div(ALL, S.threads()), AHEAD = min_of(RUNS, 4);
    int units = min_of(S.tile, S.k - first) / QBLOCK;
#pragma unroll 1
    for (int run = 0; run < RUNS; run += AHEAD) {
      uint4 low[AHEAD], high[AHEAD];
      float scale[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        int at = (run + i) * S.threads() + threadIdx.x, row = at / (UNITS * S.words), column = at % (UNITS * S.words);
        if (at >= ALL || column >= units * S.words) continue;
        i64 block = (static_cast<i64>(row) * (S.k / QBLOCK) + first / QBLOCK) * S.words + column;
        low[i] = reinterpret_cast<const uint4*>(x.words)[2 * block];
        high[i] = reinterpret_cast<const uint4*>(x.words)[2 * block + 1];
        scale[i] = x.scales[block];
      }
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        int at = (run + i) * S.threads() + threadIdx.x, row = at / (UNITS * S.words), column = at % (UNITS * S.words);
        if (at >= ALL || column >= units * S.words) continue;
        int place = (row * S.words + column % S.words) * UNITS + column / S.words;
        halves_of(0)[place] = low[i];
        halves_of(1)[place] = high[i];
        u32 sums = (static_cast<u32>(sum_of(low[i])) & 0xffffu) | static_cast<u32>(sum_of(high[i])) << 16;
        scales()[place] = {__float_as_uint(scale[i]), sums};
      }
    }
  }

  static LANE_DEVICE int sum_of(uint4 half) {
    constexpr int ONES[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
    int q[4] = {static_cast<int>(half.x), static_cast<int>(half.y), static_cast<int>(half.z), static_cast<int>(half.w)};
    return dot_half(q, ONES, 0);
  }

  static LANE_DEVICE QuantizedBlock block(int row, int word, int unit) {
    int place = (row * S.words + word) * UNITS + unit;
    uint4 low = halves_of(0)[place], high = halves_of(1)[place];
    uint2 scale = scales()[place];
    return {{static_cast<int>(low.x), static_cast<int>(low.y), static_cast<int>(low.z), static_cast<int>(low.w),
             static_cast<int>(high.x), static_cast<int>(high.y), static_cast<int>(high.z), static_cast<int>(high.w)},
            __uint_as_float(scale.x),
            static_cast<i16>(scale.y & 0xffffu),
            static_cast<i16>(scale.y >> 16)};
  }
};

// f32 values: quad j of unit u of row r at [r][j][u], rows of u padded so that writes do not collide either.
template <GemvShape S, int UNIT>
struct SharedValues {
  static constexpr int UNITS = S.tile / UNIT, QUADS = UNIT / 4, PITCH = UNITS | 1;
  static constexpr int BYTES = S.m * QUADS * PITCH * 16;

  static LANE_DEVICE float4* quads() { return reinterpret_cast<float4*>(shared_memory); }

  template <typename X>
  static LANE_DEVICE float4 load_quad(const X* p) {
    struct alignas(4 * sizeof(X)) Quad {
      X v[4];
    };
    if constexpr (S.aligned) {
      Quad quad = *reinterpret_cast<const Quad*>(p);
      return {to_float(quad.v[0]), to_float(quad.v[1]), to_float(quad.v[2]), to_float(quad.v[3])};
    }
    return {to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
  }

  template <typename X>
  static LANE_DEVICE void stage(const GemvInputOf<X>& x, int first) {
    int count = min_of(S.tile, S.k - first) / 4;
    for (int row = 0; row < S.m; row++) {
      const X* from = x.values + row * (x.pitch != 0 ? x.pitch : S.k) + first;
      for (int at = threadIdx.x; at < count; at += S.threads()) {
        float4 quad = {0.f, 0.f, 0.f, 0.f};
        if (row < x.rows) quad = load_quad(from + 4 * at);
        quads()[(row * QUADS + at % QUADS) * PITCH + at / QUADS] = quad;
      }
    }
  }

  static LANE_DEVICE float4 quad(int row, int j, int unit) { return quads()[(row * QUADS + j) * PITCH + unit]; }
};

template <typename F, GemvShape S>
using SharedInput = typename Choice<S.words != 0, SharedWords<S>, SharedValues<S, F::UNIT>>::type;

// ---- The rows of a weight that a lane works on. ----

// EVEN: the weight has a multiple of S.rows rows, so that all rows lie one after the other, and a lane goes along them with
// one pointer a plane.
template <typename F, GemvShape S, bool EVEN = false>
struct WeightRows {
  static constexpr int UNITS = S.k / F::UNIT, STEPS = ceil_div(UNITS, S.lanes);
  static constexpr bool WHOLE = UNITS % S.lanes == 0;  // lanes all have a unit in the last step too
  static_assert(UNITS % units_together<F>() == 0 && S.lanes % units_together<F>() == 0,
                "a lane steps over whole superblocks");
  using Block = typename F::Block;
  using Unit = decltype(F::decode(Block{}));

  Planes<F> planes;       // from the lane's unit of the first row in this group of steps on
  i64 further[S.rows];    // units from it to that of each row
  Block ahead[S.depth][S.rows];
  Unit unit[S.rows];
  float sum[S.rows * S.m];  // of row j of the weight and row r of the activation at j·m + r

  static LANE_DEVICE int lane() { return threadIdx.x % S.lanes; }
  static LANE_DEVICE bool inside(int step) { return WHOLE || step * S.lanes + lane() < UNITS; }

  // Rows `row` on of a weight of n rows; those past the last are read as others.
  LANE_DEVICE void start(const Planes<F>& weight, int row, int n) {
    int first = min(row, n - (EVEN ? S.rows : 1));
    planes = weight;
    planes.advance(static_cast<i64>(first) * UNITS + lane());
#pragma unroll
    for (int i = 0; i < F::COUNT; i++) keep(planes.plane[i]);
#pragma unroll
    for (int j = 0; j < S.rows; j++) further[j] = (EVEN ? j : min(row + j, n - 1) - first) * static_cast<i64>(UNITS);
#pragma unroll
    for (int i = 0; i < S.rows * S.m; i++) sum[i] = 0.f;
#pragma unroll
    for (int step = 0; step < S.depth; step++) load(step, step, step);
  }

  // Step `step`, `ahead_of` steps from where the planes are.
  LANE_DEVICE void load_row(int step, int ahead_of, int slot, int j) {
    if constexpr (!WHOLE) ahead[slot][j] = {};
    if (step < STEPS && inside(step)) ahead[slot][j] = F::load(planes, further[j] + ahead_of * S.lanes);
  }
  LANE_DEVICE void load(int step, int ahead_of, int slot) {
#pragma unroll
    for (int j = 0; j < S.rows; j++) load_row(step, ahead_of, slot, j);
  }

  // After a group of `depth` steps.
  LANE_DEVICE void advance() {
    planes.advance(S.depth * S.lanes);
#pragma unroll
    for (int i = 0; i < F::COUNT; i++) keep(planes.plane[i]);
  }

  // Makes the units of a step ready, and loads those that come `depth` steps later in their place.
  LANE_DEVICE void take(int step, int slot) {
#pragma unroll
    for (int j = 0; j < S.rows; j++) unit[j] = F::decode(ahead[slot][j]);
    if (S.depth < STEPS) load(step + S.depth, slot + S.depth, slot);
  }

  // The same for one block of one row of the activation, unit by unit, which takes fewer registers.
  LANE_DEVICE void take_and_multiply(int step, int slot, const QuantizedBlock* x) {
#pragma unroll
    for (int j = 0; j < S.rows; j++) {
#pragma unroll
      for (int word = 0; word < S.words; word++) sum[j] += dot_unit<F>(ahead[slot][j], x[word]);
      if (S.depth < STEPS) load_row(step + S.depth, slot + S.depth, slot, j);
    }
  }

  LANE_DEVICE void multiply(int row, const QuantizedBlock& x) {
#pragma unroll
    for (int j = 0; j < S.rows; j++) sum[j * S.m + row] += unit[j].dot(x);
  }

  LANE_DEVICE void multiply(int row, int quad, float4 x) {
#pragma unroll
    for (int j = 0; j < S.rows; j++) {
      float4 w = unit[j].quad(quad);
      float& s = sum[j * S.m + row];
      s = fmaf(w.x, x.x, fmaf(w.y, x.y, fmaf(w.z, x.z, fmaf(w.w, x.w, s))));
    }
  }
};

// All products of the rows of one or two weights with the rows of the activation, each lane's share of them. STAGED: the
// first tile of the activation is in shared memory already.
template <typename F, GemvShape S, bool STAGED = false, typename X, typename... Weights>
LANE_DEVICE void multiply_rows(const GemvInputOf<X>& x, Weights&... weights) {
  using Shared = SharedInput<F, S>;
  constexpr int UNIT = F::UNIT, STEPS = WeightRows<F, S>::STEPS, TILE_STEPS = ceil_div(S.tile / UNIT, S.lanes);
  static_assert(S.k % UNIT == 0, "a row is a whole number of units");
  static_assert(S.tile >= S.k || (S.tile % (UNIT * S.lanes) == 0 && TILE_STEPS % S.depth == 0),
                "a tile is a whole number of steps that are loaded together");
  for (int step = 0; step < STEPS; step += S.depth) {
    if (step % TILE_STEPS == 0) {
      if (step > 0) __syncthreads();
      if (!STAGED || step > 0) {
        Shared::stage(x, step * S.lanes * UNIT);
        __syncthreads();
      }
    }
#pragma unroll
    for (int slot = 0; slot < S.depth; slot++) {
      int now = step + slot;
      if (STEPS % S.depth != 0 && now >= STEPS) break;
      int unit = (now % TILE_STEPS) * S.lanes + WeightRows<F, S>::lane();
      if constexpr (S.words != 0 && S.m == 1) {
        // Past the end of a row the units are 0; the activation is that of the last.
        if constexpr (!WeightRows<F, S>::WHOLE) {
          unit = min(unit, (S.k - (now - now % TILE_STEPS) * S.lanes * UNIT) / UNIT - 1);
        }
        QuantizedBlock blocks[S.words];
#pragma unroll
        for (int word = 0; word < S.words; word++) blocks[word] = Shared::block(0, word, unit);
        (weights.take_and_multiply(now, slot, blocks), ...);
        continue;
      }
      (weights.take(now, slot), ...);
      if (!WeightRows<F, S>::inside(now)) continue;
      if constexpr (S.words != 0) {
#pragma unroll
        for (int row = 0; row < S.m; row++) {
#pragma unroll
          for (int word = 0; word < S.words; word++) {
            QuantizedBlock block = Shared::block(row, word, unit);
            (weights.multiply(row, block), ...);
          }
        }
      } else {
#pragma unroll
        for (int quad = 0; quad < UNIT / 4; quad++) {
#pragma unroll
          for (int row = 0; row < S.m; row++) {
            float4 values = Shared::quad(row, quad, unit);
            (weights.multiply(row, quad, values), ...);
          }
        }
      }
    }
    if (S.depth < STEPS) (weights.advance(), ...);
  }
}

// The sums that a lane holds after they are added up, and the output each is.
template <GemvShape S>
struct Held {
  static constexpr int COUNT = scattered_count<S.lanes, S.rows * S.m>();

  int first;    // of the sums of the group, as WeightRows::sum counts them
  bool owner;   // whether this lane is the one that writes them
  int columns;  // output column of the group's first row

  LANE_DEVICE Held(int column)
      : first(scattered_first<S.lanes, S.rows * S.m>()),
        owner(scattered_owner<S.lanes, S.rows * S.m>()),
        columns(column) {}
  LANE_DEVICE int row(int i) const { return (first + i) % S.m; }
  LANE_DEVICE int column(int i) const { return columns + (first + i) / S.m; }
};

// What the results of each row of an undivided activation are multiplied by: 1/√(mean of the squares + eps).
template <GemvShape S>
struct RowFactors {
  static constexpr int BLOCKS = S.k / QBLOCK, ROWS = ceil_div(S.m, S.warps);  // rows that a warp sums
  float sum[ROWS];

  // A single row's sum is every warp's own; otherwise a warp has some of the rows.
  static LANE_DEVICE int first() { return S.m == 1 ? 0 : static_cast<int>(threadIdx.x) / WARP; }
  static LANE_DEVICE float* shared() {
    __shared__ float factors[S.m];
    return factors;
  }

  // Each lane's share, on its way while the weights are multiplied.
  LANE_DEVICE void load(const float* squares) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      int row = min(first() + i * S.warps, S.m - 1);
      sum[i] = 0.f;
      for (int at = threadIdx.x % WARP; at < BLOCKS; at += WARP) sum[i] += squares[row * BLOCKS + at];
    }
  }

  // Called by all threads of the block, after load.
  LANE_DEVICE void divide() {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      sum[i] = 1.f / sqrtf(warp_sum(sum[i]) / S.k + S.norm_eps);
      int row = first() + i * S.warps;
      if (S.m > 1 && threadIdx.x % WARP == 0 && row < S.m) shared()[row] = sum[i];
    }
    if (S.m > 1) __syncthreads();
  }

  LANE_DEVICE float of(int row) const { return S.m == 1 ? sum[0] : shared()[row]; }
};

// Divides what a lane holds of the results of an undivided activation.
template <GemvShape S, typename Weight>
LANE_DEVICE void divide_held(const RowFactors<S>& factors, const Held<S>& held, Weight& weight) {
  if constexpr (S.divides) {
#pragma unroll
    for (int i = 0; i < held.COUNT; i++) weight.sum[i] *= factors.of(held.row(i));
  }
}

// The first output column of this thread's group, of those of the block.
template <GemvShape S>
LANE_DEVICE int group_column() {
  return threadIdx.x / S.lanes * S.rows;
}

// Quantizes the result of a block, [m][columns] in shared memory, from column `first` of n on: blocks of 32 of it.
template <GemvShape S>
LANE_DEVICE void quantize_columns(const float* result, int first, int n, i8* words, float* scales) {
  constexpr int COLUMNS = S.columns(), BLOCKS = COLUMNS / QBLOCK;
  static_assert(COLUMNS % QBLOCK == 0, "a block of threads owns whole blocks of outputs");
  int lane = threadIdx.x % WARP;
  for (int at = threadIdx.x / WARP; at < S.m * BLOCKS; at += S.warps) {
    int row = at / BLOCKS, column = first + at % BLOCKS * QBLOCK;
    if (column >= n) continue;
    i64 block = (static_cast<i64>(row) * n + column) / QBLOCK;
    quantize_warp<S.words == 2 ? 2 : 1>(result[row * COLUMNS + at % BLOCKS * QBLOCK + lane], block, words, scales);
  }
}

// ---- launch.gemv and launch.gemm_parts. ----

// What is done to the sum of one column: scale·sum + bias.
struct AffineColumn {
  float scale = 1.f, bias = 0.f;
  LANE_DEVICE float operator()(float sum) const { return sum * scale + bias; }
};

// What is done to a product's sums: scale·Σ + bias[j], or, where `scaled_bias`, scale·(Σ + bias[j]).
struct Affine {
  const float* bias = nullptr;   // one for each column; 0 if there are none
  const float* scale = nullptr;  // one value; 1 if there is none
  bool scaled_bias = false;

  // For column `at` of n: nobody writes what it loads.
  LANE_DEVICE AffineColumn column(int at, int n) const {
    AffineColumn column;
    if (scale != nullptr) column.scale = load_constant(scale);
    if (bias != nullptr && at < n) column.bias = load_constant(bias + at) * (scaled_bias ? column.scale : 1.f);
    return column;
  }
};

// One product: the format of its weight, N outputs a row, where they land.
template <typename F, int N, Dst D = Dst{}, typename T = float>
struct Product {
  using Format = F;
  using Type = T;
  static constexpr int n = N;
  const u8* weight;
  Affine affine;
  T* y;
  const int* param;

  // Elements from the result of one row to that of the next.
  static LANE_CONSTANT i64 pitch() { return D.unit_pitch != 0 ? D.unit_pitch : N; }
  // Where the result begins, but for the row that the parameter names.
  static LANE_CONSTANT i64 begin() { return (D.row_index > 0 ? D.row_pitch * D.row_index : 0) + D.unit_offset; }
  static LANE_CONSTANT i64 param_pitch() { return D.takes_param() ? D.row_pitch : 0; }
};

// Whether a weight of some products is in format F.
template <typename F, typename... Products>
LANE_CONSTANT bool any_in() {
  return (Same<F, typename Products::Format>::value || ...);
}

// The format of products that are all in one.
template <typename First, typename... Rest>
struct OneFormat {
  static_assert((Same<typename First::Format, typename Rest::Format>::value && ...), "the weights are in one format");
  using type = typename First::Format;
};
template <typename... Products>
using FormatOf = typename OneFormat<Products...>::type;

// The product of several, side by side, that a block works on: a tile of COLUMNS columns of it, from `first` on.
template <int COLUMNS, typename... Products>
struct Chosen {
  int index = 0;
  int first = 0;
  int n = 0;
  const u8* weight = nullptr;
  Affine affine;

  // Tile `tile` of all.
  LANE_DEVICE Chosen(int tile, const Products&... products) {
    int at = 0;
    (choose(at++, tile, products), ...);
  }

  template <typename P>
  LANE_DEVICE void choose(int at, int& tile, const P& product) {
    constexpr int TILES = ceil_div(P::n, COLUMNS);
    if (tile >= 0 && tile < TILES) {
      index = at;
      first = tile * COLUMNS;
      n = P::n;
      weight = product.weight;
      affine = product.affine;
      y = product.y;
      param = product.param;
      begin = P::begin();
      pitch = P::pitch();
      param_pitch = P::param_pitch();
      size = sizeof(typename P::Type);
      is_half = Same<typename P::Type, f16>::value;
    }
    tile -= TILES;
  }

  // Whether its weight is in format F.
  template <typename F>
  LANE_DEVICE bool is_in() const {
    int at = 0;
    bool found = false;
    ((found |= at++ == index && Same<F, typename Products::Format>::value), ...);
    return found;
  }

  // The planes of its weight, in format F, whose rows have K columns.
  template <typename F, int K>
  LANE_DEVICE Planes<F> planes() const {
    Planes<F> planes;
    int at = 0;
    (take_planes<F, K, Products>(at++, planes), ...);
    return planes;
  }

  // Reads the row parameter, once the predecessor has ended.
  LANE_DEVICE void land() {
    if (param_pitch != 0) begin += param_pitch * static_cast<i64>(*param);
  }

  LANE_DEVICE void store(int row, int column, float value) const {
    constexpr bool WIDE = (Same<typename Products::Type, float>::value || ...);
    constexpr bool HALF = (Same<typename Products::Type, f16>::value || ...);
    constexpr bool BFLOAT = (Same<typename Products::Type, bf16>::value || ...);
    i64 at = begin + row * pitch + column;
    if (WIDE && (!(HALF || BFLOAT) || size == 4)) {
      static_cast<float*>(y)[at] = value;
    } else if (HALF && (!BFLOAT || is_half)) {
      static_cast<f16*>(y)[at] = to_f16(value);
    } else {
      static_cast<bf16*>(y)[at] = to_bf16(value);
    }
  }

 private:
  template <typename F, int K, typename P>
  LANE_DEVICE void take_planes(int at, Planes<F>& planes) const {
    if constexpr (Same<F, typename P::Format>::value) {
      if (at == index) planes = planes_of<F, P::n, K>(weight);
    }
  }

  void* y = nullptr;
  const int* param = nullptr;
  i64 begin = 0, pitch = 0, param_pitch = 0;
  int size = 4;
  bool is_half = false;
};

// The quantized form of the result, of a product alone.
struct QuantizedResult {
  i8* words = nullptr;
  float* scales = nullptr;
};

// What blocks do after their columns, `first` on of n, are written: nothing. `Kept` is what a thread loads for it beforehand: by `load`
// what no launch writes, before the wait, and by `read` the rest, while the weights are multiplied.
struct NothingAfter {
  template <GemvShape S>
  struct Kept {
    LANE_DEVICE void load(const NothingAfter&, int, int) {}
    LANE_DEVICE void read(const NothingAfter&, int, int) {}
  };
  template <GemvShape S>
  LANE_DEVICE void run(const Kept<S>&, int, int) const {}
};

// What a block computes of the product that it works on, whose weight is in format F.
template <typename F, GemvShape S, typename After, typename... Products>
LANE_DEVICE void multiply_chosen(const GemvInput& x, const QuantizedResult& quantized, const After& after,
                                 Chosen<S.columns(), Products...>& chosen) {
  constexpr int COLUMNS = S.columns();
  WeightRows<F, S, ((Products::n % S.rows == 0) && ...)> weight;
  int column = chosen.first + group_column<S>();
  weight.start(chosen.template planes<F, S.k>(), column, chosen.n);
  Held<S> held(column);
  AffineColumn affine[held.COUNT];
#pragma unroll
  for (int i = 0; i < held.COUNT; i++) affine[i] = chosen.affine.column(held.column(i), chosen.n);
  typename After::template Kept<S> kept;
  kept.load(after, chosen.first, chosen.n);
  wait_for_predecessor();
  chosen.land();
  kept.read(after, chosen.first, chosen.n);
  RowFactors<S> factors;
  if constexpr (S.divides) factors.load(x.squares);
  multiply_rows<F, S>(x, weight);
  scatter_sum<S.lanes, S.rows * S.m>(weight.sum);
  if constexpr (S.divides) factors.divide();
  divide_held(factors, held, weight);

  if constexpr (S.f32) {
#pragma unroll
    for (int i = 0; i < held.COUNT; i++) {
      if (held.owner && held.column(i) < chosen.n) chosen.store(held.row(i), held.column(i), affine[i](weight.sum[i]));
    }
  }
  if constexpr (S.quant || S.held) {
    float* result = reinterpret_cast<float*>(shared_memory);
    __syncthreads();  // the activation is no longer read
#pragma unroll
    for (int i = 0; i < held.COUNT; i++) {
      if (held.owner) result[held.row(i) * COLUMNS + held.column(i) - chosen.first] = affine[i](weight.sum[i]);
    }
    __syncthreads();
    if constexpr (S.quant) quantize_columns<S>(result, chosen.first, chosen.n, quantized.words, quantized.scales);
  }
  after.template run<S>(kept, chosen.first, chosen.n);
}

// The same in the format that the weight is in, one of those of First and the rest: a format's turn is its last product.
template <GemvShape S, typename First, typename... Rest, typename After, typename... Products>
LANE_DEVICE void multiply_in_format(const GemvInput& x, const QuantizedResult& quantized, const After& after,
                                    Chosen<S.columns(), Products...>& chosen) {
  using F = typename First::Format;
  if constexpr (sizeof...(Rest) == 0) {
    multiply_chosen<F, S>(x, quantized, after, chosen);
  } else {
    if constexpr (!any_in<F, Rest...>()) {
      if (chosen.template is_in<F>()) return multiply_chosen<F, S>(x, quantized, after, chosen);
    }
    multiply_in_format<S, Rest...>(x, quantized, after, chosen);
  }
}

// Several products of one activation, side by side: a block works on columns of one of them.
template <GemvShape S, typename After, typename... Products>
LANE_DEVICE void gemv(const GemvInput& x, const QuantizedResult& quantized, const After& after,
                      const Products&... products) {
  let_successor_start();
  Chosen<S.columns(), Products...> chosen(blockIdx.x, products...);
  multiply_in_format<S, Products...>(x, quantized, after, chosen);
}

// ---- launch.gemv_glu. ----

// y[r, j] = act(gate[r, j])·up[r, j] of two products with the same activation.
template <typename GATE, typename UP, GemvShape S, int N, Activation ACT>
LANE_DEVICE void gemv_glu(const GemvInput& x, const u8* gate_weight, const u8* up_weight, const Affine& gate_affine,
                          const Affine& up_affine, float* y, const QuantizedResult& quantized) {
  constexpr int COLUMNS = S.columns();
  static_assert(GATE::UNIT == UP::UNIT, "both weights are read in units of the same size");
  let_successor_start();
  int first = blockIdx.x * COLUMNS, column = first + group_column<S>();
  WeightRows<GATE, S, N % S.rows == 0> gate;
  WeightRows<UP, S, N % S.rows == 0> up;
  gate.start(planes_of<GATE, N, S.k>(gate_weight), column, N);
  up.start(planes_of<UP, N, S.k>(up_weight), column, N);
  Held<S> held(column);
  AffineColumn of_gate[held.COUNT], of_up[held.COUNT];
#pragma unroll
  for (int i = 0; i < held.COUNT; i++) {
    of_gate[i] = gate_affine.column(held.column(i), N);
    of_up[i] = up_affine.column(held.column(i), N);
  }
  wait_for_predecessor();
  RowFactors<S> factors;
  if constexpr (S.divides) factors.load(x.squares);
  multiply_rows<GATE, S>(x, gate, up);
  scatter_sum<S.lanes, S.rows * S.m>(gate.sum);
  scatter_sum<S.lanes, S.rows * S.m>(up.sum);
  if constexpr (S.divides) factors.divide();
  divide_held(factors, held, gate);
  divide_held(factors, held, up);

  float* result = reinterpret_cast<float*>(shared_memory);
  if constexpr (S.quant) __syncthreads();  // the activation is no longer read
#pragma unroll
  for (int i = 0; i < held.COUNT; i++) {
    float value = activate<ACT>(of_gate[i](gate.sum[i])) * of_up[i](up.sum[i]);
    if (held.owner && held.column(i) < N) {
      if constexpr (S.f32) y[static_cast<i64>(held.row(i)) * N + held.column(i)] = value;
    }
    if constexpr (S.quant) {
      if (held.owner) result[held.row(i) * COLUMNS + held.column(i) - first] = value;
    }
  }
  if constexpr (S.quant) {
    __syncthreads();
    quantize_columns<S>(result, first, N, quantized.words, quantized.scales);
  }
}

// ---- launch.head_gemv. ----

struct HeadShape {
  int k = 0;              // columns of a head of x
  int n = 0;              // columns of a head of y
  int m = 1;              // rows of x
  int heads = 1;
  bool shared = false;    // x has one head, for all
  bool rows_out = false;  // y lands in m rows of all heads, not in m·heads units
  int rows = 1;           // of x that a block of head_sum takes

  template <Dst D>
  LANE_DEVICE i64 place(int row, int head, int column) const {
    if (rows_out) return D.at(row, static_cast<i64>(heads) * n, static_cast<i64>(head) * n + column);
    return D.at(static_cast<i64>(row) * heads + head, n, column);
  }
};

// y[r, h, j] = Σ_i x[r, h, i]·w[h, j, i]: w [heads, n, k]; x [m·heads, k], in parts; y [m·heads, n]. Where shared,
// x [m, k] for all heads. A block works on columns of one head (blockIdx.x) of S.m rows (blockIdx.y).
//
// `upto`, if there is one: rows from *upto + step on are not computed.
template <typename F, GemvShape S, HeadShape H, Part P, Dst D, typename X, typename T>
LANE_DEVICE void head_gemv(const X* x, const u8* weight, T* y, const int* param, const int* upto, int step) {
  constexpr int M = H.m, N = H.n, HEADS = H.heads, COLUMNS = S.columns(), BLOCKS = ceil_div(N, COLUMNS);
  let_successor_start();
  int head = blockIdx.x / BLOCKS, row = blockIdx.y * S.m, column = blockIdx.x % BLOCKS * COLUMNS + group_column<S>();
  WeightRows<F, S> rows;
  rows.start(planes_of<F, static_cast<i64>(HEADS) * N, S.k>(weight), head * N + column, (head + 1) * N);
  wait_for_predecessor();
  if (upto != nullptr && row >= *upto + step) return;
  constexpr int UNITS = H.shared ? 1 : HEADS;
  constexpr i64 PITCH = P.pitch != 0 ? P.pitch : S.k;
  i64 unit = static_cast<i64>(row) * UNITS + (H.shared ? 0 : head);
  multiply_rows<F, S>(GemvInputOf<X>{nullptr, nullptr, x + unit * PITCH + P.offset, nullptr, UNITS * PITCH, M - row},
                      rows);
  scatter_sum<S.lanes, S.rows * S.m>(rows.sum);
  Held<S> held(column);
  i64 start = D.start(param);
#pragma unroll
  for (int i = 0; i < held.COUNT; i++) {
    int at = row + held.row(i);
    if (!held.owner || held.column(i) >= N || at >= M) continue;
    y[start + H.place<D>(at, head, held.column(i))] = from_float<T>(rows.sum[i]);
  }
}

// y[r, h, j] = Σ_i x[r, h, i]·w[h, i, j]: as above, with w [heads, k, n], whose rows are added up, each times a value of
// x. A block takes `rows` rows and one head; a thread a unit of the columns and every (threads/units)-th row of the weight,
// whose shares are then added in shared memory.
constexpr int HEAD_SUM_THREADS = 256;

template <typename F, HeadShape S, Part P, Dst D, typename X, typename T>
LANE_DEVICE void head_sum(const X* x, const u8* weight, T* y, const int* param, const int* upto, int step) {
  constexpr int UNITS = S.n / F::UNIT, SHARES = HEAD_SUM_THREADS / UNITS, AHEAD = 4;
  static_assert(S.n % F::UNIT == 0 && SHARES > 0, "a row of a head's weight is whole units, no more than threads");
  float* values = reinterpret_cast<float*>(shared_memory);  // x, [rows][k]
  float* shares = values + S.rows * S.k;                    // [SHARES][n]
  let_successor_start();
  int head = blockIdx.x, row = blockIdx.y * S.rows, unit = threadIdx.x % UNITS, share = threadIdx.x / UNITS;
  bool works = share < SHARES;
  auto planes = planes_of<F, static_cast<i64>(S.heads) * S.k, S.n>(weight);
  i64 first = static_cast<i64>(head) * S.k * UNITS + unit;
  typename F::Block ahead[AHEAD];
  auto load = [&](int i) {
    typename F::Block block = {};
    if (works && i < S.k) block = F::load(planes, first + static_cast<i64>(i) * UNITS);
    return block;
  };
#pragma unroll
  for (int i = 0; i < AHEAD; i++) ahead[i] = load(share + i * SHARES);
  wait_for_predecessor();
  if (upto != nullptr && row >= *upto + step) return;
  for (int at = threadIdx.x; at < S.rows * S.k; at += HEAD_SUM_THREADS) {
    int r = row + at / S.k;
    i64 from = S.shared ? r : static_cast<i64>(r) * S.heads + head;
    values[at] = r < S.m ? to_float(x[P.at(from, S.k, at % S.k)]) : 0.f;
  }
  __syncthreads();
  float sum[S.rows][F::UNIT];
#pragma unroll
  for (int i = 0; i < S.rows * F::UNIT; i++) sum[i / F::UNIT][i % F::UNIT] = 0.f;
  for (int begin = share; begin < S.k; begin += AHEAD * SHARES) {
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++) {
      int i = begin + slot * SHARES;
      auto w = F::decode(ahead[slot]);
      ahead[slot] = load(i + AHEAD * SHARES);
      if (i >= S.k) continue;
#pragma unroll
      for (int quad = 0; quad < F::UNIT / 4; quad++) {
        float4 four = w.quad(quad);
#pragma unroll
        for (int r = 0; r < S.rows; r++) {
          float factor = values[r * S.k + i];
          float* s = sum[r] + 4 * quad;
          s[0] = fmaf(factor, four.x, s[0]);
          s[1] = fmaf(factor, four.y, s[1]);
          s[2] = fmaf(factor, four.z, s[2]);
          s[3] = fmaf(factor, four.w, s[3]);
        }
      }
    }
  }
  i64 start = D.start(param);
#pragma unroll
  for (int r = 0; r < S.rows; r++) {
    __syncthreads();
    if (works) {
#pragma unroll
      for (int i = 0; i < F::UNIT; i++) shares[share * S.n + unit * F::UNIT + i] = sum[r][i];
    }
    __syncthreads();
    if (row + r >= S.m) continue;
    for (int column = threadIdx.x; column < S.n; column += HEAD_SUM_THREADS) {
      float total = 0.f;
      for (int i = 0; i < SHARES; i++) total += shares[i * S.n + column];
      y[start + S.place<D>(row + r, head, column)] = from_float<T>(total);
    }
  }
}

}  // namespace lane
