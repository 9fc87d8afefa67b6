// RUN: lane-opt %s -p fuse-conv-silu,fuse-conv-silu-l2 | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=conv_silu_l2}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=conv_silu_l2 remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-conv-silu,fuse-conv-silu-l2{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: conv_silu_l2 held on
// WOULD-NOT: conv_silu_l2 held on
// HELD-NOT: "conv_silu_l2"

!x = tensor<2x64xf32>
!heads = tensor<4x32xf32>
!w = tensor<64x4xf32>
!ring = memref<4x64xf32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "conv_silu_l2" {
// CHECK-NEXT:      tg.fused "conv_silu" {
// CHECK:           tg.view[2]
// CHECK-NEXT:      tg.l2_norm[3]
// WHY: remark: @fires: conv_silu_l2 fired on [0, 1, 2, 3]
func.func @fires(%x: !x, %w: !w, %ring: !ring) -> !heads {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %v = tg.view %z from 0 : (!x) -> !heads
  %n = tg.l2_norm %v eps 1.0e-6 : (!heads) -> !heads
  func.return %n : !heads
}

// CHECK-LABEL: func.func @without_silu(
// CHECK-NEXT:    tg.fused "conv_silu_l2" {
// CHECK-NEXT:      tg.conv[0]
// CHECK-NEXT:      tg.view[1]
// CHECK-NEXT:      tg.l2_norm[2]
// WHY-NEXT: remark: @without_silu: conv_silu_l2 fired on [0, 1, 2]
func.func @without_silu(%x: !x, %w: !w, %ring: !ring) -> !heads {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %v = tg.view %y from 0 : (!x) -> !heads
  %n = tg.l2_norm %v eps 1.0e-6 : (!heads) -> !heads
  func.return %n : !heads
}

// CHECK-LABEL: func.func @silu_read_again(
// CHECK:         tg.fused "conv_silu" {
// CHECK-NOT:     "conv_silu_l2"
// WHY-NEXT: remark: @silu_read_again: conv_silu_l2 refused on [0, 1, 2, 3]: unary[1] has another reader, and the launch would not write its result
func.func @silu_read_again(%x: !x, %w: !w, %ring: !ring) -> (!x, !heads) {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %v = tg.view %z from 0 : (!x) -> !heads
  %n = tg.l2_norm %v eps 1.0e-6 : (!heads) -> !heads
  func.return %z, %n : !x, !heads
}

// CHECK-LABEL: func.func @some_heads(
// CHECK-NOT:     "conv_silu_l2"
// WHY-NEXT: remark: @some_heads: conv_silu_l2 refused on [0, 1, 2, 3]: its parts are no convolutions, each with a SiLU, or that and an L2 norm of heads, or nothing more
func.func @some_heads(%x: !x, %w: !w, %ring: !ring) -> tensor<3x32xf32> {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %v = tg.view %z from 0 : (!x) -> tensor<3x32xf32>
  %n = tg.l2_norm %v eps 1.0e-6 : (tensor<3x32xf32>) -> tensor<3x32xf32>
  func.return %n : tensor<3x32xf32>
}

// WHY-NOT: remark
