// RUN: lane-opt %s -t cuda | filecheck %s
// RUN: lane-opt %s -t 'cuda{chip=a100}' | filecheck %s --check-prefix=A100

// One kernel for each distinct launch; what it covers and which rules made it stand above it.

// CHECK:      // Kernels of the step @step for h200 (sm_90a), int8.
// A100:       // Kernels of the step @step for a100 (sm_80), int8.

// CHECK:      #include "gemv.cuh"
// CHECK-NEXT: #include "quant.cuh"

// CHECK:      // launch.quant %x (n = 256)
// CHECK-NEXT: // runs once: 1 block of 128 threads
// CHECK-NEXT: // covers [7]
// CHECK-NEXT: extern "C" __global__ void __launch_bounds__(128)
// CHECK-NEXT: quant_0(const float* x, i8* y_words, float* y_scales) {
// CHECK-NEXT:   quant<1>(x, 256, y_words, y_scales);

// CHECK:      // launch.gemv %x by %w<q4_k> bias %b into %y (k = 256, n = 192, m = 1) f32
// CHECK-NEXT: // runs 2 times: 48 blocks of 128 threads, 320 bytes of shared memory
// CHECK-NEXT: // covers [0, 1] [2]
// CHECK-NEXT: // by gemv_bias
// CHECK:      gemv_q4_k_1(const i8* x_words, const float* x_scales, const u8* w, const float* bias, float* y) {
// CHECK-NEXT:   gemv<GemvShape{.k = 256, .m = 1, .words = 1, .lanes = 32, .rows = 1, .warps = 4, .depth = 1,
// CHECK-NEXT:       .tile = 256}>(GemvInput{x_words, x_scales, nullptr}, QuantizedResult{}, NothingAfter{}, Product<Q4_K, 192,
// CHECK-NEXT:       Dst{}, float>{w, {bias}, y, nullptr});

// CHECK:      // launch.gemm_parts %x by [%u into %q n = 64, %u into %k at row %pos pitch 64 n = 64] [q8_0, q8_0] (k = 256, m = 1)
// CHECK-NEXT: // runs once: 32 blocks of 128 threads, 320 bytes of shared memory
// CHECK-NEXT: extern "C"
// CHECK-NEXT: gemv_parts_q8_0_2(const i8* x_words, const float* x_scales, const u8* w0, float* y0, const u8* w1, f16* y1,
// CHECK-NEXT:     const int* row1) {
// CHECK:      Dst{}, float>{w0, {}, y0, nullptr}, Product<Q8_0, 64, Dst{.row_pitch = 64}, f16>{w1, {}, y1, row1});

launch.schedule @step target<h200, int8, cache = f16, state = f32> {
  %pos = launch.buffer "pos" i32[1] param plain
  %x = launch.buffer "x" f32[1x256] computed plain quantized
  %w = launch.buffer "w" f32[192x256] constant #launch.tensor<"w", q4_k> plain
  %u = launch.buffer "u" f32[64x256] constant #launch.tensor<"u", q8_0> plain
  %b = launch.buffer "b" f32[192] constant #launch.tensor<"b", f32> plain
  %c = launch.buffer "c" f32[192] constant #launch.tensor<"c", f32> plain
  %y = launch.buffer "y" f32[1x192] computed plain
  %z = launch.buffer "z" f32[1x192] computed plain
  %q = launch.buffer "q" f32[1x64] computed plain
  %k = launch.buffer "k" f16[8x64] zero plain
  launch.quant %x (n = 256) covers [7]
  launch.gemv %x by %w<q4_k> bias %b into %y (k = 256, n = 192, m = 1) f32 covers [0, 1] by [gemv_bias]
  launch.gemv %x by %w<q4_k> bias %c into %z (k = 256, n = 192, m = 1) f32 covers [2] by [gemv_bias]
  launch.gemm_parts %x by [%u into %q n = 64, %u into %k at row %pos pitch 64 n = 64] [q8_0, q8_0] (k = 256, m = 1)
  launch.yield %y, %z, %q
}
