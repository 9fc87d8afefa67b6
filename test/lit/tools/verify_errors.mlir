// RUN: LANE_ERRORS
// RUN: LANE_ERRORS --check-prefix=MODULE

// A verifier's error has the place of its op, one line of cause, and no dump of the module.

// MODULE-NOT: "builtin.module"
// CHECK: verify_errors.mlir:[[# @LINE + 2]]:3: error: 'arith.addi' op Expected 2 operands, but got 1
func.func @operands(%a: i32) {
  %0 = "arith.addi"(%a) : (i32) -> i32
  func.return
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 3]]:3: error: 'func.return' op Expected arguments to have the same types
// The place is in the text, whatever name the location of the op gives.
func.func @named(%a: i32) -> i64 {
  func.return %a : i32 loc("blk.0.ffn_up.weight")
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 2]]:3: error: Operation arith.addi terminates block
func.func @structure(%a: i32) {
  %0 = arith.addi %a, %a : i32
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 3]]:3: error: 'func.return' op
func.func @inner(%a: i32) -> i64 {
  func.call @inner(%a) : (i32) -> i64
  func.return %a : i32
}

// -----

// A chunk without an error is printed.
// CHECK: func.func @right
func.func @right() {
  func.return
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 2]]:3: error: 'arith.addi' op uses %b where it is not defined
func.func @order(%a: i32) {
  %0 = arith.addi %a, %b : i32
  %b = arith.addi %a, %a : i32
  func.return
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 2]]:3: error: 'arith.addi' op uses %b where it is not defined
func.func @itself(%a: i32) {
  %b = arith.addi %a, %b : i32
  func.return
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 7]]:3: error: 'func.return' op uses %b where it is not defined
func.func @one_way(%a: i32, %c: i1) -> i32 {
  "cf.cond_br"(%c, %a)[^bb1, ^bb2] <{operandSegmentSizes = array<i32: 1, 0, 1>}> : (i1, i32) -> ()
^bb1:
  %b = arith.addi %a, %a : i32
  "cf.br"()[^bb2] : () -> ()
^bb2:
  func.return %b : i32
}

// -----

// CHECK: verify_errors.mlir:[[# @LINE + 4]]:1: error: 'func.func' op Redefinition of symbol "twice"
func.func @twice() {
  func.return
}
func.func @twice() {
  func.return
}
