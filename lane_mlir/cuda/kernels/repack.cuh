// From a checkpoint's blocks to planes, on the device: what lane_mlir/cuda/repack.py does in numpy.
//
// A thread takes 32 neighbouring values: their codes, one by one, out of the bytes of their block, then the fields of
// each plane. It runs once, at load, and is bound by the copy from the host; the bytes of a block come through the
// first-level cache. A format says where the code of a value is and what its scales are:
//
//     VALUES, BYTES                  of a block in the checkpoint
//     code(block, i)                 the bits of value i of the block, without its sign offset
//     store(out, block, part)        the fields besides the codes, of values 32·part on
#pragma once

#include "formats.cuh"

namespace lane {

// The planes of the whole weight, and the unit of 32 values that is written.
struct RepackOutput {
  u8* plane[MAX_PLANES];
  i64 unit;

  template <typename T>
  LANE_DEVICE T* at(int i) const {
    return reinterpret_cast<T*>(plane[i]) + unit;
  }
  // Of a plane with one field a superblock of 256, written by the thread of its first unit.
  template <typename T>
  LANE_DEVICE void store_super(int i, T field) const {
    if (unit % 8 == 0) reinterpret_cast<T*>(plane[i])[unit / 8] = field;
  }
};

// Two or four bytes of a block, which need not be aligned.
LANE_DEVICE u16 raw_u16(const u8* p) { return static_cast<u16>(p[0] | p[1] << 8); }
LANE_DEVICE u32 raw_u32(const u8* p) { return raw_u16(p) | static_cast<u32>(raw_u16(p + 2)) << 16; }

// ---- Fields of 32 codes. ----

LANE_DEVICE uint4 pack_nibbles(const u32* code) {
  u32 words[4] = {};
#pragma unroll
  for (int i = 0; i < 16; i++) words[i / 4] |= ((code[i] & 15) | (code[i + 16] & 15) << 4) << (8 * (i % 4));
  return {words[0], words[1], words[2], words[3]};
}
LANE_DEVICE uint4 pack_codes(const u32* code) {
  u32 words[4] = {};
#pragma unroll
  for (int i = 0; i < 32; i++) words[i / 8] |= (code[i] & 15) << (4 * (i % 8));
  return {words[0], words[1], words[2], words[3]};
}
LANE_DEVICE u32 pack_bits(const u32* code, int from) {
  u32 field = 0;
#pragma unroll
  for (int i = 0; i < 32; i++) field |= (code[i] >> from & 1) << (8 * (i % 4) + i / 4);
  return field;
}
LANE_DEVICE uint2 pack_pairs(const u32* code, int from) {
  u32 words[2] = {};
#pragma unroll
  for (int i = 0; i < 32; i++) words[i / 16] |= (code[i] >> from & 3) << (8 * (i % 4) + 2 * (i / 4 % 4));
  return {words[0], words[1]};
}

// ---- The checkpoint's blocks. ----

// Blocks of 32 whose byte i of 16 has value i in its low and value i + 16 in its high half.
LANE_DEVICE u32 halves_code(const u8* bytes, int i) { return i < 16 ? bytes[i] & 15u : bytes[i - 16] >> 4; }

template <typename F>
struct Checkpoint;

template <>
struct Checkpoint<Q8_0> {
  static constexpr int VALUES = 32, BYTES = 34;
  static LANE_DEVICE u32 code(const u8* b, int i) { return b[2 + i]; }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    u32 words[8] = {};
#pragma unroll
    for (int i = 0; i < 32; i++) words[i / 4] |= code[i] << (8 * (i % 4));
    *out.at<uint4>(0) = {words[0], words[1], words[2], words[3]};
    *out.at<uint4>(1) = {words[4], words[5], words[6], words[7]};
    *out.at<u16>(2) = raw_u16(b);
  }
};

template <>
struct Checkpoint<Q4_0> {
  static constexpr int VALUES = 32, BYTES = 18;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 2, i); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<u16>(1) = raw_u16(b);
  }
};

template <>
struct Checkpoint<Q4_1> {
  static constexpr int VALUES = 32, BYTES = 20;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 4, i); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<u32>(1) = raw_u32(b);
  }
};

template <>
struct Checkpoint<Q5_0> {
  static constexpr int VALUES = 32, BYTES = 22;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 6, i) | (raw_u32(b + 2) >> i & 1) << 4; }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<u32>(1) = pack_bits(code, 4);
    *out.at<u16>(2) = raw_u16(b);
  }
};

template <>
struct Checkpoint<Q5_1> {
  static constexpr int VALUES = 32, BYTES = 24;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 8, i) | (raw_u32(b + 4) >> i & 1) << 4; }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<u32>(1) = pack_bits(code, 4);
    *out.at<u32>(2) = raw_u32(b);
  }
};

// Superblocks of 256. Runs of 64 values have 32 bytes of 4 bits: the first 32 values in the low halves.
LANE_DEVICE u32 run_code(const u8* bytes, int i) { return bytes[i / 64 * 32 + i % 32] >> (i % 64 < 32 ? 0 : 4) & 15u; }

// Scale (low byte) and minimum of part j of 8 in the 12 bytes of q4_k and q5_k.
LANE_DEVICE u16 six_bits(const u8* s, int j) {
  u32 scale = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (s[j - 4] >> 6) << 4;
  u32 minimum = j < 4 ? s[j + 4] & 63u : s[j + 4] >> 4 | (s[j] >> 6) << 4;
  return static_cast<u16>(scale | minimum << 8);
}

template <>
struct Checkpoint<Q4_K> {
  static constexpr int VALUES = 256, BYTES = 144;
  static LANE_DEVICE u32 code(const u8* b, int i) { return run_code(b + 16, i); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int part, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<u16>(1) = six_bits(b + 4, part);
    out.store_super(2, raw_u32(b));
  }
};

template <>
struct Checkpoint<Q5_K> {
  static constexpr int VALUES = 256, BYTES = 176;
  static LANE_DEVICE u32 code(const u8* b, int i) {
    return run_code(b + 48, i) | (b[16 + i % 32] >> (i / 32) & 1u) << 4;
  }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int part, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<u32>(1) = pack_bits(code, 4);
    *out.at<u16>(2) = six_bits(b + 4, part);
    out.store_super(3, raw_u32(b));
  }
};

// Runs of 128 values with 2 bits in 32 bytes, four groups of 32 one above the other.
LANE_DEVICE u32 two_bits(const u8* bytes, int i) { return bytes[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3u; }

template <>
struct Checkpoint<Q6_K> {
  static constexpr int VALUES = 256, BYTES = 210;
  static LANE_DEVICE u32 code(const u8* b, int i) {
    u32 low = b[i / 128 * 64 + i % 64] >> (i % 128 < 64 ? 0 : 4) & 15u;
    return low | two_bits(b + 128, i) << 4;
  }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int part, const u32* code) {
    *out.at<uint4>(0) = pack_nibbles(code);
    *out.at<uint2>(1) = pack_pairs(code, 4);
    *out.at<u16>(2) = raw_u16(b + 192 + 2 * part);
    out.store_super(3, raw_u16(b + 208));
  }
};

template <>
struct Checkpoint<Q2_K> {
  static constexpr int VALUES = 256, BYTES = 84;
  static LANE_DEVICE u32 code(const u8* b, int i) { return two_bits(b + 16, i); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int part, const u32* code) {
    *out.at<uint2>(0) = pack_pairs(code, 0);
    *out.at<u16>(1) = raw_u16(b + 2 * part);
    out.store_super(2, raw_u32(b + 80));
  }
};

template <>
struct Checkpoint<Q3_K> {
  static constexpr int VALUES = 256, BYTES = 110;
  static LANE_DEVICE u32 code(const u8* b, int i) { return two_bits(b + 32, i) | (b[i % 32] >> (i / 32) & 1u) << 2; }
  // The factor of part j of 16: 4 bits of one of 8 bytes and 2 of one of 4, less 32.
  static LANE_DEVICE u32 factor(const u8* s, int j) {
    u32 low = s[j % 8] >> (j < 8 ? 0 : 4) & 15u, high = s[8 + j % 4] >> (2 * (j / 4)) & 3u;
    return ((low | high << 4) - 32u) & 0xffu;
  }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int part, const u32* code) {
    *out.at<uint2>(0) = pack_pairs(code, 0);
    *out.at<u32>(1) = pack_bits(code, 2);
    *out.at<u16>(2) = static_cast<u16>(factor(b + 96, 2 * part) | factor(b + 96, 2 * part + 1) << 8);
    out.store_super(3, raw_u16(b + 108));
  }
};

template <>
struct Checkpoint<IQ4_NL> {
  static constexpr int VALUES = 32, BYTES = 18;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 2, i); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    *out.at<uint4>(0) = pack_codes(code);
    *out.at<u16>(1) = raw_u16(b);
  }
};

template <>
struct Checkpoint<IQ4_XS> {
  static constexpr int VALUES = 256, BYTES = 136;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 8 + i / 32 * 16, i % 32); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int part, const u32* code) {
    u32 low = b[4 + part / 2] >> (4 * (part % 2)) & 15u, high = raw_u16(b + 2) >> (2 * part) & 3u;
    *out.at<uint4>(0) = pack_codes(code);
    *out.at<u8>(1) = static_cast<u8>((low | high << 4) - 32u);
    out.store_super(2, raw_u16(b));
  }
};

template <>
struct Checkpoint<MXFP4> {
  static constexpr int VALUES = 32, BYTES = 17;
  static LANE_DEVICE u32 code(const u8* b, int i) { return halves_code(b + 1, i); }
  static LANE_DEVICE void store(const RepackOutput& out, const u8* b, int, const u32* code) {
    *out.at<uint4>(0) = pack_codes(code);
    *out.at<u8>(1) = b[0];
  }
};

// Units first to first + units of a weight, whose blocks are the bytes from raw on; `first` begins a block.
template <typename F>
LANE_DEVICE void repack(const u8* raw, u8* weight, i64 first, i64 units, i64 at0, i64 at1, i64 at2, i64 at3) {
  using C = Checkpoint<F>;
  i64 index = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= units) return;
  constexpr int PARTS = C::VALUES / 32;
  const u8* block = raw + index / PARTS * C::BYTES;
  int part = static_cast<int>(index % PARTS);
  u32 code[32];
#pragma unroll
  for (int i = 0; i < 32; i++) code[i] = C::code(block, part * 32 + i);
  C::store({{weight + at0, weight + at1, weight + at2, weight + at3}, first + index}, block, part, code);
}

}  // namespace lane
