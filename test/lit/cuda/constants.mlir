// RUN: not lane-opt %s -p plan -t cuda 2>&1 | filecheck %s

// Kernels load weights, biases and tables before they wait for the launch before them.

// CHECK: launch.gemv that writes "y": it reads "b" before it waits for the launch before it, and launch.unary writes that
launch.schedule @bias {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %b = launch.buffer "b" f32[1x64] computed
  %y = launch.buffer "y" f32[1x64] computed
  launch.unary silu %x into %b (n = 64)
  launch.gemv %x by %w<q8_0> bias %b into %y (k = 64, n = 64, m = 1) f32
  launch.yield %y
}
