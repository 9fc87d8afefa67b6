// RUN: lane-opt %s -p fuse-conv-silu,fuse-conv-silu-l2,fuse-conv-parts | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=conv_parts}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=conv_parts remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-conv-silu,fuse-conv-silu-l2,fuse-conv-parts{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-1: conv_parts held on
// WOULD-NOT: conv_parts held on
// HELD-NOT: "conv_parts"

!x = tensor<1x64xf32>
!heads = tensor<2x32xf32>
!w = tensor<64x4xf32>
!ring = memref<4x64xf32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    %{{.+}}, %{{.+}} = tg.fused "conv_parts" {
// CHECK-NEXT:      tg.fused "conv_silu_l2" {
// CHECK:           tg.fused "conv_silu" {
// WHY: remark: @fires: conv_parts fired on [0, 1, 2, 3, 4, 5]
func.func @fires(%x: !x, %w: !w, %a: !ring, %b: !ring) -> (!heads, !x) {
  %y = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %v = tg.view %z from 0 : (!x) -> !heads
  %n = tg.l2_norm %v eps 1.0e-6 : (!heads) -> !heads
  %c = tg.conv %x, %w ring %b : (!x, !w, !ring) -> !x
  %d = tg.unary silu %c : (!x) -> !x
  func.return %n, %d : !heads, !x
}

// CHECK-LABEL: func.func @one_needs_the_other(
// CHECK-NOT:     "conv_parts"
func.func @one_needs_the_other(%x: !x, %w: !w, %a: !ring, %b: !ring) -> !x {
  %y = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %c = tg.conv %z, %w ring %b : (!x, !w, !ring) -> !x
  %d = tg.unary silu %c : (!x) -> !x
  func.return %d : !x
}

// CHECK-LABEL: func.func @one_without_silu(
// CHECK-NOT:     "conv_parts"
// WHY-NEXT: remark: @one_without_silu: conv_parts refused on [0, 1, 2]: the kernel of several convolutions takes the SiLU of each, and one has none
func.func @one_without_silu(%x: !x, %w: !w, %a: !ring, %b: !ring) -> (!x, !x) {
  %y = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %c = tg.conv %x, %w ring %b : (!x, !w, !ring) -> !x
  func.return %z, %c : !x, !x
}

// CHECK-LABEL: func.func @two_rows(
// CHECK-NOT:     "conv_parts"
// WHY-NEXT: remark: @two_rows: conv_parts refused on [0, 1, 2, 3]: the kernel of several convolutions takes one row, not 2
func.func @two_rows(%x: tensor<2x64xf32>, %w: !w, %a: !ring, %b: !ring) -> (tensor<2x64xf32>, tensor<2x64xf32>) {
  %y = tg.conv %x, %w ring %a : (tensor<2x64xf32>, !w, !ring) -> tensor<2x64xf32>
  %z = tg.unary silu %y : (tensor<2x64xf32>) -> tensor<2x64xf32>
  %c = tg.conv %x, %w ring %b : (tensor<2x64xf32>, !w, !ring) -> tensor<2x64xf32>
  %d = tg.unary silu %c : (tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %z, %d : tensor<2x64xf32>, tensor<2x64xf32>
}

// CHECK-LABEL: func.func @other_taps(
// CHECK-NOT:     "conv_parts"
func.func @other_taps(%x: !x, %w: !w, %v: tensor<64x3xf32>, %a: !ring, %b: memref<3x64xf32>) -> (!x, !x) {
  %y = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %c = tg.conv %x, %v ring %b : (!x, tensor<64x3xf32>, memref<3x64xf32>) -> !x
  %d = tg.unary silu %c : (!x) -> !x
  func.return %z, %d : !x, !x
}

// One ring: the second reads what the first leaves.
// CHECK-LABEL: func.func @one_ring(
// CHECK-NOT:     "conv_parts"
// WHY-NEXT: remark: @one_ring: conv_parts refused on [0, 1, 2, 3]: "conv_silu"[0, 1] and "conv_silu"[2, 3] both touch %a, and the launch runs them at once
func.func @one_ring(%x: !x, %w: !w, %a: !ring) -> (!x, !x) {
  %y = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %c = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %d = tg.unary silu %c : (!x) -> !x
  func.return %z, %d : !x, !x
}

// CHECK-LABEL: func.func @other_norms(
// CHECK-NOT:     "conv_parts"
// WHY-NEXT: remark: @other_norms: conv_parts refused on [0, 1, 2, 3, 4, 5, 6, 7]: its L2 norms differ in width or epsilon
func.func @other_norms(%x: !x, %w: !w, %a: !ring, %b: !ring) -> (!heads, !heads) {
  %y = tg.conv %x, %w ring %a : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  %v = tg.view %z from 0 : (!x) -> !heads
  %n = tg.l2_norm %v eps 1.0e-6 : (!heads) -> !heads
  %c = tg.conv %x, %w ring %b : (!x, !w, !ring) -> !x
  %d = tg.unary silu %c : (!x) -> !x
  %e = tg.view %d from 0 : (!x) -> !heads
  %m = tg.l2_norm %e eps 1.0e-5 : (!heads) -> !heads
  func.return %n, %m : !heads, !heads
}

// WHY-NOT: remark
