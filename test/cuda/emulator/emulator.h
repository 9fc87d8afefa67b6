// Runs kernels of the library on the host, thread by thread, so that their arithmetic and their synchronization are
// tested without a GPU. Included before a unit, which is then plain C++.
//
// The threads of a block are fibers of one host thread that switch at barriers and at exchanges within a warp; blocks run
// one after the other. Dynamic shared memory holds NaN at first. A barrier or an exchange that not all threads reach is
// reported as a deadlock. What is not emulated: clusters, grid-wide barriers, asynchronous copies that are still running.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __restrict__
#define __grid_constant__

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

namespace emulator {

constexpr int MAX_SHARED = 232448;
constexpr int MAX_WARPS = 32;
constexpr size_t STACK = 256 << 10;

enum class State { READY, AT_BARRIER, IN_WARP, DONE };

struct Fiber {
  State state;
  bool started;
  jmp_buf context;
  ucontext_t first;
  uint32_t mask;
  unsigned exchanges;  // how many the lane has begun
};

inline std::vector<Fiber> fibers;
inline std::vector<char> stacks;
inline jmp_buf scheduler;
inline ucontext_t scheduler_context;
inline int current, threads;
inline uint64_t slots[MAX_WARPS][2][32];
inline unsigned arrivals[MAX_WARPS][2];
inline void (*body)();
alignas(1024) inline unsigned char shared[MAX_SHARED];

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "emulator: %s (block %u,%u,%u thread %d)\n", what, blockIdx.x, blockIdx.y, blockIdx.z, current);
  abort();
}

inline void leave(State state) {
  fibers[current].state = state;
  if (_setjmp(fibers[current].context) == 0) _longjmp(scheduler, 1);
}

inline void enter() {
  body();
  fibers[current].state = State::DONE;
  _longjmp(scheduler, 1);
}

inline void resume(int i) {
  current = i;
  threadIdx = {unsigned(i) % blockDim.x, unsigned(i) / blockDim.x % blockDim.y, unsigned(i) / blockDim.x / blockDim.y};
  if (_setjmp(scheduler) != 0) return;
  Fiber& f = fibers[i];
  f.state = State::READY;
  if (f.started) _longjmp(f.context, 1);
  f.started = true;
  getcontext(&f.first);
  f.first.uc_stack.ss_sp = stacks.data() + STACK * i;
  f.first.uc_stack.ss_size = STACK;
  f.first.uc_link = &scheduler_context;
  makecontext(&f.first, enter, 0);
  setcontext(&f.first);
}

inline void run_block() {
  std::fill((float*)shared, (float*)(shared + MAX_SHARED), NAN);
  memset(arrivals, 0, sizeof arrivals);
  for (int i = 0; i < threads; i++) {
    fibers[i].state = State::READY;
    fibers[i].started = false;
    fibers[i].exchanges = 0;
  }
  for (;;) {
    bool progress = false, done = true;
    for (int i = 0; i < threads; i++) {
      if (fibers[i].state == State::READY) {
        resume(i);
        progress = true;
      }
      done &= fibers[i].state == State::DONE;
    }
    if (done) return;
    if (progress) continue;
    bool all = true;
    for (int i = 0; i < threads; i++) all &= fibers[i].state == State::AT_BARRIER || fibers[i].state == State::DONE;
    if (!all) fail("some threads wait for others of their warp that never come");
    for (int i = 0; i < threads; i++) {
      if (fibers[i].state == State::AT_BARRIER) fibers[i].state = State::READY;
    }
  }
}

// Each lane of `mask` gives a value and gets those of all of them.
inline const uint64_t* exchange(uint32_t mask, uint64_t value) {
  int lane = current % 32, warp = current / 32;
  if (!(mask >> lane & 1)) fail("a lane takes part in an exchange that leaves it out");
  Fiber& f = fibers[current];
  int phase = f.exchanges++ % 2;
  slots[warp][phase][lane] = value;
  arrivals[warp][phase] |= 1u << lane;
  if ((arrivals[warp][phase] & mask) == mask) {
    arrivals[warp][phase] &= ~mask;
    for (int i = 0; i < 32 && warp * 32 + i < threads; i++) {
      Fiber& other = fibers[warp * 32 + i];
      if (mask >> i & 1 && other.state == State::IN_WARP) other.state = State::READY;
    }
  } else {
    leave(State::IN_WARP);
  }
  return slots[warp][phase];
}

template <typename T>
uint64_t bits_of(T x) {
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof x);
  return bits;
}
template <typename T>
T value_of(uint64_t bits) {
  T x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline void launch(void (*kernel)(), dim3 grid, int block, int shared_bytes) {
  if (shared_bytes > MAX_SHARED) fail("too much shared memory");
  threads = block;
  blockDim = {unsigned(block), 1, 1};
  gridDim = grid;
  body = kernel;
  if (fibers.size() < size_t(block)) {
    fibers.resize(block);
    stacks.resize(STACK * block);
  }
  for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block();
}

}  // namespace emulator

// Converted by the compiler: rounds to nearest, ties to even, as the device does.
inline float host_half_to_float(uint16_t bits) { return float(emulator::value_of<_Float16>(bits)); }
inline uint16_t host_float_to_half(float x) { return uint16_t(emulator::bits_of(_Float16(x))); }

inline float __uint_as_float(unsigned x) { return emulator::value_of<float>(x); }
inline float __int_as_float(int x) { return emulator::value_of<float>(unsigned(x)); }
inline unsigned __float_as_uint(float x) { return unsigned(emulator::bits_of(x)); }
inline int __float_as_int(float x) { return int(emulator::bits_of(x)); }

inline uint16_t host_float_to_bfloat(float x) {
  unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// prmt.b32 with selectors below 8.
inline unsigned host_choose_bytes(unsigned low, unsigned high, unsigned selectors) {
  uint64_t all = uint64_t(high) << 32 | low;
  unsigned chosen = 0;
  for (int i = 0; i < 4; i++) {
    unsigned from = selectors >> (4 * i) & 15;
    if (from > 7) emulator::fail("a selector of bytes is not below 8");
    chosen |= unsigned(all >> (8 * from) & 0xff) << (8 * i);
  }
  return chosen;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selectors) {
  return host_choose_bytes(low, high, selectors & 0x7777);
}

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline int host_dot_signed(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i)));
  return c;
}

inline int host_dot_unsigned(unsigned a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int(uint8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i)));
  return c;
}

inline void __syncthreads() { emulator::leave(emulator::State::AT_BARRIER); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::exchange(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __trap() { emulator::fail("the kernel gave up"); }

template <typename T>
T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
  int base = emulator::current % 32 / width * width;
  return emulator::value_of<T>(emulator::exchange(mask, emulator::bits_of(x))[base + lane % width]);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int step, int = 32) {
  return emulator::value_of<T>(emulator::exchange(mask, emulator::bits_of(x))[(emulator::current % 32) ^ step]);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T x, unsigned step, int width = 32) {
  const uint64_t* all = emulator::exchange(mask, emulator::bits_of(x));
  int lane = emulator::current % 32, from = lane % width + int(step) < width ? lane + int(step) : lane;
  return emulator::value_of<T>(all[from]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T x, unsigned step, int width = 32) {
  const uint64_t* all = emulator::exchange(mask, emulator::bits_of(x));
  int lane = emulator::current % 32, from = lane % width >= int(step) ? lane - int(step) : lane;
  return emulator::value_of<T>(all[from]);
}
inline unsigned __ballot_sync(unsigned mask, bool x) {
  const uint64_t* all = emulator::exchange(mask, x);
  unsigned votes = 0;
  for (int i = 0; i < 32; i++) votes |= unsigned(mask >> i & 1 && all[i]) << i;
  return votes;
}
inline bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline bool __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == mask; }
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  const uint64_t* all = emulator::exchange(mask, x);
  unsigned most = 0;
  for (int i = 0; i < 32; i++) {
    if (mask >> i & 1) most = std::max(most, unsigned(all[i]));
  }
  return most;
}

inline unsigned atomicInc(unsigned* p, unsigned limit) {
  unsigned old = *p;
  *p = old >= limit ? 0 : old + 1;
  return old;
}
template <typename T>
T atomicAdd(T* p, T x) {
  T old = *p;
  *p += x;
  return old;
}
template <typename T>
T atomicMax(T* p, T x) {
  T old = *p;
  *p = std::max(old, x);
  return old;
}
template <typename T>
T atomicExch(T* p, T x) {
  T old = *p;
  *p = x;
  return old;
}

// Tensor cores: operands as mma.cuh describes them, each lane's registers exchanged.
template <int REGISTERS>
void gather_registers(unsigned (&all)[32][REGISTERS], const unsigned* own) {
  for (int i = 0; i < REGISTERS; i++) {
    const uint64_t* values = emulator::exchange(~0u, own[i]);
    for (int lane = 0; lane < 32; lane++) all[lane][i] = unsigned(values[lane]);
  }
}

// k is 8 times the registers of a.
inline void host_mma_int8(int (&d)[4], const unsigned* a, int registers, const unsigned* b, const int (&c)[4]) {
  unsigned first[32][4] = {}, second[32][2] = {}, own_a[4] = {}, own_b[2] = {};
  memcpy(own_a, a, 4 * registers);
  memcpy(own_b, b, 2 * registers);
  gather_registers(first, own_a);
  gather_registers(second, own_b);
  int g = emulator::current % 32 / 4, t = emulator::current % 4, result[4];
  for (int i = 0; i < 4; i++) {
    int row = i / 2, column = 2 * t + i % 2;
    result[i] = c[i];
    for (int k = 0; k < 8 * registers; k++) {
      int lane = k % 16 / 4, half = k / 16, byte = 8 * (k % 4);
      int x = int8_t(first[4 * g + lane][2 * half + row] >> byte), y = int8_t(second[4 * column + lane][half] >> byte);
      result[i] += x * y;
    }
  }
  memcpy(d, result, sizeof d);
}

template <typename TO_FLOAT>
void host_mma_16bit(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], TO_FLOAT to_float) {
  unsigned first[32][4], second[32][2];
  gather_registers(first, a);
  gather_registers(second, b);
  int g = emulator::current % 32 / 4, t = emulator::current % 4;
  for (int i = 0; i < 4; i++) {
    int row = i / 2, column = 2 * t + i % 2;
    double sum = d[i];
    for (int k = 0; k < 16; k++) {
      int lane = k % 8 / 2, half = k / 8, shift = 16 * (k % 2);
      sum += double(to_float(uint16_t(first[4 * g + lane][2 * half + row] >> shift))) *
             to_float(uint16_t(second[4 * column + lane][half] >> shift));
    }
    d[i] = float(sum);
  }
}

inline void host_load_matrices(unsigned (&r)[4], const void* row) {
  const uint64_t* rows = emulator::exchange(~0u, uint64_t(row));
  int g = emulator::current % 32 / 4, t = emulator::current % 4;
  for (int i = 0; i < 4; i++) memcpy(&r[i], (const char*)rows[8 * i + g] + 4 * t, 4);
}

inline void host_load_matrices_transposed(unsigned (&r)[4], const void* row) {
  const uint64_t* rows = emulator::exchange(~0u, uint64_t(row));
  int g = emulator::current % 32 / 4, t = emulator::current % 4;
  for (int i = 0; i < 4; i++) {
    const uint16_t *low = (const uint16_t*)rows[8 * i + 2 * t], *high = (const uint16_t*)rows[8 * i + 2 * t + 1];
    r[i] = low[g] | unsigned(high[g]) << 16;
  }
}

namespace lane {
inline uint4* const shared_memory = (uint4*)emulator::shared;
}
