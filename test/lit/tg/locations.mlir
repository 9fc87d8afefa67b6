// RUN: lane-opt %s --print-debuginfo | lane-opt --print-debuginfo | filecheck %s
// RUN: lane-opt %s --print-debuginfo --print-op-generic | lane-opt --print-debuginfo | filecheck %s

// The location of an op names the tensor it comes from; that of a fused op, those of its parts.

// CHECK: func.func @step
func.func @step(%a: tensor<1x32xf32>, %b: tensor<1x32xf32>) -> tensor<1x32xf32> {
  // CHECK-NEXT: %w = tg.constant "blk.0.ffn_norm.weight" : tensor<32xf32> loc("blk.0.ffn_norm.weight")
  %w = tg.constant "blk.0.ffn_norm.weight" : tensor<32xf32> loc("blk.0.ffn_norm.weight")
  // CHECK-NEXT: %y = tg.fused "sandwich_norm" {
  %y = tg.fused "sandwich_norm" {
    // CHECK-NEXT: %n = tg.fused "add_norm" {
    %n = tg.fused "add_norm" {
      // CHECK-NEXT: %s = tg.binary[0] add %a, %b : (tensor<1x32xf32>, tensor<1x32xf32>) -> tensor<1x32xf32> loc("blk.0.attn_output.weight")
      %s = tg.binary[0] add %a, %b : (tensor<1x32xf32>, tensor<1x32xf32>) -> tensor<1x32xf32> loc("blk.0.attn_output.weight")
      // CHECK-NEXT: tg.rms_norm[1] %s weight %w eps 1.000000e-05 {note = "x"} : (tensor<1x32xf32>, tensor<32xf32>) -> tensor<1x32xf32> loc("blk.0.ffn_norm.weight")
      %m = tg.rms_norm[1] %s weight %w eps 1.000000e-05 {note = "x"} : (tensor<1x32xf32>, tensor<32xf32>) -> tensor<1x32xf32> loc("blk.0.ffn_norm.weight")
      // CHECK-NEXT: tg.yield %m : tensor<1x32xf32> loc("end")
      tg.yield %m : tensor<1x32xf32> loc("end")
    // CHECK-NEXT: } loc(fused["blk.0.attn_output.weight", "blk.0.ffn_norm.weight"])
    } loc(fused["blk.0.attn_output.weight", "blk.0.ffn_norm.weight"])
    // CHECK-NEXT: tg.yield %n : tensor<1x32xf32>
    tg.yield %n : tensor<1x32xf32>
  // CHECK-NEXT: } loc(fused["blk.0.attn_output.weight", "model.mlir":3:5])
  } loc(fused["blk.0.attn_output.weight", "model.mlir":3:5])
  func.return %y : tensor<1x32xf32>
}
