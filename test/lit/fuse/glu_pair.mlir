// RUN: lane-opt %s -p fuse-gemv-bias,fuse-act-gate,fuse-glu-pair | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=glu_pair}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=glu_pair remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gemv-bias,fuse-act-gate,fuse-glu-pair{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: glu_pair held on
// WOULD-NOT: glu_pair held on
// HELD-NOT: "glu_pair"

!x = tensor<2x64xf32>
!y = tensor<2x32xf32>
!w = tensor<32x64xf32, #tg.rows<q8_0>>

// CHECK-LABEL: func.func @gate_first(
// CHECK-NEXT:    tg.fused "glu_pair" {
// CHECK-NEXT:      %[[G:.+]] = tg.matmul[0] %x, %wg
// CHECK-NEXT:      %[[U:.+]] = tg.matmul[1] %x, %wu
// CHECK-NEXT:      tg.fused "act_gate" {
// CHECK-NEXT:        %[[A:.+]] = tg.unary[2] silu %[[G]]
// CHECK-NEXT:        tg.binary[3] mul %[[A]], %[[U]]
// WHY: remark: @gate_first: glu_pair fired on [0, 1, 2, 3]
func.func @gate_first(%x: !x, %wg: !w, %wu: !w) -> !y {
  %g = tg.matmul %x, %wg : (!x, !w) -> !y
  %u = tg.matmul %x, %wu : (!x, !w) -> !y
  %a = tg.unary silu %g : (!y) -> !y
  %y = tg.binary mul %a, %u : (!y, !y) -> !y
  func.return %y : !y
}

// CHECK-LABEL: func.func @gate_second_with_bias(
// CHECK-NEXT:    tg.fused "glu_pair" {
// CHECK-NEXT:      tg.matmul[0]
// CHECK:           tg.fused "gemv_bias" {
// WHY-NEXT: remark: @gate_second_with_bias: glu_pair fired on [1, 2, 0, 3, 4]
func.func @gate_second_with_bias(%x: !x, %wg: !w, %wu: !w, %b: tensor<32xf32>) -> !y {
  %u = tg.matmul %x, %wu : (!x, !w) -> !y
  %p = tg.matmul %x, %wg : (!x, !w) -> !y
  %g = tg.binary add %p, %b : (!y, tensor<32xf32>) -> !y
  %a = tg.unary gelu %g : (!y) -> !y
  %y = tg.binary mul %u, %a : (!y, !y) -> !y
  func.return %y : !y
}

// CHECK-LABEL: func.func @plain_weights(
// CHECK-NOT:     "glu_pair"
// WHY-NEXT: remark: @plain_weights: glu_pair refused on [0, 1, 2, 3]: the kernel of a gated pair takes weights in rows of a format, not plain f32 values
func.func @plain_weights(%x: !x, %wg: tensor<32x64xf32>, %wu: tensor<32x64xf32>) -> !y {
  %g = tg.matmul %x, %wg : (!x, tensor<32x64xf32>) -> !y
  %u = tg.matmul %x, %wu : (!x, tensor<32x64xf32>) -> !y
  %a = tg.unary silu %g : (!y) -> !y
  %y = tg.binary mul %a, %u : (!y, !y) -> !y
  func.return %y : !y
}

// CHECK-LABEL: func.func @two_activations(
// CHECK-NOT:     "glu_pair"
// WHY-NEXT: remark: @two_activations: glu_pair refused on [0, 1, 2, 3]: its products are of two activations
func.func @two_activations(%x: !x, %z: !x, %wg: !w, %wu: !w) -> !y {
  %g = tg.matmul %x, %wg : (!x, !w) -> !y
  %u = tg.matmul %z, %wu : (!x, !w) -> !y
  %a = tg.unary silu %g : (!y) -> !y
  %y = tg.binary mul %a, %u : (!y, !y) -> !y
  func.return %y : !y
}

// CHECK-LABEL: func.func @up_read_again(
// CHECK-NOT:     "glu_pair"
// WHY-NEXT: remark: @up_read_again: glu_pair refused on [0, 1, 2, 3]: matmul[1] has another reader, and the launch would not write its result
func.func @up_read_again(%x: !x, %wg: !w, %wu: !w) -> (!y, !y) {
  %g = tg.matmul %x, %wg : (!x, !w) -> !y
  %u = tg.matmul %x, %wu : (!x, !w) -> !y
  %a = tg.unary silu %g : (!y) -> !y
  %y = tg.binary mul %a, %u : (!y, !y) -> !y
  func.return %y, %u : !y, !y
}

// CHECK-LABEL: func.func @one_product(
// CHECK-NOT:     "glu_pair"
func.func @one_product(%x: !x, %wg: !w) -> !y {
  %g = tg.matmul %x, %wg : (!x, !w) -> !y
  %a = tg.unary silu %g : (!y) -> !y
  %y = tg.binary mul %a, %g : (!y, !y) -> !y
  func.return %y : !y
}

// CHECK-LABEL: func.func @up_scaled(
// CHECK-NOT:     "glu_pair"
// WHY-NEXT: remark: @up_scaled: glu_pair refused on [1, 2, 3, 4]: scale[2] stands between matmul[1] and the gating
func.func @up_scaled(%x: !x, %wg: !w, %wu: !w) -> !y {
  %g = tg.matmul %x, %wg : (!x, !w) -> !y
  %u = tg.matmul %x, %wu : (!x, !w) -> !y
  %s = tg.scale %u by 2.0 : (!y) -> !y
  %a = tg.unary silu %g : (!y) -> !y
  %y = tg.binary mul %a, %s : (!y, !y) -> !y
  func.return %y : !y
}

// WHY-NOT: remark
