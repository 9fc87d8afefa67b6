// RUN: LANE_ERRORS

// A parse error has its place in the file, a cause, and the line with a mark.

// CHECK:      parse_errors.mlir:[[# @LINE + 4]]:8: error: Operation arith.adddi is not registered; did you mean 'arith.addi'?
// CHECK-NEXT:   %0 = arith.adddi %a, %a : i32
// CHECK-NEXT:        ^^^^^^^^^^^
func.func @unknown_op(%a: i32) {
  %0 = arith.adddi %a, %a : i32
  func.return
}

// -----

// CHECK:      parse_errors.mlir:[[# @LINE + 4]]:23: error: values used but not defined: [%b]
// CHECK-NEXT:   %0 = arith.addi %a, %b : i32
// CHECK-NEXT:                       ^^
func.func @undefined_value(%a: i32, %bb: i32) {
  %0 = arith.addi %a, %b : i32
  func.return
}

// -----

// Another function's name, and one inside another op, is not that of a value here.
// CHECK:      parse_errors.mlir:[[# @LINE + 11]]:22: error: values used but not defined: [%p]
// CHECK-NEXT:   %z = tg.unary silu %p : (tensor<1x64xf32>) -> tensor<1x64xf32>
// CHECK-NEXT:                      ^^
func.func @other(%p: i32) {
  func.return
}
func.func @outside(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %y = tg.fused "act_gate" {
    %p = tg.unary silu %x : (tensor<1x64xf32>) -> tensor<1x64xf32>
    tg.yield %p : tensor<1x64xf32>
  }
  %z = tg.unary silu %p : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %z : tensor<1x64xf32>
}

// -----

// CHECK:      parse_errors.mlir:[[# @LINE + 3]]:34: error: Expected '>' after builtin parameter list
// CHECK-NEXT: func.func @type(%a: tensor<4xi32 {
// CHECK-NEXT:                                  ^
func.func @type(%a: tensor<4xi32 {

// -----

// An attribute that refuses its parameters is found while parsing: the place is that of the op around it.

// CHECK: parse_errors.mlir:[[# @LINE + 2]]:3: error: {{.*}}i8
func.func @attribute() {
  %0 = arith.constant 300 : i8
  func.return
}

// -----

// CHECK: parse_errors.mlir:[[# @LINE + 1]]:1: error: expected an operation, found '}'
}
