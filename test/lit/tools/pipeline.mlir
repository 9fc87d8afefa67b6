// RUN: lane-opt %s -p canonicalize,cse | filecheck %s
// RUN: lane-opt %s --pass-pipeline=canonicalize,cse | filecheck %s
// RUN: lane-opt %s --pass-pipeline 'builtin.module(canonicalize, cse)' | filecheck %s
// RUN: lane-opt %s | filecheck %s --check-prefix=AS-IS
// RUN: lane-opt %s -p cse,dce --print-between-passes --time-passes -o /dev/null 2>&1 | filecheck %s --check-prefix=BETWEEN
// RUN: lane-opt %s --print-debuginfo | filecheck %s --check-prefix=PLACE

// RUN: not lane-opt %s -p canonicalise 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not lane-opt %s -p fues 2>&1 | filecheck %s --check-prefix=OURS
// RUN: not lane-opt %s -p 'cse{a=b}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not lane-opt %s -p 'memref-stream-interleave{pipeline-deep=1}' 2>&1 | filecheck %s --check-prefix=NEAR
// RUN: not lane-opt %s -p 'memref-stream-interleave{pipeline-depth=x}' 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not lane-opt %s -p 'cse{a=b, c}' 2>&1 | filecheck %s --check-prefix=SYNTAX

// PASS: lane-opt: error: unknown pass 'canonicalise'; did you mean 'canonicalize'
// OURS: lane-opt: error: unknown pass 'fues'; did you mean 'fuse'?
// OPTION: lane-opt: error: unknown option 'a' of pass cse; it has none
// NEAR: unknown option 'pipeline_deep' of pass memref-stream-interleave; did you mean 'pipeline_depth'? valid: iterator_index, op_index, pipeline_depth, unroll_factor
// VALUE: option 'pipeline_depth' of pass memref-stream-interleave takes an integer, not x
// SYNTAX: lane-opt: error: pass pipeline 'cse{a=b, c}', column 9: Unknown argument value

// BETWEEN: cse: 0.{{[0-9]+}} s
// BETWEEN: // IR after cse:
// BETWEEN: builtin.module
// BETWEEN: dce: 0.

// CHECK:      func.func @twice(%a: i32) -> i32 {
// CHECK-NEXT:   %0 = arith.addi %a, %a : i32
// CHECK-NEXT:   %1 = arith.muli %0, %0 : i32

// AS-IS: arith.addi
// AS-IS-NEXT: arith.addi
// AS-IS-NEXT: arith.muli

// PLACE: arith.muli {{.*}}loc("{{.*}}pipeline.mlir":[[# @LINE + 4]]:3)
func.func @twice(%a: i32) -> i32 {
  %0 = arith.addi %a, %a : i32
  %1 = arith.addi %a, %a : i32
  %2 = arith.muli %0, %1 : i32
  func.return %2 : i32
}
