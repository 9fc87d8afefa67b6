// RUN: lane-opt %s -p fuse-conv-silu | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=conv_silu}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=conv_silu remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-conv-silu{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-3: conv_silu held on
// WOULD-NOT: conv_silu held on
// HELD-NOT: "conv_silu"

!x = tensor<2x64xf32>
!w = tensor<64x4xf32>
!ring = memref<4x64xf32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "conv_silu" {
// CHECK-NEXT:      %[[Y:.+]] = tg.conv[0] %x, %w ring %ring
// CHECK-NEXT:      tg.unary[1] silu %[[Y]]
// WHY: remark: @fires: conv_silu fired on [0, 1]
func.func @fires(%x: !x, %w: !w, %ring: !ring) -> !x {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary silu %y : (!x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @another_activation(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @another_activation: conv_silu refused on [0, 1]: its parts are no convolutions, each with a SiLU, or that and an L2 norm of heads, or nothing more
func.func @another_activation(%x: !x, %w: !w, %ring: !ring) -> !x {
  %y = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %z = tg.unary gelu %y : (!x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @read_again: conv_silu refused on [0, 1]: conv[0] has another reader, and the launch would not write its result
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
// WHY-NEXT: remark: @one_ring: conv_silu fired on [0, 2]
// WHY-NEXT: remark: @one_ring: conv_silu fired on [1, 3]
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
// WHY-NEXT: remark: @ring_touched_between: conv_silu refused on [0, 2]: conv[1] stands between and touches the same state as conv[0]
func.func @ring_touched_between(%x: !x, %w: !w, %ring: !ring) -> (!x, !x) {
  %a = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %b = tg.conv %x, %w ring %ring : (!x, !w, !ring) -> !x
  %c = tg.unary silu %a : (!x) -> !x
  func.return %c, %b : !x, !x
}

// WHY-NOT: remark
