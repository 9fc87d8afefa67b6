// launch.delta of many rows: 32 rows at a time, what they do to the state and to each other as products of matrices.
//
// With P[t, s] = a[s+1]·…·a[t], the decay from row s to row t of a chunk (P[t, t] = 1), and G[t] = a[0]·…·a[t], the rows
//
//     S_t = a[t]·S_{t-1} + k[t]·u[t]ᵀ,   u[t] = b[t]·(v[t] - a[t]·S_{t-1}ᵀ·k[t]),   o[t] = S_tᵀ·q[t]
//
// are, with S the state before them,
//
//     u[t] + Σ_{s<t} b[t]·P[t, s]·(k[s]·k[t])·u[s] = b[t]·(v[t] - G[t]·Sᵀ·k[t])      (a triangular system)
//     o[t] = G[t]·Sᵀ·q[t] + Σ_{s≤t} P[t, s]·(k[s]·q[t])·u[s]
//     S    ← G[31]·S + Σ_s P[31, s]·k[s]·u[s]ᵀ
//
// all in f32. The columns of S do not meet: a block takes COLUMNS of a head's; grid (slices, heads, sequences). Rows past
// the last are 0, with a decay of 1. What is read out goes to `partial`, and delta_finish norms and gates it.
//
// Limits: d a multiple of 16 and of COLUMNS, at most 128.
#pragma once

#include "delta.cuh"

namespace lane {

constexpr int CHUNK = 32, CHUNK_THREADS = 256;

template <int D, int COLUMNS>
struct ChunkShared {
  static constexpr int PITCH = D + 4;
  float key[CHUNK][PITCH], query[CHUNK][PITCH];
  float state[D][COLUMNS];
  float u[CHUNK][COLUMNS];  // v, then the system's right side, then u
  float by_key[CHUNK][CHUNK + 1], by_query[CHUNK][CHUNK + 1];  // b[t]·P[t, s]·(k[s]·k[t]), P[t, s]·(k[s]·q[t])
  float decay[CHUNK][CHUNK + 1];                               // P[t, s], 0 for s > t
  float since[CHUNK], beta[CHUNK], a[CHUNK];                   // G[t]

  static LANE_DEVICE ChunkShared& get() { return *reinterpret_cast<ChunkShared*>(shared_memory); }
};

// A chunk's rows, and what of it depends on them alone.
template <DeltaShape S, int COLUMNS, typename T>
LANE_DEVICE void load_chunk(const DeltaOperands<T>& p, i64 sequence, int first, int head, int key_head, int slice) {
  auto& shared = ChunkShared<S.d, COLUMNS>::get();
  i64 row = sequence * S.rows + first;
  for (int at = threadIdx.x; at < CHUNK * S.d / 4; at += CHUNK_THREADS) {
    int t = at / (S.d / 4), i = at % (S.d / 4) * 4;
    bool exists = first + t < S.rows;
    i64 from = ((row + t) * S.hk + key_head) * S.d + i;
    float4 zero = {0.f, 0.f, 0.f, 0.f}, k = exists ? *reinterpret_cast<const float4*>(p.k + from) : zero;
    float4 q = exists ? *reinterpret_cast<const float4*>(p.q + from) : zero;
    float root = sqrtf(S.d);
    *reinterpret_cast<float4*>(&shared.key[t][i]) = k;
    *reinterpret_cast<float4*>(&shared.query[t][i]) = {q.x / root, q.y / root, q.z / root, q.w / root};
  }
  for (int at = threadIdx.x; at < CHUNK * COLUMNS; at += CHUNK_THREADS) {
    int t = at / COLUMNS, column = at % COLUMNS;
    bool exists = first + t < S.rows;
    shared.u[t][column] = exists ? p.v[((row + t) * S.hv + head) * S.d + slice * COLUMNS + column] : 0.f;
  }
  if (threadIdx.x < CHUNK) {
    int t = threadIdx.x;
    bool exists = first + t < S.rows;
    shared.a[t] = exists ? p.a[(row + t) * S.hv + head] : 1.f;
    shared.beta[t] = exists ? p.b[(row + t) * S.hv + head] : 0.f;
    __syncwarp();
    float decay = 1.f;  // P[·, t]
    for (int later = 0; later < CHUNK; later++) {
      if (later > t) decay *= shared.a[later];
      shared.decay[later][t] = later < t ? 0.f : decay;
    }
    __syncwarp();
    shared.since[t] = shared.a[0] * shared.decay[t][0];
  }
  __syncthreads();

  // k[s]·k[t] and k[s]·q[t]: a thread rows t, t + 16, columns s, s + 16 of both.
  int t0 = threadIdx.x / 16, s0 = threadIdx.x % 16;
  float kk[2][2] = {}, qk[2][2] = {};
  for (int i = 0; i < S.d; i++) {
#pragma unroll
    for (int y = 0; y < 2; y++) {
#pragma unroll
      for (int x = 0; x < 2; x++) {
        float k = shared.key[s0 + 16 * x][i];
        kk[y][x] = fmaf(shared.key[t0 + 16 * y][i], k, kk[y][x]);
        qk[y][x] = fmaf(shared.query[t0 + 16 * y][i], k, qk[y][x]);
      }
    }
  }
#pragma unroll
  for (int y = 0; y < 2; y++) {
#pragma unroll
    for (int x = 0; x < 2; x++) {
      int t = t0 + 16 * y, s = s0 + 16 * x;
      shared.by_key[t][s] = s < t ? shared.beta[t] * shared.decay[t][s] * kk[y][x] : 0.f;
      shared.by_query[t][s] = shared.decay[t][s] * qk[y][x];
    }
  }
}

template <DeltaShape S, int COLUMNS, typename T>
LANE_DEVICE void delta_chunks(const DeltaOperands<T>& p) {
  // A thread has one column; of the chunk's rows ROWS, of the state's HELD.
  constexpr int GROUPS = CHUNK_THREADS / COLUMNS, ROWS = CHUNK / GROUPS, HELD = S.d / GROUPS;
  static_assert(S.d % 16 == 0 && S.d % COLUMNS == 0 && S.d % GROUPS == 0 && COLUMNS <= WARP && CHUNK % GROUPS == 0);
  auto& shared = ChunkShared<S.d, COLUMNS>::get();
  let_successor_start();
  wait_for_predecessor();
  int slice = blockIdx.x, head = blockIdx.y, key_head = S.cyclic ? head % S.hk : head / (S.hv / S.hk);
  int column = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS, t0 = group * ROWS, i0 = group * HELD;
  i64 sequence = blockIdx.z;
  T* state = p.st + (sequence * S.hv + head) * S.d * S.d + slice * COLUMNS + column;
  for (int i = 0; i < HELD; i++) shared.state[i0 + i][column] = to_float(state[static_cast<i64>(i0 + i) * S.d]);

  for (int first = 0; first < S.rows; first += CHUNK) {
    load_chunk<S, COLUMNS>(p, sequence, first, head, key_head, slice);
    // Sᵀ·k[t] and Sᵀ·q[t].
    float by_key[ROWS] = {}, by_query[ROWS] = {};
#pragma unroll 4
    for (int i = 0; i < S.d; i++) {
      float s = shared.state[i][column];
#pragma unroll
      for (int t = 0; t < ROWS; t++) {
        by_key[t] = fmaf(shared.key[t0 + t][i], s, by_key[t]);
        by_query[t] = fmaf(shared.query[t0 + t][i], s, by_query[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < ROWS; t++) {
      float& u = shared.u[t0 + t][column];
      u = shared.beta[t0 + t] * (u - shared.since[t0 + t] * by_key[t]);
    }
    __syncthreads();
    if (threadIdx.x < COLUMNS) {
      float u[CHUNK];
#pragma unroll
      for (int t = 0; t < CHUNK; t++) {
        u[t] = shared.u[t][column];
#pragma unroll
        for (int s = 0; s < t; s++) u[t] = fmaf(-shared.by_key[t][s], u[s], u[t]);
        shared.u[t][column] = u[t];
      }
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < ROWS; t++) {
      float o = shared.since[t0 + t] * by_query[t];
#pragma unroll 8
      for (int s = 0; s < CHUNK; s++) o = fmaf(shared.by_query[t0 + t][s], shared.u[s][column], o);
      i64 row = first + t0 + t;
      if (row < S.rows) p.partial[((sequence * S.rows + row) * S.hv + head) * S.d + slice * COLUMNS + column] = o;
    }
    float next[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) next[i] = shared.since[CHUNK - 1] * shared.state[i0 + i][column];
    for (int s = 0; s < CHUNK; s++) {
      float u = shared.decay[CHUNK - 1][s] * shared.u[s][column];
#pragma unroll
      for (int i = 0; i < HELD; i++) next[i] = fmaf(shared.key[s][i0 + i], u, next[i]);
    }
    __syncthreads();  // all have read the state and the chunk
#pragma unroll
    for (int i = 0; i < HELD; i++) shared.state[i0 + i][column] = next[i];
  }
  for (int i = 0; i < HELD; i++) state[static_cast<i64>(i0 + i) * S.d] = from_float<T>(shared.state[i0 + i][column]);
}

// The norm and the gate of what was read out, `partial` [sequences·rows, hv, d]: a warp a row and head.
template <DeltaShape S, int SEQUENCES, int WARPS, typename T>
LANE_DEVICE void delta_finish(const DeltaOperands<T>& p) {
  let_successor_start();
  wait_for_predecessor();
  i64 at = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / WARP, row = at / S.hv;
  if (row >= static_cast<i64>(SEQUENCES) * S.rows) return;
  finish_delta<S>(p, row, static_cast<int>(at % S.hv), reinterpret_cast<const float4*>(p.partial) + at * (S.d / 4));
}

}  // namespace lane
