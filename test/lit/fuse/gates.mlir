// RUN: lane-opt %s -p fuse-gates | filecheck %s
// RUN: lane-opt %s -p fuse-gates,fuse-gate-projections | filecheck %s --check-prefixes=CHECK,BOTH
// RUN: lane-opt %s -p 'fuse{held=gates,gate_projections}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=gates,gate_projections remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gates{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-1: gates held on
// WOULD-NOT: gates held on
// HELD-NOT: tg.fused "gate

!x = tensor<1x64xf32>
!h = tensor<1x2xf32>
!w = tensor<2x64xf32>
!d = tensor<2xf32>
!state = memref<64x32xf32>
!n = tensor<32xf32>

// CHECK-LABEL: func.func @fires(
// BOTH:          %{{.+}}, %{{.+}} = tg.fused "gate_projections" {
// BOTH-NEXT:       tg.matmul[0]
// BOTH-NEXT:       tg.matmul[1]
// CHECK:           %{{.+}}, %{{.+}} = tg.fused "gates" {
// CHECK-NEXT:        tg.unary[2] sigmoid
// CHECK-NEXT:        tg.decay[3]
// CHECK:           tg.delta[4]
// WHY: remark: @fires: gates fired on [2, 3]
func.func @fires(%x: !x, %wb: !w, %wa: !w, %dt: !d, %al: !d, %n: !n, %state: !state) -> !x {
  %b = tg.matmul %x, %wb : (!x, !w) -> !h
  %a = tg.matmul %x, %wa : (!x, !w) -> !h
  %beta = tg.unary sigmoid %b : (!h) -> !h
  %decay = tg.decay %a dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @another_activation(
// CHECK-NOT:     tg.fused
func.func @another_activation(%x: !x, %b: !h, %a: !h, %dt: !d, %al: !d, %n: !n, %state: !state) -> !x {
  %beta = tg.unary tanh %b : (!h) -> !h
  %decay = tg.decay %a dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @decay_of_beta(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @decay_of_beta: gates refused on [0, 1]: the launch would read the result of unary[0], which it computes itself
func.func @decay_of_beta(%x: !x, %b: !h, %dt: !d, %al: !d, %n: !n, %state: !state) -> !x {
  %beta = tg.unary sigmoid %b : (!h) -> !h
  %decay = tg.decay %beta dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y : !x
}

// WHY-NOT: remark
