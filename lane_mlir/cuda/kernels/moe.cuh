// launch.moe of a few rows: the chosen experts' gate and up products, then their down products, weighted and added.
//
//     hidden[r, j] = act(wg[e]·x[r] + bg[e], wu[e]·x[r] + bu[e])     for the j-th expert e that row r has chosen
//     y[r] = Σ_j weight[r, j]·(wd[e]·hidden[r, j] + bd[e])           (+ the shared expert's, times its weight)
//
// Which experts its row chooses, every block finds from the router's logits (moe_router.cuh). The products are those of
// gemv.cuh: in the first kernel each chosen expert of a row has blocks of its own; in the second the chosen experts' hidden
// values lie one after the other, as one row of `used`·dff, and a group of lanes goes along the rows of all their weights,
// so that the loads of the next expert are on their way while one is multiplied.
//
// The first kernel lets the second start only when it has waited for the router, so that the second may read the logits,
// choose and load its first weights while the first is still at work. A shared expert's weights are loaded before any wait.
#pragma once

#include "moe_router.cuh"

namespace lane {

enum class ExpertActivation { SILU, GELU_TANH, CLAMPED_SWIGLU };

struct MoeShape {
  int d = 0;
  int dff = 0;
  int experts = 1;
  int used = 1;
  int rows = 1;
  int sdff = 0;         // hidden width of the shared expert; 0: there is none
  bool gated = false;   // the shared expert has a weight
  ExpertActivation act = ExpertActivation::SILU;
  float alpha = 1.f;
  float limit = 0.f;
  int words = 0;        // int8 words of the hidden values; 0: f32
  int shared_words = 0; // of the shared expert's

  LANE_CONSTANT int chosen() const { return used + gated; }

  LANE_DEVICE float activated(float gate, float up) const {
    if (act == ExpertActivation::CLAMPED_SWIGLU) {
      gate = fminf(gate, limit);
      up = fminf(fmaxf(up, -limit), limit);
      return gate * sigmoid(alpha * gate) * (up + 1.f);
    }
    return (act == ExpertActivation::SILU ? activate<Activation::SILU>(gate) : activate<Activation::GELU_TANH>(gate)) * up;
  }
};

// Hidden values: words and scales, or f32.
struct Hidden {
  i8* words;
  float* scales;
  float* values;

  // From a row of `width` values on.
  template <int WORDS>
  LANE_DEVICE Hidden row(i64 row, int width) const {
    if constexpr (WORDS == 0) return {nullptr, nullptr, values + row * width};
    return {words + row * width * WORDS, scales + row * (width / QBLOCK) * WORDS, nullptr};
  }
  LANE_DEVICE GemvInput input() const { return {words, scales, values}; }
};

// An expert's weights: planes of all experts' gate and up weights, the first row of this one, its biases.
template <typename GATE, typename UP>
struct ExpertWeights {
  Planes<GATE> gate;
  Planes<UP> up;
  int first;
  const float* gate_bias;
  const float* up_bias;
};

// Columns `column` on of an expert's hidden values for one row: S.m is 1. STAGED: the wait has been, and the first tile of
// the activation is in shared memory.
template <typename GATE, typename UP, GemvShape S, MoeShape M, int N, int WORDS, bool STAGED>
LANE_DEVICE void hidden_columns(const GemvInput& x, const ExpertWeights<GATE, UP>& expert, int column, const Hidden& to) {
  constexpr int COLUMNS = S.columns();
  static_assert(GATE::UNIT == UP::UNIT, "both weights are read in units of the same size");
  WeightRows<GATE, S, N % S.rows == 0> gate;
  WeightRows<UP, S, N % S.rows == 0> up;
  int mine = column + group_column<S>();
  gate.start(expert.gate, expert.first + mine, expert.first + N);
  up.start(expert.up, expert.first + mine, expert.first + N);
  Held<S> held(mine);
  if constexpr (!STAGED) {
    wait_for_predecessor();
    let_successor_start();
  } else {
    __syncthreads();  // so that the compiler moves no load behind what is multiplied first
  }
  multiply_rows<GATE, S, STAGED>(x, gate, up);
  scatter_sum<S.lanes, S.rows>(gate.sum);
  scatter_sum<S.lanes, S.rows>(up.sum);
  float* result = reinterpret_cast<float*>(shared_memory);
  if constexpr (WORDS != 0) __syncthreads();  // the activation is no longer read
#pragma unroll
  for (int i = 0; i < held.COUNT; i++) {
    int at = held.column(i);
    if (!held.owner) continue;
    float g = gate.sum[i], u = up.sum[i];
    if (expert.gate_bias != nullptr && at < N) g += load_constant(expert.gate_bias + at);
    if (expert.up_bias != nullptr && at < N) u += load_constant(expert.up_bias + at);
    float value = M.activated(g, u);
    if constexpr (WORDS != 0) {
      result[at - column] = value;
    } else if (at < N) {
      to.values[at] = value;
    }
  }
  if constexpr (WORDS != 0) {
    static_assert(COLUMNS % QBLOCK == 0 && N % QBLOCK == 0, "a block of threads owns whole blocks of hidden values");
    __syncthreads();
    int lane = threadIdx.x % WARP;
    for (int block = threadIdx.x / WARP; block < COLUMNS / QBLOCK; block += S.warps) {
      if (column + block * QBLOCK >= N) continue;
      quantize_warp<WORDS>(result[block * QBLOCK + lane], column / QBLOCK + block, to.words, to.scales);
    }
  }
}

struct MoeWeights {
  const u8* gate;
  const u8* up;
  const float* gate_bias;
  const float* up_bias;
};

// The input of a row.
template <GemvShape S>
LANE_DEVICE GemvInput row_of(const GemvInput& x, i64 row) {
  if constexpr (S.words == 0) return {nullptr, nullptr, x.values + row * S.k};
  return {x.words + row * S.k * S.words, x.scales + row * (S.k / QBLOCK) * S.words, nullptr};
}

// What the blocks choose from.
struct MoeChoice {
  const float* logits;          // [rows, columns of the router]
  const float* selection_bias;  // [experts]
};

// The first kernel: rows·used·(dff/columns) blocks for the chosen experts, then rows·(sdff/columns) for the shared one,
// whose weights are in formats SG and SU.
template <typename GATE, typename UP, GemvShape S, typename SG, typename SU, GemvShape SS, MoeShape M, RouterShape R>
LANE_DEVICE void moe_hidden(const GemvInput& x, const GemvInput& shared_x, const MoeChoice& choice, const MoeWeights& w,
                            const MoeWeights& shared, const Hidden& hidden, const Hidden& shared_hidden) {
  constexpr int BLOCKS = ceil_div(M.dff, S.columns()), CHOSEN_BLOCKS = M.rows * M.used * BLOCKS;
  __shared__ Routed chosen[M.chosen()];
  int block = blockIdx.x;
  if (M.sdff == 0 || block < CHOSEN_BLOCKS) {
    int slot = block / BLOCKS, row = slot / M.used;
    wait_for_predecessor();
    let_successor_start();
    Logits<R> logits;
    if (threadIdx.x < WARP) logits.load(choice.logits + row * R.columns());
    SharedInput<GATE, S>::stage(row_of<S>(x, row), 0);
    if (threadIdx.x < WARP) choose<R, false>(logits, choice.selection_bias, chosen);
    __syncthreads();
    int e = chosen[slot % M.used].expert;
    ExpertWeights<GATE, UP> expert = {
        planes_of<GATE, static_cast<i64>(M.experts) * M.dff, M.d>(w.gate),
        planes_of<UP, static_cast<i64>(M.experts) * M.dff, M.d>(w.up),
        e * M.dff,
        w.gate_bias != nullptr ? w.gate_bias + e * M.dff : nullptr,
        w.up_bias != nullptr ? w.up_bias + e * M.dff : nullptr,
    };
    hidden_columns<GATE, UP, S, M, M.dff, M.words, true>(row_of<S>(x, row), expert, block % BLOCKS * S.columns(),
                                                         hidden.template row<M.words>(slot, M.dff));
    return;
  }
  if constexpr (M.sdff != 0) {
    constexpr int SHARED_BLOCKS = ceil_div(M.sdff, SS.columns());
    block -= CHOSEN_BLOCKS;
    int row = block / SHARED_BLOCKS;
    ExpertWeights<SG, SU> expert = {planes_of<SG, M.sdff, M.d>(shared.gate), planes_of<SU, M.sdff, M.d>(shared.up), 0,
                                    nullptr, nullptr};
    hidden_columns<SG, SU, SS, M, M.sdff, M.shared_words, false>(
        row_of<SS>(shared_x, row), expert, block % SHARED_BLOCKS * SS.columns(),
        shared_hidden.template row<M.shared_words>(row, M.sdff));
  }
}

// ---- The second kernel. ----

// Rows of the down weights of a row's chosen experts, one expert after the other: S.k = used·dff.
template <typename F, GemvShape S, MoeShape M>
struct ChosenRows {
  static constexpr int EXPERT_UNITS = M.dff / F::UNIT, UNITS = M.used * EXPERT_UNITS, STEPS = ceil_div(UNITS, S.lanes);
  static constexpr bool WHOLE = UNITS % S.lanes == 0, EVEN = M.d % S.rows == 0;
  static_assert(EXPERT_UNITS % units_together<F>() == 0, "rows are whole superblocks");
  using Block = typename F::Block;

  Planes<F> planes;
  const Routed* chosen;  // in shared memory
  int row;               // the first of these rows of each expert
  Block ahead[S.depth][S.rows];

  static LANE_DEVICE int unit(int step) { return step * S.lanes + static_cast<int>(threadIdx.x) % S.lanes; }

  LANE_DEVICE void load(int step, int slot) {
    int at = unit(step), first = min(row, M.d - (EVEN ? S.rows : 1));
    bool inside = step < STEPS && (WHOLE || at < UNITS);
    if constexpr (!WHOLE) {
#pragma unroll
      for (int j = 0; j < S.rows; j++) ahead[slot][j] = {};
    }
    if (!inside) return;
    Planes<F> from = planes;
    from.advance((static_cast<i64>(chosen[at / EXPERT_UNITS].expert) * M.d + first) * EXPERT_UNITS + at % EXPERT_UNITS);
#pragma unroll
    for (int j = 0; j < S.rows; j++) {
      ahead[slot][j] = F::load(from, (EVEN ? j : min(row + j, M.d - 1) - first) * static_cast<i64>(EXPERT_UNITS));
    }
  }

  LANE_DEVICE void start() {
#pragma unroll
    for (int step = 0; step < S.depth; step++) load(step, step);
  }

  // Adds the products with the hidden values in shared memory, each times its expert's weight.
  LANE_DEVICE void multiply(float (&sum)[S.rows]) {
    using Shared = SharedInput<F, S>;
#pragma unroll(S.depth >= STEPS ? STEPS : 1)
    for (int step = 0; step < STEPS; step += S.depth) {
#pragma unroll
      for (int slot = 0; slot < S.depth; slot++) {
        if (STEPS % S.depth != 0 && step + slot >= STEPS) break;
        int at = unit(step + slot);
        bool inside = WHOLE || at < UNITS;
        float weight = inside ? chosen[at / EXPERT_UNITS].weight : 0.f;
        if constexpr (S.words != 0) {
#pragma unroll
          for (int word = 0; word < S.words; word++) {
            QuantizedBlock x = Shared::block(0, word, inside ? at : 0);
#pragma unroll
            for (int j = 0; j < S.rows; j++) {
              if (inside) sum[j] = fmaf(weight, dot_unit<F>(ahead[slot][j], x), sum[j]);
            }
          }
        } else if (inside) {
          decltype(F::decode(Block{})) w[S.rows];
#pragma unroll
          for (int j = 0; j < S.rows; j++) w[j] = F::decode(ahead[slot][j]);
#pragma unroll
          for (int quad = 0; quad < F::UNIT / 4; quad++) {
            float4 x = Shared::quad(0, quad, at);
            x = {weight * x.x, weight * x.y, weight * x.z, weight * x.w};
#pragma unroll
            for (int j = 0; j < S.rows; j++) {
              float4 v = w[j].quad(quad);
              sum[j] = fmaf(v.x, x.x, fmaf(v.y, x.y, fmaf(v.z, x.z, fmaf(v.w, x.w, sum[j]))));
            }
          }
        }
        if (S.depth < STEPS) load(step + slot + S.depth, slot);
      }
    }
  }
};

// grid (d/columns, rows): a block computes columns of a row of y, of all its experts.
template <typename DOWN, GemvShape S, typename SD, GemvShape SS, MoeShape M, RouterShape R, Dst D, typename T>
LANE_DEVICE void moe_down(const MoeChoice& choice, const u8* weight, const float* bias, const u8* shared_weight,
                          const Hidden& hidden, const Hidden& shared_hidden, T* y, const int* param) {
  __shared__ Routed chosen[M.chosen()];
  static_assert(S.lanes == SS.lanes && S.rows == SS.rows && S.warps == SS.warps, "both products share the threads alike");
  let_successor_start();
  int row = blockIdx.y, column = blockIdx.x * S.columns() + group_column<S>();
  WeightRows<SD, SS, M.d % SS.rows == 0> shared;
  if (threadIdx.x < WARP) {
    Logits<R> logits;
    logits.load(choice.logits + row * R.columns());
    choose<R>(logits, choice.selection_bias, chosen);
  }
  if constexpr (M.sdff != 0) shared.start(planes_of<SD, M.d, M.sdff>(shared_weight), column, M.d);
  __syncthreads();
  ChosenRows<DOWN, S, M> rows;
  rows.planes = planes_of<DOWN, static_cast<i64>(M.experts) * M.d, M.dff>(weight);
  rows.chosen = chosen;
  rows.row = column;
  rows.start();
  wait_for_predecessor();
  float sum[S.rows] = {};
  SharedInput<DOWN, S>::stage(hidden.template row<M.words>(row, M.used * M.dff).input(), 0);
  __syncthreads();
  rows.multiply(sum);
  if constexpr (M.sdff != 0) {
    __syncthreads();  // the hidden values are no longer read
    multiply_rows<SD, SS>(shared_hidden.template row<M.shared_words>(row, M.sdff).input(), shared);
    float factor = M.gated ? chosen[M.used].weight : 1.f;
#pragma unroll
    for (int j = 0; j < S.rows; j++) sum[j] = fmaf(factor, shared.sum[j], sum[j]);
  }
  scatter_sum<S.lanes, S.rows>(sum);
  Held<S> held(column);
#pragma unroll
  for (int i = 0; i < held.COUNT; i++) {
    int at = held.column(i);
    if (!held.owner || at >= M.d) continue;
    if (bias != nullptr) {
      for (int j = 0; j < M.used; j++) sum[i] += chosen[j].weight * load_constant(bias + chosen[j].expert * M.d + at);
    }
    y[D.start(param) + D.at(row, M.d, at)] = from_float<T>(sum[i]);
  }
}

}  // namespace lane
