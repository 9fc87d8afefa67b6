// RUN: lane-opt %s -p plan | filecheck %s
// RUN: lane-opt %s -p plan,check-plan | lane-opt | filecheck %s
// RUN: lane-opt %s --pass-pipeline='plan{held=rows_a_warp}' | filecheck %s --check-prefix=HELD

// A step of one small layer: forms, types, transposed weights, rows a warp, and one arena in which bytes serve again.

// CHECK: launch.schedule @step target<h200, int8, cache = f16, state = f32> arena 42752 {
launch.schedule @step target<h200, int8, cache = f16, state = f32> {
  // CHECK-NEXT: %token = launch.buffer "token" i32[1] param #tg.arg<token, 0> plain
  %token = launch.buffer "token" i32[1] param #tg.arg<token, 0>
  // CHECK-NEXT: %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0> plain
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  // CHECK-NEXT: %k = launch.buffer "k" f16[32x64] zero #tg.arg<kv_cache, 0> plain
  %k = launch.buffer "k" f32[32x64] zero #tg.arg<kv_cache, 0>
  // CHECK-NEXT: %e = launch.buffer "e" f32[8x64] constant #launch.tensor<"e", f32> plain
  // CHECK-NEXT: %e.transposed = launch.buffer "e.transposed" f32[8x64] constant #launch.tensor<"e", f32> transposed plain
  %e = launch.buffer "e" f32[8x64] constant #launch.tensor<"e", f32>
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %up = launch.buffer "up" f32[8192x64] constant #launch.tensor<"up", q8_0>
  %down = launch.buffer "down" f32[64x8192] constant #launch.tensor<"down", q8_0>
  // CHECK-NOT: unused
  %unused = launch.buffer "unused" f32[64] computed
  // CHECK: %h = launch.buffer "h" f32[1x64] computed plain at 0
  %h = launch.buffer "h" f32[1x64] computed
  // CHECK-NEXT: %n = launch.buffer "n" f32[1x64] computed quantized quantized_at 256
  %n = launch.buffer "n" f32[1x64] computed
  // CHECK-NEXT: %s = launch.buffer "s" f32[1x64] computed plain at 512
  %s = launch.buffer "s" f32[1x64] computed
  // CHECK-NEXT: %u = launch.buffer "u" f32[1x8192] computed plain at 768 quantized quantized_at 33536
  %u = launch.buffer "u" f32[1x8192] computed
  // CHECK-NEXT: %d = launch.buffer "d" f32[1x64] computed plain at 256
  %d = launch.buffer "d" f32[1x64] computed
  // CHECK-NEXT: %logits = launch.buffer "logits" f32[1x8] computed plain at 256
  %logits = launch.buffer "logits" f32[1x8] computed

  // CHECK-NEXT: launch.gather %e at %token into %h
  launch.gather %e at %token into %h (rows = 1, cols = 64)
  launch.norm %h out %n (rows = 1, cols = 64) eps = 1.0e-05 quant
  launch.gemv %n by %w<q8_0> into %k at row %pos pitch 64 (k = 64, n = 64, m = 1) f32 by [row_write]
  launch.attention %h, %k, %k at %pos into %s (heads = 1, group = 1, hd = 64, vd = 64, len = 32, rows = 1) values 64 + 0 scale = 0.125 (per_block = 1, splits = 1) f32
  // CHECK: launch.gemv %n by %up<q8_0> into %u (k = 64, n = 8192, m = 1) per_warp = {{[0-9]+}} f32 quant by [fused_quant, rows_a_warp]
  // HELD: launch.gemv %n by %up<q8_0> into %u (k = 64, n = 8192, m = 1) f32 quant by [fused_quant]
  launch.gemv %n by %up<q8_0> into %u (k = 64, n = 8192, m = 1) f32 quant by [fused_quant]
  launch.gemv %u by %down<q8_0> into %d (k = 8192, n = 64, m = 1) f32
  launch.binary add %d, %s into %h (n = 64) f32
  // CHECK: launch.gemv_f32 %h by %e.transposed into %logits
  launch.gemv_f32 %h by %e into %logits (k = 64, n = 8, m = 1)
  launch.yield %logits
}
