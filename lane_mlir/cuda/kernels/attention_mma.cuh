// launch.attention row by row where keys and values are stored as f16: as attention.cuh, by products of small tiles on
// tensor cores. The results have the accuracy of f32: f16 keys and values are taken as they are, and what multiplies
// them, queries and weights, as two f16 words, the second of what the first leaves.
//
// A warp takes 16 positions at a time. With lane = 4·g + t (mma.cuh):
//
//   scores   [16 x 8] = queries [16 x hd] · keys ᵀ [hd x 8]     rows h and h + 8 are the two words of head h's query, their
//                                                               products' sum is its score; 8 positions, twice
//   values   [16 x 8] = values ᵀ [16 x 16] · weights [16 x 8]   16 columns of vd; columns are heads; for both words
//
// so that a score's lane has it where the second product needs its weight. Columns of hd, which are summed over, and
// columns of vd are in an order of our own, such that a lane loads 16 bytes of a key or a value at once:
//
//   - of a key, lane t of 4 has columns 32b + 8t to 32b + 8t + 7: of step 2b + s, those of 4s on;
//   - of a value, lane g of 8 has columns 64b + 8g to 64b + 8g + 7: of tile 4b + j, columns 2j and 2j + 1 are rows g, g + 8.
//
// Limits: per_block at most 8; hd and vd multiples of 8 and at most 256; no tails.
#pragma once

#include "attention_rope.cuh"
#include "mma.cuh"

namespace lane {

constexpr int TILE_KEYS = 16;  // positions that a warp takes at a time
constexpr int MMA_HEADS = 8;   // heads of a block at most

// x, but no finite value becomes an infinity as f16.
LANE_DEVICE float finite_half(float x) { return fabsf(x) > 65504.f && fabsf(x) < 3e38f ? copysignf(65504.f, x) : x; }

// The queries of a block's heads as the first operands of all steps: [step][lane] of 4 words, in shared memory. A thread
// makes some of them from 4 columns each, which it loads before it knows its position.
template <AttentionShape S>
struct QueryTiles {
  static constexpr int STEPS = 2 * ceil_div(S.hd, 32), ROUNDS = ceil_div(STEPS * WARP, S.threads());
  float q[ROUNDS][4];

  static LANE_DEVICE int index(int round) { return round * S.threads() + static_cast<int>(threadIdx.x); }

  template <typename O>
  LANE_DEVICE void load(const O& o, i64 first_unit) {
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
      int at = index(round), step = at / WARP, g = at % WARP / 4, column = step / 2 * 32 + 8 * (at % 4) + 4 * (step % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        bool exists = at < STEPS * WARP && g < S.per_block && column + i < S.hd;
        q[round][i] = exists ? query<S>(o, first_unit + g, column + i) * query_scale<S>() : 0.f;
      }
    }
  }

  // Columns 2p and 2p + 1 are words 2p (high, row g of mma_f16) and 2p + 1 (low, row g + 8).
  LANE_DEVICE void store(uint4* tiles) const {
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
      u32 word[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        f16 high = to_f16(finite_half(q[round][i])), low = to_f16(finite_half(q[round][i] - to_float(high)));
        word[i / 2 * 2] |= static_cast<u32>(high.bits) << (i % 2 * 16);
        word[i / 2 * 2 + 1] |= static_cast<u32>(low.bits) << (i % 2 * 16);
      }
      if (index(round) < STEPS * WARP) tiles[index(round)] = {word[0], word[1], word[2], word[3]};
    }
  }
};

// The keys and values of a warp's 16 positions, as they come from memory.
template <AttentionShape S>
struct TileAhead {
  static constexpr int KEY_BLOCKS = ceil_div(S.hd, 32), VALUE_BLOCKS = ceil_div(S.vd, 64);
  uint4 key[KEY_BLOCKS][2];      // of positions g and g + 8
  uint4 value[VALUE_BLOCKS][4];  // of positions 2t, 2t + 1, 2t + 8, 2t + 9

  static LANE_DEVICE int g() { return threadIdx.x % WARP / 4; }
  static LANE_DEVICE int t() { return threadIdx.x % 4; }

  // Positions `first` on, none from `end` on: those are 0.
  LANE_DEVICE void load_keys(const f16* keys, int first, int end) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int j = first + g() + 8 * half;
      const uint4* from = reinterpret_cast<const uint4*>(keys + j * S.k_pitch);
#pragma unroll
      for (int block = 0; block < KEY_BLOCKS; block++) {
        int vector = 4 * block + t();
        key[block][half] = {0, 0, 0, 0};
        if (j < end && (S.hd % 32 == 0 || 8 * vector < S.hd)) key[block][half] = from[vector];
      }
    }
  }

  // The key of one of the positions, `place` of them, from shared memory.
  LANE_DEVICE void take_key(int place, const uint4* row) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (g() + 8 * half != place) continue;
#pragma unroll
      for (int block = 0; block < KEY_BLOCKS; block++) {
        int vector = 4 * block + t();
        if (S.hd % 32 == 0 || 8 * vector < S.hd) key[block][half] = row[vector];
      }
    }
  }

  LANE_DEVICE void load_values(const f16* values, int first, int end) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int j = first + 2 * t() + i % 2 + i / 2 * 8;
      const uint4* from = reinterpret_cast<const uint4*>(values + j * S.v_pitch);
#pragma unroll
      for (int block = 0; block < VALUE_BLOCKS; block++) {
        int vector = 8 * block + g();
        value[block][i] = {0, 0, 0, 0};
        if (j < end && (S.vd % 64 == 0 || 8 * vector < S.vd)) value[block][i] = from[vector];
      }
    }
  }
};

LANE_DEVICE u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Two weights as f16, and what that leaves of them.
LANE_DEVICE u32 pack_halves(float a, float b) {
  return static_cast<u32>(to_f16(a).bits) | static_cast<u32>(to_f16(b).bits) << 16;
}
LANE_DEVICE u32 pack_rests(float a, float b, u32 packed) {
  float2 high = halves(packed);
  return pack_halves(a - high.x, b - high.y);
}

// What a warp has seen: of head g, on every lane t, the largest score, and this lane's share of the sum of weights; the
// weighted values of heads 2t and 2t + 1.
template <AttentionShape S>
struct TileSeen {
  static constexpr int TILES = 4 * ceil_div(S.vd, 64);
  float largest, sum;
  float y[TILES][4];

  LANE_DEVICE void clear() {
    largest = NOTHING, sum = 0.f;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) y[tile][i] = 0.f;
    }
  }

  // Raises the largest scores; what was seen before is multiplied accordingly.
  LANE_DEVICE void raise(float now) {
    float before = largest;
    largest = fmaxf(before, now);
    float factor = before == largest ? 1.f : exp2f(before - largest);
    if (!__any_sync(ALL_LANES, factor != 1.f)) return;
    sum *= factor;
    int t = threadIdx.x % 4;
    float even = __shfl_sync(ALL_LANES, factor, 8 * t), odd = __shfl_sync(ALL_LANES, factor, 8 * t + 4);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      y[tile][0] *= even, y[tile][1] *= odd, y[tile][2] *= even, y[tile][3] *= odd;
    }
  }
};

// Goes over a warp's tiles of a part's positions.
template <AttentionShape S>
LANE_DEVICE void attend_tiles(TileSeen<S>& seen, TileAhead<S>& ahead, const f16* keys, const f16* values,
                              const uint4* queries, int first, int end) {
  constexpr int STEP = S.warps * TILE_KEYS;
  int lane = threadIdx.x % WARP, t = lane % 4;
  for (int at = first; at < end; at += STEP) {
    float s[2][4] = {};  // of positions 8·half + 2t and the next: both words' products
#pragma unroll
    for (int step = 0; step < QueryTiles<S>::STEPS; step++) {
      uint4 q = queries[step * WARP + lane];
      u32 a[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint4 k = ahead.key[step / 2][half];
        u32 b[2] = {step % 2 == 0 ? k.x : k.z, step % 2 == 0 ? k.y : k.w};
        mma_f16(s[half], a, b);
      }
    }
    ahead.load_keys(keys, at + STEP, end);

    float score_of[2][2], largest = NOTHING;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        bool exists = at + 8 * half + 2 * t + i < end;
        score_of[half][i] = exists ? score<S>(s[half][i] + s[half][i + 2]) : NOTHING;
        largest = fmaxf(largest, score_of[half][i]);
      }
    }
    seen.raise(warp_max<4>(largest));
    u32 weight[2], rest[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float p[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        p[i] = score_of[half][i] == NOTHING ? 0.f : exp2f(score_of[half][i] - seen.largest);
        seen.sum += p[i];
      }
      weight[half] = pack_halves(p[0], p[1]);
      rest[half] = pack_rests(p[0], p[1], weight[half]);
    }
#pragma unroll
    for (int tile = 0; tile < TileSeen<S>::TILES; tile++) {
      const uint4(&v)[4] = ahead.value[tile / 4];
      u32 word[4];
#pragma unroll
      for (int i = 0; i < 4; i++) word[i] = word_of(v[i], tile % 4);
      u32 a[4] = {__byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
                  __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)};
      mma_f16(seen.y[tile], a, weight);
      mma_f16(seen.y[tile], a, rest);
    }
    ahead.load_values(values, at + STEP, end);
  }
}

// A head's vectors of 4 results, turned by some places of 16 bytes so that a warp's stores do not collide.
struct Turned {
  template <AttentionShape S>
  static LANE_DEVICE int place(int item) {
    constexpr int VECTORS = S.vd / 4;
    int head = item / VECTORS, vector = item % VECTORS, pair = head / 2;
    return head * VECTORS + (vector + (pair % 2) + pair / 2 * 4) % VECTORS;
  }
};

template <AttentionShape S, typename TAIL, typename BEFORE>
LANE_DEVICE void attention_mma(AttentionOperands<f16, f16, TAIL> o, const BEFORE& before) {
  static_assert(S.per_block <= MMA_HEADS && S.hd <= 256 && S.vd <= 256 && S.hd % 8 == 0 && S.vd % 8 == 0 && S.own == S.hd);
  uint4* queries = shared_memory;
  float2* pairs = reinterpret_cast<float2*>(shared_memory + QueryTiles<S>::STEPS * WARP);  // [warps, per_block]
  float* made = reinterpret_cast<float*>(pairs + S.warps * MMA_HEADS);                     // [warps, per_block, vd]
  float* weights = made + S.part_floats();

  let_successor_start();
  wait_for_predecessor();
  int row = blockIdx.z, first_head = blockIdx.y * S.per_block;
  Span span = attended<S>(o.pos, row);
  QueryTiles<S> tiles;
  i64 first_unit = static_cast<i64>(row) * S.heads + first_head;
  if constexpr (!BEFORE::ROTATES) tiles.load(o, first_unit);
  Portion part = portion<S>(span);
  if (static_cast<int>(blockIdx.x) >= part.parts) return;

  int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, key_head = first_head / S.group;
  const f16* keys = o.k + row * S.seq + static_cast<i64>(key_head) * S.hd;
  const f16* values = o.v + row * S.seq + S.v_offset + static_cast<i64>(key_head) * S.vd;
  int first = part.begin + warp * TILE_KEYS;
  // The newest key, where this block sets it, is not in the cache yet.
  bool newest = part.end == span.end, sets_key = BEFORE::SETS_KEY && newest;
  TileAhead<S> ahead;
  ahead.load_keys(keys, first, sets_key ? part.end - 1 : part.end);
  ahead.load_values(values, first, part.end);
  if constexpr (BEFORE::ROTATES) {
    uint4* key_row = reinterpret_cast<uint4*>(made + S.per_block * S.hd);
    before.template run<S>(row, first_head, newest, made, reinterpret_cast<f16*>(key_row));
    o.q = made - first_unit * S.q_pitch;
    __syncthreads();
    tiles.load(o, first_unit);
    if (sets_key) ahead.take_key(part.end - 1 - first, key_row);
  }
  tiles.store(queries);
  __syncthreads();

  TileSeen<S> seen;
  seen.clear();
  attend_tiles<S>(seen, ahead, keys, values, queries, first, part.end);
  float sum = warp_sum<4>(seen.sum);
  if (t == 0 && g < S.per_block) pairs[warp * S.per_block + g] = {seen.largest, sum};
  // Of head 2t + odd, tiles 4b to 4b + 3 are 8 neighbouring columns.
#pragma unroll
  for (int odd = 0; odd < 2; odd++) {
#pragma unroll
    for (int block = 0; block < ceil_div(S.vd, 64); block++) {
      int head = 2 * t + odd, column = 64 * block + 8 * g;
      if (head >= S.per_block || column >= S.vd) continue;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float(&low)[4] = seen.y[4 * block + 2 * half];
        const float(&high)[4] = seen.y[4 * block + 2 * half + 1];
        int item = warp * S.results() + Turned::place<S>(head * (S.vd / 4) + column / 4 + half);
        reinterpret_cast<float4*>(made)[item] = {low[odd], low[odd + 2], high[odd], high[odd + 2]};
      }
    }
  }
  __syncthreads();
  combine_parts<S, Turned>(o, part.parts, pairs, made, weights);
}

}  // namespace lane
