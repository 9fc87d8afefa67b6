// RUN: lane-opt %s -p plan | filecheck %s
// RUN: lane-opt %s -p 'plan{remarks=true}' -o /dev/null 2>&1 | grep deferred_norm | filecheck %s --check-prefix=WHY

// Under int8 numerics, 8 rows by weights in blocks are better off on tensor cores, in tiles.

// WHY: remark: @blocks: deferred_norm refused on [1, 2] (o): its 8 rows are multiplied in tiles, by kernels that norm nothing
// CHECK-LABEL: launch.schedule @blocks
// CHECK-NOT: squares
launch.schedule @blocks target<h200, int8, cache = f32, state = f32> {
  %x = launch.buffer "x" f32[8x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[8x64] computed
  %o = launch.buffer "o" f32[8x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[8x8] computed
  launch.quant %x (n = 512)
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 8) f32
    launch.norm %y out %o (rows = 8, cols = 64) eps = 1.0e-05 quant
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 8) f32
  launch.yield %z
}

// No tensor core takes f32.
// WHY-NEXT: remark: @plain: deferred_norm fired on [1, 2] (o)
// CHECK-LABEL: launch.schedule @plain
// CHECK: launch.norm %y squares %o.squares out %o
// CHECK: launch.gemv %o over rms %o.squares eps = 1.0e-05 by %v<f32>
launch.schedule @plain target<h200, int8, cache = f32, state = f32> {
  %x = launch.buffer "x" f32[8x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", f32>
  %y = launch.buffer "y" f32[8x64] computed
  %o = launch.buffer "o" f32[8x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", f32>
  %z = launch.buffer "z" f32[8x8] computed
  launch.fold {
    launch.gemv %x by %w<f32> into %y (k = 64, n = 64, m = 8) f32
    launch.norm %y out %o (rows = 8, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<f32> into %z (k = 64, n = 8, m = 8) f32
  launch.yield %z
}

// A tile of 17 rows norms nothing, whatever the weights.
// WHY-NEXT: remark: @rows: deferred_norm refused on [1, 2] (o): its 17 rows are multiplied in tiles, by kernels that norm nothing
// CHECK-LABEL: launch.schedule @rows
// CHECK-NOT: squares
launch.schedule @rows target<h200, int8, cache = f32, state = f32> {
  %x = launch.buffer "x" f32[17x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", f32>
  %y = launch.buffer "y" f32[17x64] computed
  %o = launch.buffer "o" f32[17x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", f32>
  %z = launch.buffer "z" f32[17x8] computed
  launch.fold {
    launch.gemv %x by %w<f32> into %y (k = 64, n = 64, m = 17) f32
    launch.norm %y out %o (rows = 17, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<f32> into %z (k = 64, n = 8, m = 17) f32
  launch.yield %z
}
