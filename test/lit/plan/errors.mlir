// RUN: lane-opt %s -p plan --split-input-file --verify-diagnostics | filecheck %s

// What a plan refuses: at which launch, and why.

// CHECK: no kernel for op 4 scale into "y": its kernel takes "k" as f32 only, and the step stores it as f16
launch.schedule @narrow target<h200, int8, cache = f16, state = f32> {
  %k = launch.buffer "k" f32[1x64] zero #tg.arg<kv_cache, 0>
  %y = launch.buffer "y" f32[1x64] computed
  launch.scale %k into %y (n = 64) factor = 2.0 covers [4]
  launch.yield %y
}

// -----

// CHECK: "x" of op 2 gemv_q8 into "y" has 48 elements, expected 64: it is read quantized, in blocks of 32 values
launch.schedule @blocks target<h200, int8, cache = f32, state = f32> {
  %x = launch.buffer "x" f32[1x48] zero
  %w = launch.buffer "w" f32[8x48] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x8] computed
  launch.gemv %x by %w<q8_0> into %y (k = 48, n = 8, m = 1) f32 covers [2]
  launch.yield %y
}

// -----

// CHECK: unbound: the parameter "t" has no role in the step
launch.schedule @unbound {
  %t = launch.buffer "t" i32[1] param
  %e = launch.buffer "e" f32[8x4] constant #launch.tensor<"e", f32>
  %y = launch.buffer "y" f32[1x4] computed
  launch.gather %e at %t into %y (rows = 1, cols = 4)
  launch.yield %y
}

// -----

// CHECK: unary into "y" reads the plain form of "x", which nothing before has written
launch.schedule @unwritten {
  %x = launch.buffer "x" f32[1x4] computed
  %y = launch.buffer "y" f32[1x4] computed
  launch.unary silu %x into %y (n = 4)
  launch.yield %y
}

// -----

// CHECK: the step's output reads the plain form of "y", which nothing before has written
launch.schedule @output {
  %y = launch.buffer "y" f32[1x4] computed
  launch.yield %y
}
