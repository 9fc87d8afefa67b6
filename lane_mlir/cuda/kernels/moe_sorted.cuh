// launch.moe of many rows under int8 and two_pass_int8: rows sorted by the experts that they have chosen, whose products
// then run in tiles on the tensor cores' int8 (gemm.cuh).
//
// A *slot* is a row and one of the experts that it has chosen: row·used + j. Slots of an expert lie together, in their
// order, from the beginning of a tile of T rows on, so that a tile is of one expert; what is left of its last tile is
// computed from whatever is there and read by nobody. The kernels:
//
//   moe_choose    the experts of each row and their weights, a warp a row
//   moe_sort      by one block: the place of each slot, the slot at each place (-1: none), the expert of each tile (or -1)
//   moe_gather    the quantized rows, each to its places
//   moe_gate_up   the hidden values [places, dff], quantized
//   moe_down_up   the experts' results [places, d] f32
//   moe_combine   y[r] = Σ_j weight[r, j]·result[place of (r, j)] (+ the shared expert's, times its weight)
//
// Limits: weights in block formats, all of them.
#pragma once

#include "gemm.cuh"
#include "moe.cuh"

namespace lane {

template <RouterShape R, int WARPS>
LANE_DEVICE void moe_choose(const MoeChoice& choice, Routed* chosen) {
  let_successor_start();
  wait_for_predecessor();
  i64 row = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
  if (row >= R.rows) return;
  Logits<R> logits;
  logits.load(choice.logits + row * R.columns());
  choose<R>(logits, choice.selection_bias, chosen + row * R.chosen());
}

// ---- Sorting. ----

struct SortShape {
  int slots = 0;
  int used = 1;
  int chosen = 1;   // entries of a row
  int experts = 1;
  int tile = 32;    // rows of a tile
  int tiles = 1;    // at most

  LANE_CONSTANT int segment() const { return ceil_div(ceil_div(slots, WARP), WARP) * WARP; }  // slots of a warp
};

constexpr int SORT_THREADS = 1024;

// The lanes of a warp that have the same value.
LANE_DEVICE u32 same_lanes(int value) {
#ifdef __CUDA_ARCH__
  return __match_any_sync(ALL_LANES, value);
#else
  u32 lanes = 0;
  for (int i = 0; i < WARP; i++) lanes |= static_cast<u32>(__shfl_sync(ALL_LANES, value, i) == value) << i;
  return lanes;
#endif
}

// Shared memory: the slots of each expert that each warp has, then those of the warps before it, [32][experts]; each
// slot's place among its warp's of the expert; the slots and the first tile of each expert.
template <SortShape S>
LANE_DEVICE void moe_sort(const Routed* chosen, int* place, int* slot_at, int* tile_expert) {
  u16* counts = reinterpret_cast<u16*>(shared_memory);
  u16* ranks = counts + WARP * S.experts;
  int* totals = reinterpret_cast<int*>(ranks + ceil_div(S.slots, 2) * 2);
  int* first_tile = totals + S.experts;
  let_successor_start();
  wait_for_predecessor();
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int i = threadIdx.x; i < WARP * S.experts; i += SORT_THREADS) counts[i] = 0;
  for (int i = threadIdx.x; i < S.tiles * S.tile; i += SORT_THREADS) slot_at[i] = -1;
  for (int i = threadIdx.x; i < S.tiles; i += SORT_THREADS) tile_expert[i] = -1;
  __syncthreads();
  auto expert_of = [&](int slot) { return chosen[slot / S.used * S.chosen + slot % S.used].expert; };
  for (int base = warp * S.segment(); base < min((warp + 1) * S.segment(), S.slots); base += WARP) {
    int slot = base + lane;
    bool exists = slot < S.slots;
    int expert = exists ? expert_of(slot) : -1;
    u32 same = same_lanes(expert), before = __popc(same & ((1u << lane) - 1));
    u16* count = counts + warp * S.experts + (exists ? expert : 0);
    u32 earlier = *count;
    __syncwarp();
    if (exists) ranks[slot] = static_cast<u16>(earlier + before);
    if (exists && before == 0) *count = static_cast<u16>(earlier + __popc(same));
    __syncwarp();
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < S.experts; expert += SORT_THREADS) {
    int total = 0;
    for (int i = 0; i < WARP; i++) {
      int own = counts[i * S.experts + expert];
      counts[i * S.experts + expert] = static_cast<u16>(total);
      total += own;
    }
    totals[expert] = total;
  }
  __syncthreads();
  if (warp == 0) {
    int carried = 0;
    for (int base = 0; base < S.experts; base += WARP) {
      int expert = base + lane, tiles = expert < S.experts ? ceil_div(totals[expert], S.tile) : 0, sum = tiles;
#pragma unroll
      for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += other;
      }
      if (expert < S.experts) first_tile[expert] = carried + sum - tiles;
      carried += __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < S.experts; expert += SORT_THREADS) {
    for (int i = 0; i < ceil_div(totals[expert], S.tile); i++) tile_expert[first_tile[expert] + i] = expert;
  }
  for (int slot = threadIdx.x; slot < S.slots; slot += SORT_THREADS) {
    int expert = expert_of(slot), own = slot / S.segment();
    int at = first_tile[expert] * S.tile + counts[own * S.experts + expert] + ranks[slot];
    place[slot] = at;
    slot_at[at] = slot;
  }
}

// A warp a place: rows of D values in WORDS words.
template <int D, int WORDS, int USED, int PLACES, int WARPS>
LANE_DEVICE void moe_gather(const i8* words, const float* scales, const int* slot_at, i8* to_words, float* to_scales) {
  let_successor_start();
  wait_for_predecessor();
  i64 place = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP;
  int lane = threadIdx.x % WARP, slot = place < PLACES ? slot_at[place] : -1;
  if (slot < 0) return;
  i64 row = slot / USED;
  constexpr int VECTORS = D * WORDS / 16, SCALES = D / QBLOCK * WORDS;
  for (int i = lane; i < VECTORS; i += WARP) {
    reinterpret_cast<uint4*>(to_words)[place * VECTORS + i] = reinterpret_cast<const uint4*>(words)[row * VECTORS + i];
  }
  for (int i = lane; i < SCALES; i += WARP) to_scales[place * SCALES + i] = scales[row * SCALES + i];
}

// ---- Products: grid (tiles, tiles of columns). ----

template <typename GATE, typename UP, GemmShape S, MoeShape M>
LANE_DEVICE void moe_gate_up(const GemvInput& x, const MoeWeights& w, const int* tile_expert,
                             const QuantizedResult& hidden) {
  constexpr bool HALVES = TileUnitOf<GATE>::HALVES || TileUnitOf<UP>::HALVES;
  constexpr bool MIN = TileUnitOf<GATE>::MIN || TileUnitOf<UP>::MIN;
  constexpr i64 ROWS = static_cast<i64>(M.experts) * M.dff;
  let_successor_start();
  wait_for_predecessor();
  int expert = tile_expert[blockIdx.x], row = blockIdx.x * S.rows, first = blockIdx.y * S.columns();
  if (expert < 0) return;
  GemmWeights<GATE, UP, S, GemmShared<S, HALVES, MIN>, HALVES, MIN> weights;
  weights.planes = planes_of<GATE, ROWS, S.k>(w.gate);
  weights.up = planes_of<UP, ROWS, S.k>(w.up);
  weights.first = expert * M.dff + first;
  weights.count = (expert + 1) * M.dff;
  GemmSums sums;
  multiply_tile<GATE, UP, S, HALVES, MIN>(x, row, weights, sums);

  int column = first + threadIdx.x / WARP % 2 * 32;
  float values[2][4][4];
#pragma unroll
  for (int i = 0; i < 32; i++) {
    int tile = i / 16, n = i / 4 % 4, at = column + 8 * n + 2 * (threadIdx.x % 4) + i % 2;
    bool inside = at < M.dff;
    float gate = sums.value[tile][n][i % 4], up = sums.value[tile][n + 4][i % 4];
    if (w.gate_bias != nullptr && inside) gate += load_constant(w.gate_bias + expert * M.dff + at);
    if (w.up_bias != nullptr && inside) up += load_constant(w.up_bias + expert * M.dff + at);
    values[tile][n][i % 4] = M.activated(gate, up);
  }
  write_columns<S>(values, row, column, M.dff, hidden, [](int, int, float) {});
}

template <typename F, GemmShape S, MoeShape M>
LANE_DEVICE void moe_down_up(const GemvInput& hidden, const u8* weight, const float* bias, const int* tile_expert,
                             float* result) {
  constexpr bool HALVES = TileUnitOf<F>::HALVES, MIN = TileUnitOf<F>::MIN;
  let_successor_start();
  wait_for_predecessor();
  int expert = tile_expert[blockIdx.x], row = blockIdx.x * S.rows, first = blockIdx.y * GEMM_WEIGHTS;
  if (expert < 0) return;
  GemmWeights<F, F, S, GemmShared<S, HALVES, MIN>, HALVES, MIN> weights;
  weights.planes = planes_of<F, static_cast<i64>(M.experts) * M.d, S.k>(weight);
  weights.first = expert * M.d + first;
  weights.count = (expert + 1) * M.d;
  GemmSums sums;
  multiply_tile<F, F, S, HALVES, MIN>(hidden, row, weights, sums);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int column = first + threadIdx.x / WARP % 2 * GEMM_WARP_WEIGHTS + half * 32;
    float values[2][4][4];
#pragma unroll
    for (int i = 0; i < 32; i++) {
      int at = column + 8 * (i / 4 % 4) + 2 * (threadIdx.x % 4) + i % 2;
      float added = bias != nullptr && at < M.d ? load_constant(bias + expert * M.d + at) : 0.f;
      values[i / 16][i / 4 % 4][i % 4] = sums.value[i / 16][4 * half + i / 4 % 4][i % 4] + added;
    }
    auto to = [&](int r, int c, float value) { result[static_cast<i64>(r) * M.d + c] = value; };
    write_columns<S>(values, row, column, M.d, QuantizedResult{}, to);
  }
}

// ---- The rows again: a block a row. `shared` [rows, d] is the shared expert's result, or null. ----

template <MoeShape M, int THREADS, Dst D, typename T>
LANE_DEVICE void moe_combine(const Routed* all_chosen, const int* place, const float* result, const float* shared, T* y,
                             const int* param) {
  let_successor_start();
  wait_for_predecessor();
  i64 row = blockIdx.x;
  const Routed* chosen = all_chosen + row * M.chosen();
  float factor = M.gated ? chosen[M.used].weight : 1.f;
  i64 start = D.start(param);
  for (int i = 4 * threadIdx.x; i < M.d; i += 4 * THREADS) {
    float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
    for (int j = 0; j < M.used; j++) {
      float weight = chosen[j].weight;
      float4 v = *reinterpret_cast<const float4*>(result + static_cast<i64>(place[row * M.used + j]) * M.d + i);
      sum = {fmaf(weight, v.x, sum.x), fmaf(weight, v.y, sum.y), fmaf(weight, v.z, sum.z), fmaf(weight, v.w, sum.w)};
    }
    if (shared != nullptr) {
      float4 v = *reinterpret_cast<const float4*>(shared + row * M.d + i);
      sum = {fmaf(factor, v.x, sum.x), fmaf(factor, v.y, sum.y), fmaf(factor, v.z, sum.z), fmaf(factor, v.w, sum.w)};
    }
    T* to = y + start + D.at(row, M.d, i);
    to[0] = from_float<T>(sum.x), to[1] = from_float<T>(sum.y), to[2] = from_float<T>(sum.z), to[3] = from_float<T>(sum.w);
  }
}

}  // namespace lane
