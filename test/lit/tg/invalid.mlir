// RUN: LANE_ERRORS

// A refusal names the op, the operand and both shapes, at the op's place. test/tg has all of them.

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: 'tg.rms_norm' op weight is 64, expected 32 (x has rows of 32)
func.func @weight_of_another_length(%x: tensor<2x32xf32>, %w: tensor<64xf32>) {
  %y = tg.rms_norm %x weight %w eps 1.0e-5 : (tensor<2x32xf32>, tensor<64xf32>) -> tensor<2x32xf32>
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: 'tg.rope' op cos is 64x9, but x is 8x16: more columns than half a head
func.func @tables_wider_than_half_a_head(%x: tensor<8x16xf32>, %cos: tensor<64x9xf32>, %pos: memref<1xi32>) {
  %y = tg.rope %x by %cos, %cos at %pos heads 4 half : (tensor<8x16xf32>, tensor<64x9xf32>, tensor<64x9xf32>, memref<1xi32>) -> tensor<8x16xf32>
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: 'tg.matmul' op x is 1x?, expected a static shape without a dimension of 0
func.func @dynamic(%x: tensor<1x?xf32>, %w: tensor<64x32xf32>) {
  %y = tg.matmul %x, %w : (tensor<1x?xf32>, tensor<64x32xf32>) -> tensor<1x64xf32>
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: found tensor<1x32xf16>, expected a tensor of f32
func.func @half_precision(%x: tensor<1x32xf16>) {
  %y = tg.unary silu %x : (tensor<1x32xf16>) -> tensor<1x32xf32>
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: 'tg.constant' op result has rows of 576 values, no whole number of q4_k blocks of 256
func.func @rows_of_blocks() {
  %w = tg.constant "blk.0.attn_q.weight" : tensor<576x576xf32, #tg.rows<q4_k>>
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: 'tg.attention' op heads (4) is no multiple of kv_heads (3)
func.func @heads(%q: tensor<1x64xf32>, %k: memref<64x48xf32>, %pos: memref<1xi32>) {
  %y = tg.attention %q, %k, %k at %pos heads 4 / 3 scale 0.25 : tensor<1x64xf32>, memref<64x48xf32>, memref<64x48xf32>, memref<1xi32> -> tensor<1x64xf32>
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:3: error: 'tg.fused' op has a part 'tg.empty', expected ops of tg that become launches
func.func @part(%x: tensor<1x32xf32>) {
  tg.fused "add_norm" {
    %e = tg.empty : tensor<1x32xf32>
    tg.yield
  }
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 2]]:23: error: a fused op is one block that ends in tg.yield
func.func @unfinished(%x: tensor<1x32xf32>) {
  tg.fused "add_norm" {
    %y = tg.scale %x by 2.0 : (tensor<1x32xf32>) -> tensor<1x32xf32>
  }
  func.return
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 1]]:1: error: unknown chip 'h2000'; did you mean 'h200'
builtin.module attributes {tg.target = #tg.target<h2000, int8, cache = f16, state = f32>} {
}

// -----

// CHECK: invalid.mlir:[[# @LINE + 1]]:{{[0-9]+}}: error: Expected `token`, `position`, `kv_cache`, `conv_ring`, or `delta_state`
func.func @argument(%x: memref<1xi32> {tg.arg = #tg.arg<tokens, 0>}) {
  func.return
}
