// RUN: lane-opt %s -p check-plan --split-input-file --verify-diagnostics | filecheck %s

// The checker alone, on plans made by hand.

// CHECK: launch.schedule @right arena 512
launch.schedule @right arena 512 {
  %x = launch.buffer "x" f32[4] zero plain
  %a = launch.buffer "a" f32[4] computed plain at 0
  %b = launch.buffer "b" f32[4] computed plain at 256
  %c = launch.buffer "c" f32[4] computed plain at 0
  launch.unary silu %x into %a (n = 4)
  launch.unary silu %a into %b (n = 4)
  launch.unary silu %b into %c (n = 4)
  launch.yield %c
}

// -----

// CHECK: unary into "b" writes over the plain form of "a", another of its operands
launch.schedule @race arena 512 {
  %x = launch.buffer "x" f32[4] zero plain
  %a = launch.buffer "a" f32[4] computed plain at 0
  %b = launch.buffer "b" f32[4] computed plain at 8
  launch.unary silu %x into %a (n = 4)
  launch.unary silu %a into %b (n = 4)
  launch.yield %b
}

// -----

// CHECK: binary into "c" reads the plain form of "a", which op 2 unary into "b" has written over
launch.schedule @overwritten arena 512 {
  %x = launch.buffer "x" f32[4] zero plain
  %a = launch.buffer "a" f32[4] computed plain at 0
  %b = launch.buffer "b" f32[4] computed plain at 12
  %c = launch.buffer "c" f32[4] computed plain at 256
  launch.unary silu %x into %a (n = 4) covers [1]
  launch.unary silu %x into %b (n = 4) covers [2]
  launch.binary add %a, %b into %c (n = 4) f32
  launch.yield %c
}

// -----

// CHECK: the plain form of "a" ends at byte 528, beyond the arena of 512
launch.schedule @beyond arena 512 {
  %x = launch.buffer "x" f32[4] zero plain
  %a = launch.buffer "a" f32[4] computed plain at 512
  launch.unary silu %x into %a (n = 4)
  launch.yield %a
}

// -----

// CHECK: the quantized form of "a" is touched, but the buffer has no such form
launch.schedule @form arena 512 {
  %x = launch.buffer "x" f32[32] zero plain
  %a = launch.buffer "a" f32[32] computed plain at 0
  launch.unary silu %x into %a (n = 32)
  launch.quant %a (n = 32)
  launch.yield %a
}

// -----

// CHECK: the plain form of "a" has no place in the arena
launch.schedule @unplaced {
  %x = launch.buffer "x" f32[4] zero plain
  %a = launch.buffer "a" f32[4] computed plain
  launch.unary silu %x into %a (n = 4)
  launch.yield %a
}

// -----

// CHECK: unary into "w" writes the plain form of "w", a constant
launch.schedule @constant {
  %x = launch.buffer "x" f32[4] zero plain
  %w = launch.buffer "w" f32[4] constant #launch.tensor<"w", f32> plain
  launch.unary silu %x into %w (n = 4)
  launch.yield %w
}

// -----

// CHECK: l2norm into "a" reads the plain form of "a" while it writes "a"
launch.schedule @in_place arena 256 {
  %x = launch.buffer "x" f32[4] zero plain
  %a = launch.buffer "a" f32[4] computed plain at 0
  launch.unary silu %x into %a (n = 4)
  launch.l2_norm %a into %a (rows = 1, cols = 4) eps = 1.0e-06
  launch.yield %a
}

// -----

// CHECK: gates into "y" writes the plain form of "z" twice
launch.schedule @twice arena 256 {
  %b = launch.buffer "b" f32[4] zero plain
  %y = launch.buffer "y" f32[4] computed plain at 0
  %z = launch.buffer "z" f32[4] alias %y + 0 plain
  launch.gates %b, %b, %b, %b into %y, %z (n = 4, heads = 4)
  launch.yield %y
}

// -----

// CHECK: gemv_q8 into "z" reads "o", which a norm has left undivided, as it is
launch.schedule @undivided arena 1024 {
  %x = launch.buffer "x" f32[1x64] param plain
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0> plain
  %y = launch.buffer "y" f32[1x64] computed plain at 0
  %o = launch.buffer "o" f32[1x64] computed plain at 256
  %s = launch.buffer "s" f32[1x2] computed plain at 512
  %z = launch.buffer "z" f32[1x64] computed plain at 768
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y squares %s out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  }
  launch.gemv %o by %w<q8_0> into %z (k = 64, n = 64, m = 1) f32
  launch.yield %z
}

// -----

// CHECK: gemv_q8 into "z" reads "o", which a norm has left undivided, as it is
launch.schedule @another_eps arena 1024 {
  %x = launch.buffer "x" f32[1x64] param plain
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0> plain
  %y = launch.buffer "y" f32[1x64] computed plain at 0
  %o = launch.buffer "o" f32[1x64] computed plain at 256
  %s = launch.buffer "s" f32[1x2] computed plain at 512
  %z = launch.buffer "z" f32[1x64] computed plain at 768
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y squares %s out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  }
  launch.gemv %o over rms %s eps = 1.0e-06 by %w<q8_0> into %z (k = 64, n = 64, m = 1) f32
  launch.yield %z
}

// -----

// CHECK: gemv_q8 into "z" divides "y", which no norm has left undivided
launch.schedule @divided_twice arena 1024 {
  %x = launch.buffer "x" f32[1x64] param plain
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0> plain
  %y = launch.buffer "y" f32[1x64] computed plain at 0
  %o = launch.buffer "o" f32[1x64] computed plain at 256
  %s = launch.buffer "s" f32[1x2] computed plain at 512
  %z = launch.buffer "z" f32[1x64] computed plain at 768
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y squares %s out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  }
  launch.gemv %y over rms %s eps = 1.0e-05 by %w<q8_0> into %z (k = 64, n = 64, m = 1) f32
  launch.yield %z
}

// -----

// CHECK: the step's output "o" is left undivided by a norm
launch.schedule @undivided_output arena 1024 {
  %x = launch.buffer "x" f32[1x64] param plain
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0> plain
  %y = launch.buffer "y" f32[1x64] computed plain at 0
  %o = launch.buffer "o" f32[1x64] computed plain at 256
  %s = launch.buffer "s" f32[1x2] computed plain at 512
  %z = launch.buffer "z" f32[1x64] computed plain at 768
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y squares %s out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  }
  launch.gemv %o over rms %s eps = 1.0e-05 by %w<q8_0> into %z (k = 64, n = 64, m = 1) f32
  launch.yield %o, %z
}
