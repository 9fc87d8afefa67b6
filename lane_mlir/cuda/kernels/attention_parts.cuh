// What the kernels of launch.attention share: its constants and buffers, the positions that a row attends, scores, and how
// results of parts of the positions are summed.
//
// Row r stands at p = pos + r (pos[r] where rows are sequences) and attends the positions j with p - window < j ≤ p,
// of which nothing else is read. With g = h div group,
//
//     s[j] = scale·q[r, h]·k[j, g]   (with a softcap c, c·tanh(s/c));   y[r, h] = Σⱼ softmax(s)[j]·v[j, g]
//
// Scores are times log2 e, exponentials in base 2. What has been seen of some positions is their largest score, the sum of
// their weights relative to it, and the values times these weights.
#pragma once

#include "common.cuh"

namespace lane {

constexpr float LOG2E = 1.4426950408889634f;
constexpr float NOTHING = -3.402823466e38f;  // the largest of no scores
constexpr int MAX_PARTS = 2 * WARP;  // that are summed at once: two a lane

struct AttentionShape {
  int heads = 1;
  int group = 1;        // query heads of a key head
  int hd = 0;
  int vd = 0;
  int len = 0;          // rows of the arrays of keys and values
  int rows = 1;
  int own = 0;          // columns of a key that are in k; the others are its tail
  i64 q_pitch = 0;      // elements from a query to the next, and from the key, the value of a position to the next
  i64 k_pitch = 0;
  i64 v_pitch = 0;
  i64 v_offset = 0;
  Part q_tail, k_tail;  // where the tails are: of queries in units of a head, of keys in units of a position
  float scale = 1.f;
  int window = 0;       // 0: none
  float softcap = 0.f;  // 0: none
  i64 seq = 0;          // elements from the arrays of a sequence to the next; 0: rows are of one sequence
  bool gated = false;
  Activation gate = Activation::NONE;
  i64 gate_offset = 0;
  bool f32 = true;
  int words = 0;        // int8 words of the quantized result; 0: none is written

  int per_block = 1;
  int parts = 1;
  int least = 0;
  int lanes = 32;
  int key_vec = 8;
  int value_vec = 8;
  int at_once = 1;
  int heads_a_warp = 1;
  int warps = 8;

  LANE_CONSTANT int threads() const { return warps * WARP; }
  LANE_CONSTANT int groups() const { return WARP / lanes; }
  LANE_CONSTANT int sets() const { return per_block / heads_a_warp; }
  LANE_CONSTANT int warps_a_set() const { return warps / sets(); }
  LANE_CONSTANT int scores() const { return at_once * heads_a_warp; }
  LANE_CONSTANT int head_blocks() const { return heads / per_block; }
  LANE_CONSTANT int result_vec() const { return vd % 4 == 0 ? 4 : 1; }
  LANE_CONSTANT int results() const { return per_block * vd / result_vec(); }  // vectors of a block's result

  // Floats of shared memory: the queries, the scores of each group, the warps' results with their weights.
  LANE_CONSTANT int query_floats() const { return per_block * hd; }
  LANE_CONSTANT int score_floats() const { return ceil_div(warps * groups() * scores(), 4) * 4; }
  LANE_CONSTANT int part_floats() const {
    return max_of(max_of(warps_a_set() * per_block * vd, 4 * threads()), rotated_floats());
  }
  // Of rotated queries, and a key in f16, until the results are made where they are.
  LANE_CONSTANT int rotated_floats() const { return per_block * hd + ceil_div(hd, 2); }
};

// What attention reads and writes; null is what it has not.
template <typename K, typename V, typename TAIL>
struct AttentionOperands {
  const float* q;
  const K* k;
  const V* v;
  const int* pos;
  const float* sinks;   // [heads]: a logit that takes weight and adds nothing
  const float* q_tail;
  const TAIL* k_tail;
  const float* gate;
  float* out;
  i8* words;
  float* scales;
  float* partial;       // [rows, blocks of heads, parts, per_block] pairs, then as many results of vd
  u32* counter;         // [rows, blocks of heads], 0 between runs
};

// N elements as they are stored.
template <typename T, int N>
struct alignas(N * sizeof(T)) Stored {
  T v[N];
};

// The positions that a row attends: from `first` up to, not including, `end`.
struct Span {
  int first;
  int end;
};

template <AttentionShape S>
LANE_DEVICE Span attended(const int* pos, int row) {
  int p = pos == nullptr ? (S.seq != 0 ? 0 : row) : S.seq != 0 ? pos[row] : *pos + row;
  p = min(max(p, 0), S.len - 1);  // never outside the arrays, whatever the parameter holds
  return {S.window != 0 ? max(0, p - S.window + 1) : 0, p + 1};
}

// A score of f32 as a power of 2.
template <AttentionShape S>
LANE_DEVICE float score(float s) {
  if constexpr (S.softcap != 0.f) s = S.softcap * tanhf(s * (1.f / S.softcap)) * LOG2E;
  return s;
}
// What queries are multiplied by, so that score() is right.
template <AttentionShape S>
LANE_CONSTANT float query_scale() {
  return S.softcap != 0.f ? S.scale : S.scale * LOG2E;
}

// Element i of the query of a unit (a row and a head).
template <AttentionShape S, typename O>
LANE_DEVICE float query(const O& o, i64 unit, int i) {
  if (S.own < S.hd && i >= S.own) return o.q_tail[unit * S.q_tail.pitch + S.q_tail.offset + i - S.own];
  return o.q[unit * S.q_pitch + i];
}

// A head's results in parts: part i has its largest score and sum at pairs[i·per_block + head] and its weighted values
// at y + i·per_block·vd. Afterwards `weights` has what each part's values are to be multiplied by, then, at MAX_PARTS,
// the head's largest score and sum. By all threads of a block, which synchronize afterwards.
template <AttentionShape S>
LANE_DEVICE void weigh_parts(const float2* pairs, int parts, float* weights) {
  constexpr int ROUNDS = MAX_PARTS / WARP;
  int lane = threadIdx.x % WARP;
  for (int head = threadIdx.x / WARP; head < S.per_block; head += S.warps) {
    float2 pair[ROUNDS];
    float largest = NOTHING, sum = 0.f;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      int part = i * WARP + lane;
      pair[i] = part < parts ? pairs[part * S.per_block + head] : float2{NOTHING, 0.f};
      largest = fmaxf(largest, pair[i].x);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      float weight = pair[i].x == NOTHING ? 0.f : exp2f(pair[i].x - largest);
      weights[head * (MAX_PARTS + 2) + i * WARP + lane] = weight;
      sum += weight * pair[i].y;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      weights[head * (MAX_PARTS + 2) + MAX_PARTS] = largest;
      weights[head * (MAX_PARTS + 2) + MAX_PARTS + 1] = sum;
    }
  }
}

// Vector `item` of the weighted sum of parts first, first + step, ….
template <AttentionShape S>
LANE_DEVICE Stored<float, S.result_vec()> sum_parts(const float* y, const float* weights, int item, int first, int step,
                                                    int parts) {
  using Vector = Stored<float, S.result_vec()>;
  const float* weight = weights + item / (S.vd / S.result_vec()) * (MAX_PARTS + 2);
  Vector total = {};
#pragma unroll 4
  for (int part = first; part < parts; part += step) {
    Vector value = reinterpret_cast<const Vector*>(y)[static_cast<i64>(part) * S.results() + item];
#pragma unroll
    for (int i = 0; i < S.result_vec(); i++) total.v[i] = fmaf(weight[part], value.v[i], total.v[i]);
  }
  return total;
}

// 1/(sum of weights), the sink's too.
LANE_DEVICE float inverse_sum(float largest, float sum, const float* sinks, int head) {
  if (sinks == nullptr) return 1.f / sum;
  // Relative to the larger of both, so that neither overflows.
  float sink = sinks[head] * LOG2E, top = fmaxf(largest, sink);
  float factor = exp2f(largest - top);
  return factor / (sum * factor + exp2f(sink - top));
}

// Divides a vector of a block's result by the sum of weights, of which `total` says the head's largest score and sum, gates
// it, and writes it: vector `item`, if it is one. By whole warps.
template <AttentionShape S, typename O>
LANE_DEVICE void finish(const O& o, i64 first_unit, int item, bool active, Stored<float, S.result_vec()> value,
                        float2 total) {
  constexpr int VEC = S.result_vec();
  i64 vector = first_unit * (S.vd / VEC) + item;
  if (active) {
    int head = item / (S.vd / VEC);
    float factor = inverse_sum(total.x, total.y, o.sinks, static_cast<int>((first_unit + head) % S.heads));
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      value.v[i] *= factor;
      if constexpr (S.gated) value.v[i] *= activate<S.gate>(o.gate[S.gate_offset + vector * VEC + i]);
    }
    if constexpr (S.f32) reinterpret_cast<Stored<float, VEC>*>(o.out)[vector] = value;
  }
  if constexpr (S.words != 0) {
    static_assert(S.per_block * S.vd % QBLOCK == 0 && VEC == 4, "a block of threads owns whole blocks of its result");
    i64 quad = first_unit * (S.vd / VEC) + item;
    quantize_quads<S.words>({value.v[0], value.v[1], value.v[2], value.v[3]}, quad, active, o.words, o.scales);
  }
}

// The part of a row's positions that a block takes, and how many parts there are.
struct Portion {
  int begin;
  int end;
  int parts;
};

template <AttentionShape S>
LANE_DEVICE Portion portion(const Span& span) {
  if constexpr (S.parts == 1) return {span.first, span.end, 1};
  int count = span.end - span.first;
  if (count <= S.least) return {span.first, span.end, 1};  // soon, for the latency of a short context
  int parts = min(S.parts, ceil_div(count, S.least)), keys = ceil_div(count, parts);
  int begin = span.first + static_cast<int>(blockIdx.x) * keys;
  return {begin, min(begin + keys, span.end), ceil_div(count, keys)};
}

// Where the result of the warps of a block lies as it is made: vector `item` of a part.
struct InOrder {
  template <AttentionShape S>
  static LANE_DEVICE int place(int item) {
    return item;
  }
};

// Vector `item` of the weighted sum of what the warps of a block have made, and its head's largest score and sum: every
// thread weighs for itself, which takes less time than to wait for one that does.
template <AttentionShape S, typename Order>
LANE_DEVICE Stored<float, S.result_vec()> sum_warps(const float2* pairs, const float* made, int item, float2& total) {
  constexpr int WARPS = S.warps_a_set();
  using Vector = Stored<float, S.result_vec()>;
  int head = item / (S.vd / S.result_vec()), place = Order::template place<S>(item);
  float2 pair[WARPS];
  total = {NOTHING, 0.f};
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    pair[i] = pairs[i * S.per_block + head];
    total.x = fmaxf(total.x, pair[i].x);
  }
  Vector value = {};
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    float weight = pair[i].x == NOTHING ? 0.f : exp2f(pair[i].x - total.x);
    total.y = fmaf(weight, pair[i].y, total.y);
    Vector own = reinterpret_cast<const Vector*>(made)[i * S.results() + place];
#pragma unroll
    for (int j = 0; j < S.result_vec(); j++) value.v[j] = fmaf(weight, own.v[j], value.v[j]);
  }
  return value;
}

// Sums what the warps of a block have made, `made` [warps of a set, per_block, vd] with their `pairs`, and where there
// are several parts, by the last block, those: writes the result. By all threads of a block, after a barrier.
template <AttentionShape S, typename Order, typename O>
LANE_DEVICE void combine_parts(const O& o, int parts, const float2* pairs, float* made, float* weights) {
  constexpr int VEC = S.result_vec(), ITEMS = S.results(), VECTORS = S.vd / VEC;
  using Vector = Stored<float, VEC>;
  int row = blockIdx.z, head_block = blockIdx.y;
  i64 unit = static_cast<i64>(row) * S.heads + head_block * S.per_block;
  i64 heads_at = static_cast<i64>(row) * S.head_blocks() + head_block;
  constexpr i64 PAIRS = (static_cast<i64>(S.rows) * S.heads * S.parts * 2 + 3) / 4 * 4;
  float2* part_pairs = reinterpret_cast<float2*>(o.partial) + heads_at * S.parts * S.per_block;
  float* part_values = o.partial + PAIRS + heads_at * S.parts * S.per_block * S.vd;
  for (int base = 0; base < ITEMS; base += S.threads()) {
    int item = base + threadIdx.x;
    bool active = item < ITEMS;
    float2 total = {0.f, 1.f};
    Vector value = {};
    if (active) value = sum_warps<S, Order>(pairs, made, item, total);
    if (S.parts == 1 || parts == 1) {
      finish<S>(o, unit, item, active, value, total);
    } else if (active) {
      reinterpret_cast<Vector*>(part_values)[static_cast<i64>(blockIdx.x) * ITEMS + item] = value;
      if (item % VECTORS == 0) part_pairs[blockIdx.x * S.per_block + item / VECTORS] = total;
    }
  }
  if (S.parts == 1 || parts == 1) return;
  if (!is_last_block(o.counter + heads_at, parts)) return;

  weigh_parts<S>(part_pairs, parts, weights);
  __syncthreads();
  // Where there are threads for it, several of them share an item, each with some of the parts.
  constexpr int COLUMN = ceil_div(ITEMS, WARP) * WARP, SHARES = max_of(1, S.threads() / COLUMN);
  for (int base = 0; base < ITEMS; base += S.threads()) {
    int item = SHARES > 1 ? static_cast<int>(threadIdx.x) % COLUMN : base + static_cast<int>(threadIdx.x);
    int share = SHARES > 1 ? static_cast<int>(threadIdx.x) / COLUMN : 0;
    bool active = item < ITEMS && share < SHARES;
    Vector value = {};
    if (active) value = sum_parts<S>(part_values, weights, item, share, SHARES, parts);
    if constexpr (SHARES > 1) {
      Vector* shared = reinterpret_cast<Vector*>(made);
      if (active) shared[share * ITEMS + item] = value;
      __syncthreads();
      active = item < ITEMS && share == 0;
      if (active) {
#pragma unroll
        for (int other = 1; other < SHARES; other++) {
#pragma unroll
          for (int i = 0; i < VEC; i++) value.v[i] += shared[other * ITEMS + item].v[i];
        }
      }
    }
    const float* totals = weights + min(item / VECTORS, S.per_block - 1) * (MAX_PARTS + 2) + MAX_PARTS;
    finish<S>(o, unit, item, active, value, {totals[0], totals[1]});
  }
}

}  // namespace lane
