// What every kernel is made of: types, programmatic launch, reductions, wide loads, destinations, activations and the
// quantization of activations.
//
// No header of the CUDA toolkit is needed: 16-bit floats are two bytes here, converted by one instruction.
// A kernel is a function template over constants, called by an `extern "C"` kernel that the printer writes. Its body:
//
//     let_successor_start();       first of all: the next kernel may start and load its weights
//     ... load weights ...         what no launch writes
//     wait_for_predecessor();      in every block, before the first read or write of anything that a launch touches
//     ... the rest ...
#pragma once

namespace lane {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// IEEE half precision and bfloat16, as stored.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

#define LANE_DEVICE __device__ __forceinline__
#define LANE_CONSTANT __device__ constexpr  // a function that is evaluated at compile time

// The dynamic shared memory of a block, as many bytes as the printer says.
#ifdef __CUDA_ARCH__
extern __shared__ uint4 shared_memory[];
#endif

constexpr int QBLOCK = 32;       // values of a quantized activation that share a scale
constexpr int WARP = 32;         // lanes of a warp
constexpr u32 ALL_LANES = ~0u;   // of a warp

LANE_CONSTANT int ceil_div(int a, int b) { return (a + b - 1) / b; }
LANE_CONSTANT int max_of(int a, int b) { return a > b ? a : b; }
LANE_CONSTANT int min_of(int a, int b) { return a < b ? a : b; }

// A, or B if not FIRST.
template <bool FIRST, typename A, typename B>
struct Choice {
  using type = A;
};
template <typename A, typename B>
struct Choice<false, A, B> {
  using type = B;
};

template <typename A, typename B>
struct Same {
  static constexpr bool value = false;
};
template <typename A>
struct Same<A, A> {
  static constexpr bool value = true;
};

// ---- Programmatic launch (from sm_90 on; before, a kernel starts when its predecessor has ended). ----

// Blocks until all kernels before this one have ended and what they wrote is visible.
LANE_DEVICE void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the kernel after this one start, up to its own wait, once every block of this one has said so.
LANE_DEVICE void let_successor_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Conversions. ----

LANE_DEVICE float to_float(float x) { return x; }
LANE_DEVICE float to_float(int x) { return static_cast<float>(x); }
LANE_DEVICE float to_float(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
LANE_DEVICE float to_float(f16 x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return host_half_to_float(x.bits);
#endif
}

// Rounds to nearest, ties to even.
LANE_DEVICE f16 to_f16(float x) {
#ifdef __CUDA_ARCH__
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  return {host_float_to_half(x)};
#endif
}

LANE_DEVICE bf16 to_bf16(float x) {
#ifdef __CUDA_ARCH__
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  return {host_float_to_bfloat(x)};
#endif
}

template <typename T>
LANE_DEVICE T from_float(float x);
template <>
LANE_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
LANE_DEVICE f16 from_float<f16>(float x) {
  return to_f16(x);
}
template <>
LANE_DEVICE bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

// The f16 in the low half of a word.
LANE_DEVICE float low_half(u32 word) { return to_float(f16{static_cast<u16>(word)}); }

// The two halves of a word of two f16, the low one first; likewise of two bf16.
LANE_DEVICE float2 halves(u32 pair) {
  return {to_float(f16{static_cast<u16>(pair)}), to_float(f16{static_cast<u16>(pair >> 16)})};
}
LANE_DEVICE float2 bfloats(u32 pair) { return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}; }

// ---- Memory. ----

// Loads of what no kernel writes are ordinary loads, not ld.global.nc: the compiler moves those below a wait that
// follows them, and with it the whole latency of a kernel's first weights behind its predecessor.

// A load of weights: read once, by one multiprocessor.
LANE_DEVICE uint4 load_weights(const uint4* p) {
#ifdef __CUDA_ARCH__
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#else
  return *p;
#endif
}

LANE_DEVICE uint2 load_weights(const uint2* p) {
#ifdef __CUDA_ARCH__
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
#else
  return *p;
#endif
}

// Small weights and constants, that neighbours read too: through the first-level cache.
template <typename T>
LANE_DEVICE T load_constant(const T* p) {
  return *p;
}

// Small fields of weights, the same way: narrow ones come into a register of 32 bits, which need not be widened.
#ifdef __CUDA_ARCH__
#define LANE_LOAD_FIELD(FROM, TO, TYPE)                                   \
  LANE_DEVICE TO load_field(const FROM* p) {                              \
    TO v;                                                                 \
    asm volatile("ld.global." TYPE " %0, [%1];" : "=r"(v) : "l"(p));      \
    return v;                                                             \
  }
#else
#define LANE_LOAD_FIELD(FROM, TO, TYPE) \
  LANE_DEVICE TO load_field(const FROM* p) { return *p; }
#endif
LANE_LOAD_FIELD(u32, u32, "u32")
LANE_LOAD_FIELD(u16, u32, "u16")
LANE_LOAD_FIELD(u8, u32, "u8")
LANE_LOAD_FIELD(i8, int, "s8")
#undef LANE_LOAD_FIELD

// Keeps a pointer in registers, as the compiler would otherwise add its parts anew for each load from it.
LANE_DEVICE void keep(const u8*& p) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(p));
#endif
}

// A load past the first-level cache, which may hold what was there before a kernel that still runs was launched.
LANE_DEVICE float load_fresh(const float* p) {
#ifdef __CUDA_ARCH__
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
#else
  return *p;
#endif
}

// Asks for `bytes` (a multiple of 16) from p on to be brought into the second-level cache.
LANE_DEVICE void prefetch(const void* p, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// A 16-byte copy into shared memory that runs by itself, until wait_for_copies<n>: all but the n last groups are there.
LANE_DEVICE void copy_async(void* shared, const void* global) {
#ifdef __CUDA_ARCH__
  u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}
// The same of 4 bytes.
LANE_DEVICE void copy_async_word(void* shared, const void* global) {
#ifdef __CUDA_ARCH__
  u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
#else
  *static_cast<u32*>(shared) = *static_cast<const u32*>(global);
#endif
}
LANE_DEVICE void end_copy_group() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING>
LANE_DEVICE void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// ---- Reductions. Every lane gets the result. ----

// Over groups of WIDTH neighbouring lanes, a power of two.
template <int WIDTH = WARP, typename T>
LANE_DEVICE T warp_sum(T x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

// Sums N values of every lane over groups of LANES lanes, in fewer steps than N sums: afterwards each lane holds, in the
// first `scattered_count` elements of v, the sums of values `scattered_first()` on. Lanes that hold the same sums as a
// lower one are not `scattered_owner()`.
template <int LANES, int N>
LANE_DEVICE void scatter_sum(float* v) {
  if constexpr (LANES > 1 && N % 2 == 0) {
    bool upper = threadIdx.x & (LANES / 2);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      float sent = upper ? v[i] : v[i + N / 2], kept = upper ? v[i + N / 2] : v[i];
      v[i] = kept + __shfl_xor_sync(ALL_LANES, sent, LANES / 2);
    }
    scatter_sum<LANES / 2, N / 2>(v);
  } else if constexpr (LANES > 1) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = warp_sum<LANES>(v[i]);
  }
}
template <int LANES, int N>
LANE_CONSTANT int scattered_count() {
  return LANES > 1 && N % 2 == 0 ? scattered_count<(LANES > 1 ? LANES / 2 : 1), (N > 1 ? N / 2 : 1)>() : N;
}
template <int LANES, int N>
LANE_DEVICE int scattered_first() {
  if constexpr (LANES > 1 && N % 2 == 0) {
    return (threadIdx.x & (LANES / 2) ? N / 2 : 0) + scattered_first<LANES / 2, N / 2>();
  } else {
    return 0;
  }
}
template <int LANES, int N>
LANE_DEVICE bool scattered_owner() {
  if constexpr (LANES > 1 && N % 2 == 0) {
    return scattered_owner<LANES / 2, N / 2>();
  } else {
    return threadIdx.x % LANES == 0;
  }
}

template <int WIDTH = WARP>
LANE_DEVICE float warp_max(float x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

template <int WIDTH = WARP>
LANE_DEVICE u32 warp_max(u32 x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

// Over a block of THREADS threads, all of which call it; `partial` is shared memory for one value a warp. The order of
// additions is fixed, so that runs are bit-equal.
template <int THREADS>
LANE_DEVICE float block_sum(float x, float* partial) {
  constexpr int WARPS = THREADS / WARP;
  x = warp_sum(x);
  if constexpr (WARPS == 1) return x;
  __syncthreads();  // `partial` may still be read by an earlier call
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = threadIdx.x % WARP < WARPS ? partial[threadIdx.x % WARP] : 0.f;
  return warp_sum(total);
}

// Whether this is the last of `blocks` blocks to come here; then all that the others wrote before is visible to all its
// threads. Called by all threads of every block. `counter` is 0 at load and 0 again after the last.
LANE_DEVICE bool is_last_block(u32* counter, u32 blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(counter, blocks - 1) == blocks - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// ---- Where results land: launch.Dst. ----

struct Dst {
  i64 row_pitch = 0;    // elements of a row of the table; 0: not in rows of a table
  i64 row_index = -1;   // the row; -1: the one that the parameter names
  i64 unit_pitch = 0;   // elements from one unit to the next; 0: the units lie side by side
  i64 unit_offset = 0;  // first element in the unit

  LANE_CONSTANT bool takes_param() const { return row_pitch != 0 && row_index < 0; }

  // First element of the row; `param` points to the parameter, if it takes one.
  LANE_DEVICE i64 start(const int* param) const {
    if (row_pitch == 0) return 0;
    return row_pitch * (row_index >= 0 ? row_index : static_cast<i64>(*param));
  }

  // Element i of a unit of `width`, from the start of the row on.
  LANE_DEVICE i64 at(i64 unit, i64 width, i64 i) const {
    return unit_pitch != 0 ? unit * unit_pitch + unit_offset + i : unit * width + i;
  }
};

// Where units are read: side by side (pitch 0), or each in a part of a wider one: launch.Part.
struct Part {
  i64 pitch = 0;
  i64 offset = 0;

  LANE_DEVICE i64 at(i64 unit, i64 width, i64 i) const {
    return pitch != 0 ? unit * pitch + offset + i : unit * width + i;
  }
};

// ---- Elementwise functions: tg.Activation, tg.BinaryOperator. ----

enum class Activation { NONE, SILU, GELU, GELU_TANH, SIGMOID, SOFTPLUS, TANH, RELU, EXP };
enum class BinaryOperator { ADD, SUB, MUL, DIV };

LANE_DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// log(1 + e^x), the identity where e^x is far beyond 1.
LANE_DEVICE float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

template <Activation ACT>
LANE_DEVICE float activate(float x) {
  if constexpr (ACT == Activation::SILU) return x / (1.f + expf(-x));
  if constexpr (ACT == Activation::GELU) return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
  if constexpr (ACT == Activation::GELU_TANH) {
    return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
  if constexpr (ACT == Activation::SIGMOID) return sigmoid(x);
  if constexpr (ACT == Activation::SOFTPLUS) return softplus(x);
  if constexpr (ACT == Activation::TANH) return tanhf(x);
  if constexpr (ACT == Activation::RELU) return fmaxf(x, 0.f);
  if constexpr (ACT == Activation::EXP) return expf(x);
  return x;
}

template <BinaryOperator OP>
LANE_DEVICE float combine(float a, float b) {
  if constexpr (OP == BinaryOperator::ADD) return a + b;
  if constexpr (OP == BinaryOperator::SUB) return a - b;
  if constexpr (OP == BinaryOperator::MUL) return a * b;
  return a / b;
}

// ---- Quantized activations. ----
//
// The quantized form of a buffer of `length` values is two planes, each with its own pointer: `words`, int8, and
// `scales`, f32. Block b, of 32 neighbouring values, has its int8 from words + b·32·WORDS on, the first word of all 32
// and then (WORDS = 2) the second, and its scales from scales + b·WORDS on. In memory the scales follow the words.
//
// The arithmetic is that of lane_mlir.eval.numerics, operation by operation:
//     d = amax / 127, q = rint(x·(1/d)); both 0 where d is not normal; q = 0, d = NaN where amax is not finite.

struct BlockScale {
  float d;        // the scale as stored
  float inverse;  // 1/d, or 0 where every q is 0
};

// From the largest bit pattern of |x| in a block: infinities and NaN are larger than all finite values.
LANE_DEVICE BlockScale block_scale(u32 amax_bits) {
  if (amax_bits >= 0x7f800000u) return {__uint_as_float(0x7fc00000u), 0.f};
  float d = __fdiv_rn(__uint_as_float(amax_bits), 127.f);
  if (d < 1.17549435e-38f) return {0.f, 0.f};
  return {d, __frcp_rn(d)};
}

LANE_DEVICE int quantized(float x, BlockScale scale) {
  return scale.inverse == 0.f ? 0 : __float2int_rn(__fmul_rn(x, scale.inverse));
}

// What the word leaves of x.
LANE_DEVICE float remainder(float x, int q, BlockScale scale) {
  return __fsub_rn(x, __fmul_rn(static_cast<float>(q), scale.d));
}

LANE_DEVICE u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Quantizes value 32·block + lane, x of each of the 32 lanes of a warp.
template <int WORDS>
LANE_DEVICE void quantize_warp(float x, i64 block, i8* words, float* scales) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int word = 0; word < WORDS; word++) {
    BlockScale scale = block_scale(warp_max(magnitude(x)));
    int q = quantized(x, scale);
    words[(block * WORDS + word) * QBLOCK + lane] = static_cast<i8>(q);
    if (lane == 0) scales[block * WORDS + word] = scale.d;
    if (word + 1 < WORDS) x = remainder(x, q, scale);
  }
}

LANE_DEVICE u32 pack(int a, int b, int c, int d) {
  return static_cast<u32>(a & 0xff) | static_cast<u32>(b & 0xff) << 8 | static_cast<u32>(c & 0xff) << 16 |
         static_cast<u32>(d) << 24;
}

// Quantizes values 4·quad to 4·quad + 3, x of each lane, where 8 neighbouring lanes, the first a multiple of 8, hold
// the quads of one block. Called by all lanes of a warp; those that are not `active` write nothing.
template <int WORDS>
LANE_DEVICE void quantize_quads(float4 x, i64 quad, bool active, i8* words, float* scales) {
  i64 block = quad / 8;
  int place = static_cast<int>(quad % 8);
#pragma unroll
  for (int word = 0; word < WORDS; word++) {
    u32 amax = max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
    BlockScale scale = block_scale(warp_max<8>(amax));
    int a = quantized(x.x, scale), b = quantized(x.y, scale), c = quantized(x.z, scale), d = quantized(x.w, scale);
    if (active) {
      reinterpret_cast<u32*>(words)[(block * WORDS + word) * 8 + place] = pack(a, b, c, d);
      if (place == 0) scales[block * WORDS + word] = scale.d;
    }
    if (word + 1 < WORDS) {
      x = {remainder(x.x, a, scale), remainder(x.y, b, scale), remainder(x.z, c, scale), remainder(x.w, d, scale)};
    }
  }
}

}  // namespace lane
