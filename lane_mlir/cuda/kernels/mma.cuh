// Products of small tiles on tensor cores, by instructions that sm_80 and later have, and how their operands are loaded.
//
// With lane = 4·g + t: of a tile [16 x k] times [k x 8], a lane holds of the first operand rows g and g + 8, of the second
// column g, of the result rows g and g + 8, columns 2t and 2t + 1, as c[0], c[1] (row g) and c[2], c[3] (row g + 8).
#pragma once

#include "common.cuh"

namespace lane {

// d = a·b + c, int8 with int32 sums, k = 32: a[0], a[1] columns 4t to 4t + 3 of rows g and g + 8, a[2], a[3] columns 16
// further; b[0], b[1] likewise.
LANE_DEVICE void mma_int8_k32(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const int (&c)[4]) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
  host_mma_int8(d, a, 4, b, c);
#endif
}

// The same with k = 16: the first or the second half of the operands for k = 32.
template <int HALF>
LANE_DEVICE void mma_int8_k16(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const int (&c)[4]) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[2 * HALF]), "r"(a[2 * HALF + 1]), "r"(b[HALF]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
  host_mma_int8(d, a + 2 * HALF, 2, b + HALF, c);
#endif
}

// d = a·b + d, f16 with f32 sums, k = 16: a[0], a[1] columns 2t and 2t + 1 of rows g and g + 8, a[2], a[3] columns 8
// further; b[0], b[1] likewise.
LANE_DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  host_mma_16bit(d, a, b, [](u16 bits) { return to_float(f16{bits}); });
#endif
}

// Four matrices of 8 rows of 16 bytes from shared memory. Lane 8i + r gives the address of row r of matrix i; of matrix
// i, lane 4g + t gets bytes 4t to 4t + 3 of row g, in r[i].
LANE_DEVICE void load_matrices(u32 (&r)[4], const void* row) {
#ifdef __CUDA_ARCH__
  u32 address = static_cast<u32>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
#else
  host_load_matrices(r, row);
#endif
}

// The same, each matrix transposed as one of 16-bit elements: lane 4g + t gets elements [2t][g] and [2t + 1][g].
LANE_DEVICE void load_matrices_transposed(u32 (&r)[4], const void* row) {
#ifdef __CUDA_ARCH__
  u32 address = static_cast<u32>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
#else
  host_load_matrices_transposed(r, row);
#endif
}

}  // namespace lane
