// RUN: LANE_ROUNDTRIP
// RUN: LANE_GENERIC_ROUNDTRIP

// Every op, with each optional clause and without, with a number and without, with further attributes and without.

// CHECK: func.func @storage(%token: memref<2xi32>, %pos: memref<1xi32>, %cache: memref<64x32xf32>, %x: tensor<2x32xf32>) {
func.func @storage(%token: memref<2xi32>, %pos: memref<1xi32>, %cache: memref<64x32xf32>, %x: tensor<2x32xf32>) {
  // CHECK-NEXT: %factors = tg.constant "rope_freqs.weight" : tensor<8xf32>
  %factors = tg.constant "rope_freqs.weight" : tensor<8xf32>
  // CHECK-NEXT: %w = tg.constant "blk.0.attn_q.weight" {note = "read"} : tensor<64x32xf32, #tg.rows<q4_1>>
  %w = tg.constant "blk.0.attn_q.weight" {note = "read"} : tensor<64x32xf32, #tg.rows<q4_1>>
  // CHECK-NEXT: %experts = tg.constant "blk.0.ffn_up_exps.weight" : tensor<4x64x256xf32, #tg.rows<q4_k>>
  %experts = tg.constant "blk.0.ffn_up_exps.weight" : tensor<4x64x256xf32, #tg.rows<q4_k>>
  // CHECK-NEXT: %cos, %sin = tg.rope_table base 1.000000e+04 freq_scale 1.000000e+00 ext_factor 0.000000e+00 attn_factor 1.000000e+00 beta 3.200000e+01, 1.000000e+00 original_context 0 -> tensor<64x8xf32>, tensor<64x8xf32>
  %cos, %sin = tg.rope_table base 1.000000e+04 freq_scale 1.000000e+00 ext_factor 0.000000e+00 attn_factor 1.000000e+00 beta 3.200000e+01, 1.000000e+00 original_context 0 -> tensor<64x8xf32>, tensor<64x8xf32>
  // CHECK-NEXT: %cos2, %sin2 = tg.rope_table base 5.000000e+05 freq_scale 2.500000e-01 ext_factor 1.000000e+00 attn_factor 8.783000e-01 beta 3.200000e+01, 1.000000e+00 original_context 4096 factors %factors : tensor<8xf32> {note = "yarn"} -> tensor<64x8xf32>, tensor<64x8xf32>
  %cos2, %sin2 = tg.rope_table base 5.000000e+05 freq_scale 2.500000e-01 ext_factor 1.000000e+00 attn_factor 8.783000e-01 beta 3.200000e+01, 1.000000e+00 original_context 4096 factors %factors : tensor<8xf32> {note = "yarn"} -> tensor<64x8xf32>, tensor<64x8xf32>
  // CHECK-NEXT: %empty = tg.empty : tensor<2x64xf32>
  %empty = tg.empty : tensor<2x64xf32>
  // CHECK-NEXT: %empty2 = tg.empty {note = "rows"} : tensor<2x32xf32>
  %empty2 = tg.empty {note = "rows"} : tensor<2x32xf32>
  // CHECK-NEXT: %row = tg.gather %w[%token] : (tensor<64x32xf32, #tg.rows<q4_1>>, memref<2xi32>) -> tensor<2x32xf32>
  %row = tg.gather %w[%token] : (tensor<64x32xf32, #tg.rows<q4_1>>, memref<2xi32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %row2 = tg.gather[0] %w[%token] {note = "embedding"} : (tensor<64x32xf32, #tg.rows<q4_1>>, memref<2xi32>) -> tensor<2x32xf32>
  %row2 = tg.gather[0] %w[%token] {note = "embedding"} : (tensor<64x32xf32, #tg.rows<q4_1>>, memref<2xi32>) -> tensor<2x32xf32>
  // CHECK-NEXT: tg.set_row %x into %cache[%pos] : tensor<2x32xf32>, memref<64x32xf32>, memref<1xi32>
  tg.set_row %x into %cache[%pos] : tensor<2x32xf32>, memref<64x32xf32>, memref<1xi32>
  // CHECK-NEXT: tg.set_row[1] %x into %cache[%pos] {note = "keys"} : tensor<2x32xf32>, memref<64x32xf32>, memref<1xi32>
  tg.set_row[1] %x into %cache[%pos] {note = "keys"} : tensor<2x32xf32>, memref<64x32xf32>, memref<1xi32>
  // CHECK-NEXT: %left = tg.insert %x into %empty every 64 from 0 : (tensor<2x32xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %left = tg.insert %x into %empty every 64 from 0 : (tensor<2x32xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %both = tg.insert[2] %x into %left every 64 from 32 {note = "right"} : (tensor<2x32xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %both = tg.insert[2] %x into %left every 64 from 32 {note = "right"} : (tensor<2x32xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %part = tg.slice %both every 64 from 16 width 16 : (tensor<2x64xf32>) -> tensor<2x16xf32>
  %part = tg.slice %both every 64 from 16 width 16 : (tensor<2x64xf32>) -> tensor<2x16xf32>
  // CHECK-NEXT: %past = tg.slice[3] %cache every 32 from 0 width 16 {note = "of state"} : (memref<64x32xf32>) -> tensor<64x16xf32>
  %past = tg.slice[3] %cache every 32 from 0 width 16 {note = "of state"} : (memref<64x32xf32>) -> tensor<64x16xf32>
  // CHECK-NEXT: %joined = tg.join %part, %x heads 2 : (tensor<2x16xf32>, tensor<2x32xf32>) -> tensor<2x48xf32>
  %joined = tg.join %part, %x heads 2 : (tensor<2x16xf32>, tensor<2x32xf32>) -> tensor<2x48xf32>
  // CHECK-NEXT: %joined2 = tg.join[4] %part, %x heads 1 {note = "whole"} : (tensor<2x16xf32>, tensor<2x32xf32>) -> tensor<2x48xf32>
  %joined2 = tg.join[4] %part, %x heads 1 {note = "whole"} : (tensor<2x16xf32>, tensor<2x32xf32>) -> tensor<2x48xf32>
  // CHECK-NEXT: %heads = tg.view %x from 0 : (tensor<2x32xf32>) -> tensor<4x16xf32>
  %heads = tg.view %x from 0 : (tensor<2x32xf32>) -> tensor<4x16xf32>
  // CHECK-NEXT: %last = tg.view[5] %x from 32 {note = "last row"} : (tensor<2x32xf32>) -> tensor<1x32xf32>
  %last = tg.view[5] %x from 32 {note = "last row"} : (tensor<2x32xf32>) -> tensor<1x32xf32>
  func.return
}

// CHECK: func.func @products(%pos: memref<1xi32>, %latent: memref<64x32xf32>, %x: tensor<2x32xf32>, %w: tensor<64x32xf32>, %heads: tensor<4x16x8xf32>, %wide: tensor<4x16x32xf32>, %turned_heads: tensor<4x8x16xf32>) {
func.func @products(%pos: memref<1xi32>, %latent: memref<64x32xf32>, %x: tensor<2x32xf32>, %w: tensor<64x32xf32>, %heads: tensor<4x16x8xf32>, %wide: tensor<4x16x32xf32>, %turned_heads: tensor<4x8x16xf32>) {
  // CHECK-NEXT: %q8 = tg.quantize %x : tensor<2x32xf32> -> tensor<2x32xf32, #tg.quantized<int8>>
  %q8 = tg.quantize %x : tensor<2x32xf32> -> tensor<2x32xf32, #tg.quantized<int8>>
  // CHECK-NEXT: %q16 = tg.quantize[6] %x {note = "twice"} : tensor<2x32xf32> -> tensor<2x32xf32, #tg.quantized<two_pass_int8>>
  %q16 = tg.quantize[6] %x {note = "twice"} : tensor<2x32xf32> -> tensor<2x32xf32, #tg.quantized<two_pass_int8>>
  // CHECK-NEXT: %y = tg.matmul %x, %w : (tensor<2x32xf32>, tensor<64x32xf32>) -> tensor<2x64xf32>
  %y = tg.matmul %x, %w : (tensor<2x32xf32>, tensor<64x32xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %y8 = tg.matmul[7] %q8, %w {note = "int8"} : (tensor<2x32xf32, #tg.quantized<int8>>, tensor<64x32xf32>) -> tensor<2x64xf32>
  %y8 = tg.matmul[7] %q8, %w {note = "int8"} : (tensor<2x32xf32, #tg.quantized<int8>>, tensor<64x32xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %own = tg.head_matmul %x, %heads : (tensor<2x32xf32>, tensor<4x16x8xf32>) -> tensor<2x64xf32>
  %own = tg.head_matmul %x, %heads : (tensor<2x32xf32>, tensor<4x16x8xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %keys = tg.head_matmul[8] %latent, %wide upto %pos shared {note = "expanded"} : (memref<64x32xf32>, tensor<4x16x32xf32>, memref<1xi32>) -> tensor<64x64xf32>
  %keys = tg.head_matmul[8] %latent, %wide upto %pos shared {note = "expanded"} : (memref<64x32xf32>, tensor<4x16x32xf32>, memref<1xi32>) -> tensor<64x64xf32>
  // CHECK-NEXT: %alike = tg.head_matmul %x, %wide shared : (tensor<2x32xf32>, tensor<4x16x32xf32>) -> tensor<2x64xf32>
  %alike = tg.head_matmul %x, %wide shared : (tensor<2x32xf32>, tensor<4x16x32xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %turned = tg.head_matmul %x, %turned_heads transposed {note = "absorbed"} : (tensor<2x32xf32>, tensor<4x8x16xf32>) -> tensor<2x64xf32>
  %turned = tg.head_matmul %x, %turned_heads transposed {note = "absorbed"} : (tensor<2x32xf32>, tensor<4x8x16xf32>) -> tensor<2x64xf32>
  func.return
}

// CHECK: func.func @mixture(%x: tensor<2x32xf32>, %q8: tensor<2x32xf32, #tg.quantized<int8>>, %router: tensor<8x32xf32>, %up: tensor<8x64x32xf32>, %down: tensor<8x32x64xf32>, %bias: tensor<8xf32>, %wide_bias: tensor<8x64xf32>, %down_bias: tensor<8x32xf32>) {
func.func @mixture(%x: tensor<2x32xf32>, %q8: tensor<2x32xf32, #tg.quantized<int8>>, %router: tensor<8x32xf32>, %up: tensor<8x64x32xf32>, %down: tensor<8x32x64xf32>, %bias: tensor<8xf32>, %wide_bias: tensor<8x64xf32>, %down_bias: tensor<8x32xf32>) {
  // CHECK-NEXT: %plain = tg.moe %x router %router gate %up up %up down %down used 2 of groups 1 / 1 by softmax scale 1.000000e+00 silu : tensor<2x32xf32>, tensor<8x32xf32>, tensor<8x64x32xf32>, tensor<8x64x32xf32>, tensor<8x32x64xf32> -> tensor<2x32xf32>
  %plain = tg.moe %x router %router gate %up up %up down %down used 2 of groups 1 / 1 by softmax scale 1.000000e+00 silu : tensor<2x32xf32>, tensor<8x32xf32>, tensor<8x64x32xf32>, tensor<8x64x32xf32>, tensor<8x32x64xf32> -> tensor<2x32xf32>
  // CHECK-NEXT: %full = tg.moe[9] %x quantized %q8 : tensor<2x32xf32, #tg.quantized<int8>> router %router gate %up up %up down %down router_bias %bias : tensor<8xf32> selection_bias %bias : tensor<8xf32> gate_bias %wide_bias : tensor<8x64xf32> up_bias %wide_bias : tensor<8x64xf32> down_bias %down_bias : tensor<8x32xf32> used 2 of groups 1 / 2 by sigmoid renormalize scale 2.500000e+00 clamped_swiglu alpha 1.702000e+00 limit 7.000000e+00 {note = "all"} : tensor<2x32xf32>, tensor<8x32xf32>, tensor<8x64x32xf32>, tensor<8x64x32xf32>, tensor<8x32x64xf32> -> tensor<2x32xf32>
  %full = tg.moe[9] %x quantized %q8 : tensor<2x32xf32, #tg.quantized<int8>> router %router gate %up up %up down %down router_bias %bias : tensor<8xf32> selection_bias %bias : tensor<8xf32> gate_bias %wide_bias : tensor<8x64xf32> up_bias %wide_bias : tensor<8x64xf32> down_bias %down_bias : tensor<8x32xf32> used 2 of groups 1 / 2 by sigmoid renormalize scale 2.500000e+00 clamped_swiglu alpha 1.702000e+00 limit 7.000000e+00 {note = "all"} : tensor<2x32xf32>, tensor<8x32xf32>, tensor<8x64x32xf32>, tensor<8x64x32xf32>, tensor<8x32x64xf32> -> tensor<2x32xf32>
  func.return
}

// CHECK: func.func @rows(%x: tensor<2x32xf32>, %w: tensor<32xf32>, %row: tensor<1x32xf32>, %column: tensor<2x1xf32>, %one: tensor<1xf32>) {
func.func @rows(%x: tensor<2x32xf32>, %w: tensor<32xf32>, %row: tensor<1x32xf32>, %column: tensor<2x1xf32>, %one: tensor<1xf32>) {
  // CHECK-NEXT: %rms = tg.rms_norm %x eps 1.000000e-05 : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %rms = tg.rms_norm %x eps 1.000000e-05 : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %rms2 = tg.rms_norm[10] %x weight %w eps 1.000000e-06 {note = "weighted"} : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  %rms2 = tg.rms_norm[10] %x weight %w eps 1.000000e-06 {note = "weighted"} : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %layer = tg.layer_norm %x weight %w eps 1.000000e-05 : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  %layer = tg.layer_norm %x weight %w eps 1.000000e-05 : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %layer2 = tg.layer_norm[11] %x weight %w bias %w eps 1.000000e-05 {note = "biased"} : (tensor<2x32xf32>, tensor<32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  %layer2 = tg.layer_norm[11] %x weight %w bias %w eps 1.000000e-05 {note = "biased"} : (tensor<2x32xf32>, tensor<32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %l2 = tg.l2_norm %x eps 1.000000e-06 : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %l2 = tg.l2_norm %x eps 1.000000e-06 : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %l22 = tg.l2_norm[12] %x eps 1.000000e-06 {note = "keys"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %l22 = tg.l2_norm[12] %x eps 1.000000e-06 {note = "keys"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %add = tg.binary add %x, %l2 : (tensor<2x32xf32>, tensor<2x32xf32>) -> tensor<2x32xf32>
  %add = tg.binary add %x, %l2 : (tensor<2x32xf32>, tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %sub = tg.binary[13] sub %x, %w {note = "row"} : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  %sub = tg.binary[13] sub %x, %w {note = "row"} : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %mul = tg.binary mul %x, %row : (tensor<2x32xf32>, tensor<1x32xf32>) -> tensor<2x32xf32>
  %mul = tg.binary mul %x, %row : (tensor<2x32xf32>, tensor<1x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %div = tg.binary div %x, %column : (tensor<2x32xf32>, tensor<2x1xf32>) -> tensor<2x32xf32>
  %div = tg.binary div %x, %column : (tensor<2x32xf32>, tensor<2x1xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %by = tg.binary mul %x, %one : (tensor<2x32xf32>, tensor<1xf32>) -> tensor<2x32xf32>
  %by = tg.binary mul %x, %one : (tensor<2x32xf32>, tensor<1xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %silu = tg.unary silu %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %silu = tg.unary silu %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %gelu = tg.unary[14] gelu %x {note = "exact"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %gelu = tg.unary[14] gelu %x {note = "exact"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %gelu_tanh = tg.unary gelu_tanh %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %gelu_tanh = tg.unary gelu_tanh %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %sigmoid = tg.unary sigmoid %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %sigmoid = tg.unary sigmoid %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %softplus = tg.unary softplus %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %softplus = tg.unary softplus %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %tanh = tg.unary tanh %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %tanh = tg.unary tanh %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %relu = tg.unary relu %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %relu = tg.unary relu %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %exp = tg.unary exp %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %exp = tg.unary exp %x : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %scaled = tg.scale %x by 11.313708498984761 : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %scaled = tg.scale %x by 11.313708498984761 : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // CHECK-NEXT: %negated = tg.scale[15] %x by -1.000000e+00 {note = "negated"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  %negated = tg.scale[15] %x by -1.000000e+00 {note = "negated"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  func.return
}

// CHECK: func.func @attention(%pos: memref<1xi32>, %q: tensor<8x16xf32>, %rows: tensor<2x64xf32>, %cos: tensor<64x8xf32>, %k: memref<64x32xf32>, %v: memref<64x32xf32>, %new: tensor<64x32xf32>, %sinks: tensor<4xf32>, %q_tail: tensor<2x32xf32>, %k_tail: memref<64x8xf32>) {
func.func @attention(%pos: memref<1xi32>, %q: tensor<8x16xf32>, %rows: tensor<2x64xf32>, %cos: tensor<64x8xf32>, %k: memref<64x32xf32>, %v: memref<64x32xf32>, %new: tensor<64x32xf32>, %sinks: tensor<4xf32>, %q_tail: tensor<2x32xf32>, %k_tail: memref<64x8xf32>) {
  // CHECK-NEXT: %half = tg.rope %q by %cos, %cos at %pos heads 4 half : (tensor<8x16xf32>, tensor<64x8xf32>, tensor<64x8xf32>, memref<1xi32>) -> tensor<8x16xf32>
  %half = tg.rope %q by %cos, %cos at %pos heads 4 half : (tensor<8x16xf32>, tensor<64x8xf32>, tensor<64x8xf32>, memref<1xi32>) -> tensor<8x16xf32>
  // CHECK-NEXT: %woven = tg.rope[16] %q by %cos, %cos at %pos heads 4 interleaved {note = "queries"} : (tensor<8x16xf32>, tensor<64x8xf32>, tensor<64x8xf32>, memref<1xi32>) -> tensor<8x16xf32>
  %woven = tg.rope[16] %q by %cos, %cos at %pos heads 4 interleaved {note = "queries"} : (tensor<8x16xf32>, tensor<64x8xf32>, tensor<64x8xf32>, memref<1xi32>) -> tensor<8x16xf32>
  // CHECK-NEXT: %plain = tg.attention %rows, %k, %v at %pos heads 4 / 2 scale 2.500000e-01 : tensor<2x64xf32>, memref<64x32xf32>, memref<64x32xf32>, memref<1xi32> -> tensor<2x64xf32>
  %plain = tg.attention %rows, %k, %v at %pos heads 4 / 2 scale 2.500000e-01 : tensor<2x64xf32>, memref<64x32xf32>, memref<64x32xf32>, memref<1xi32> -> tensor<2x64xf32>
  // CHECK-NEXT: %full = tg.attention[17] %rows, %k, %new at %pos sinks %sinks : tensor<4xf32> tails %q_tail, %k_tail : tensor<2x32xf32>, memref<64x8xf32> heads 4 / 2 scale 0.20412414523193148 window 16 softcap 5.000000e+01 {note = "all"} : tensor<2x64xf32>, memref<64x32xf32>, tensor<64x32xf32>, memref<1xi32> -> tensor<2x64xf32>
  %full = tg.attention[17] %rows, %k, %new at %pos sinks %sinks : tensor<4xf32> tails %q_tail, %k_tail : tensor<2x32xf32>, memref<64x8xf32> heads 4 / 2 scale 0.20412414523193148 window 16 softcap 5.000000e+01 {note = "all"} : tensor<2x64xf32>, memref<64x32xf32>, tensor<64x32xf32>, memref<1xi32> -> tensor<2x64xf32>
  func.return
}

// CHECK: func.func @recurrent(%x: tensor<2x96xf32>, %taps: tensor<96x4xf32>, %ring: memref<4x96xf32>, %a: tensor<2x4xf32>, %dt: tensor<4xf32>, %k: tensor<2x32xf32>, %v: tensor<2x64xf32>, %norm: tensor<16xf32>, %state: memref<64x16xf32>) {
func.func @recurrent(%x: tensor<2x96xf32>, %taps: tensor<96x4xf32>, %ring: memref<4x96xf32>, %a: tensor<2x4xf32>, %dt: tensor<4xf32>, %k: tensor<2x32xf32>, %v: tensor<2x64xf32>, %norm: tensor<16xf32>, %state: memref<64x16xf32>) {
  // CHECK-NEXT: %conv = tg.conv %x, %taps ring %ring : (tensor<2x96xf32>, tensor<96x4xf32>, memref<4x96xf32>) -> tensor<2x96xf32>
  %conv = tg.conv %x, %taps ring %ring : (tensor<2x96xf32>, tensor<96x4xf32>, memref<4x96xf32>) -> tensor<2x96xf32>
  // CHECK-NEXT: %conv2 = tg.conv[18] %x, %taps ring %ring {note = "short"} : (tensor<2x96xf32>, tensor<96x4xf32>, memref<4x96xf32>) -> tensor<2x96xf32>
  %conv2 = tg.conv[18] %x, %taps ring %ring {note = "short"} : (tensor<2x96xf32>, tensor<96x4xf32>, memref<4x96xf32>) -> tensor<2x96xf32>
  // CHECK-NEXT: %decay = tg.decay %a dt %dt al %dt : (tensor<2x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %decay = tg.decay %a dt %dt al %dt : (tensor<2x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  // CHECK-NEXT: %decay2 = tg.decay[19] %a dt %dt al %dt {note = "gate"} : (tensor<2x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %decay2 = tg.decay[19] %a dt %dt al %dt {note = "gate"} : (tensor<2x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  // CHECK-NEXT: %delta = tg.delta %k, %k, %v gate %v beta %a decay %decay norm %norm state %state heads 4 / 2 blocked eps 1.000000e-06 : (tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<16xf32>, memref<64x16xf32>) -> tensor<2x64xf32>
  %delta = tg.delta %k, %k, %v gate %v beta %a decay %decay norm %norm state %state heads 4 / 2 blocked eps 1.000000e-06 : (tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<16xf32>, memref<64x16xf32>) -> tensor<2x64xf32>
  // CHECK-NEXT: %delta2 = tg.delta[20] %k, %k, %v gate %v beta %a decay %decay norm %norm state %state heads 4 / 2 cyclic eps 1.000000e-06 {note = "tiled"} : (tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<16xf32>, memref<64x16xf32>) -> tensor<2x64xf32>
  %delta2 = tg.delta[20] %k, %k, %v gate %v beta %a decay %decay norm %norm state %state heads 4 / 2 cyclic eps 1.000000e-06 {note = "tiled"} : (tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<16xf32>, memref<64x16xf32>) -> tensor<2x64xf32>
  func.return
}

// CHECK: func.func @sampling(%token: memref<1xi32>, %tokens: memref<3xi32>, %pos: memref<1xi32>, %logits: tensor<1x64xf32>) -> tensor<1xi32> {
func.func @sampling(%token: memref<1xi32>, %tokens: memref<3xi32>, %pos: memref<1xi32>, %logits: tensor<1x64xf32>) -> tensor<1xi32> {
  // CHECK-NEXT: %id = tg.argmax %logits : (tensor<1x64xf32>) -> tensor<1xi32>
  %id = tg.argmax %logits : (tensor<1x64xf32>) -> tensor<1xi32>
  // CHECK-NEXT: %id2 = tg.argmax[21] %logits {note = "greedy"} : (tensor<1x64xf32>) -> tensor<1xi32>
  %id2 = tg.argmax[21] %logits {note = "greedy"} : (tensor<1x64xf32>) -> tensor<1xi32>
  // CHECK-NEXT: tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, memref<1xi32>
  tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, memref<1xi32>
  // CHECK-NEXT: tg.advance %id to %tokens item 2, %pos : tensor<1xi32>, memref<3xi32>, memref<1xi32>
  tg.advance %id to %tokens item 2, %pos : tensor<1xi32>, memref<3xi32>, memref<1xi32>
  // CHECK-NEXT: tg.advance[22] %id to %token, %pos {note = "last"} : tensor<1xi32>, memref<1xi32>, memref<1xi32>
  tg.advance[22] %id to %token, %pos {note = "last"} : tensor<1xi32>, memref<1xi32>, memref<1xi32>
  // CHECK-NEXT: func.return %id : tensor<1xi32>
  func.return %id : tensor<1xi32>
}

// CHECK: func.func @fused(%pos: memref<1xi32>, %cache: memref<64x32xf32>, %a: tensor<1x32xf32>, %b: tensor<1x32xf32>, %w: tensor<32xf32>) -> tensor<1x32xf32> {
func.func @fused(%pos: memref<1xi32>, %cache: memref<64x32xf32>, %a: tensor<1x32xf32>, %b: tensor<1x32xf32>, %w: tensor<32xf32>) -> tensor<1x32xf32> {
  // CHECK-NEXT: %sum, %y = tg.fused "sandwich_norm" attributes {note = "nested"} {
  %sum, %y = tg.fused "sandwich_norm" attributes {note = "nested"} {
    // CHECK-NEXT: %total, %normed = tg.fused "add_norm" {
    %total, %normed = tg.fused "add_norm" {
      // CHECK-NEXT: %s = tg.binary[23] add %a, %b : (tensor<1x32xf32>, tensor<1x32xf32>) -> tensor<1x32xf32>
      %s = tg.binary[23] add %a, %b : (tensor<1x32xf32>, tensor<1x32xf32>) -> tensor<1x32xf32>
      // CHECK-NEXT: %n = tg.rms_norm[24] %s weight %w eps 1.000000e-05 : (tensor<1x32xf32>, tensor<32xf32>) -> tensor<1x32xf32>
      %n = tg.rms_norm[24] %s weight %w eps 1.000000e-05 : (tensor<1x32xf32>, tensor<32xf32>) -> tensor<1x32xf32>
      // CHECK-NEXT: tg.yield %s, %n : tensor<1x32xf32>, tensor<1x32xf32>
      tg.yield %s, %n : tensor<1x32xf32>, tensor<1x32xf32>
    // CHECK-NEXT: }
    }
    // CHECK-NEXT: %q = tg.quantize[25] %normed : tensor<1x32xf32> -> tensor<1x32xf32, #tg.quantized<int8>>
    %q = tg.quantize[25] %normed : tensor<1x32xf32> -> tensor<1x32xf32, #tg.quantized<int8>>
    // CHECK-NEXT: tg.yield {note = "both"} %total, %q : tensor<1x32xf32>, tensor<1x32xf32, #tg.quantized<int8>>
    tg.yield {note = "both"} %total, %q : tensor<1x32xf32>, tensor<1x32xf32, #tg.quantized<int8>>
  // CHECK-NEXT: }
  }
  // CHECK-NEXT: tg.fused "row_write" {
  tg.fused "row_write" {
    // CHECK-NEXT: %scaled = tg.scale[26] %sum by 2.000000e+00 : (tensor<1x32xf32>) -> tensor<1x32xf32>
    %scaled = tg.scale[26] %sum by 2.000000e+00 : (tensor<1x32xf32>) -> tensor<1x32xf32>
    // CHECK-NEXT: tg.set_row[27] %scaled into %cache[%pos] : tensor<1x32xf32>, memref<64x32xf32>, memref<1xi32>
    tg.set_row[27] %scaled into %cache[%pos] : tensor<1x32xf32>, memref<64x32xf32>, memref<1xi32>
    // CHECK-NEXT: tg.yield
    tg.yield
  // CHECK-NEXT: }
  }
  // CHECK-NEXT: func.return %sum : tensor<1x32xf32>
  func.return %sum : tensor<1x32xf32>
}
