// RUN: lane-opt %s -p fuse-slice-read | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=slice_read}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=slice_read remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-slice-read{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-3: slice_read held on
// WOULD-NOT: slice_read held on
// HELD-NOT: "slice_read"

!wide = tensor<2x96xf32>
!heads = tensor<4x32xf32>
!n = tensor<32xf32>
!table = tensor<16x16xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @norm(
// CHECK-NEXT:    tg.fused "slice_read" {
// CHECK-NEXT:      %[[X:.+]] = tg.slice[0] %x every 48 from 16 width 32
// CHECK-NEXT:      tg.rms_norm[1] %[[X]] weight %n
// WHY: remark: @norm: slice_read fired on [0, 1]
func.func @norm(%x: !wide, %n: !n) -> !heads {
  %s = tg.slice %x every 48 from 16 width 32 : (!wide) -> !heads
  %y = tg.rms_norm %s weight %n eps 1.0e-5 : (!heads, !n) -> !heads
  func.return %y : !heads
}

// CHECK-LABEL: func.func @rotation_through_views(
// CHECK-NEXT:    tg.fused "slice_read" {
// CHECK-NEXT:      tg.slice[0]
// CHECK-NEXT:      tg.view[1]
// CHECK-NEXT:      tg.rope[2]
// WHY-NEXT: remark: @rotation_through_views: slice_read fired on [0, 1, 2]
func.func @rotation_through_views(%x: !wide, %cos: !table, %sin: !table, %pos: !pos) -> !heads {
  %s = tg.slice %x every 48 from 0 width 32 : (!wide) -> tensor<2x64xf32>
  %v = tg.view %s from 0 : (tensor<2x64xf32>) -> !heads
  %y = tg.rope %v by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %y : !heads
}

// CHECK-LABEL: func.func @product_of_heads(
// CHECK-NEXT:    tg.fused "slice_read" {
// WHY-NEXT: remark: @product_of_heads: slice_read fired on [0, 1]
func.func @product_of_heads(%x: !wide, %w: tensor<2x16x32xf32>) -> tensor<2x32xf32> {
  %s = tg.slice %x every 48 from 0 width 32 : (!wide) -> tensor<2x64xf32>
  %y = tg.head_matmul %s, %w : (tensor<2x64xf32>, tensor<2x16x32xf32>) -> tensor<2x32xf32>
  func.return %y : tensor<2x32xf32>
}

// A slice that is one run of elements is a view: it costs no launch.
// CHECK-LABEL: func.func @one_run(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @one_run: slice_read refused on [0, 1]: slice[0] is one run of elements: a view, which costs no launch
func.func @one_run(%x: tensor<1x96xf32>, %n: !n) -> tensor<1x32xf32> {
  %s = tg.slice %x every 96 from 16 width 32 : (tensor<1x96xf32>) -> tensor<1x32xf32>
  %y = tg.rms_norm %s weight %n eps 1.0e-5 : (tensor<1x32xf32>, !n) -> tensor<1x32xf32>
  func.return %y : tensor<1x32xf32>
}

// CHECK-LABEL: func.func @read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @read_again: slice_read refused on [0, 1]: slice[0] has another reader, and the launch would not write its result
func.func @read_again(%x: !wide, %n: !n) -> (!heads, !heads) {
  %s = tg.slice %x every 48 from 16 width 32 : (!wide) -> !heads
  %y = tg.rms_norm %s weight %n eps 1.0e-5 : (!heads, !n) -> !heads
  func.return %s, %y : !heads, !heads
}

// Halves of what is sliced have no single pitch.
// CHECK-LABEL: func.func @halves(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @halves: slice_read refused on [0, 1, 2]: the kernel of rms_norm[2] reads no part of wider units, or these have no single pitch
func.func @halves(%x: !wide, %n: tensor<16xf32>) -> tensor<8x16xf32> {
  %s = tg.slice %x every 48 from 0 width 32 : (!wide) -> !heads
  %v = tg.view %s from 0 : (!heads) -> tensor<8x16xf32>
  %y = tg.rms_norm %v weight %n eps 1.0e-5 : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}

// CHECK-LABEL: func.func @not_from_the_first(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @not_from_the_first: slice_read refused on [0, 1, 2]: view[1] takes some rows of a result that is computed as a whole
func.func @not_from_the_first(%x: !wide, %n: !n) -> tensor<3x32xf32> {
  %s = tg.slice %x every 48 from 0 width 32 : (!wide) -> !heads
  %v = tg.view %s from 32 : (!heads) -> tensor<3x32xf32>
  %y = tg.rms_norm %v weight %n eps 1.0e-5 : (tensor<3x32xf32>, !n) -> tensor<3x32xf32>
  func.return %y : tensor<3x32xf32>
}

// CHECK-LABEL: func.func @reader_that_reads_whole(
// CHECK-NOT:     tg.fused
func.func @reader_that_reads_whole(%x: !wide) -> !heads {
  %s = tg.slice %x every 48 from 16 width 32 : (!wide) -> !heads
  %y = tg.unary silu %s : (!heads) -> !heads
  func.return %y : !heads
}

// CHECK-LABEL: func.func @product_of_halves(
// CHECK-NOT:     "slice_read"
// WHY-NEXT: remark: @product_of_halves: slice_read refused on [0, 1]: the heads that it reads have no single pitch in the wider tensor
func.func @product_of_halves(%x: !wide, %w: tensor<4x16x16xf32>) -> tensor<2x64xf32> {
  %s = tg.slice %x every 48 from 0 width 32 : (!wide) -> tensor<2x64xf32>
  %y = tg.head_matmul %s, %w : (tensor<2x64xf32>, tensor<4x16x16xf32>) -> tensor<2x64xf32>
  func.return %y : tensor<2x64xf32>
}

// WHY-NOT: remark
