// RUN: lane-opt %s -p fuse-act-gate,fuse-glu-pair,fuse-shared-expert | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=shared_expert}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=shared_expert remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-act-gate,fuse-glu-pair,fuse-shared-expert{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: shared_expert held on
// WOULD-NOT: shared_expert held on
// HELD-NOT: "shared_expert"

!x = tensor<2x64xf32>
!h = tensor<2x32xf32>
!col = tensor<2x1xf32>
!router = tensor<4x64xf32>
!up = tensor<4x32x64xf32, #tg.rows<q8_0>>
!down = tensor<4x64x32xf32, #tg.rows<q8_0>>
!w = tensor<32x64xf32, #tg.rows<q8_0>>
!d = tensor<64x32xf32, #tg.rows<q8_0>>

// CHECK-LABEL: func.func @gated(
// CHECK-NEXT:    tg.fused "shared_expert" {
// CHECK-NEXT:      %[[M:.+]] = tg.moe[0] %x
// CHECK-NEXT:      tg.fused "glu_pair" {
// CHECK:           %[[D:.+]] = tg.matmul[5]
// CHECK-NEXT:      %[[P:.+]] = tg.matmul[6] %x, %wg
// CHECK-NEXT:      %[[S:.+]] = tg.unary[7] sigmoid %[[P]]
// CHECK-NEXT:      %[[G:.+]] = tg.binary[8] mul %[[D]], %[[S]]
// CHECK-NEXT:      tg.binary[9] add %[[M]], %[[G]]
// CHECK-NEXT:      tg.yield
// WHY: remark: @gated: shared_expert fired on [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
func.func @gated(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w, %sd: !d,
                 %wg: tensor<1x64xf32>) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %p = tg.matmul %x, %wg : (!x, tensor<1x64xf32>) -> !col
  %c = tg.unary sigmoid %p : (!col) -> !col
  %t = tg.binary mul %s, %c : (!x, !col) -> !x
  %y = tg.binary add %m, %t : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @ungated_and_first(
// CHECK-NEXT:    tg.fused "shared_expert" {
// WHY-NEXT: remark: @ungated_and_first: shared_expert fired on [0, 1, 2, 3, 4, 5, 6]
func.func @ungated_and_first(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w, %sd: !d) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %y = tg.binary add %s, %m : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @of_another_activation(
// CHECK-NOT:     "shared_expert"
// WHY-NEXT: remark: @of_another_activation: shared_expert refused on [0, 1, 2, 3, 4, 5, 6]: the shared expert is of another activation than the mixture
func.func @of_another_activation(%x: !x, %z: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w,
                                 %sd: !d) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %z, %sg : (!x, !w) -> !h
  %u = tg.matmul %z, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %y = tg.binary add %m, %s : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @gated_by_gelu(
// CHECK-NOT:     "shared_expert"
// WHY-NEXT: remark: @gated_by_gelu: shared_expert refused on [0, 1, 2, 3, 4, 5, 6]: the kernel of a mixture with a shared expert gates both by SiLU
func.func @gated_by_gelu(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w, %sd: !d) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary gelu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %y = tg.binary add %m, %s : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @mixture_read_again(
// CHECK-NOT:     "shared_expert"
// WHY-NEXT: remark: @mixture_read_again: shared_expert refused on [0, 1, 2, 3, 4, 5, 6]: moe[0] has another reader, and the launch would not write its result
func.func @mixture_read_again(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w, %sd: !d)
    -> (!x, !x) {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %y = tg.binary add %m, %s : (!x, !x) -> !x
  func.return %y, %m : !x, !x
}

// CHECK-LABEL: func.func @residual(
// CHECK-NOT:     "shared_expert"
func.func @residual(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %y = tg.binary add %x, %m : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @gate_of_another_activation(
// CHECK-NOT:     "shared_expert"
// WHY-NEXT: remark: @gate_of_another_activation: shared_expert refused on [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]: the gate of the shared expert is of another activation than the mixture
func.func @gate_of_another_activation(%x: !x, %z: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w,
                                      %sd: !d, %wg: tensor<1x64xf32>) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %p = tg.matmul %z, %wg : (!x, tensor<1x64xf32>) -> !col
  %c = tg.unary sigmoid %p : (!col) -> !col
  %t = tg.binary mul %s, %c : (!x, !col) -> !x
  %y = tg.binary add %m, %t : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @gate_in_blocks(
// CHECK-NOT:     "shared_expert"
// WHY-NEXT: remark: @gate_in_blocks: shared_expert refused on [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]: the gate of the shared expert is stored as q8_0, the router as f32
func.func @gate_in_blocks(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w, %sd: !d,
                          %wg: tensor<1x64xf32, #tg.rows<q8_0>>) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.matmul %h, %sd : (!h, !d) -> !x
  %p = tg.matmul %x, %wg : (!x, tensor<1x64xf32, #tg.rows<q8_0>>) -> !col
  %c = tg.unary sigmoid %p : (!col) -> !col
  %t = tg.binary mul %s, %c : (!x, !col) -> !x
  %y = tg.binary add %m, %t : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @biased(
// CHECK-NOT:     "shared_expert"
// WHY-NEXT: remark: @biased: shared_expert refused on [0, 1, 2, 3, 4, 5, 6, 7]: the kernel of a shared expert neither scales its products nor adds a bias
func.func @biased(%x: !x, %r: !router, %eg: !up, %eu: !up, %ed: !down, %sg: !w, %su: !w, %sd: !d,
                  %b: tensor<64xf32>) -> !x {
  %m = tg.moe %x router %r gate %eg up %eu down %ed used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %g = tg.matmul %x, %sg : (!x, !w) -> !h
  %u = tg.matmul %x, %su : (!x, !w) -> !h
  %a = tg.unary silu %g : (!h) -> !h
  %h = tg.binary mul %a, %u : (!h, !h) -> !h
  %s = tg.fused "gemv_bias" {
    %p = tg.matmul %h, %sd : (!h, !d) -> !x
    %q = tg.binary add %p, %b : (!x, tensor<64xf32>) -> !x
    tg.yield %q : !x
  }
  %y = tg.binary add %m, %s : (!x, !x) -> !x
  func.return %y : !x
}

// WHY-NOT: remark
