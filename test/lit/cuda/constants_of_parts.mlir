// RUN: not lane-opt %s -p plan -t cuda 2>&1 | filecheck %s

// CHECK: launch.gemm_parts that writes "y", "z": it reads "r" before it waits for the launch before it, and launch.unary writes that
launch.schedule @scale_of_one_part {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %r = launch.buffer "r" f32[1x64] computed
  %s = launch.buffer "s" f32[1] alias %r + 2
  %y = launch.buffer "y" f32[1x64] computed
  %z = launch.buffer "z" f32[1x64] computed
  launch.unary silu %x into %r (n = 64)
  launch.gemm_parts %x by [%w into %y n = 64, %w scale %s into %z n = 64] [q8_0, q8_0] (k = 64, m = 1)
  launch.yield %y
}
