// RUN: lane-opt %s -p fuse-conv-silu | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=conv_silu}' | filecheck %s --check-prefix=HELD

// HELD-NOT: "conv_silu"

!x = tensor<2x64xf32>
!w = tensor<64x4xf32>
!ring = memref<4x64xf32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "conv_silu" {
// CHECK-NEXT:      %[[Y:.+]] = tg.conv[0] %x, %w ring %ring
// CHECK-NEXT:      tg.unary[1] silu %[[Y]]
func.func @fires(%x: !x, %w: !w, %ring: !ring) -> !x {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @another_activation(
// CHECK-NOT:     tg.fused
func.func @another_activation(%x: !x, %w: !w, %ring: !ring) -> !x {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary gelu %y : (!x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @read_again(
// CHECK-NOT:     tg.fused
func.func @read_again(%x: !x, %w: !w, %ring: !ring) -> (!x, !x) {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  func.return %y, %z : !x, !x
}

// Two convolutions of one ring: the first may not move past the second, before that has moved itself.
// CHECK-LABEL: func.func @one_ring(
// CHECK-NEXT:    tg.fused "conv_silu" {
// CHECK-NEXT:      tg.conv[0]
// CHECK:         tg.fused "conv_silu" {
// CHECK-NEXT:      tg.conv[1]
func.func @one_ring(%x: !x, %w: !w, %ring: !ring) -> (!x, !x) {
  %a = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %b = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %c = tg.unary silu %a : (!x) -> !x
  %d = tg.unary silu %b : (!x) -> !x
  func.return %c, %d : !x, !x
}

// CHECK-LABEL: func.func @ring_touched_between(
// CHECK-NEXT:    tg.conv[0]
// CHECK-NEXT:    tg.conv[1]
// CHECK-NEXT:    tg.unary[2]
// CHECK-NOT:     tg.fused
func.func @ring_touched_between(%x: !x, %w: !w, %ring: !ring) -> (!x, !x) {
  %a = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %b = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %c = tg.unary silu %a : (!x) -> !x
  func.return %c, %b : !x, !x
}
