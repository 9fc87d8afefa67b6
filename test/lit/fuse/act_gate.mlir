// RUN: lane-opt %s -p fuse-act-gate | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=act_gate}' | filecheck %s --check-prefix=HELD

// HELD-NOT: "act_gate"

!x = tensor<2x64xf32>

// CHECK-LABEL: func.func @activation_first(
// CHECK-NEXT:    tg.fused "act_gate" {
// CHECK-NEXT:      %[[A:.+]] = tg.unary[0] silu %g
// CHECK-NEXT:      tg.binary[1] mul %[[A]], %u
func.func @activation_first(%g: !x, %u: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @activation_second(
// CHECK-NEXT:    tg.fused "act_gate" {
// CHECK-NEXT:      %[[A:.+]] = tg.unary[0] gelu_tanh %g
// CHECK-NEXT:      tg.binary[1] mul %u, %[[A]]
func.func @activation_second(%g: !x, %u: !x) -> !x {
  %a = tg.unary gelu_tanh %g : (!x) -> !x
  %y = tg.binary mul %u, %a : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @gated_by_itself(
// CHECK-NEXT:    tg.fused "act_gate" {
func.func @gated_by_itself(%g: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %g : (!x, !x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @squared(
// CHECK-NOT:     tg.fused
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
func.func @by_a_row(%g: !x, %u: tensor<64xf32>) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, tensor<64xf32>) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @activation_read_again(
// CHECK-NOT:     tg.fused
func.func @activation_read_again(%g: !x, %u: !x) -> (!x, !x) {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, !x) -> !x
  func.return %a, %y : !x, !x
}

// The product reads the activation again, as a view.
// CHECK-LABEL: func.func @by_a_view_of_itself(
// CHECK-NOT:     tg.fused
func.func @by_a_view_of_itself(%g: !x) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %v = tg.view %a from 0 : (!x) -> !x
  %y = tg.binary mul %a, %v : (!x, !x) -> !x
  func.return %y : !x
}
