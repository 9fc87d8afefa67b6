// RUN: lane-opt %s -p fuse-gates,fuse-gate-projections | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=gate_projections}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=gate_projections remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gates,fuse-gate-projections{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-1: gate_projections held on
// WOULD-NOT: gate_projections held on
// HELD-NOT: "gate_projections"

!x = tensor<1x64xf32>
!h = tensor<1x2xf32>
!w = tensor<2x64xf32>
!q8 = tensor<2x64xf32, #tg.rows<q8_0>>
!d = tensor<2xf32>
!state = memref<64x32xf32>
!n = tensor<32xf32>

// One product as both gates.
// CHECK-LABEL: func.func @one_product(
// CHECK-NEXT:    %{{.+}}, %{{.+}} = tg.fused "gate_projections" {
// CHECK-NEXT:      %[[P:.+]] = tg.matmul[0]
// CHECK-NEXT:      tg.fused "gates" {
// CHECK-NEXT:        tg.unary[1] sigmoid %[[P]]
// CHECK-NEXT:        tg.decay[2] %[[P]]
// WHY: remark: @one_product: gate_projections fired on [0, 1, 2]
func.func @one_product(%x: !x, %w: !w, %dt: !d, %al: !d, %n: !n, %state: !state) -> !x {
  %b = tg.matmul %x, %w : (!x, !w) -> !h
  %beta = tg.unary sigmoid %b : (!h) -> !h
  %decay = tg.decay %b dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @two_activations(
// CHECK:         tg.fused "gates" {
// CHECK-NOT:     "gate_projections"
// WHY-NEXT: remark: @two_activations: gate_projections refused on [0, 1, 2, 3]: the products before the gates are not of one activation
func.func @two_activations(%x: !x, %z: !x, %wb: !w, %wa: !w, %dt: !d, %al: !d, %n: !n, %state: !state) -> !x {
  %b = tg.matmul %x, %wb : (!x, !w) -> !h
  %a = tg.matmul %z, %wa : (!x, !w) -> !h
  %beta = tg.unary sigmoid %b : (!h) -> !h
  %decay = tg.decay %a dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @block_format(
// CHECK:         tg.fused "gates" {
// CHECK-NOT:     "gate_projections"
// WHY-NEXT: remark: @block_format: gate_projections refused on [0, 1, 2, 3]: the kernel of the gates' products takes plain f32 weights, and one is stored as q8_0
func.func @block_format(%x: !x, %wb: !q8, %wa: !q8, %dt: !d, %al: !d, %n: !n, %state: !state) -> !x {
  %b = tg.matmul %x, %wb : (!x, !q8) -> !h
  %a = tg.matmul %x, %wa : (!x, !q8) -> !h
  %beta = tg.unary sigmoid %b : (!h) -> !h
  %decay = tg.decay %a dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @product_read_again(
// CHECK:         tg.fused "gates" {
// CHECK-NOT:     "gate_projections"
// WHY-NEXT: remark: @product_read_again: gate_projections refused on [0, 1, 2, 3]: matmul[0] has another reader, and the launch would not write its result
func.func @product_read_again(%x: !x, %wb: !w, %wa: !w, %dt: !d, %al: !d, %n: !n, %state: !state) -> (!x, !h) {
  %b = tg.matmul %x, %wb : (!x, !w) -> !h
  %a = tg.matmul %x, %wa : (!x, !w) -> !h
  %beta = tg.unary sigmoid %b : (!h) -> !h
  %decay = tg.decay %a dt %dt al %al : (!h, !d, !d) -> !h
  %y = tg.delta %x, %x, %x gate %x beta %beta decay %decay norm %n state %state heads 2 / 2 blocked eps 1.0e-6
    : (!x, !x, !x, !x, !h, !h, !n, !state) -> !x
  func.return %y, %b : !x, !h
}

// WHY-NOT: remark
