// RUN: lane-opt %s -p fuse-head-norm-rope | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=head_norm_rope}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=head_norm_rope remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-head-norm-rope{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: head_norm_rope held on
// WOULD-NOT: head_norm_rope held on
// HELD-NOT: "head_norm_rope"

!heads = tensor<4x32xf32>
!n = tensor<32xf32>
!table = tensor<16x16xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "head_norm_rope" {
// CHECK-NEXT:      %[[N:.+]] = tg.rms_norm[0] %x weight %n eps 1.000000e-06
// CHECK-NEXT:      tg.rope[1] %[[N]] by %cos, %sin at %pos heads 2 half
// WHY: remark: @fires: head_norm_rope fired on [0, 1]
func.func @fires(%x: !heads, %n: !n, %cos: !table, %sin: !table, %pos: !pos) -> !heads {
  %y = tg.rms_norm %x weight %n eps 1.0e-6 : (!heads, !n) -> !heads
  %z = tg.rope %y by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %z : !heads
}

// CHECK-LABEL: func.func @partial_and_interleaved(
// CHECK-NEXT:    tg.fused "head_norm_rope" {
// CHECK:           heads 2 interleaved
// WHY-NEXT: remark: @partial_and_interleaved: head_norm_rope fired on [0, 1]
func.func @partial_and_interleaved(%x: !heads, %n: !n, %cos: tensor<16x8xf32>, %sin: tensor<16x8xf32>, %pos: !pos)
    -> !heads {
  %y = tg.rms_norm %x weight %n eps 1.0e-6 : (!heads, !n) -> !heads
  %z = tg.rope %y by %cos, %sin at %pos heads 2 interleaved
    : (!heads, tensor<16x8xf32>, tensor<16x8xf32>, !pos) -> !heads
  func.return %z : !heads
}

// CHECK-LABEL: func.func @no_weight(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @no_weight: head_norm_rope refused on [0, 1]: the kernel of a rotation norms heads by a weight, and this norm has none
func.func @no_weight(%x: !heads, %cos: !table, %sin: !table, %pos: !pos) -> !heads {
  %y = tg.rms_norm %x eps 1.0e-6 : (!heads) -> !heads
  %z = tg.rope %y by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %z : !heads
}

// CHECK-LABEL: func.func @norm_of_whole_rows(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @norm_of_whole_rows: head_norm_rope refused on [0, 1, 2]: view[1] stands between rms_norm[0] and the rotation: the norm is not of heads
func.func @norm_of_whole_rows(%x: tensor<2x64xf32>, %n: tensor<64xf32>, %cos: !table, %sin: !table, %pos: !pos)
    -> !heads {
  %y = tg.rms_norm %x weight %n eps 1.0e-6 : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32>
  %v = tg.view %y from 0 : (tensor<2x64xf32>) -> !heads
  %z = tg.rope %v by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %z : !heads
}

// CHECK-LABEL: func.func @norm_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @norm_read_again: head_norm_rope refused on [0, 1]: rms_norm[0] has another reader, and the launch would not write its result
func.func @norm_read_again(%x: !heads, %n: !n, %cos: !table, %sin: !table, %pos: !pos) -> (!heads, !heads) {
  %y = tg.rms_norm %x weight %n eps 1.0e-6 : (!heads, !n) -> !heads
  %z = tg.rope %y by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %y, %z : !heads, !heads
}

// WHY-NOT: remark
