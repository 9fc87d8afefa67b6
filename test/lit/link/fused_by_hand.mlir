// RUN: lane-opt %s -p 'link{numerics=int8}' --verify-diagnostics --split-input-file | filecheck %s

// A class says nothing: link reads the parts, and says what they are not.

!x = tensor<1x64xf32>

// CHECK: no kernel for "add_norm"[0], which computes %y: its parts are no norm of a sum or of one tensor
func.func @no_add_norm(%x: !x) -> !x {
  %y = tg.fused "add_norm" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "gather_scale"[0], which computes %y: its parts are no gather and its scale
func.func @no_gather_scale(%x: !x) -> !x {
  %y = tg.fused "gather_scale" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "embed_norm"[0], which computes %y: its parts are no launch and a norm of its result
func.func @no_embed_norm(%x: !x) -> !x {
  %y = tg.fused "embed_norm" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "gemv_bias"[0], which computes %y: its parts are no product, a scale and a bias of it, and where it lands
func.func @no_gemv_bias(%x: !x) -> !x {
  %y = tg.fused "gemv_bias" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "qkv_head_epilogue"[0], which computes %y: "qkv_head_epilogue"[0] is no product and the rotation of its heads
func.func @no_qkv_head_epilogue(%x: !x) -> !x {
  %y = tg.fused "qkv_head_epilogue" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "gemv_parts"[0], which computes %y: unary[0] is no product
func.func @no_gemv_parts(%x: !x) -> !x {
  %y = tg.fused "gemv_parts" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "glu_pair"[0], which computes %y: its parts are no gate and up product and the gating of one by the other
func.func @no_glu_pair(%x: !x) -> !x {
  %y = tg.fused "glu_pair" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "conv_silu"[0], which computes %y: its parts are no convolutions, each with a SiLU, or that and an L2 norm of heads, or nothing more
func.func @no_conv_silu(%x: !x) -> !x {
  %y = tg.fused "conv_silu" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "gates"[0], which computes %y: its parts are no sigmoid and decay of the same heads
func.func @no_gates(%x: !x) -> !x {
  %y = tg.fused "gates" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "gate_projections"[0], which computes %y: its parts are no sigmoid and decay of the same heads
func.func @no_gate_projections(%x: !x) -> !x {
  %y = tg.fused "gate_projections" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "shared_expert"[0], which computes %y: its parts are no mixture, a shared expert and their sum
func.func @no_shared_expert(%x: !x) -> !x {
  %y = tg.fused "shared_expert" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "moe_rows"[0], which computes %y: its parts are no mixtures of the rows of one activation by the same experts, put together again
func.func @no_moe_rows(%x: !x) -> !x {
  %y = tg.fused "moe_rows" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "attn_output_gate"[0], which computes %y: its parts are no attention, where it reads its values, and what gates it
func.func @no_attn_output_gate(%x: !x) -> !x {
  %y = tg.fused "attn_output_gate" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "slice_read"[0], which computes %y: the kernel of unary[0] reads no part of wider units, or these have no single pitch
func.func @no_slice_read(%x: !x) -> !x {
  %y = tg.fused "slice_read" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "gdn_output_quant"[0], which computes %y: its parts are no delta rule and the quantize of its result
func.func @no_gdn_output_quant(%x: !x) -> !x {
  %y = tg.fused "gdn_output_quant" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "head_norm_rope"[0], which computes %y: its parts are no rotation, the norm of its heads and where it lands
func.func @no_head_norm_rope(%x: !x) -> !x {
  %y = tg.fused "head_norm_rope" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "rope_parts"[0], which computes %y: unary[0] is no rotation
func.func @no_rope_parts(%x: !x) -> !x {
  %y = tg.fused "rope_parts" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "join_in_place"[0], which computes %y: the kernel of unary[0] does not write its result in part of wider units
func.func @no_join_in_place(%x: !x) -> !x {
  %y = tg.fused "join_in_place" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "row_write"[0], which computes %y: the kernel of unary[0] does not write its result into rows of a table
func.func @no_row_write(%x: !x) -> !x {
  %y = tg.fused "row_write" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "elementwise_quant"[0], which computes %y: the kernel of unary does not quantize its result
func.func @no_elementwise_quant(%x: !x) -> !x {
  %y = tg.fused "elementwise_quant" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "advance"[0], which computes %y: its parts are no arg-max and the advance to the token that it picks
func.func @no_advance(%x: !x) -> !x {
  %y = tg.fused "advance" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>

// CHECK: no kernel for "gemv_parts"[0, 1], which computes %y, %z: matmul[1] needs matmul[0], and the launch runs them at once
func.func @one_part_needs_the_other(%x: !x, %w: !w) -> (!x, !x) {
  %y, %z = tg.fused "gemv_parts" {
    %a = tg.matmul %x, %w : (!x, !w) -> !x
    %b = tg.matmul %a, %w : (!x, !w) -> !x
    tg.yield %a, %b : !x, !x
  }
  func.return %y, %z : !x, !x
}

// -----

!x = tensor<1x64xf32>
!w = tensor<64x64xf32, #tg.rows<bf16>>
!v = tensor<64x64xf32, #tg.rows<f32>>

// CHECK: no kernel for "gemv_parts"[0, 1], which computes %y, %z: its weights are stored in formats that are read in different units: bf16, f32
func.func @weights_in_different_units(%x: !x, %w: !w, %v: !v) -> (!x, !x) {
  %y, %z = tg.fused "gemv_parts" {
    %a = tg.matmul %x, %w : (!x, !w) -> !x
    %b = tg.matmul %x, %v : (!x, !v) -> !x
    tg.yield %a, %b : !x, !x
  }
  func.return %y, %z : !x, !x
}

// -----

!h = tensor<2x32xf32>
!t = tensor<16x16xf32>
!p = memref<1xi32>

// CHECK: no kernel for "rope_parts"[0, 1], which computes %y, %z: its rotations differ in tables, position, head width or pairing
func.func @two_tables(%x: !h, %c: !t, %s: !t, %d: !t, %e: !t, %p: !p) -> (!h, !h) {
  %y, %z = tg.fused "rope_parts" {
    %a = tg.rope %x by %c, %s at %p heads 2 half : (!h, !t, !t, !p) -> !h
    %b = tg.rope %x by %d, %e at %p heads 2 half : (!h, !t, !t, !p) -> !h
    tg.yield %a, %b : !h, !h
  }
  func.return %y, %z : !h, !h
}

// -----

!x = tensor<1x64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!h = tensor<2x32xf32>
!t = tensor<16x16xf32>
!p = memref<1xi32>

// CHECK: no kernel for "qkv_head_epilogue"[0, 1, 2, 3], which computes %y: unary[1] stands between the product and the rotation of its heads
func.func @a_launch_between(%x: !x, %w: !w, %c: !t, %s: !t, %p: !p) -> !h {
  %y = tg.fused "qkv_head_epilogue" {
    %a = tg.matmul %x, %w : (!x, !w) -> !x
    %b = tg.unary silu %a : (!x) -> !x
    %v = tg.view %b from 0 : (!x) -> !h
    %r = tg.rope %v by %c, %s at %p heads 2 half : (!h, !t, !t, !p) -> !h
    tg.yield %r : !h
  }
  func.return %y : !h
}

// -----

!x = tensor<1x64xf32>
!h = tensor<2x32xf32>
!t = tensor<16x16xf32>
!p = memref<1xi32>

// CHECK: no kernel for "qkv_head_epilogue"[0, 1, 2], which computes %y: "qkv_head_epilogue"[0, 1, 2] is no product and the rotation of its heads
func.func @no_product_first(%x: !x, %c: !t, %s: !t, %p: !p) -> !h {
  %y = tg.fused "qkv_head_epilogue" {
    %a = tg.unary silu %x : (!x) -> !x
    %v = tg.view %a from 0 : (!x) -> !h
    %r = tg.rope %v by %c, %s at %p heads 2 half : (!h, !t, !t, !p) -> !h
    tg.yield %r : !h
  }
  func.return %y : !h
}

// -----

!x = tensor<1x64xf32>
!y = tensor<1x96xf32>
!w2 = tensor<96x64xf32, #tg.rows<q8_0>>

// CHECK: no kernel for "gemv_norm_epilogue"[0, 1, 2], which computes %y: the last block of a launch norms whole rows of its result, not part of each
func.func @norm_of_part_of_a_row(%x: !x, %w: !w2, %g: tensor<64xf32>) -> !x {
  %y = tg.fused "gemv_norm_epilogue" {
    %a = tg.matmul %x, %w : (!x, !w2) -> !y
    %b = tg.fused "slice_read" {
      %s = tg.slice %a every 96 from 16 width 64 : (!y) -> !x
      %n = tg.rms_norm %s weight %g eps 1.0e-5 : (!x, tensor<64xf32>) -> !x
      tg.yield %n : !x
    }
    tg.yield %b : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>

// CHECK: no kernel for "gemv_norm_epilogue"[0, 1], which computes %y: its parts are no launch and a norm of its result
func.func @product_and_no_norm(%x: !x, %w: !w) -> !x {
  %y = tg.fused "gemv_norm_epilogue" {
    %a = tg.matmul %x, %w : (!x, !w) -> !x
    %b = tg.unary silu %a : (!x) -> !x
    tg.yield %b : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "join_in_place"[0, 1], which computes %y: its parts are no result and where it lands
func.func @result_that_lands_nowhere(%x: !x, %w: tensor<2x32x32xf32>) -> !x {
  %y = tg.fused "join_in_place" {
    %a = tg.head_matmul %x, %w : (!x, tensor<2x32x32xf32>) -> !x
    %b = tg.unary silu %a : (!x) -> !x
    tg.yield %b : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!g = tensor<1x2xf32>
!c = tensor<2xf32>
!w1 = tensor<2x64xf32>

// CHECK: no kernel for "gates"[0, 1, 2], which computes %y, %z, %u: its parts are more than a sigmoid and a decay
func.func @gates_and_more(%x: !x, %w: !w1, %r: !g, %a: !g, %t: !c, %l: !c) -> (!g, !g, !g) {
  %y, %z, %u = tg.fused "gates" {
    %b = tg.unary sigmoid %r : (!g) -> !g
    %d = tg.decay %a dt %t al %l : (!g, !c, !c) -> !g
    %m = tg.matmul %x, %w : (!x, !w1) -> !g
    tg.yield %b, %d, %m : !g, !g, !g
  }
  func.return %y, %z, %u : !g, !g, !g
}

// -----

!x = tensor<1x64xf32>
!router = tensor<4x64xf32>
!up = tensor<4x32x64xf32, #tg.rows<q8_0>>
!down = tensor<4x64x32xf32, #tg.rows<q8_0>>

// CHECK: no kernel for moe[1], which computes %y: the quantized activation of its products is not its activation, quantized
func.func @another_activation_quantized(%x: !x, %z: !x, %r: !router, %u: !up, %d: !down) -> !x {
  %q = tg.quantize %z : !x -> tensor<1x64xf32, #tg.quantized<int8>>
  %y = tg.moe %x quantized %q : tensor<1x64xf32, #tg.quantized<int8>> router %r gate %u up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!router = tensor<4x64xf32>
!gate = tensor<4x32x64xf32>
!up = tensor<4x32x64xf32, #tg.rows<bf16>>
!down = tensor<4x64x32xf32>

// CHECK: no kernel for moe[0], which computes %y: its gate and up weights are read in different units: f32, bf16
func.func @experts_in_different_units(%x: !x, %r: !router, %g: !gate, %u: !up, %d: !down) -> !x {
  %y = tg.moe %x router %r gate %g up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !gate, !up, !down -> !x
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!h = tensor<1x32xf32>
!router = tensor<4x64xf32>
!up = tensor<4x32x64xf32, #tg.rows<f16>>
!down = tensor<4x64x32xf32, #tg.rows<f16>>
!sg = tensor<32x64xf32, #tg.rows<f16>>
!su = tensor<32x64xf32>
!sd = tensor<64x32xf32>

// CHECK: no kernel for "shared_expert"[0, 1, 2, 3, 4, 5, 6], which computes %y: the shared expert's gate and up weights are read in different units: f16, f32
func.func @shared_expert_in_different_units(%x: !x, %r: !router, %u: !up, %d: !down, %sg: !sg, %su: !su, %sd: !sd) -> !x {
  %y = tg.fused "shared_expert" {
    %m = tg.moe %x router %r gate %u up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
      : !x, !router, !up, !up, !down -> !x
    %h = tg.fused "glu_pair" {
      %g = tg.matmul %x, %sg : (!x, !sg) -> !h
      %v = tg.matmul %x, %su : (!x, !su) -> !h
      %a = tg.unary silu %g : (!h) -> !h
      %b = tg.binary mul %a, %v : (!h, !h) -> !h
      tg.yield %b : !h
    }
    %s = tg.matmul %h, %sd : (!h, !sd) -> !x
    %t = tg.binary add %m, %s : (!x, !x) -> !x
    tg.yield %t : !x
  }
  func.return %y : !x
}

// -----

!h = tensor<2x32xf32>

// CHECK: no kernel for rope[0], which computes %y: the factors of a rope_table are no tensor of the checkpoint
func.func @factors_of_no_tensor(%x: !h, %f: tensor<16xf32>, %p: memref<1xi32>) -> !h {
  %cos, %sin = tg.rope_table base 1.0e+04 freq_scale 1.0 ext_factor 0.0 attn_factor 1.0 beta 32.0, 1.0 original_context 0 factors %f : tensor<16xf32> -> tensor<16x16xf32>, tensor<16x16xf32>
  %y = tg.rope %x by %cos, %sin at %p heads 2 half : (!h, tensor<16x16xf32>, tensor<16x16xf32>, memref<1xi32>) -> !h
  func.return %y : !h
}
