// RUN: LANE_ROUNDTRIP
// RUN: LANE_GENERIC_ROUNDTRIP

// Every launch.

// CHECK: launch.schedule @ops target<h200, int8, cache = f16, state = bf16> arena 1048576 {
launch.schedule @ops target<h200, int8, cache = f16, state = bf16> arena 1048576 {
  // CHECK-NEXT: %token = launch.buffer "token" i32[1] param #tg.arg<token, 0> plain
  %token = launch.buffer "token" i32[1] param #tg.arg<token, 0> plain
  // CHECK-NEXT: %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0> plain
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0> plain
  // CHECK-NEXT: %kc = launch.buffer "k.0" f16[32x64] zero #tg.arg<kv_cache, 0> plain
  %kc = launch.buffer "k.0" f16[32x64] zero #tg.arg<kv_cache, 0> plain
  // CHECK-NEXT: %vc = launch.buffer "v.0" f16[32x64] zero #tg.arg<kv_cache, 0> plain
  %vc = launch.buffer "v.0" f16[32x64] zero #tg.arg<kv_cache, 0> plain
  // CHECK-NEXT: %ring = launch.buffer "ring" f32[4x64] zero #tg.arg<conv_ring, 0> plain
  %ring = launch.buffer "ring" f32[4x64] zero #tg.arg<conv_ring, 0> plain
  // CHECK-NEXT: %kc1 = launch.buffer "k.1" f16[16x64] alias #tg.arg<kv_cache, 1> %kc + 1024
  %kc1 = launch.buffer "k.1" f16[16x64] alias #tg.arg<kv_cache, 1> %kc + 1024
  // CHECK-NEXT: %ring2 = launch.buffer "ring2" f32[4x64] zero plain
  %ring2 = launch.buffer "ring2" f32[4x64] zero plain
  // CHECK-NEXT: %st = launch.buffer "state" bf16[128x64] zero #tg.arg<delta_state, 0> plain
  %st = launch.buffer "state" bf16[128x64] zero #tg.arg<delta_state, 0> plain
  // CHECK-NEXT: %e = launch.buffer "embd" f32[96x128] constant #launch.tensor<"token_embd.weight", q8_0> plain
  %e = launch.buffer "embd" f32[96x128] constant #launch.tensor<"token_embd.weight", q8_0> plain
  // CHECK-NEXT: %w = launch.buffer "w" f32[128x128] constant #launch.tensor<"blk.0.attn_q.weight", q4_k> plain
  %w = launch.buffer "w" f32[128x128] constant #launch.tensor<"blk.0.attn_q.weight", q4_k> plain
  // CHECK-NEXT: %wk = launch.buffer "wk" f32[64x128] constant #launch.tensor<"blk.0.attn_k.weight", q4_k> plain
  %wk = launch.buffer "wk" f32[64x128] constant #launch.tensor<"blk.0.attn_k.weight", q4_k> plain
  // CHECK-NEXT: %wt = launch.buffer "wt" f32[8x128] constant #launch.tensor<"blk.0.ffn_gate_inp.weight", f32> transposed plain
  %wt = launch.buffer "wt" f32[8x128] constant #launch.tensor<"blk.0.ffn_gate_inp.weight", f32> transposed plain
  // CHECK-NEXT: %wb = launch.buffer "wb" f32[2x128] constant #launch.tensor<"blk.0.b.weight", f32> plain
  %wb = launch.buffer "wb" f32[2x128] constant #launch.tensor<"blk.0.b.weight", f32> plain
  // CHECK-NEXT: %one = launch.buffer "one" f32[1] constant #launch.tensor<"blk.0.attn_q.scale", f32> plain
  %one = launch.buffer "one" f32[1] constant #launch.tensor<"blk.0.attn_q.scale", f32> plain
  // CHECK-NEXT: %b128 = launch.buffer "b128" f32[128] constant #launch.tensor<"blk.0.attn_q.bias", f32> plain
  %b128 = launch.buffer "b128" f32[128] constant #launch.tensor<"blk.0.attn_q.bias", f32> plain
  // CHECK-NEXT: %b64 = launch.buffer "b64" f32[64] constant #launch.tensor<"blk.0.attn_k.bias", f32> plain
  %b64 = launch.buffer "b64" f32[64] constant #launch.tensor<"blk.0.attn_k.bias", f32> plain
  // CHECK-NEXT: %b8 = launch.buffer "b8" f32[8] constant #launch.tensor<"blk.0.exp_probs_b.bias", f32> plain
  %b8 = launch.buffer "b8" f32[8] constant #launch.tensor<"blk.0.exp_probs_b.bias", f32> plain
  // CHECK-NEXT: %b2 = launch.buffer "b2" f32[2] constant #launch.tensor<"blk.0.dt.bias", f32> plain
  %b2 = launch.buffer "b2" f32[2] constant #launch.tensor<"blk.0.dt.bias", f32> plain
  // CHECK-NEXT: %cos = launch.buffer "cos" f32[32x16] constant {table = "cos"} plain
  %cos = launch.buffer "cos" f32[32x16] constant {table = "cos"} plain
  // CHECK-NEXT: %sin = launch.buffer "sin" f32[32x16] constant {table = "sin"} plain
  %sin = launch.buffer "sin" f32[32x16] constant {table = "sin"} plain
  // CHECK-NEXT: %wconv = launch.buffer "wconv" f32[64x4] constant #launch.tensor<"blk.0.ssm_conv1d.weight", f32> plain
  %wconv = launch.buffer "wconv" f32[64x4] constant #launch.tensor<"blk.0.ssm_conv1d.weight", f32> plain
  // CHECK-NEXT: %wg = launch.buffer "wg" f32[8x32x128] constant #launch.tensor<"blk.0.ffn_gate_exps.weight", q4_k> plain
  %wg = launch.buffer "wg" f32[8x32x128] constant #launch.tensor<"blk.0.ffn_gate_exps.weight", q4_k> plain
  // CHECK-NEXT: %wd = launch.buffer "wd" f32[8x128x32] constant #launch.tensor<"blk.0.ffn_down_exps.weight", q5_1> plain
  %wd = launch.buffer "wd" f32[8x128x32] constant #launch.tensor<"blk.0.ffn_down_exps.weight", q5_1> plain
  // CHECK-NEXT: %eb = launch.buffer "eb" f32[8x32] constant #launch.tensor<"blk.0.ffn_gate_exps.bias", f32> plain
  %eb = launch.buffer "eb" f32[8x32] constant #launch.tensor<"blk.0.ffn_gate_exps.bias", f32> plain
  // CHECK-NEXT: %ed = launch.buffer "ed" f32[8x128] constant #launch.tensor<"blk.0.ffn_down_exps.bias", f32> plain
  %ed = launch.buffer "ed" f32[8x128] constant #launch.tensor<"blk.0.ffn_down_exps.bias", f32> plain
  // CHECK-NEXT: %swg = launch.buffer "swg" f32[64x128] constant #launch.tensor<"blk.0.ffn_gate_shexp.weight", q8_0> plain
  %swg = launch.buffer "swg" f32[64x128] constant #launch.tensor<"blk.0.ffn_gate_shexp.weight", q8_0> plain
  // CHECK-NEXT: %swd = launch.buffer "swd" f32[128x64] constant #launch.tensor<"blk.0.ffn_down_shexp.weight", q8_0> plain
  %swd = launch.buffer "swd" f32[128x64] constant #launch.tensor<"blk.0.ffn_down_shexp.weight", q8_0> plain
  // CHECK-NEXT: %wh = launch.buffer "wh" f32[2x32x64] constant #launch.tensor<"blk.0.attn_k_b.weight", q8_0> plain
  %wh = launch.buffer "wh" f32[2x32x64] constant #launch.tensor<"blk.0.attn_k_b.weight", q8_0> plain

  // CHECK-NEXT: %x = launch.buffer "x" f32[1x128] computed plain at 0 quantized quantized_at 512
  %x = launch.buffer "x" f32[1x128] computed plain at 0 quantized quantized_at 512
  // CHECK-NEXT: %y = launch.buffer "y" f32[1x128] computed plain
  %y = launch.buffer "y" f32[1x128] computed plain
  // CHECK-NEXT: %z = launch.buffer "z" f32[1x128] computed quantized
  %z = launch.buffer "z" f32[1x128] computed quantized
  // CHECK-NEXT: %s = launch.buffer "s" f32[1x128] computed plain
  %s = launch.buffer "s" f32[1x128] computed plain
  // CHECK-NEXT: %x64 = launch.buffer "x64" f32[1x64] computed plain
  %x64 = launch.buffer "x64" f32[1x64] computed plain
  // CHECK-NEXT: %y64 = launch.buffer "y64" f32[1x64] computed plain
  %y64 = launch.buffer "y64" f32[1x64] computed plain
  // CHECK-NEXT: %wide = launch.buffer "wide" f32[1x192] computed plain
  %wide = launch.buffer "wide" f32[1x192] computed plain
  // CHECK-NEXT: %heads = launch.buffer "heads" f32[4x32] alias %x + 0 plain
  %heads = launch.buffer "heads" f32[4x32] alias %x + 0 plain
  // CHECK-NEXT: %chunk = launch.buffer "chunk" f32[16x128] computed plain quantized
  %chunk = launch.buffer "chunk" f32[16x128] computed plain quantized
  // CHECK-NEXT: %r8 = launch.buffer "r8" f32[1x8] computed plain
  %r8 = launch.buffer "r8" f32[1x8] computed plain
  // CHECK-NEXT: %r2 = launch.buffer "r2" f32[1x2] computed plain
  %r2 = launch.buffer "r2" f32[1x2] computed plain
  // CHECK-NEXT: %q2 = launch.buffer "q2" f32[1x2] computed plain
  %q2 = launch.buffer "q2" f32[1x2] computed plain
  // CHECK-NEXT: %logits = launch.buffer "logits" f32[1x96] computed plain
  %logits = launch.buffer "logits" f32[1x96] computed plain
  // CHECK-NEXT: %id = launch.buffer "id" i32[1] computed plain
  %id = launch.buffer "id" i32[1] computed plain

  // CHECK-NEXT: launch.gather %e rows<q8_0> at %token into %x (rows = 1, cols = 128)
  launch.gather %e rows<q8_0> at %token into %x (rows = 1, cols = 128)
  // CHECK-NEXT: launch.gather %e at %token into %x (rows = 1, cols = 128) scale = 11.31371 covers [0, 1] by [gather_scale]
  launch.gather %e at %token into %x (rows = 1, cols = 128) scale = 11.31371 covers [0, 1] by [gather_scale]
  // CHECK-NEXT: launch.view %x from 0 into %heads covers [2]
  launch.view %x from 0 into %heads covers [2]

  // CHECK-NEXT: launch.norm %x weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 quant covers [3, 4] by [fused_quant]
  launch.norm %x weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 quant covers [3, 4] by [fused_quant]
  // CHECK-NEXT: launch.norm %x add %y sum %s weight %b128 out %x (rows = 1, cols = 128) eps = 1.0e-05 f32 quant covers [3] by [add_norm, fused_quant]
  launch.norm %x add %y sum %s weight %b128 out %x (rows = 1, cols = 128) eps = 1.0e-05 f32 quant covers [3] by [add_norm, fused_quant]
  // CHECK-NEXT: launch.norm %x pre 1.0e-06 pre_weight %b128 add %y sum %s weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 f32 by [sandwich_norm]
  launch.norm %x pre 1.0e-06 pre_weight %b128 add %y sum %s weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 f32 by [sandwich_norm]
  // CHECK-NEXT: launch.norm %x weight %b128 bias %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 center f32
  launch.norm %x weight %b128 bias %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 center f32
  // CHECK-NEXT: launch.norm %wide every 96 from 32 into %kc at row %pos pitch 64 every 32 from 0 (rows = 2, cols = 32) eps = 1.0e-05 f32
  launch.norm %wide every 96 from 32 into %kc at row %pos pitch 64 every 32 from 0 (rows = 2, cols = 32) eps = 1.0e-05 f32
  // CHECK-NEXT: launch.quant %x (n = 128) covers [5]
  launch.quant %x (n = 128) covers [5]
  // CHECK-NEXT: launch.l2_norm %x into %y (rows = 2, cols = 64) eps = 1.0e-06
  launch.l2_norm %x into %y (rows = 2, cols = 64) eps = 1.0e-06

  // CHECK-NEXT: launch.gemv %x by %w<q4_k> into %y (k = 128, n = 128, m = 1) f32 covers [6]
  launch.gemv %x by %w<q4_k> into %y (k = 128, n = 128, m = 1) f32 covers [6]
  // CHECK-NEXT: launch.gemv %x by %w<q4_k> bias %b128 into %x (k = 128, n = 128, m = 1) per_warp = 4 f32 quant covers [6, 7] by [gemv_bias, rows_a_warp]
  launch.gemv %x by %w<q4_k> bias %b128 into %x (k = 128, n = 128, m = 1) per_warp = 4 f32 quant covers [6, 7] by [gemv_bias, rows_a_warp]
  // CHECK-NEXT: launch.gemv %x by %wk<q4_k> into %kc at row %pos pitch 64 (k = 128, n = 64, m = 1) f32 by [row_write]
  launch.gemv %x by %wk<q4_k> into %kc at row %pos pitch 64 (k = 128, n = 64, m = 1) f32 by [row_write]
  // CHECK-NEXT: launch.gemv %x by %wk<q4_k> into %kc at row 3 pitch 64 (k = 128, n = 64, m = 1) f32
  launch.gemv %x by %wk<q4_k> into %kc at row 3 pitch 64 (k = 128, n = 64, m = 1) f32
  // CHECK-NEXT: launch.gemv %x by %w<q4_k> scale %one into %y (k = 128, n = 128, m = 1) f32
  launch.gemv %x by %w<q4_k> scale %one into %y (k = 128, n = 128, m = 1) f32
  // CHECK-NEXT: launch.gemv %x by %w<q4_k> scale %one bias %b128 into %y (k = 128, n = 128, m = 1) f32
  launch.gemv %x by %w<q4_k> scale %one bias %b128 into %y (k = 128, n = 128, m = 1) f32
  // CHECK-NEXT: launch.gemv %x by %w<q4_k> scale %one bias %b128 scaled_bias into %y (k = 128, n = 128, m = 1) f32
  launch.gemv %x by %w<q4_k> scale %one bias %b128 scaled_bias into %y (k = 128, n = 128, m = 1) f32
  // CHECK-NEXT: launch.gemv %x by %wk<q4_k> into %wide every 192 from 128 (k = 128, n = 64, m = 1) f32
  launch.gemv %x by %wk<q4_k> into %wide every 192 from 128 (k = 128, n = 64, m = 1) f32
  // CHECK-NEXT: launch.gemv %chunk by %w<q4_k> into %y (k = 128, n = 128, m = 1) tail 15 of 16 f32
  launch.gemv %chunk by %w<q4_k> into %y (k = 128, n = 128, m = 1) tail 15 of 16 f32
  // CHECK-NEXT: launch.gemv %chunk by %w<q4_k> into %chunk (k = 128, n = 128, m = 16) f32 batch
  launch.gemv %chunk by %w<q4_k> into %chunk (k = 128, n = 128, m = 16) f32 batch
  // CHECK-NEXT: launch.gemv_f32 %x by %wt into %r8 (k = 128, n = 8, m = 1) split = 2
  launch.gemv_f32 %x by %wt into %r8 (k = 128, n = 8, m = 1) split = 2
  // CHECK-NEXT: launch.gemv_f32 %x by %wt bias %b8 into %r8 (k = 128, n = 8, m = 1) batch
  launch.gemv_f32 %x by %wt bias %b8 into %r8 (k = 128, n = 8, m = 1) batch
  // CHECK-NEXT: launch.gemm_parts %x by [%w bias %b128 into %y n = 128, %wk into %kc at row %pos pitch 64 n = 64, %wk into %wide every 192 from 64 n = 64] [q4_k, q4_k, q4_k] (k = 128, m = 1) per_warp = 2 covers [8, 9] by [gemv_parts, rows_a_warp, rows_a_warp]
  launch.gemm_parts %x by [%w bias %b128 into %y n = 128, %wk into %kc at row %pos pitch 64 n = 64, %wk into %wide every 192 from 64 n = 64] [q4_k, q4_k, q4_k] (k = 128, m = 1) per_warp = 2 covers [8, 9] by [gemv_parts, rows_a_warp, rows_a_warp]
  // CHECK-NEXT: launch.gemm_parts %chunk by [%w into %y n = 128] [q4_k] (k = 128, m = 1) tail 15 of 16
  launch.gemm_parts %chunk by [%w into %y n = 128] [q4_k] (k = 128, m = 1) tail 15 of 16
  // CHECK-NEXT: launch.gemm_parts %x by [%w scale %one into %y n = 128, %w scale %one bias %b128 scaled_bias into %z n = 128] [q4_k, q4_k] (k = 128, m = 1)
  launch.gemm_parts %x by [%w scale %one into %y n = 128, %w scale %one bias %b128 scaled_bias into %z n = 128] [q4_k, q4_k] (k = 128, m = 1)
  // CHECK-NEXT: launch.gemv_glu %x by %w, %w [q4_k, q4_k] gate_scale %one gate_bias %b128 gate_scaled_bias up_scale %one into %y (k = 128, n = 128, m = 1) f32
  launch.gemv_glu %x by %w, %w [q4_k, q4_k] gate_scale %one gate_bias %b128 gate_scaled_bias up_scale %one into %y (k = 128, n = 128, m = 1) f32
  // CHECK-NEXT: launch.gemv_glu %x by %w, %w [q4_k, q4_k] into %y (k = 128, n = 128, m = 1) f32 by [glu_pair]
  launch.gemv_glu %x by %w, %w [q4_k, q4_k] into %y (k = 128, n = 128, m = 1) f32 by [glu_pair]
  // CHECK-NEXT: launch.gemv_glu %x by %w, %w [q4_k, q4_k] gate_bias %b128 up_bias %b128 act gelu_tanh into %z (k = 128, n = 128, m = 1) per_warp = 2 quant batch
  launch.gemv_glu %x by %w, %w [q4_k, q4_k] gate_bias %b128 up_bias %b128 act gelu_tanh into %z (k = 128, n = 128, m = 1) per_warp = 2 quant batch
  // CHECK-NEXT: launch.head_gemv %x every 64 from 0 by %wh<q8_0> into %x64 (m = 1, heads = 2, a = 64, b = 32)
  launch.head_gemv %x every 64 from 0 by %wh<q8_0> into %x64 (m = 1, heads = 2, a = 64, b = 32)
  // CHECK-NEXT: launch.head_gemv %x64 by %wh<q8_0> into %wide every 96 from 64 (m = 1, heads = 2, a = 64, b = 32) upto %pos step 1 shared
  launch.head_gemv %x64 by %wh<q8_0> into %wide every 96 from 64 (m = 1, heads = 2, a = 64, b = 32) upto %pos step 1 shared

  // CHECK-NEXT: launch.binary add %x, %y into %s (n = 128) f32
  launch.binary add %x, %y into %s (n = 128) f32
  // CHECK-NEXT: launch.binary mul gate sigmoid %x, %y into %x (n = 128) f32 quant by [act_gate]
  launch.binary mul gate sigmoid %x, %y into %x (n = 128) f32 quant by [act_gate]
  // CHECK-NEXT: launch.binary add %chunk, %b128 into %chunk (n = 2048) row = 128 f32
  launch.binary add %chunk, %b128 into %chunk (n = 2048) row = 128 f32
  // CHECK-NEXT: launch.binary mul %x, %r2 into %x (n = 128) column = 64 f32
  launch.binary mul %x, %r2 into %x (n = 128) column = 64 f32
  // CHECK-NEXT: launch.scale %x into %y (n = 128) factor = 0.5
  launch.scale %x into %y (n = 128) factor = 0.5
  // CHECK-NEXT: launch.swiglu %x, %y into %x (n = 128) f32 quant
  launch.swiglu %x, %y into %x (n = 128) f32 quant
  // CHECK-NEXT: launch.unary gelu %x into %y (n = 128)
  launch.unary gelu %x into %y (n = 128)

  // CHECK-NEXT: launch.rope %x by %cos, %sin at %pos into %y pairing half (heads = 4, per_row = 4, hd = 32, half = 16)
  launch.rope %x by %cos, %sin at %pos into %y pairing half (heads = 4, per_row = 4, hd = 32, half = 16)
  // CHECK-NEXT: launch.rope %wide every 192 from 64 norm %b64 eps 1.0e-06 by %cos, %sin at %pos into %kc at row %pos pitch 64 pairing interleaved (heads = 1, per_row = 1, hd = 64, half = 16) by [head_norm_rope]
  launch.rope %wide every 192 from 64 norm %b64 eps 1.0e-06 by %cos, %sin at %pos into %kc at row %pos pitch 64 pairing interleaved (heads = 1, per_row = 1, hd = 64, half = 16) by [head_norm_rope]
  // CHECK-NEXT: launch.rope_parts [%x norm %b64 eps 1.0e-06 into %y heads = 2 per_row = 2, %x64 into %kc at row %pos pitch 64 heads = 1 per_row = 1, %wide every 192 from 64 into %wide every 192 from 64 heads = 1 per_row = 1] by %cos, %sin at %pos pairing half (hd = 64, half = 16) by [rope_parts]
  launch.rope_parts [%x norm %b64 eps 1.0e-06 into %y heads = 2 per_row = 2, %x64 into %kc at row %pos pitch 64 heads = 1 per_row = 1, %wide every 192 from 64 into %wide every 192 from 64 heads = 1 per_row = 1] by %cos, %sin at %pos pairing half (hd = 64, half = 16) by [rope_parts]
  // CHECK-NEXT: launch.rope_parts [%x64 into %kc at row %pos pitch 64 heads = 1 per_row = 1 apart 2048] by %cos, %sin pairing half (hd = 64, half = 16) seqs
  launch.rope_parts [%x64 into %kc at row %pos pitch 64 heads = 1 per_row = 1 apart 2048] by %cos, %sin pairing half (hd = 64, half = 16) seqs

  // CHECK-NEXT: launch.set_row %x64 into %kc at row %pos pitch 64 (cols = 64, count = 1) f32
  launch.set_row %x64 into %kc at row %pos pitch 64 (cols = 64, count = 1) f32
  // CHECK-NEXT: launch.set_row %x64 into %kc at row %pos pitch 64 (cols = 64, count = 1) seq = 2048 f32
  launch.set_row %x64 into %kc at row %pos pitch 64 (cols = 64, count = 1) seq = 2048 f32
  // CHECK-NEXT: launch.set_row %x into %chunk at row 3 pitch 128 (cols = 128, count = 1) quant
  launch.set_row %x into %chunk at row 3 pitch 128 (cols = 128, count = 1) quant
  // CHECK-NEXT: launch.attention %x, %kc, %vc at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 32, rows = 1) values 64 + 0 scale = 0.1767767 (per_block = 2, splits = 1) f32
  launch.attention %x, %kc, %vc at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 32, rows = 1) values 64 + 0 scale = 0.1767767 (per_block = 2, splits = 1) f32
  // CHECK-NEXT: launch.attention %x, %kc, %vc at %pos sinks %r2 gate sigmoid %y64 into %x64 (heads = 2, group = 2, hd = 64, vd = 32, len = 32, rows = 1) values 64 + 32 scale = 0.125 window = 16 softcap = 50.0 (per_block = 1, splits = 4) parallel shared = 3 f32 quant
  launch.attention %x, %kc, %vc at %pos sinks %r2 gate sigmoid %y64 into %x64 (heads = 2, group = 2, hd = 64, vd = 32, len = 32, rows = 1) values 64 + 32 scale = 0.125 window = 16 softcap = 50.0 (per_block = 1, splits = 4) parallel shared = 3 f32 quant
  // CHECK-NEXT: launch.attention %x64, %kc, %vc at %pos tails %wide, %x64[own = 32 q_pitch = 32 q_tail 96 from 64 k_tail 2 from 0] into %x64 (heads = 2, group = 1, hd = 34, vd = 32, len = 32, rows = 1) values 64 + 0 scale = 0.125 (per_block = 1, splits = 1) seq = 2048 f32
  launch.attention %x64, %kc, %vc at %pos tails %wide, %x64[own = 32 q_pitch = 32 q_tail 96 from 64 k_tail 2 from 0] into %x64 (heads = 2, group = 1, hd = 34, vd = 32, len = 32, rows = 1) values 64 + 0 scale = 0.125 (per_block = 1, splits = 1) seq = 2048 f32

  // CHECK-NEXT: launch.conv %x64 by %wconv ring %ring into %y64 (chan = 64, taps = 4, rows = 1)
  launch.conv %x64 by %wconv ring %ring into %y64 (chan = 64, taps = 4, rows = 1)
  // CHECK-NEXT: launch.conv %x64 by %wconv ring %ring into %y64 (chan = 64, taps = 4, rows = 1) silu l2 32 eps 1.0e-06 by [conv_silu, conv_silu_l2]
  launch.conv %x64 by %wconv ring %ring into %y64 (chan = 64, taps = 4, rows = 1) silu l2 32 eps 1.0e-06 by [conv_silu, conv_silu_l2]
  // CHECK-NEXT: launch.conv_parts [%x64 by %wconv ring %ring into %y64 chan = 64 l2, %y64 by %wconv ring %ring2 into %x64 chan = 64] (taps = 4, block = 32, seqs = 1) eps = 1.0e-06
  launch.conv_parts [%x64 by %wconv ring %ring into %y64 chan = 64 l2, %y64 by %wconv ring %ring2 into %x64 chan = 64] (taps = 4, block = 32, seqs = 1) eps = 1.0e-06
  // CHECK-NEXT: launch.decay %r2, %b2, %b2 into %q2 (n = 2, heads = 2)
  launch.decay %r2, %b2, %b2 into %q2 (n = 2, heads = 2)
  // CHECK-NEXT: launch.gates %r2, %r2, %b2, %b2 into %r2, %q2 (n = 2, heads = 2)
  launch.gates %r2, %r2, %b2, %b2 into %r2, %q2 (n = 2, heads = 2)
  // CHECK-NEXT: launch.gate_proj %x by %wb, %wb, %b2, %b2 into %r2, %q2 (k = 128, heads = 2) split = 4
  launch.gate_proj %x by %wb, %wb, %b2, %b2 into %r2, %q2 (k = 128, heads = 2) split = 4
  // CHECK-NEXT: launch.delta %x64, %y64, %x gate %y beta %r2 decay %q2 norm %b64 state %st into %x cyclic (hv = 2, hk = 1, d = 64, rows = 1) eps = 1.0e-06 f32 quant
  launch.delta %x64, %y64, %x gate %y beta %r2 decay %q2 norm %b64 state %st into %x cyclic (hv = 2, hk = 1, d = 64, rows = 1) eps = 1.0e-06 f32 quant
  // CHECK-NEXT: launch.moe %x router %wt experts %wg, %wg, %wd [q4_k, q4_k, q5_1] into %y score softmax act silu (d = 128, dff = 32, experts = 8, k = 2, rows = 1) renormalize
  launch.moe %x router %wt experts %wg, %wg, %wd [q4_k, q4_k, q5_1] into %y score softmax act silu (d = 128, dff = 32, experts = 8, k = 2, rows = 1) renormalize
  // CHECK-NEXT: launch.moe %x router %wt rows<q8_0> router_bias %b8 selection_bias %b8 experts %wg, %wg, %wd [q4_k, q4_k, q5_1] gate_bias %eb up_bias %eb down_bias %ed shared %swg, %swg, %swd [q8_0, q8_0, q8_0](sdff = 64) shared_gate %b128 into %y score sigmoid act clamped_swiglu alpha = 1.702 limit = 7.0 (d = 128, dff = 32, experts = 8, k = 2, rows = 1) groups = 4 groups_used = 2 scale = 2.5 renormalize per_warp = 2 router_split = 4 batch
  launch.moe %x router %wt rows<q8_0> router_bias %b8 selection_bias %b8 experts %wg, %wg, %wd [q4_k, q4_k, q5_1] gate_bias %eb up_bias %eb down_bias %ed shared %swg, %swg, %swd [q8_0, q8_0, q8_0](sdff = 64) shared_gate %b128 into %y score sigmoid act clamped_swiglu alpha = 1.702 limit = 7.0 (d = 128, dff = 32, experts = 8, k = 2, rows = 1) groups = 4 groups_used = 2 scale = 2.5 renormalize per_warp = 2 router_split = 4 batch

  // CHECK-NEXT: launch.slice %wide into %x64 (groups = 1, every = 192, start = 128, width = 64)
  launch.slice %wide into %x64 (groups = 1, every = 192, start = 128, width = 64)
  // CHECK-NEXT: launch.join %x64, %y64 into %y (rows = 1, heads = 2, ha = 32, hb = 32)
  launch.join %x64, %y64 into %y (rows = 1, heads = 2, ha = 32, hb = 32)
  // CHECK-NEXT: launch.join %x64, %x into %wide at row %pos pitch 192 (rows = 1, heads = 1, ha = 64, hb = 128)
  launch.join %x64, %x into %wide at row %pos pitch 192 (rows = 1, heads = 1, ha = 64, hb = 128)
  // CHECK-NEXT: launch.fold {
  launch.fold {
    // CHECK-NEXT: launch.gather %e rows<q8_0> at %token into %x (rows = 1, cols = 128)
    launch.gather %e rows<q8_0> at %token into %x (rows = 1, cols = 128)
    // CHECK-NEXT: launch.norm %x weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 quant
    launch.norm %x weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 quant
  // CHECK-NEXT: } covers [0, 1] by [embed_norm]
  } covers [0, 1] by [embed_norm]
  // CHECK-NEXT: launch.fold {
  launch.fold {
    // CHECK-NEXT: launch.fold {
    launch.fold {
      // CHECK-NEXT: launch.moe %x router %wt experts %wg, %wg, %wd [q4_k, q4_k, q5_1] into %y score softmax_chosen act gelu_tanh (d = 128, dff = 32, experts = 8, k = 2, rows = 1)
      launch.moe %x router %wt experts %wg, %wg, %wd [q4_k, q4_k, q5_1] into %y score softmax_chosen act gelu_tanh (d = 128, dff = 32, experts = 8, k = 2, rows = 1)
      // CHECK-NEXT: launch.binary add %y, %x into %s (n = 128) f32
      launch.binary add %y, %x into %s (n = 128) f32
    // CHECK-NEXT: }
    }
    // CHECK-NEXT: launch.norm %s weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 quant
    launch.norm %s weight %b128 out %z (rows = 1, cols = 128) eps = 1.0e-05 quant
  // CHECK-NEXT: } by [moe_deferred_finalize]
  } by [moe_deferred_finalize]
  // CHECK-NEXT: launch.argmax %logits into %id (n = 96, rows = 1)
  launch.argmax %logits into %id (n = 96, rows = 1)
  // CHECK-NEXT: launch.argmax %logits into %id (n = 96, rows = 1) advance %token, %pos item 0
  launch.argmax %logits into %id (n = 96, rows = 1) advance %token, %pos item 0
  // CHECK-NEXT: launch.yield %logits, %id
  launch.yield %logits, %id
// CHECK-NEXT: }
}
