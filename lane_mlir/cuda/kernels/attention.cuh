// launch.attention, row by row: decode, batches of sequences, chunks of a few rows; for whatever keys and values are
// stored as, tails in arrays of their own, and heads of any width.
//
// A block takes `per_block` heads of one key head, a row, and a part of the positions; grid (parts, blocks of heads,
// rows). Of a warp, `lanes` lanes share a key: lane l has its columns in vectors l, l + lanes, … of `key_vec` elements,
// and the value's likewise; so a warp takes 32/lanes keys at a time, `at_once` times over, the next ones being on their
// way. Every group of lanes keeps what it has seen, for `heads_a_warp` heads; the warps of a block take turns over the
// sets of heads.
//
// Then the groups of a warp are summed, the warps of a block, and, where there are several parts, the last block of a
// row and its heads sums those. How many parts there are is seen from the position: none with fewer keys than `least`.
//
// Limits: own, hd, vd, pitches and offsets are multiples of the vectors.
#pragma once

#include "attention_rope.cuh"

namespace lane {

// The queries of a block's heads in shared memory, [head][quad of a vector][vector][4], times the scale.
template <AttentionShape S>
struct SharedQueries {
  static constexpr int VECTORS = S.hd / S.key_vec, WIDTH = min_of(S.key_vec, 4), PIECES = S.key_vec / WIDTH;

  static LANE_DEVICE int place(int head, int i) {
    int vector = i / S.key_vec, element = i % S.key_vec;
    return ((head * PIECES + element / WIDTH) * VECTORS + vector) * WIDTH + element % WIDTH;
  }

  template <typename O>
  static LANE_DEVICE void stage(float* shared, const O& o, i64 first_unit) {
    for (int at = threadIdx.x; at < S.query_floats(); at += S.threads()) {
      int head = at / S.hd, i = at % S.hd;
      shared[place(head, i)] = query<S>(o, first_unit + head, i) * query_scale<S>();
    }
  }

  // A vector of a head's query.
  static LANE_DEVICE void read(const float* shared, int head, int vector, float* q) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
      const float* from = shared + ((head * PIECES + piece) * VECTORS + vector) * WIDTH;
      if constexpr (WIDTH == 4) {
        float4 four = *reinterpret_cast<const float4*>(from);
        q[4 * piece] = four.x, q[4 * piece + 1] = four.y, q[4 * piece + 2] = four.z, q[4 * piece + 3] = four.w;
      } else {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) q[piece * WIDTH + i] = from[i];
      }
    }
  }
};

// The keys that a lane works on, and the values: `at_once` positions, its columns of each.
template <AttentionShape S, typename K, typename V, typename TAIL>
struct Ahead {
  static constexpr int KEY_VECTORS = S.hd / S.key_vec, VALUE_VECTORS = S.vd / S.value_vec;
  static constexpr int KEYS = ceil_div(KEY_VECTORS, S.lanes), VALUES = ceil_div(VALUE_VECTORS, S.lanes);
  // Vectors of a tail are as wide as those of a key, whatever it is stored as.
  Stored<K, S.key_vec> key[S.at_once][KEYS];
  Stored<TAIL, S.key_vec> tail[S.own < S.hd ? S.at_once : 1][S.own < S.hd ? KEYS : 1];
  Stored<V, S.value_vec> value[S.at_once][VALUES];

  static LANE_DEVICE int lane() { return threadIdx.x % S.lanes; }
  static LANE_DEVICE bool has_key(int c) { return KEY_VECTORS % S.lanes == 0 || c * S.lanes + lane() < KEY_VECTORS; }
  static LANE_DEVICE bool has_value(int c) {
    return VALUE_VECTORS % S.lanes == 0 || c * S.lanes + lane() < VALUE_VECTORS;
  }

  // Of positions `at`, at + stride, …, none from `end` on: those are 0.
  template <typename O>
  LANE_DEVICE void load_keys(const O& o, i64 sequence, int head, int at, int stride, int end) {
#pragma unroll
    for (int u = 0; u < S.at_once; u++) {
      i64 j = at + u * stride;
#pragma unroll
      for (int c = 0; c < KEYS; c++) {
        int column = (c * S.lanes + lane()) * S.key_vec;
        key[u][c] = {};
        if constexpr (S.own < S.hd) tail[u][c] = {};
        if (j >= end || !has_key(c)) continue;
        if constexpr (S.own < S.hd) {
          if (column >= S.own) {
            const TAIL* from = o.k_tail + sequence + j * S.k_tail.pitch + S.k_tail.offset + column - S.own;
            tail[u][c] = *reinterpret_cast<const Stored<TAIL, S.key_vec>*>(from);
            continue;
          }
        }
        const K* from = o.k + sequence + j * S.k_pitch + static_cast<i64>(head) * S.own + column;
        key[u][c] = *reinterpret_cast<const Stored<K, S.key_vec>*>(from);
      }
    }
  }

  template <typename O>
  LANE_DEVICE void load_values(const O& o, i64 sequence, int head, int at, int stride, int end) {
#pragma unroll
    for (int u = 0; u < S.at_once; u++) {
      i64 j = at + u * stride;
#pragma unroll
      for (int c = 0; c < VALUES; c++) {
        value[u][c] = {};
        if (j >= end || !has_value(c)) continue;
        const V* from = o.v + sequence + j * S.v_pitch + S.v_offset + static_cast<i64>(head) * S.vd;
        value[u][c] = reinterpret_cast<const Stored<V, S.value_vec>*>(from)[c * S.lanes + lane()];
      }
    }
  }

  // Element i of vector c of key u.
  LANE_DEVICE float key_element(int u, int c, int i) const {
    if constexpr (S.own < S.hd) {
      if ((c * S.lanes + lane()) * S.key_vec >= S.own) return to_float(tail[u][c].v[i]);
    }
    return to_float(key[u][c].v[i]);
  }
};

// What a group of lanes has seen: the largest score and the sum of weights of each head, and its weighted values.
template <AttentionShape S>
struct Seen {
  static constexpr int VALUES = ceil_div(S.vd / S.value_vec, S.lanes), HEADS = S.heads_a_warp;
  float largest[HEADS], sum[HEADS];
  float y[HEADS][VALUES][S.value_vec];

  LANE_DEVICE void clear() {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      largest[h] = NOTHING, sum[h] = 0.f;
#pragma unroll
      for (int c = 0; c < VALUES; c++) {
#pragma unroll
        for (int i = 0; i < S.value_vec; i++) y[h][c][i] = 0.f;
      }
    }
  }

  LANE_DEVICE void rescale(int h, float factor) {
    sum[h] *= factor;
#pragma unroll
    for (int c = 0; c < VALUES; c++) {
#pragma unroll
      for (int i = 0; i < S.value_vec; i++) y[h][c][i] *= factor;
    }
  }

  // Raises the largest score of a head; the factor of what was seen before, 1 where nothing was.
  LANE_DEVICE float raise(int h, float largest_now) {
    float before = largest[h];
    largest[h] = fmaxf(before, largest_now);
    return before == largest[h] ? 1.f : exp2f(before - largest[h]);
  }

  // The weight of a score of a head whose largest score is at least as large.
  LANE_DEVICE float weight(int h, float s) const { return s == NOTHING ? 0.f : exp2f(s - largest[h]); }

  // Sums the groups of a warp: every group holds the whole afterwards.
  LANE_DEVICE void sum_groups() {
#pragma unroll
    for (int step = S.lanes; step < WARP; step *= 2) {
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        float other = __shfl_xor_sync(ALL_LANES, largest[h], step);
        rescale(h, raise(h, other));
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], step);
#pragma unroll
        for (int c = 0; c < VALUES; c++) {
#pragma unroll
          for (int i = 0; i < S.value_vec; i++) y[h][c][i] += __shfl_xor_sync(ALL_LANES, y[h][c][i], step);
        }
      }
    }
  }
};

// Goes over the positions first, first + stride·groups·at_once, … of a warp's share of a part.
template <AttentionShape S, typename A, typename O>
LANE_DEVICE void attend(Seen<S>& seen, A& ahead, const O& o, i64 sequence, int key_head, const float* queries,
                        float* scores, int set, int first, int end) {
  constexpr int HEADS = S.heads_a_warp, N = S.scores(), STRIDE = S.warps_a_set() * S.groups();
  constexpr int STEP = STRIDE * S.at_once;
  for (int warp_first = first; warp_first < end; warp_first += STEP) {
    int at = warp_first + static_cast<int>(threadIdx.x) % WARP / S.lanes;  // of this group
    float s[N];  // of position u and head h at u·HEADS + h
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = 0.f;
#pragma unroll
    for (int c = 0; c < A::KEYS; c++) {
      float k[S.at_once][S.key_vec];
#pragma unroll
      for (int u = 0; u < S.at_once; u++) {
#pragma unroll
        for (int i = 0; i < S.key_vec; i++) k[u][i] = ahead.key_element(u, c, i);
      }
      int vector = A::has_key(c) ? c * S.lanes + A::lane() : 0;
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        float q[S.key_vec];
        SharedQueries<S>::read(queries, set * HEADS + h, vector, q);
#pragma unroll
        for (int u = 0; u < S.at_once; u++) {
#pragma unroll
          for (int i = 0; i < S.key_vec; i++) s[u * HEADS + h] = fmaf(q[i], k[u][i], s[u * HEADS + h]);
        }
      }
    }
    ahead.load_keys(o, sequence, key_head, at + STEP, STRIDE, end);

    // Each lane finishes some of the scores, and all lanes of the group get all of them.
    scatter_sum<S.lanes, N>(s);
    constexpr int HELD = scattered_count<S.lanes, N>();
    int held = scattered_first<S.lanes, N>();
    __syncwarp();  // the scores before have been read
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      int u = (held + i) / HEADS;
      float value = at + u * STRIDE < end ? score<S>(s[i]) : NOTHING;
      if (scattered_owner<S.lanes, N>()) scores[held + i] = value;
    }
    __syncwarp();
    using Piece = Stored<float, N % 4 == 0 ? 4 : 1>;
    constexpr int WIDTH = sizeof(Piece) / 4;
#pragma unroll
    for (int i = 0; i < N / WIDTH; i++) {
      Piece piece = reinterpret_cast<const Piece*>(scores)[i];
#pragma unroll
      for (int j = 0; j < WIDTH; j++) s[i * WIDTH + j] = piece.v[j];
    }

#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float largest = s[h];
#pragma unroll
      for (int u = 1; u < S.at_once; u++) largest = fmaxf(largest, s[u * HEADS + h]);
      float factor = seen.raise(h, largest);
      if (factor != 1.f) seen.rescale(h, factor);
#pragma unroll
      for (int u = 0; u < S.at_once; u++) {
        s[u * HEADS + h] = seen.weight(h, s[u * HEADS + h]);
        seen.sum[h] += s[u * HEADS + h];
      }
    }
#pragma unroll
    for (int c = 0; c < A::VALUES; c++) {
#pragma unroll
      for (int u = 0; u < S.at_once; u++) {
#pragma unroll
        for (int i = 0; i < S.value_vec; i++) {
          float v = to_float(ahead.value[u][c].v[i]);
#pragma unroll
          for (int h = 0; h < HEADS; h++) seen.y[h][c][i] = fmaf(s[u * HEADS + h], v, seen.y[h][c][i]);
        }
      }
    }
    ahead.load_values(o, sequence, key_head, at + STEP, STRIDE, end);
  }
}

template <AttentionShape S, typename K, typename V, typename TAIL, typename BEFORE>
LANE_DEVICE void attention(AttentionOperands<K, V, TAIL> o, const BEFORE& before) {
  constexpr int SET_WARPS = S.warps_a_set();
  float* queries = reinterpret_cast<float*>(shared_memory);
  float* all_scores = queries + ceil_div(S.query_floats(), 4) * 4;
  float* made = all_scores + S.score_floats();  // [warps of a set, per_block, vd]
  float* weights = made + ceil_div(S.part_floats(), 4) * 4;
  float2* pairs = reinterpret_cast<float2*>(queries);  // [warps of a set, per_block], when no query is needed any more
  static_assert(2 * SET_WARPS * S.per_block <= S.query_floats() + S.score_floats(), "pairs fit where queries were");

  let_successor_start();
  wait_for_predecessor();
  int row = blockIdx.z, first_head = blockIdx.y * S.per_block;
  Span span = attended<S>(o.pos, row);
  Portion part = portion<S>(span);
  if (static_cast<int>(blockIdx.x) >= part.parts) return;

  int warp = threadIdx.x / WARP, set = warp % S.sets(), place = warp / S.sets();
  int group = static_cast<int>(threadIdx.x) % WARP / S.lanes, key_head = first_head / S.group;
  int first = part.begin + place * S.groups();
  i64 sequence = row * S.seq;
  if constexpr (BEFORE::ROTATES) {
    before.template run<S, K>(row, first_head, part.end == span.end, made, nullptr);
    o.q = made - (static_cast<i64>(row) * S.heads + first_head) * S.q_pitch;
    __syncthreads();
  }
  Ahead<S, K, V, TAIL> ahead;
  ahead.load_keys(o, sequence, key_head, first + group, SET_WARPS * S.groups(), part.end);
  ahead.load_values(o, sequence, key_head, first + group, SET_WARPS * S.groups(), part.end);
  SharedQueries<S>::stage(queries, o, static_cast<i64>(row) * S.heads + first_head);
  __syncthreads();

  Seen<S> seen;
  seen.clear();
  float* scores = all_scores + (warp * S.groups() + group) * S.scores();
  attend<S>(seen, ahead, o, sequence, key_head, queries, scores, set, first, part.end);
  seen.sum_groups();
  __syncthreads();  // queries and scores are no longer needed

  if (group == 0) {
#pragma unroll
    for (int h = 0; h < S.heads_a_warp; h++) {
      int at = place * S.per_block + set * S.heads_a_warp + h;
      if (Ahead<S, K, V, TAIL>::lane() == 0) pairs[at] = {seen.largest[h], seen.sum[h]};
#pragma unroll
      for (int c = 0; c < Seen<S>::VALUES; c++) {
        if (!Ahead<S, K, V, TAIL>::has_value(c)) continue;
        int column = (c * S.lanes + Ahead<S, K, V, TAIL>::lane()) * S.value_vec;
        using Quad = Stored<float, min_of(S.value_vec, 4)>;
        Quad* to = reinterpret_cast<Quad*>(made + at * S.vd + column);
#pragma unroll
        for (int i = 0; i < S.value_vec; i += sizeof(Quad) / 4) {
          Quad quad;
#pragma unroll
          for (int j = 0; j < sizeof(Quad) / 4; j++) quad.v[j] = seen.y[h][c][i + j];
          to[i / (sizeof(Quad) / 4)] = quad;
        }
      }
    }
  }
  __syncthreads();
  combine_parts<S, InOrder>(o, part.parts, pairs, made, weights);
}

}  // namespace lane
