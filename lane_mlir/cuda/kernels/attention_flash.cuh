// launch.attention of a chunk of rows where keys and values are stored as f16: tiles of queries and keys on tensor cores,
// scores never leaving the chip.
//
// A block takes 64 queries of one key head: query p is of row p div group and the head p mod group of those that share the
// key head, so that keys and values are read once for all of them. It goes over the positions that any of its rows
// attends, `KEYS` at a time, two tiles of keys and values being in shared memory: one multiplied, one arriving. A warp has
// 16 queries, their largest scores, sums and weighted values in registers; grid (tiles of queries, key heads).
//
// f16 keys and values are taken as they are, queries and weights as two f16 words each, the second of what the first
// leaves, which gives the accuracy of f32. (One word would save half of the products, some hundredths of a chunk's time, and
// leave 11 bits, of which the int8 that follow are rounded to the other side.)
//
// Limits: rows of one sequence; hd and vd multiples of 16 and at most 256; no tails.
#pragma once

#include "attention_mma.cuh"
#include "gemm.cuh"

namespace lane {

constexpr int FLASH_QUERIES = 64, FLASH_WARPS = 4, FLASH_THREADS = FLASH_WARPS * WARP;

// Halves of a row in shared memory: an odd number of 16 bytes, so that 8 rows never collide.
LANE_CONSTANT int flash_pitch(int width) { return width / 8 % 2 == 0 ? width + 8 : width; }

template <AttentionShape S, int KEYS>
struct FlashShared {
  static constexpr int QUERY = FLASH_QUERIES * flash_pitch(S.hd), KEY = KEYS * flash_pitch(S.hd);
  static constexpr int VALUE = KEYS * flash_pitch(S.vd), STAGE = KEY + VALUE;
  static constexpr int BYTES = 2 * (2 * QUERY + 2 * STAGE);

  static LANE_DEVICE f16* base() { return reinterpret_cast<f16*>(shared_memory); }
  static LANE_DEVICE f16* query(int word, int row, int column) {
    return base() + word * QUERY + row * flash_pitch(S.hd) + column;
  }
  static LANE_DEVICE f16* key(int stage, int row, int column) {
    return base() + 2 * QUERY + stage * STAGE + row * flash_pitch(S.hd) + column;
  }
  static LANE_DEVICE f16* value(int stage, int row, int column) {
    return base() + 2 * QUERY + stage * STAGE + KEY + row * flash_pitch(S.vd) + column;
  }
};

// The row of a query, the last one for those past it.
template <AttentionShape S>
LANE_DEVICE int flash_row(int query) {
  return min(query / S.group, S.rows - 1);
}

// Brings a tile of keys and values, from position `first` on; none from `end` on: those are 0.
template <AttentionShape S, int KEYS>
LANE_DEVICE void load_tile(const f16* keys, const f16* values, int stage, int first, int end) {
  using Shared = FlashShared<S, KEYS>;
  constexpr int KEY_VECTORS = S.hd / 8, VALUE_VECTORS = S.vd / 8;
  for (int at = threadIdx.x; at < KEYS * KEY_VECTORS; at += FLASH_THREADS) {
    int row = at / KEY_VECTORS, column = at % KEY_VECTORS * 8;
    f16* to = Shared::key(stage, row, column);
    if (first + row < end) {
      copy_async(to, keys + (first + row) * S.k_pitch + column);
    } else {
      *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
    }
  }
  for (int at = threadIdx.x; at < KEYS * VALUE_VECTORS; at += FLASH_THREADS) {
    int row = at / VALUE_VECTORS, column = at % VALUE_VECTORS * 8;
    f16* to = Shared::value(stage, row, column);
    if (first + row < end) {
      copy_async(to, values + (first + row) * S.v_pitch + column);
    } else {
      *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
    }
  }
  end_copy_group();
}

// What a warp has of its 16 queries: rows g and g + 8 of tiles of 8 columns (mma.cuh).
template <AttentionShape S>
struct FlashSeen {
  static constexpr int TILES = S.vd / 8;
  float largest[2], sum[2];  // the sum is this lane's share
  Span span[2];              // what the two rows attend
  float y[TILES][4];

  LANE_DEVICE void start(const int* pos, int query) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      largest[i] = NOTHING, sum[i] = 0.f;
      span[i] = attended<S>(pos, flash_row<S>(query + 8 * i));
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) y[tile][i] = 0.f;
    }
  }

  LANE_DEVICE void raise(int i, float now) {
    float before = largest[i];
    largest[i] = fmaxf(before, now);
    if (before == largest[i]) return;
    float factor = exp2f(before - largest[i]);
    sum[i] *= factor;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) y[tile][2 * i] *= factor, y[tile][2 * i + 1] *= factor;
  }
};

// Attends a tile of keys from position `first` on; `masked`: some of its rows do not attend some of it.
template <AttentionShape S, int KEYS>
LANE_DEVICE void attend_tile(FlashSeen<S>& seen, int stage, int first, bool masked) {
  using Shared = FlashShared<S, KEYS>;
  constexpr int TILES = KEYS / 8;
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = lane % 4;
  float s[TILES][4] = {};
#pragma unroll
  for (int step = 0; step < S.hd / 16; step++) {
    u32 high[4], low[4];
    load_matrices(high, Shared::query(0, warp * 16 + lane % 16, step * 16 + lane / 16 * 8));
    load_matrices(low, Shared::query(1, warp * 16 + lane % 16, step * 16 + lane / 16 * 8));
#pragma unroll
    for (int pair = 0; pair < TILES / 2; pair++) {
      u32 k[4];
      load_matrices(k, Shared::key(stage, pair * 16 + lane / 16 * 8 + lane % 8, step * 16 + lane / 8 % 2 * 8));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 b[2] = {k[2 * i], k[2 * i + 1]};
        mma_f16(s[2 * pair + i], high, b);
        mma_f16(s[2 * pair + i], low, b);
      }
    }
  }

  float now[2] = {NOTHING, NOTHING};
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int j = first + tile * 8 + 2 * t + i % 2;
      s[tile][i] = score<S>(s[tile][i]);
      if (masked && (j < seen.span[i / 2].first || j >= seen.span[i / 2].end)) s[tile][i] = NOTHING;
      now[i / 2] = fmaxf(now[i / 2], s[tile][i]);
    }
  }
  seen.raise(0, warp_max<4>(now[0]));
  seen.raise(1, warp_max<4>(now[1]));
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      s[tile][i] = masked && s[tile][i] == NOTHING ? 0.f : exp2f(s[tile][i] - seen.largest[i / 2]);
      seen.sum[i / 2] += s[tile][i];
    }
  }

#pragma unroll
  for (int step = 0; step < KEYS / 16; step++) {
    u32 high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float(&of)[4] = s[2 * step + i / 2];
      high[i] = pack_halves(of[i % 2 * 2], of[i % 2 * 2 + 1]);
      low[i] = pack_rests(of[i % 2 * 2], of[i % 2 * 2 + 1], high[i]);
    }
#pragma unroll
    for (int pair = 0; pair < S.vd / 16; pair++) {
      u32 v[4];
      load_matrices_transposed(v, Shared::value(stage, step * 16 + lane % 16, pair * 16 + lane / 16 * 8));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 b[2] = {v[2 * i], v[2 * i + 1]};
        mma_f16(seen.y[2 * pair + i], high, b);
        mma_f16(seen.y[2 * pair + i], low, b);
      }
    }
  }
}

// Divides by the sums, gates, and writes the rows of a warp.
template <AttentionShape S, typename O>
LANE_DEVICE void finish_flash(FlashSeen<S>& seen, const O& o, int query, int key_head) {
  int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int own = query + 8 * i, head = key_head * S.group + own % S.group;
    bool active = own < S.rows * S.group;
    float factor = inverse_sum(seen.largest[i], warp_sum<4>(seen.sum[i]), o.sinks, head);
    i64 at = (static_cast<i64>(flash_row<S>(own)) * S.heads + head) * S.vd;
#pragma unroll
    for (int tile = 0; tile < S.vd / 8; tile++) {
      float(&y)[4] = seen.y[tile];
#pragma unroll
      for (int j = 2 * i; j < 2 * i + 2; j++) {
        y[j] *= factor;
        i64 column = at + tile * 8 + 2 * t + j % 2;
        if constexpr (S.gated) y[j] *= activate<S.gate>(active ? o.gate[S.gate_offset + column] : 0.f);
      }
      if (S.f32 && active) *reinterpret_cast<float2*>(o.out + at + tile * 8 + 2 * t) = {y[2 * i], y[2 * i + 1]};
    }
    if constexpr (S.words != 0) {
      static_assert(S.vd % QBLOCK == 0, "a head's values are whole blocks");
#pragma unroll
      for (int block = 0; block < S.vd / QBLOCK; block++) {
        float value[8];
#pragma unroll
        for (int j = 0; j < 8; j++) value[j] = seen.y[4 * block + j / 2][2 * i + j % 2];
        quantize_row<S.words>(value, active, at / QBLOCK + block, o.words, o.scales);
      }
    }
  }
}

template <AttentionShape S, int KEYS, typename TAIL>
LANE_DEVICE void attention_flash(const AttentionOperands<f16, f16, TAIL>& o) {
  using Shared = FlashShared<S, KEYS>;
  static_assert(S.hd % 16 == 0 && S.vd % 16 == 0 && S.hd <= 256 && S.vd <= 256 && S.own == S.hd && S.seq == 0);
  let_successor_start();
  wait_for_predecessor();
  // Those that attend most first.
  int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * FLASH_QUERIES, key_head = blockIdx.y;
  int last_query = min(first_query + FLASH_QUERIES, S.rows * S.group) - 1;
  Span first_span = attended<S>(o.pos, flash_row<S>(first_query)), last_span = attended<S>(o.pos, flash_row<S>(last_query));
  int begin = first_span.first, end = last_span.end, tiles = ceil_div(end - begin, KEYS);
  const f16* keys = o.k + static_cast<i64>(key_head) * S.hd;
  const f16* values = o.v + S.v_offset + static_cast<i64>(key_head) * S.vd;
  load_tile<S, KEYS>(keys, values, 0, begin, end);

  for (int at = threadIdx.x; at < FLASH_QUERIES * S.hd; at += FLASH_THREADS) {
    int own = first_query + at / S.hd, column = at % S.hd, head = key_head * S.group + own % S.group;
    i64 unit = static_cast<i64>(flash_row<S>(own)) * S.heads + head;
    float q = own <= last_query ? query<S>(o, unit, column) * query_scale<S>() : 0.f;
    f16 high = to_f16(finite_half(q));
    *Shared::query(0, at / S.hd, column) = high;
    *Shared::query(1, at / S.hd, column) = to_f16(finite_half(q - to_float(high)));
  }

  int query = first_query + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
  FlashSeen<S> seen;
  seen.start(o.pos, query);
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    int first = begin + tile * KEYS;
    if (tile + 1 < tiles) {
      load_tile<S, KEYS>(keys, values, (tile + 1) % 2, first + KEYS, end);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    bool masked = first + KEYS > first_span.end || first < last_span.first;
    attend_tile<S, KEYS>(seen, tile % 2, first, masked);
    __syncthreads();  // before the tile is overwritten
  }
  finish_flash(seen, o, query, key_head);
}

}  // namespace lane
