// RUN: lane-opt %s -p link --split-input-file --verify-diagnostics | filecheck %s

// What a row set cannot do in the place of the tensor that it is set into.

// CHECK: no kernel for insert[0], which computes %y: it inserts 64 values from 0 on of every 64: no kernel sets parts of rows
func.func @units(%x: tensor<2x32xf32>) -> tensor<2x64xf32> {
  %empty = tg.empty : tensor<2x64xf32>
  %y = tg.insert %x into %empty every 64 from 0 : (tensor<2x32xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %y : tensor<2x64xf32>
}

// -----

// CHECK: no kernel for insert[1], which computes %right: unary[2] reads the tensor that it would write over
func.func @read_again(%x: tensor<1x64xf32>) -> (tensor<2x64xf32>, tensor<2x64xf32>) {
  %empty = tg.empty : tensor<2x64xf32>
  %left = tg.insert %x into %empty every 128 from 0 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %right = tg.insert %x into %left every 128 from 64 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %y = tg.unary silu %left : (tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %right, %y : tensor<2x64xf32>, tensor<2x64xf32>
}
