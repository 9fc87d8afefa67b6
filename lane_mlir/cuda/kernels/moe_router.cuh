// The router of launch.moe: logits of every expert, by a kernel of their own, and the choice, which the blocks of the next
// kernel make, each for its row: that takes less time than waiting for one block to make it for all.
//
//     logits = wr·x (+ rb);   scores = softmax(logits), sigmoid(logits) or logits;   by scores (+ sb), ties to the lower
//     expert, the `used` best are chosen, of the `groups_used` best of `groups` equal runs of experts (a run's score is
//     the sum of its two best);   weights are the chosen scores, or their softmax, divided by their sum (no less than
//     2^-14) where `renormalize`, times `scale`
//
// A shared expert's gate [d] is one more column of wr; its weight, sigmoid(gate·x), follows those of the chosen ones.
//
// Limits: `used` and `groups` at most 32.
#pragma once

#include "gemv.cuh"

namespace lane {

enum class Scoring { SOFTMAX, SIGMOID, SOFTMAX_CHOSEN };

constexpr float SMALLEST_SUM = 6.103515625e-05f;  // 2^-14

struct RouterShape {
  int d = 0;
  int experts = 1;
  int used = 1;
  int rows = 1;
  Scoring scoring = Scoring::SOFTMAX;
  bool renormalize = false;
  float scale = 1.f;
  int groups = 1;
  int groups_used = 1;
  bool gated = false;    // a shared expert's gate is another column
  int rows_a_block = 1;  // of x
  int warps = 8;
  int words = 0;         // int8 words in which a router in a block format takes x; 0: f32

  LANE_CONSTANT int threads() const { return warps * WARP; }
  LANE_CONSTANT int columns() const { return experts + gated; }
  LANE_CONSTANT int chosen() const { return used + gated; }  // entries a row
};

// An expert and its weight in the mixture.
struct Routed {
  int expert;
  float weight;
};

struct RouterOperands {
  const u8* weight;
  const float* bias;  // [experts]
  const u8* gate;     // [d]
  float* logits;      // [rows, columns]
};

// ---- The choice, by a warp: lane l has experts N·l on, N of them. ----

// Larger where the value is; 0 is less than all.
LANE_DEVICE u32 rank_of(float x) {
  u32 bits = __float_as_uint(x + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

LANE_DEVICE float value_of_rank(u32 rank) { return __uint_as_float(rank >> 31 ? rank ^ 0x80000000u : ~rank); }

// The largest rank of a warp, taken away: its place is the lowest that has it, i of lane `owner`.
template <int N>
LANE_DEVICE int take_best(u32 (&rank)[N], u32& best, int& owner) {
  u32 mine = 0;
#pragma unroll
  for (int i = 0; i < N; i++) mine = max(mine, rank[i]);
  best = __reduce_max_sync(ALL_LANES, mine);
  owner = __ffs(static_cast<int>(__ballot_sync(ALL_LANES, mine == best))) - 1;
  int place = 0;
#pragma unroll
  for (int i = N - 1; i >= 0; i--) {
    if (rank[i] == best) place = i;
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (static_cast<int>(threadIdx.x % WARP) == owner && i == place) rank[i] = 0;
  }
  return place;
}

// Closes the experts outside the best groups: their rank becomes that of -infinity.
template <RouterShape S, int N>
LANE_DEVICE void close_groups(const float (&selection)[N], u32 (&rank)[N]) {
  constexpr int GROUP = S.experts / S.groups;
  int lane = threadIdx.x % WARP, owner;
  u32 score[1] = {0};  // of group `lane`
  for (int group = 0; group < S.groups; group++) {
    u32 inside[N], first, second;
#pragma unroll
    for (int i = 0; i < N; i++) {
      int expert = lane * N + i;
      inside[i] = expert < S.experts && expert / GROUP == group ? rank_of(selection[i]) : 0;
    }
    take_best(inside, first, owner);
    take_best(inside, second, owner);
    float sum = GROUP > 1 ? value_of_rank(second) + value_of_rank(first) : value_of_rank(first);
    if (lane == group) score[0] = rank_of(sum);
  }
  u32 open = 0;
  for (int i = 0; i < S.groups_used; i++) {
    u32 best;
    take_best(score, best, owner);
    open |= 1u << owner;
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    int expert = lane * N + i;
    if (expert < S.experts && !(open >> (expert / GROUP) & 1)) rank[i] = 0x007fffffu;
  }
}

// A row of logits as a warp holds it, and that of the shared expert's gate.
template <RouterShape S>
struct Logits {
  static constexpr int N = ceil_div(S.experts, WARP);
  float value[N];
  float gate;

  static LANE_DEVICE int expert(int i) { return static_cast<int>(threadIdx.x) % WARP * N + i; }

  LANE_DEVICE void load(const float* logits) {
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = expert(i) < S.experts ? load_fresh(logits + expert(i)) : 0.f;
    gate = S.gated ? load_fresh(logits + S.experts) : 0.f;
  }
};

// The scores of a row's experts.
template <RouterShape S, int N>
LANE_DEVICE void score_experts(const Logits<S>& logits, float (&score)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) score[i] = logits.value[i];
  if constexpr (S.scoring == Scoring::SOFTMAX) {
    float largest = -3.402823466e38f, sum = 0.f;
#pragma unroll
    for (int i = 0; i < N; i++) largest = logits.expert(i) < S.experts ? fmaxf(largest, score[i]) : largest;
    largest = value_of_rank(__reduce_max_sync(ALL_LANES, rank_of(largest)));
#pragma unroll
    for (int i = 0; i < N; i++) {
      score[i] = logits.expert(i) < S.experts ? expf(score[i] - largest) : 0.f;
      sum += score[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < N; i++) score[i] /= sum;
  } else if constexpr (S.scoring == Scoring::SIGMOID) {
#pragma unroll
    for (int i = 0; i < N; i++) score[i] = sigmoid(score[i]);
  }
}

// Chooses for a row, by all lanes of a warp. Where scores are by softmax and nothing is added to them, it chooses by the
// logits, which are in the same order. WEIGHTS: the chosen experts' weights are needed too.
template <RouterShape S, bool WEIGHTS = true>
LANE_DEVICE void choose(const Logits<S>& logits, const float* selection_bias, Routed* chosen) {
  constexpr int N = Logits<S>::N;
  static_assert(S.used <= WARP && S.groups <= WARP, "the chosen experts, and the groups, are a lane each");
  int lane = threadIdx.x % WARP;
  float score[N], selection[N];
  u32 rank[N];
  bool by_logits = S.scoring == Scoring::SOFTMAX && S.groups == 1 && selection_bias == nullptr;
  if (!by_logits) score_experts(logits, score);
#pragma unroll
  for (int i = 0; i < N; i++) {
    bool exists = logits.expert(i) < S.experts;
    selection[i] = by_logits ? logits.value[i] : score[i];
    if (selection_bias != nullptr && exists) selection[i] += load_constant(selection_bias + logits.expert(i));
    rank[i] = exists ? rank_of(selection[i]) : 0;
  }
  if constexpr (S.groups > 1) close_groups<S>(selection, rank);

  int from = 0, at = 0;  // of the chosen expert `lane`: the lane that has it, and its place there
#pragma unroll 1
  for (int j = 0; j < S.used; j++) {
    u32 best;
    int owner, place = take_best(rank, best, owner);
    place = __shfl_sync(ALL_LANES, place, owner);
    if (lane == j) from = owner, at = place;
  }
  bool mine = lane < S.used;
  float weight = 0.f;
  if constexpr (WEIGHTS) {
    if (by_logits) score_experts(logits, score);
#pragma unroll
    for (int i = 0; i < N; i++) {
      float held = __shfl_sync(ALL_LANES, score[i], from);
      if (at == i) weight = held;
    }
    if constexpr (S.scoring == Scoring::SOFTMAX_CHOSEN) {
      float largest = warp_max(mine ? weight : -3.402823466e38f);
      weight = mine ? expf(weight - largest) : 0.f;
      weight /= warp_sum(weight);
    }
    if constexpr (S.renormalize) weight /= fmaxf(warp_sum(mine ? weight : 0.f), SMALLEST_SUM);
  }
  if (mine) chosen[lane] = {from * N + at, weight * S.scale};
  if (S.gated && lane == 0) chosen[S.used] = {0, sigmoid(logits.gate)};
}

// ---- The logits. ----

// By a router of plain values stored transposed, [d, experts]: a block takes 8 columns, 4 rows of the weight a warp.
constexpr int ROUTER_COLUMNS = 8;

template <RouterShape S>
LANE_DEVICE void route_transposed(const float* x, const RouterOperands& o) {
  constexpr int LANES = S.threads() / ROUTER_COLUMNS, STEPS = ceil_div(S.d, LANES), AHEAD = min_of(STEPS, 16);
  __shared__ float partial[S.rows_a_block][S.warps][ROUTER_COLUMNS];
  let_successor_start();
  int lane = threadIdx.x / ROUTER_COLUMNS, place = threadIdx.x % ROUTER_COLUMNS;
  int first = blockIdx.x * ROUTER_COLUMNS, column = min(first + place, S.columns() - 1), first_row = blockIdx.y * S.rows_a_block;
  bool is_gate = S.gated && column == S.experts;
  const float* weight = reinterpret_cast<const float*>(is_gate ? o.gate : o.weight) + (is_gate ? 0 : column);
  i64 pitch = is_gate ? 1 : S.experts;
  float ahead[AHEAD], sum[S.rows_a_block] = {};
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    int row = i * LANES + lane;
    ahead[i] = row < S.d ? load_constant(weight + row * pitch) : 0.f;
  }
  wait_for_predecessor();
  for (int step = 0; step < STEPS; step += AHEAD) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      int at = (step + i) * LANES + lane, next = at + AHEAD * LANES;
      float w = ahead[i];
      if (STEPS > AHEAD) ahead[i] = next < S.d ? load_constant(weight + next * pitch) : 0.f;
      if (at >= S.d) continue;
#pragma unroll
      for (int r = 0; r < S.rows_a_block; r++) {
        if (first_row + r < S.rows) sum[r] = fmaf(w, x[static_cast<i64>(first_row + r) * S.d + at], sum[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < S.rows_a_block; r++) {
    sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 8);
    sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 16);
    if (threadIdx.x % WARP < ROUTER_COLUMNS) partial[r][threadIdx.x / WARP][place] = sum[r];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < S.rows_a_block * ROUTER_COLUMNS; at += S.threads()) {
    int row = at / ROUTER_COLUMNS, to = first + at % ROUTER_COLUMNS;
    if (to >= S.columns() || first_row + row >= S.rows) continue;
    float total = o.bias != nullptr && to < S.experts ? load_constant(o.bias + to) : 0.f;
    for (int warp = 0; warp < S.warps; warp++) total += partial[row][warp][at % ROUTER_COLUMNS];
    o.logits[static_cast<i64>(first_row + row) * S.columns() + to] = total;
  }
}

// A block of 32 of an activation from memory.
LANE_DEVICE QuantizedBlock load_block(const i8* words, const float* scales, i64 block) {
  const uint4* from = reinterpret_cast<const uint4*>(words) + 2 * block;
  uint4 low = from[0], high = from[1];
  QuantizedBlock x = {{static_cast<int>(low.x), static_cast<int>(low.y), static_cast<int>(low.z),
                       static_cast<int>(low.w), static_cast<int>(high.x), static_cast<int>(high.y),
                       static_cast<int>(high.z), static_cast<int>(high.w)},
                      scales[block],
                      0,
                      0};
  constexpr int ONES[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
  x.low_sum = dot_half(x.q, ONES, 0);
  x.high_sum = dot_half(x.q + 4, ONES, 0);
  return x;
}

// By a router stored in rows, in a format: a warp takes a column.
template <RouterShape S, typename F>
LANE_DEVICE void route_rows(const GemvInput& x, const RouterOperands& o) {
  constexpr int UNITS = S.d / F::UNIT, STEPS = ceil_div(UNITS, WARP), AHEAD = min_of(STEPS, 2);
  static_assert(S.d % F::UNIT == 0, "a row is whole units");
  let_successor_start();
  int lane = threadIdx.x % WARP, column = blockIdx.x * S.warps + threadIdx.x / WARP, first_row = blockIdx.y * S.rows_a_block;
  bool is_gate = S.gated && column == S.experts, exists = column < S.columns();
  Planes<F> planes = planes_of<F, S.experts, S.d>(o.weight);
  if (is_gate) planes = planes_of<F, 1, S.d>(o.gate);
  i64 first = is_gate ? 0 : static_cast<i64>(min(column, S.experts - 1)) * UNITS;
  auto load = [&](int step) {
    int unit = step * WARP + lane;
    typename F::Block block = {};
    return exists && unit < UNITS ? F::load(planes, first + unit) : block;
  };
  typename F::Block ahead[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; i++) ahead[i] = load(i);
  wait_for_predecessor();
  float sum[S.rows_a_block] = {};
#pragma unroll 1
  for (int step = 0; step < STEPS; step++) {
    auto unit = F::decode(ahead[0]);
    if constexpr (AHEAD > 1) ahead[0] = ahead[1];
    ahead[AHEAD - 1] = load(step + AHEAD);
    int at = step * WARP + lane;
    if (at >= UNITS) continue;
#pragma unroll
    for (int r = 0; r < S.rows_a_block; r++) {
      i64 row = first_row + r;
      if (row >= S.rows) continue;
      if constexpr (S.words != 0) {
#pragma unroll
        for (int word = 0; word < S.words; word++) {
          sum[r] += unit.dot(load_block(x.words, x.scales, (row * UNITS + at) * S.words + word));
        }
      } else {
#pragma unroll
        for (int i = 0; i < F::UNIT / 4; i++) {
          const float* v = x.values + row * S.d + at * F::UNIT + 4 * i;
          float4 w = unit.quad(i);
          sum[r] = fmaf(w.x, v[0], fmaf(w.y, v[1], fmaf(w.z, v[2], fmaf(w.w, v[3], sum[r]))));
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < S.rows_a_block; r++) {
    float total = warp_sum(sum[r]);
    if (lane != 0 || !exists || first_row + r >= S.rows) continue;
    if (o.bias != nullptr && !is_gate) total += load_constant(o.bias + column);
    o.logits[static_cast<i64>(first_row + r) * S.columns() + column] = total;
  }
}

}  // namespace lane
