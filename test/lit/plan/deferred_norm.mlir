// RUN: lane-opt %s -p plan | filecheck %s
// RUN: lane-opt %s -p 'plan{remarks=true}' -o /dev/null 2>&1 | grep deferred_norm | filecheck %s --check-prefix=WHY
// RUN: lane-opt %s -p 'plan{held=deferred_norm}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'plan{held=deferred_norm remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD

// HELD-NOT: squares
// WOULD-COUNT-2: deferred_norm held on
// WOULD-NOT: deferred_norm held on

// A product reads the row, and divides.
// CHECK-LABEL: launch.schedule @reader
// CHECK: launch.norm %y squares %o.squares out %o
// CHECK: covers [1, 2] by [gemv_norm_epilogue, deferred_norm]
// CHECK-NEXT: launch.gemv %o over rms %o.squares eps = 1.0e-05 by %v<q8_0> into %z
// WHY: remark: @reader: deferred_norm fired on [1, 2] (o)
launch.schedule @reader {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z
}

// What the product computes is added to another row; a gated pair reads the norm of the sum.
// CHECK-LABEL: launch.schedule @residual
// CHECK: launch.norm %r add %y sum %s squares %o.squares out %o
// CHECK: launch.gemv_glu %o over rms %o.squares
// WHY-NEXT: remark: @residual: deferred_norm fired on [1, 2] (o)
launch.schedule @residual {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[32x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x32] computed
  %r = launch.buffer "r" f32[1x64] param
  %s = launch.buffer "s" f32[1x64] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %r add %y sum %s out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv_glu %o by %v, %v [q8_0, q8_0] into %z (k = 64, n = 32, m = 1) f32
  launch.yield %z
}

// The mean of a layer norm.
// CHECK-LABEL: launch.schedule @layer_norm
// CHECK-NOT: squares
// WHY-NEXT: remark: @layer_norm: deferred_norm refused on [1, 2] (o): a layer norm takes the mean of the whole row away first
launch.schedule @layer_norm {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 center f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z
}

// A norm before the sum.
// CHECK-LABEL: launch.schedule @before
// CHECK-NOT: squares
// WHY-NEXT: remark: @before: deferred_norm refused on [1, 2] (o): the norm that comes first needs the whole row before anything is added to it
launch.schedule @before {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  %r = launch.buffer "r" f32[1x64] param
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y pre 1.0e-05 add %r out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z
}

// More rows than the matrix-vector kernels take.
// CHECK-LABEL: launch.schedule @rows
// CHECK-NOT: squares
// WHY-NEXT: remark: @rows: deferred_norm refused on [1, 2] (o): its 17 rows are multiplied in tiles, by kernels that norm nothing
launch.schedule @rows {
  %x = launch.buffer "x" f32[17x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[17x64] computed
  %o = launch.buffer "o" f32[17x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[17x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 17) f32
    launch.norm %y out %o (rows = 17, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 17) f32
  launch.yield %z
}

// Columns that are no whole blocks.
// CHECK-LABEL: launch.schedule @narrow
// CHECK-NOT: squares
// WHY-NEXT: remark: @narrow: deferred_norm refused on [1, 2] (o): its rows of 48 columns are no whole number of blocks of 32
launch.schedule @narrow {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[48x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x48] computed
  %o = launch.buffer "o" f32[1x48] computed
  %v = launch.buffer "v" f32[8x48] constant #launch.tensor<"v", f16>
  %z = launch.buffer "z" f32[1x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 48, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 48) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<f16> into %z (k = 48, n = 8, m = 1) f32
  launch.yield %z
}

// Another reader.
// CHECK-LABEL: launch.schedule @another_reader
// CHECK-NOT: squares
// WHY-NEXT: remark: @another_reader: deferred_norm refused on [1, 2] (o): unary reads it too, and divides nothing
launch.schedule @another_reader {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  %u = launch.buffer "u" f32[1x64] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.unary silu %o into %u (n = 64)
  launch.yield %z, %u
}

// Some of the rows of a chunk.
// CHECK-LABEL: launch.schedule @chunk
// CHECK-NOT: squares
// WHY-NEXT: remark: @chunk: deferred_norm refused on [1, 2] (o): gemv_q8 multiplies 2 rows of it by a kernel that divides nothing
launch.schedule @chunk {
  %x = launch.buffer "x" f32[3x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[3x64] computed
  %o = launch.buffer "o" f32[3x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[2x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 3) f32
    launch.norm %y out %o (rows = 3, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 2) tail 1 of 3 f32
  launch.yield %z
}

// The norm is an output of the step.
// CHECK-LABEL: launch.schedule @output
// CHECK-NOT: squares
// WHY-NEXT: remark: @output: deferred_norm refused on [1, 2] (o): "o" is not read within the step, or not a result of this launch alone
launch.schedule @output {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z, %o
}

// No product.
// CHECK-LABEL: launch.schedule @gather
// CHECK-NOT: squares
// WHY-NEXT: remark: @gather: deferred_norm refused on [1, 2] (o): blocks norm what they compute after a product of one weight, not after a gather
launch.schedule @gather {
  %t = launch.buffer "t" i32[1] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  launch.fold {
    launch.gather %w rows<q8_0> at %t into %y (rows = 1, cols = 64)
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [embed_norm]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z
}

// The norm is what a reader adds, too; also by another name.
// CHECK-LABEL: launch.schedule @bias
// CHECK-NOT: squares
// WHY-NEXT: remark: @bias: deferred_norm refused on [1, 2] (o): gemv_q8 reads it otherwise than as its activation too
launch.schedule @bias {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %b = launch.buffer "b" f32[64] alias %o + 0
  %v = launch.buffer "v" f32[64x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x64] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> bias %b into %z (k = 64, n = 64, m = 1) f32
  launch.yield %z
}

// What the product computes is added to itself.
// CHECK-LABEL: launch.schedule @twice
// CHECK-NOT: squares
// WHY-NEXT: remark: @twice: deferred_norm refused on [1, 2] (o): it does not norm the rows of the product as they are
launch.schedule @twice {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y add %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z
}

// Second int8 words.
// CHECK-LABEL: launch.schedule @two_words
// CHECK-NOT: squares
// WHY-NEXT: remark: @two_words: deferred_norm refused on [1, 2] (o): divided later, results differ in their last bits, and some second int8 words are then other ones
launch.schedule @two_words target<h200, two_pass_int8, cache = f32, state = f32> {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[64x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  %o = launch.buffer "o" f32[1x64] computed
  %v = launch.buffer "v" f32[8x64] constant #launch.tensor<"v", q8_0>
  %z = launch.buffer "z" f32[1x8] computed
  launch.quant %x (n = 64)
  launch.fold {
    launch.gemv %x by %w<q8_0> into %y (k = 64, n = 64, m = 1) f32
    launch.norm %y out %o (rows = 1, cols = 64) eps = 1.0e-05 f32 quant
  } covers [1, 2] by [gemv_norm_epilogue]
  launch.gemv %o by %v<q8_0> into %z (k = 64, n = 8, m = 1) f32
  launch.yield %z
}
