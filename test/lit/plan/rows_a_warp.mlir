// RUN: lane-opt %s -p plan | filecheck %s
// RUN: lane-opt %s -p plan,plan | filecheck %s
// RUN: lane-opt %s -p 'plan{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY
// RUN: lane-opt %s -p 'plan{held=rows_a_warp}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'plan{held=rows_a_warp remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD

// HELD-NOT: per_warp
// WOULD-COUNT-5: rows_a_warp held on
// WOULD-NOT: rows_a_warp held on

// Rows enough for two a warp.
// CHECK-LABEL: launch.schedule @two
// CHECK: launch.gemv %x by %w<q8_0> into %y (k = 64, n = 512, m = 1) per_warp = 2 f32 by [rows_a_warp]
// WHY: remark: @two: rows_a_warp fired on [] (w)
launch.schedule @two {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[512x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x512] computed
  launch.gemv %x by %w<q8_0> into %y (k = 64, n = 512, m = 1) f32
  launch.yield %y
}

// Rows enough for four, and long enough.
// CHECK-LABEL: launch.schedule @four
// CHECK: launch.gemv %x by %w<q8_0> into %y (k = 512, n = 8192, m = 1) per_warp = 4 f32 by [rows_a_warp]
// WHY-NEXT: remark: @four: rows_a_warp fired on [] (w)
launch.schedule @four {
  %x = launch.buffer "x" f32[1x512] param
  %w = launch.buffer "w" f32[8192x512] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x8192] computed
  launch.gemv %x by %w<q8_0> into %y (k = 512, n = 8192, m = 1) f32
  launch.yield %y
}

// Too few rows.
// CHECK-LABEL: launch.schedule @too_few
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @too_few: rows_a_warp refused on [] (w): 256 output rows are fewer than the 512 that fill a chip
launch.schedule @too_few {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[256x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x256] computed
  launch.gemv %x by %w<q8_0> into %y (k = 64, n = 256, m = 1) f32
  launch.yield %y
}

// Too few rows for three rows of activations.
// CHECK-LABEL: launch.schedule @too_few_for_three
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @too_few_for_three: rows_a_warp refused on [] (w): 1024 output rows, two a warp, are 512 warps, fewer than the 1024 that cover a chip
launch.schedule @too_few_for_three {
  %x = launch.buffer "x" f32[3x64] param
  %w = launch.buffer "w" f32[1024x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[3x1024] computed
  launch.gemv %x by %w<q8_0> into %y (k = 64, n = 1024, m = 3) f32
  launch.yield %y
}

// An odd number of rows.
// CHECK-LABEL: launch.schedule @odd
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @odd: rows_a_warp refused on [] (w): 1023 output rows are an odd number
launch.schedule @odd {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[1023x64] constant #launch.tensor<"w", q8_0>
  %y = launch.buffer "y" f32[1x1023] computed
  launch.gemv %x by %w<q8_0> into %y (k = 64, n = 1023, m = 1) f32
  launch.yield %y
}

// A product by plain values.
// CHECK-LABEL: launch.schedule @plain
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @plain: rows_a_warp refused on [] (w): the kernel of a product by plain f32 values has no rows a warp
launch.schedule @plain {
  %x = launch.buffer "x" f32[1x64] param
  %w = launch.buffer "w" f32[1024x64] constant #launch.tensor<"w", f32>
  %y = launch.buffer "y" f32[1x1024] computed
  launch.gemv_f32 %x by %w into %y (k = 64, n = 1024, m = 1)
  launch.yield %y
}

// Several products in a launch have too few together.
// CHECK-LABEL: launch.schedule @too_few_together
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @too_few_together: rows_a_warp refused on [] (a): of the products in one launch: 192 output rows are fewer than the 512 that fill a chip
// WHY-NEXT: remark: @too_few_together: rows_a_warp refused on [] (b): of the products in one launch: 192 output rows are fewer than the 512 that fill a chip
launch.schedule @too_few_together {
  %x = launch.buffer "x" f32[1x64] param
  %a = launch.buffer "a" f32[128x64] constant #launch.tensor<"a", q8_0>
  %b = launch.buffer "b" f32[64x64] constant #launch.tensor<"b", q8_0>
  %y = launch.buffer "y" f32[1x128] computed
  %z = launch.buffer "z" f32[1x64] computed
  launch.gemm_parts %x by [%a into %y n = 128, %b into %z n = 64] [q8_0, q8_0] (k = 64, m = 1)
  launch.yield %y, %z
}

// One of several has an odd number.
// CHECK-LABEL: launch.schedule @odd_among_several
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @odd_among_several: rows_a_warp refused on [] (a): of the products in one launch, b decides: 63 output rows are an odd number
// WHY-NEXT: remark: @odd_among_several: rows_a_warp refused on [] (b): of the products in one launch, b decides: 63 output rows are an odd number
launch.schedule @odd_among_several {
  %x = launch.buffer "x" f32[1x64] param
  %a = launch.buffer "a" f32[1024x64] constant #launch.tensor<"a", q8_0>
  %b = launch.buffer "b" f32[63x64] constant #launch.tensor<"b", q8_0>
  %y = launch.buffer "y" f32[1x1024] computed
  %z = launch.buffer "z" f32[1x63] computed
  launch.gemm_parts %x by [%a into %y n = 1024, %b into %z n = 63] [q8_0, q8_0] (k = 64, m = 1)
  launch.yield %y, %z
}

// Each of several products in a launch.
// CHECK-LABEL: launch.schedule @all_of_several
// CHECK: launch.gemm_parts %x by [%a into %y n = 512, %b into %z n = 64] [q8_0, q8_0] (k = 64, m = 1) per_warp = 2 by [rows_a_warp, rows_a_warp]
// WHY-NEXT: remark: @all_of_several: rows_a_warp fired on [] (a)
// WHY-NEXT: remark: @all_of_several: rows_a_warp fired on [] (b)
launch.schedule @all_of_several {
  %x = launch.buffer "x" f32[1x64] param
  %a = launch.buffer "a" f32[512x64] constant #launch.tensor<"a", q8_0>
  %b = launch.buffer "b" f32[64x64] constant #launch.tensor<"b", q8_0>
  %y = launch.buffer "y" f32[1x512] computed
  %z = launch.buffer "z" f32[1x64] computed
  launch.gemm_parts %x by [%a into %y n = 512, %b into %z n = 64] [q8_0, q8_0] (k = 64, m = 1)
  launch.yield %y, %z
}

// A gated pair.
// CHECK-LABEL: launch.schedule @gated_pair
// CHECK: launch.gemv_glu %x by %a, %b [q8_0, q8_0] into %y (k = 64, n = 1024, m = 1) per_warp = 2 f32 by [rows_a_warp]
// WHY-NEXT: remark: @gated_pair: rows_a_warp fired on [] (a)
launch.schedule @gated_pair {
  %x = launch.buffer "x" f32[1x64] param
  %a = launch.buffer "a" f32[1024x64] constant #launch.tensor<"a", q8_0>
  %b = launch.buffer "b" f32[1024x64] constant #launch.tensor<"b", q8_0>
  %y = launch.buffer "y" f32[1x1024] computed
  launch.gemv_glu %x by %a, %b [q8_0, q8_0] into %y (k = 64, n = 1024, m = 1) f32
  launch.yield %y
}

// A mixture counts the rows of the experts that it uses.
// CHECK-LABEL: launch.schedule @mixture
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @mixture: rows_a_warp refused on [] (g): of the hidden rows of the experts used: 256 output rows are fewer than the 512 that fill a chip
launch.schedule @mixture {
  %x = launch.buffer "x" f32[1x64] param
  %r = launch.buffer "r" f32[16x64] constant #launch.tensor<"r", f32>
  %g = launch.buffer "g" f32[16x64x64] constant #launch.tensor<"g", q8_0>
  %u = launch.buffer "u" f32[16x64x64] constant #launch.tensor<"u", q8_0>
  %d = launch.buffer "d" f32[16x64x64] constant #launch.tensor<"d", q8_0>
  %y = launch.buffer "y" f32[1x64] computed
  launch.moe %x router %r experts %g, %u, %d [q8_0, q8_0, q8_0] into %y score softmax act silu (d = 64, dff = 64, experts = 16, k = 4, rows = 1)
  launch.yield %y
}

// A mixture of several rows uses other experts for each.
// CHECK-LABEL: launch.schedule @mixture_of_rows
// CHECK-NOT: per_warp
// WHY-NEXT: remark: @mixture_of_rows: rows_a_warp refused on [] (g): only a mixture of one row takes several rows a warp, not one of 2
launch.schedule @mixture_of_rows {
  %x = launch.buffer "x" f32[2x64] param
  %r = launch.buffer "r" f32[16x64] constant #launch.tensor<"r", f32>
  %g = launch.buffer "g" f32[16x64x64] constant #launch.tensor<"g", q8_0>
  %u = launch.buffer "u" f32[16x64x64] constant #launch.tensor<"u", q8_0>
  %d = launch.buffer "d" f32[16x64x64] constant #launch.tensor<"d", q8_0>
  %y = launch.buffer "y" f32[2x64] computed
  launch.moe %x router %r experts %g, %u, %d [q8_0, q8_0, q8_0] into %y score softmax act silu (d = 64, dff = 64, experts = 16, k = 4, rows = 2)
  launch.yield %y
}

// WHY-NOT: remark
