// RUN: lane-opt %s --split-input-file --verify-diagnostics --pass-pipeline=fuse,link,plan | filecheck %s
// RUN: lane-opt %s --split-input-file --verify-diagnostics --pass-pipeline=link | filecheck %s
// RUN: lane-opt %s --split-input-file --verify-diagnostics --validate --pass-pipeline=fuse,link | filecheck %s

// Functions that are no step are refused at their place, by whichever pass comes first.

// CHECK: no_step.mlir:[[# @LINE + 1]]:1: error: {{.*}}step "blocks" has 2 blocks, expected 1
func.func @blocks(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  "cf.br"()[^bb1] : () -> ()
^bb1:
  %y = tg.unary silu %x : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// -----

// CHECK: no_step.mlir:[[# @LINE + 1]]:1: error: {{.*}}step "scalar"{{.*}}: argument 1 is i32, expected a tensor or memref of static shape
func.func @scalar(%x: tensor<1x64xf32>, %n: i32) -> tensor<1x64xf32> {
  %y = tg.unary silu %x : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// -----

// CHECK: no_step.mlir:[[# @LINE + 1]]:1: error: {{.*}}step "dynamic"{{.*}}: argument 1 is tensor<?x64xf32>, expected a tensor
func.func @dynamic(%x: tensor<1x64xf32>, %n: tensor<?x64xf32>) -> tensor<1x64xf32> {
  %y = tg.unary silu %x : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// -----

// CHECK: no_step.mlir:[[# @LINE + 3]]:3: error: {{.*arith.addf}}
func.func @other(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %y = tg.unary silu %x : (tensor<1x64xf32>) -> tensor<1x64xf32>
  %z = arith.addf %y, %y : tensor<1x64xf32>
  func.return %z : tensor<1x64xf32>
}

// -----

// CHECK: no_step.mlir:{{[0-9]+}}:{{[0-9]+}}: error:
func.func @calls(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %y = tg.unary silu %x : (tensor<1x64xf32>) -> tensor<1x64xf32>
  %z = func.call @calls(%y) : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %z : tensor<1x64xf32>
}
