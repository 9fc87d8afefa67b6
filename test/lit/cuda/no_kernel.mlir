// RUN: not lane-opt %s -t cuda 2>&1 | filecheck %s

// A format that no kernel takes is refused by name, and nothing is printed.

// CHECK: lane-opt: error: no CUDA kernel takes weights in the format iq1_s; they take bf16, f16, f32,
// CHECK-NOT: __global__

launch.schedule @step target<h200, int8, cache = f16, state = f32> {
  %x = launch.buffer "x" f32[1x256] computed plain quantized
  %w = launch.buffer "w" f32[192x256] constant #launch.tensor<"w", iq1_s> plain
  %y = launch.buffer "y" f32[1x192] computed plain
  launch.gemv %x by %w<iq1_s> into %y (k = 256, n = 192, m = 1) f32
  launch.yield %y
}
