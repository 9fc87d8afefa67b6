// launch.set_row, slice, join and argmax.
//
// What moves values takes one of them a thread: they are few, and sources and destinations have pitches of their own.
#pragma once

#include "common.cuh"

namespace lane {

LANE_DEVICE i64 global_thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Where rows of several sequences land: row r at r·apart + param[r]·pitch, in tables `apart` elements apart; without a
// param at its table's beginning.
struct Apart {
  i64 apart = 0;
  i64 pitch = 0;

  LANE_DEVICE i64 start(i64 row, const int* param) const {
    return row * apart + (param != nullptr ? pitch * static_cast<i64>(param[row]) : 0);
  }
};

// launch.set_row: table[at + r] = src[r], `count` rows of `cols`, at the row that D says; or, where A.apart, row r in a
// table of its own.
template <int COLS, int COUNT, Dst D, Apart A, typename T>
LANE_DEVICE void set_row(const float* src, T* table, const int* param) {
  let_successor_start();
  wait_for_predecessor();
  i64 i = global_thread();
  if (i >= static_cast<i64>(COLS) * COUNT) return;
  i64 at = A.apart != 0 ? A.start(i / COLS, param) + i % COLS : D.start(param) + i;
  table[at] = from_float<T>(src[i]);
}

// The same of quantized rows, whole blocks: 4 words a thread, and the scale of a block by its first.
template <int COLS, int COUNT, Dst D, int WORDS>
LANE_DEVICE void set_quantized_row(const i8* src_words, const float* src_scales, i8* words, float* scales,
                                   const int* param) {
  static_assert(COLS % QBLOCK == 0, "a row is whole blocks");
  let_successor_start();
  wait_for_predecessor();
  i64 i = global_thread();
  if (i >= static_cast<i64>(COLS) * COUNT * WORDS / 4) return;
  i64 start = D.start(param);
  reinterpret_cast<u32*>(words + start * WORDS)[i] = reinterpret_cast<const u32*>(src_words)[i];
  constexpr int QUADS = QBLOCK / 4;
  if (i % QUADS == 0) scales[start / QBLOCK * WORDS + i / QUADS] = src_scales[i / QUADS];
}

// launch.slice: y[g·width + i] = x[g·every + start + i].
template <int GROUPS, int EVERY, int START, int WIDTH, typename T>
LANE_DEVICE void slice(const T* x, float* y) {
  let_successor_start();
  wait_for_predecessor();
  i64 i = global_thread();
  if (i < static_cast<i64>(GROUPS) * WIDTH) y[i] = to_float(x[i / WIDTH * EVERY + START + i % WIDTH]);
}

// launch.join: y[r, h] = a[r, h] then b[r, h], a heads of `ha` and b of `hb`.
template <int ROWS, int HEADS, int HA, int HB, Dst D, Apart A, typename T>
LANE_DEVICE void join(const float* a, const float* b, T* y, const int* param) {
  constexpr int HEAD = HA + HB;
  let_successor_start();
  wait_for_predecessor();
  i64 i = global_thread();
  if (i >= static_cast<i64>(ROWS) * HEADS * HEAD) return;
  i64 unit = i / HEAD, row = i / (HEADS * HEAD);
  int column = static_cast<int>(i % HEAD);
  float value = column < HA ? a[unit * HA + column] : b[unit * HB + column - HA];
  i64 at = A.apart != 0 ? A.start(row, param) + i % (HEADS * HEAD)
                        : D.start(param) + D.at(row, HEADS * HEAD, i % (HEADS * HEAD));
  y[at] = from_float<T>(value);
}

// ---- launch.argmax. ----

// A value and its column as one number, larger where the value is, then where the column is less; NaN is the largest.
LANE_DEVICE u64 ranked(float x, u32 column) {
  u32 bits = __float_as_uint(x + 0.f);  // -0 as 0
  u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (x != x) order = ~0u;
  return static_cast<u64>(order) << 32 | ~column;
}

LANE_DEVICE u64 larger(u64 a, u64 b) { return a > b ? a : b; }

template <int THREADS>
LANE_DEVICE u64 block_largest(u64 x, u64* partial) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) x = larger(x, __shfl_xor_sync(ALL_LANES, x, step));
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
  __syncthreads();
  if (threadIdx.x < WARP) {
    x = threadIdx.x < THREADS / WARP ? partial[threadIdx.x] : 0;
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x = larger(x, __shfl_xor_sync(ALL_LANES, x, step));
  }
  return x;  // on the first warp
}

// The column of the largest of the N values of each row, the first of equal ones; then, where `token`, the step moves
// on: token[r] = out[r], position[r] += 1. `blocks` blocks a row, each with the best of its part in `best`
// [rows, blocks]; the last to finish a row chooses. `counter` [rows] is 0 between runs.
template <int N, int VEC, int THREADS, int BLOCKS>
LANE_DEVICE void argmax(const float* x, int* out, int* token, int* position, u64* best, u32* counter) {
  constexpr int VECTORS = N / VEC;
  __shared__ u64 partial[WARP];
  let_successor_start();
  wait_for_predecessor();
  int row = blockIdx.y;
  const float* values = x + static_cast<i64>(row) * N;
  u64 most = 0;
#pragma unroll 4
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < VECTORS; i += BLOCKS * THREADS) {
    if constexpr (VEC == 4) {
      float4 v = reinterpret_cast<const float4*>(values)[i];
      u64 low = larger(ranked(v.x, 4 * i), ranked(v.y, 4 * i + 1));
      u64 high = larger(ranked(v.z, 4 * i + 2), ranked(v.w, 4 * i + 3));
      most = larger(most, larger(low, high));
    } else {
      most = larger(most, ranked(values[i], i));
    }
  }
  most = block_largest<THREADS>(most, partial);
  if constexpr (BLOCKS > 1) {
    if (threadIdx.x == 0) best[row * BLOCKS + blockIdx.x] = most;
    if (!is_last_block(counter + row, BLOCKS)) return;
    most = 0;
    for (int i = threadIdx.x; i < BLOCKS; i += THREADS) most = larger(most, best[row * BLOCKS + i]);
    most = block_largest<THREADS>(most, partial);
  }
  if (threadIdx.x != 0) return;
  int column = static_cast<int>(~static_cast<u32>(most));
  out[row] = column;
  if (token != nullptr) {
    token[row] = column;
    position[row] += 1;
  }
}

}  // namespace lane
