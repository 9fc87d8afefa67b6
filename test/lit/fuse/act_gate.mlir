// RUN: lane-opt %s -p fuse-act-gate | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=act_gate}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=act_gate remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-act-gate{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-3: act_gate held on
// WOULD-NOT: act_gate held on
// HELD-NOT: "act_gate"

!x = tensor<2x64xf32>

// CHECK-LABEL: func.func @activation_first(
// CHECK-NEXT:    tg.fused "act_gate" {
// CHECK-NEXT:      %[[A:.+]] = tg.unary[0] silu %g
// CHECK-NEXT:      tg.binary[1] mul %[[A]], %u
// WHY: remark: @activation_first: act_gate fired on [0, 1]
func.func @activation_first(%g: !x, %u: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @activation_second(
// CHECK-NEXT:    tg.fused "act_gate" {
// CHECK-NEXT:      %[[A:.+]] = tg.unary[0] gelu_tanh %g
// CHECK-NEXT:      tg.binary[1] mul %u, %[[A]]
// WHY-NEXT: remark: @activation_second: act_gate fired on [0, 1]
func.func @activation_second(%g: !x, %u: !x) -> !x {
  %a = tg.unary gelu_tanh %g : (!x) -> !x
  %y = tg.binary mul %u, %a : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @gated_by_itself(
// CHECK-NEXT:    tg.fused "act_gate" {
// WHY-NEXT: remark: @gated_by_itself: act_gate fired on [0, 1]
func.func @gated_by_itself(%g: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %g : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @squared(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @squared: act_gate refused on [0, 1]: its parts are no activation and the product by it
func.func @squared(%g: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %a : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @sum(
// CHECK-NOT:     tg.fused
func.func @sum(%g: !x, %u: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary add %a, %u : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @by_a_row(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @by_a_row: act_gate refused on [0, 1]: its parts are no activation and the product by it
func.func @by_a_row(%g: !x, %u: tensor<64xf32>) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, tensor<64xf32>) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @activation_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @activation_read_again: act_gate refused on [0, 1]: unary[0] has another reader, and the launch would not write its result
func.func @activation_read_again(%g: !x, %u: !x) -> (!x, !x) {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, !x) -> !x
  func.return %a, %y : !x, !x
}

// The product reads the activation again, as a view.
// CHECK-LABEL: func.func @by_a_view_of_itself(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @by_a_view_of_itself: act_gate refused on [0, 2]: view[1] stands between, and binary[2] reads it
func.func @by_a_view_of_itself(%g: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %v = tg.view %a from 0 : (!x) -> !x
  %y = tg.binary mul %a, %v : (!x, !x) -> !x
  func.return %y : !x
}

// One value for all is no tensor that an activation gates.
// CHECK-LABEL: func.func @times_one_value(
// CHECK-NOT:     tg.fused
func.func @times_one_value(%g: !x, %s: tensor<1xf32>) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %s : (!x, tensor<1xf32>) -> !x
  func.return %y : !x
}

// WHY-NOT: remark
