// How the kernels read weights: a struct for each storage format, over the planes of lane_mlir/cuda/layout.py.
//
// A lane takes a *unit* of a row at once: 32 values of a block format, or 16 bytes of plain values. A format has
//
//     UNIT                            values in a unit
//     NEEDS_SUMS                      whether `dot` uses the sums of the activation's values
//     Block                           a unit as loaded; all 0 is a unit that adds nothing to a product
//     load(planes, unit)              unit `unit` of the weight, counted over its rows
//     dot(block, x)                   a unit's product with a block of a quantized activation, where it is not decoded first
//     decode(block)                   the unit with its scales ready:
//         .dot(x)                     that product
//         .quad(i)                    its values 4i to 4i + 3 in f32, exactly as the format defines them
//
// Codes become int8 words in the order of values, word w being values 4w to 4w + 3, as dp4a multiplies them.
#pragma once

#include "common.cuh"

namespace lane {

constexpr int PLANE_ALIGNMENT = 256;  // bytes to whose multiples planes begin
constexpr int MAX_PLANES = 4;

// `bytes` bytes for every `values` values of a row.
struct PlaneShape {
  int bytes = 0;
  int values = 1;
};

// First byte of each plane.
struct PlaneOffsets {
  i64 at[MAX_PLANES] = {};
};

// Of a weight of `rows` rows of k values.
template <typename F>
LANE_CONSTANT PlaneOffsets plane_offsets(i64 rows, int k) {
  PlaneOffsets offsets;
  for (int i = 1; i < F::COUNT; i++) {
    i64 size = rows * (k / F::PLANES[i - 1].values) * F::PLANES[i - 1].bytes;
    offsets.at[i] = offsets.at[i - 1] + (size + PLANE_ALIGNMENT - 1) / PLANE_ALIGNMENT * PLANE_ALIGNMENT;
  }
  return offsets;
}

// The planes of a weight in a format.
template <typename F>
struct Planes {
  const u8* plane[F::COUNT];

  template <typename T>
  LANE_DEVICE const T* as(int i) const {
    return reinterpret_cast<const T*>(plane[i]);
  }

  // From unit `units` on; what is loaded relative to it, n units further, is right if either is a multiple of 8 where a
  // plane has one field for 8 units.
  LANE_DEVICE void advance(i64 units) {
#pragma unroll
    for (int i = 0; i < F::COUNT; i++) {
      constexpr int UNIT = F::UNIT;
      int each = F::PLANES[i].values, bytes = F::PLANES[i].bytes;
      plane[i] += each > UNIT ? units / (each / UNIT) * bytes : units * (UNIT / each * bytes);
    }
  }
};

// Units whose fields a format has together, of which a lane steps over whole multiples.
template <typename F>
LANE_CONSTANT int units_together() {
  int most = 1;
  for (int i = 0; i < F::COUNT; i++) most = max_of(most, F::PLANES[i].values / F::UNIT);
  return most;
}

template <typename F, i64 ROWS, int K>
LANE_DEVICE Planes<F> planes_of(const u8* weight) {
  constexpr PlaneOffsets OFFSETS = plane_offsets<F>(ROWS, K);
  Planes<F> planes;
#pragma unroll
  for (int i = 0; i < F::COUNT; i++) planes.plane[i] = weight + OFFSETS.at[i];
  return planes;
}

// A block of 32 of a quantized activation: its words, its scale, and the sums of its first and last 16 words.
struct QuantizedBlock {
  int q[8];
  float d;
  int low_sum;
  int high_sum;

  LANE_DEVICE int sum() const { return low_sum + high_sum; }
};

// Of four int8 and four int8. Not by __dp4a, which NVRTC does not know where it is to compile fast.
LANE_DEVICE int dot_signed(int a, int b, int sum) {
#ifdef __CUDA_ARCH__
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  return sum;
#else
  return host_dot_signed(a, b, sum);
#endif
}

LANE_DEVICE int dot_half(const int* a, const int* b, int sum) {
#pragma unroll
  for (int i = 0; i < 4; i++) sum = dot_signed(a[i], b[i], sum);
  return sum;
}

// Of four bytes without sign and four int8.
LANE_DEVICE int dot_unsigned(u32 a, int b, int sum) {
#ifdef __CUDA_ARCH__
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sum));
  return d;
#else
  return host_dot_unsigned(a, b, sum);
#endif
}

LANE_DEVICE int dot_words(const int* a, const int* b) { return dot_half(a + 4, b + 4, dot_half(a, b, 0)); }

// The int8 of a word, minus OFFSET, in f32: a byte becomes the low bits of 2^23, which is then taken away again.
template <int OFFSET = 0>
LANE_DEVICE float4 bytes_of(int word) {
  u32 biased = static_cast<u32>(word) ^ 0x80808080u;
  constexpr float BIAS = 8388736.f + OFFSET;
  return {__uint_as_float(0x4b000000u | (biased & 0xffu)) - BIAS,
          __uint_as_float(0x4b000000u | (biased >> 8 & 0xffu)) - BIAS,
          __uint_as_float(0x4b000000u | (biased >> 16 & 0xffu)) - BIAS,
          __uint_as_float(0x4b000000u | biased >> 24) - BIAS};
}

// v·d and v·d + m, rounded after each operation.
LANE_DEVICE float4 scaled(float4 v, float d) {
  return {__fmul_rn(v.x, d), __fmul_rn(v.y, d), __fmul_rn(v.z, d), __fmul_rn(v.w, d)};
}
LANE_DEVICE float4 scaled(float4 v, float d, float m) {
  v = scaled(v, d);
  return {__fadd_rn(v.x, m), __fadd_rn(v.y, m), __fadd_rn(v.z, m), __fadd_rn(v.w, m)};
}

// ---- Units with their scales ready. ----

// (code - OFFSET)·d
template <int OFFSET>
struct Scaled {
  int q[8];
  float d;

  LANE_DEVICE float dot(const QuantizedBlock& x) const {
    int sum = dot_words(q, x.q);
    if constexpr (OFFSET != 0) sum -= OFFSET * x.sum();
    return d * x.d * static_cast<float>(sum);
  }
  LANE_DEVICE float4 quad(int i) const { return scaled(bytes_of<OFFSET>(q[i]), d); }
};

// code·d + m
struct ScaledMin {
  int q[8];
  float d;
  float m;

  LANE_DEVICE float dot(const QuantizedBlock& x) const {
    return x.d * (d * static_cast<float>(dot_words(q, x.q)) + m * static_cast<float>(x.sum()));
  }
  LANE_DEVICE float4 quad(int i) const { return scaled(bytes_of(q[i]), d, m); }
};

// (code - OFFSET)·d, another d for the last 16 values
template <int OFFSET>
struct ScaledHalves {
  int q[8];
  float d[2];

  LANE_DEVICE float dot(const QuantizedBlock& x) const {
    int low = dot_half(q, x.q, -OFFSET * x.low_sum), high = dot_half(q + 4, x.q + 4, -OFFSET * x.high_sum);
    return x.d * (d[0] * static_cast<float>(low) + d[1] * static_cast<float>(high));
  }
  LANE_DEVICE float4 quad(int i) const { return scaled(bytes_of<OFFSET>(q[i]), d[i / 4]); }
};

// code·d + m, another d and m for the last 16 values
struct ScaledMinHalves {
  int q[8];
  float d[2];
  float m[2];

  LANE_DEVICE float dot(const QuantizedBlock& x) const {
    int low = dot_half(q, x.q, 0), high = dot_half(q + 4, x.q + 4, 0);
    float products = d[0] * static_cast<float>(low) + d[1] * static_cast<float>(high);
    return x.d * (products + (m[0] * static_cast<float>(x.low_sum) + m[1] * static_cast<float>(x.high_sum)));
  }
  LANE_DEVICE float4 quad(int i) const { return scaled(bytes_of(q[i]), d[i / 4], m[i / 4]); }
};

// ---- Fields to words of codes. ----

// Of a plane `nibbles`: 4 bits a value.
LANE_DEVICE void unpack_nibbles(uint4 field, int* q) {
  u32 words[4] = {field.x, field.y, field.z, field.w};
#pragma unroll
  for (int w = 0; w < 4; w++) {
    q[w] = static_cast<int>(words[w] & 0x0f0f0f0fu);
    q[w + 4] = static_cast<int>(words[w] >> 4 & 0x0f0f0f0fu);
  }
}

// Σ code·x of a plane `nibbles`, without unpacking it: the codes in the high halves count 16 times as much.
LANE_DEVICE int dot_nibbles(uint4 field, const int* x) {
  u32 words[4] = {field.x, field.y, field.z, field.w};
  int low = 0, high = 0;
#pragma unroll
  for (int w = 0; w < 4; w++) {
    low = dot_unsigned(words[w] & 0x0f0f0f0fu, x[w], low);
    high = dot_unsigned(words[w] & 0xf0f0f0f0u, x[w + 4], high);
  }
  return low + (high >> 4);
}

// Of a plane `bits`: one bit a value, at bit TO of its byte.
template <int TO>
LANE_DEVICE void unpack_bits(u32 field, int* q) {
  constexpr u32 MASK = 0x01010101u << TO;
#pragma unroll
  for (int w = 0; w < 8; w++) q[w] |= static_cast<int>((w < TO ? field << (TO - w) : field >> (w - TO)) & MASK);
}

// Of a plane `pairs`: two bits a value, from bit TO of its byte on.
template <int TO>
LANE_DEVICE void unpack_pairs(uint2 field, int* q) {
  constexpr u32 MASK = 0x03030303u << TO;
#pragma unroll
  for (int w = 0; w < 8; w++) {
    u32 half = w < 4 ? field.x : field.y;
    int from = 2 * (w % 4);
    q[w] |= static_cast<int>((from < TO ? half << (TO - from) : half >> (from - TO)) & MASK);
  }
}

// Four bytes of two words, chosen by the low four 4-bit selectors, each below 8.
LANE_DEVICE u32 choose_bytes(u32 low, u32 high, u32 selectors) {
#ifdef __CUDA_ARCH__
  u32 chosen;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(low), "r"(high), "r"(selectors));
  return chosen;
#else
  return host_choose_bytes(low, high, selectors);
#endif
}

// Of a plane `codes`: 4 bits a value, each an index into the 16 int8 of TABLE.
template <typename TABLE>
LANE_DEVICE void look_up(uint4 field, int* q) {
  u32 words[4] = {field.x, field.y, field.z, field.w};
#pragma unroll
  for (int w = 0; w < 4; w++) {
    u32 index = words[w] & 0x77777777u;                             // in one half of the table
    u32 half = (words[w] >> 1 & 0x44444444u) | 0x32103210u;         // byte i of the first half's result or the second's
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 first = choose_bytes(TABLE::WORDS[0], TABLE::WORDS[1], index >> (16 * i));
      u32 second = choose_bytes(TABLE::WORDS[2], TABLE::WORDS[3], index >> (16 * i));
      q[2 * w + i] = static_cast<int>(choose_bytes(first, second, half >> (16 * i)));
    }
  }
}

// -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113
struct Iq4Table {
  static constexpr u32 WORDS[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
};
// 0 1 2 3, 4 6 8 12, and their negatives: the values of E2M1, doubled
struct Mxfp4Table {
  static constexpr u32 WORDS[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
};

// 2^(e - 128): half of what an E8M0 byte stands for, as the tables are doubled.
LANE_DEVICE float half_of_e8m0(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// A unit's product with a block of the activation: F::dot, or that of the decoded unit.
template <typename F>
LANE_DEVICE float dot_unit(const typename F::Block& block, const QuantizedBlock& x) {
  if constexpr (requires { F::dot(block, x); }) {
    return F::dot(block, x);
  } else {
    return F::decode(block).dot(x);
  }
}

// ---- Block formats. ----

struct Q8_0 {
  static constexpr int UNIT = 32, COUNT = 3;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {16, 32}, {2, 32}};
  struct Block {
    uint4 low, high;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<Q8_0>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_weights(p.as<uint4>(1) + unit),
            load_field(p.as<u16>(2) + unit)};
  }
  static LANE_DEVICE Scaled<0> decode(const Block& b) {
    return {{static_cast<int>(b.low.x), static_cast<int>(b.low.y), static_cast<int>(b.low.z),
             static_cast<int>(b.low.w), static_cast<int>(b.high.x), static_cast<int>(b.high.y),
             static_cast<int>(b.high.z), static_cast<int>(b.high.w)},
            low_half(b.scale)};
  }
};

struct Q4_0 {
  static constexpr int UNIT = 32, COUNT = 2;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {2, 32}};
  struct Block {
    uint4 nibbles;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<Q4_0>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u16>(1) + unit)};
  }
  static LANE_DEVICE Scaled<8> decode(const Block& b) {
    Scaled<8> unit;
    unpack_nibbles(b.nibbles, unit.q);
    unit.d = low_half(b.scale);
    return unit;
  }
  static LANE_DEVICE float dot(const Block& b, const QuantizedBlock& x) {
    return low_half(b.scale) * x.d * static_cast<float>(dot_nibbles(b.nibbles, x.q) - 8 * x.sum());
  }
};

struct Q4_1 {
  static constexpr int UNIT = 32, COUNT = 2;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {4, 32}};
  struct Block {
    uint4 nibbles;
    u32 scale_min;
  };
  static LANE_DEVICE Block load(const Planes<Q4_1>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u32>(1) + unit)};
  }
  static LANE_DEVICE ScaledMin decode(const Block& b) {
    ScaledMin unit;
    unpack_nibbles(b.nibbles, unit.q);
    float2 scale_min = halves(b.scale_min);
    unit.d = scale_min.x;
    unit.m = scale_min.y;
    return unit;
  }
  static LANE_DEVICE float dot(const Block& b, const QuantizedBlock& x) {
    float2 scale_min = halves(b.scale_min);
    float product = scale_min.x * static_cast<float>(dot_nibbles(b.nibbles, x.q));
    return x.d * (product + scale_min.y * static_cast<float>(x.sum()));
  }
};

struct Q5_0 {
  static constexpr int UNIT = 32, COUNT = 3;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {4, 32}, {2, 32}};
  struct Block {
    uint4 nibbles;
    u32 bits;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<Q5_0>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u32>(1) + unit),
            load_field(p.as<u16>(2) + unit)};
  }
  static LANE_DEVICE Scaled<16> decode(const Block& b) {
    Scaled<16> unit;
    unpack_nibbles(b.nibbles, unit.q);
    unpack_bits<4>(b.bits, unit.q);
    unit.d = low_half(b.scale);
    return unit;
  }
};

struct Q5_1 {
  static constexpr int UNIT = 32, COUNT = 3;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {4, 32}, {4, 32}};
  struct Block {
    uint4 nibbles;
    u32 bits;
    u32 scale_min;
  };
  static LANE_DEVICE Block load(const Planes<Q5_1>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u32>(1) + unit),
            load_field(p.as<u32>(2) + unit)};
  }
  static LANE_DEVICE ScaledMin decode(const Block& b) {
    ScaledMin unit;
    unpack_nibbles(b.nibbles, unit.q);
    unpack_bits<4>(b.bits, unit.q);
    float2 scale_min = halves(b.scale_min);
    unit.d = scale_min.x;
    unit.m = scale_min.y;
    return unit;
  }
};

struct Q4_K {
  static constexpr int UNIT = 32, COUNT = 3;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {2, 32}, {4, 256}};
  struct Block {
    uint4 nibbles;
    u32 factors;
    u32 scale_min;
  };
  static LANE_DEVICE Block load(const Planes<Q4_K>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u16>(1) + unit),
            load_field(p.as<u32>(2) + unit / 8)};
  }
  static LANE_DEVICE ScaledMin decode(const Block& b) {
    ScaledMin unit;
    unpack_nibbles(b.nibbles, unit.q);
    float2 scale_min = halves(b.scale_min);
    unit.d = __fmul_rn(scale_min.x, static_cast<float>(b.factors & 0xff));
    unit.m = -__fmul_rn(scale_min.y, static_cast<float>(b.factors >> 8));
    return unit;
  }
  // The factors, of 6 bits, multiply in integers: the products stay below 2^24.
  static LANE_DEVICE float dot(const Block& b, const QuantizedBlock& x) {
    float2 scale_min = halves(b.scale_min);
    int factor = static_cast<int>(b.factors & 0xff), minimum = static_cast<int>(b.factors >> 8);
    int product = dot_nibbles(b.nibbles, x.q) * factor, sum = x.sum() * minimum;
    return x.d * (scale_min.x * static_cast<float>(product) - scale_min.y * static_cast<float>(sum));
  }
};

struct Q5_K {
  static constexpr int UNIT = 32, COUNT = 4;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {4, 32}, {2, 32}, {4, 256}};
  struct Block {
    uint4 nibbles;
    u32 bits;
    u32 factors;
    u32 scale_min;
  };
  static LANE_DEVICE Block load(const Planes<Q5_K>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u32>(1) + unit),
            load_field(p.as<u16>(2) + unit), load_field(p.as<u32>(3) + unit / 8)};
  }
  static LANE_DEVICE ScaledMin decode(const Block& b) {
    ScaledMin unit = Q4_K::decode({b.nibbles, b.factors, b.scale_min});
    unpack_bits<4>(b.bits, unit.q);
    return unit;
  }
};

struct Q6_K {
  static constexpr int UNIT = 32, COUNT = 4;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {8, 32}, {2, 32}, {2, 256}};
  struct Block {
    uint4 nibbles;
    uint2 pairs;
    u32 factors;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<Q6_K>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_weights(p.as<uint2>(1) + unit),
            load_field(p.as<u16>(2) + unit), load_field(p.as<u16>(3) + unit / 8)};
  }
  static LANE_DEVICE ScaledHalves<32> decode(const Block& b) {
    ScaledHalves<32> unit;
    unpack_nibbles(b.nibbles, unit.q);
    unpack_pairs<4>(b.pairs, unit.q);
    float d = low_half(b.scale);
    unit.d[0] = __fmul_rn(d, static_cast<float>(static_cast<i8>(b.factors & 0xff)));
    unit.d[1] = __fmul_rn(d, static_cast<float>(static_cast<i8>(b.factors >> 8)));
    return unit;
  }
};

struct Q3_K {
  static constexpr int UNIT = 32, COUNT = 4;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{8, 32}, {4, 32}, {2, 32}, {2, 256}};
  struct Block {
    uint2 pairs;
    u32 bits;
    u32 factors;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<Q3_K>& p, i64 unit) {
    return {load_weights(p.as<uint2>(0) + unit), load_field(p.as<u32>(1) + unit),
            load_field(p.as<u16>(2) + unit), load_field(p.as<u16>(3) + unit / 8)};
  }
  static LANE_DEVICE ScaledHalves<4> decode(const Block& b) {
    ScaledHalves<4> unit = {};
    unpack_pairs<0>(b.pairs, unit.q);
    unpack_bits<2>(b.bits, unit.q);
    float d = low_half(b.scale);
    unit.d[0] = __fmul_rn(d, static_cast<float>(static_cast<i8>(b.factors & 0xff)));
    unit.d[1] = __fmul_rn(d, static_cast<float>(static_cast<i8>(b.factors >> 8)));
    return unit;
  }
};

struct Q2_K {
  static constexpr int UNIT = 32, COUNT = 3;
  static constexpr bool NEEDS_SUMS = true;
  static constexpr PlaneShape PLANES[COUNT] = {{8, 32}, {2, 32}, {4, 256}};
  struct Block {
    uint2 pairs;
    u32 factors;
    u32 scale_min;
  };
  static LANE_DEVICE Block load(const Planes<Q2_K>& p, i64 unit) {
    return {load_weights(p.as<uint2>(0) + unit), load_field(p.as<u16>(1) + unit),
            load_field(p.as<u32>(2) + unit / 8)};
  }
  static LANE_DEVICE ScaledMinHalves decode(const Block& b) {
    ScaledMinHalves unit = {};
    unpack_pairs<0>(b.pairs, unit.q);
    float2 scale_min = halves(b.scale_min);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 factors = b.factors >> (8 * i) & 0xffu;
      unit.d[i] = __fmul_rn(scale_min.x, static_cast<float>(factors & 15));
      unit.m[i] = -__fmul_rn(scale_min.y, static_cast<float>(factors >> 4));
    }
    return unit;
  }
};

struct IQ4_NL {
  static constexpr int UNIT = 32, COUNT = 2;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {2, 32}};
  struct Block {
    uint4 codes;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<IQ4_NL>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u16>(1) + unit)};
  }
  static LANE_DEVICE Scaled<0> decode(const Block& b) {
    Scaled<0> unit;
    look_up<Iq4Table>(b.codes, unit.q);
    unit.d = low_half(b.scale);
    return unit;
  }
};

struct IQ4_XS {
  static constexpr int UNIT = 32, COUNT = 3;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {1, 32}, {2, 256}};
  struct Block {
    uint4 codes;
    int factor;
    u32 scale;
  };
  static LANE_DEVICE Block load(const Planes<IQ4_XS>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<i8>(1) + unit),
            load_field(p.as<u16>(2) + unit / 8)};
  }
  static LANE_DEVICE Scaled<0> decode(const Block& b) {
    Scaled<0> unit;
    look_up<Iq4Table>(b.codes, unit.q);
    unit.d = __fmul_rn(low_half(b.scale), static_cast<float>(b.factor));
    return unit;
  }
};

struct MXFP4 {
  static constexpr int UNIT = 32, COUNT = 2;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{16, 32}, {1, 32}};
  struct Block {
    uint4 codes;
    u32 exponent;
  };
  static LANE_DEVICE Block load(const Planes<MXFP4>& p, i64 unit) {
    return {load_weights(p.as<uint4>(0) + unit), load_field(p.as<u8>(1) + unit)};
  }
  static LANE_DEVICE Scaled<0> decode(const Block& b) {
    Scaled<0> unit;
    look_up<Mxfp4Table>(b.codes, unit.q);
    unit.d = half_of_e8m0(b.exponent);
    return unit;
  }
};

// ---- Plain values: 16 bytes a unit. ----

struct F32 {
  static constexpr int UNIT = 4, COUNT = 1;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{4, 1}};
  using Block = uint4;
  static LANE_DEVICE Block load(const Planes<F32>& p, i64 unit) { return load_weights(p.as<uint4>(0) + unit); }
  struct Unit {
    uint4 bits;
    LANE_DEVICE float4 quad(int) const {
      return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
    }
  };
  static LANE_DEVICE Unit decode(const Block& b) { return {b}; }
};

// 8 values of 16 bits, widened by PAIR, a function from two of them to a float2.
template <float2 (*PAIR)(u32)>
struct SixteenBits {
  uint4 bits;
  LANE_DEVICE float4 quad(int i) const {
    float2 first = PAIR(i == 0 ? bits.x : bits.z), second = PAIR(i == 0 ? bits.y : bits.w);
    return {first.x, first.y, second.x, second.y};
  }
};

struct F16 {
  static constexpr int UNIT = 8, COUNT = 1;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{2, 1}};
  using Block = uint4;
  static LANE_DEVICE Block load(const Planes<F16>& p, i64 unit) { return load_weights(p.as<uint4>(0) + unit); }
  static LANE_DEVICE SixteenBits<halves> decode(const Block& b) { return {b}; }
};

struct BF16 {
  static constexpr int UNIT = 8, COUNT = 1;
  static constexpr bool NEEDS_SUMS = false;
  static constexpr PlaneShape PLANES[COUNT] = {{2, 1}};
  using Block = uint4;
  static LANE_DEVICE Block load(const Planes<BF16>& p, i64 unit) { return load_weights(p.as<uint4>(0) + unit); }
  static LANE_DEVICE SixteenBits<bfloats> decode(const Block& b) { return {b}; }
};

}  // namespace lane
