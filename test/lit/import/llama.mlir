// RUN: lane-import %S/../../data/models/llama-f32.gguf --context 64 | filecheck %s
// RUN: lane-opt %S/../../data/models/llama-f32.gguf -f 'gguf{context=64}' | filecheck %s
// RUN: lane-import %S/../../data/models/llama-f32.gguf --context 64 | lane-opt | filecheck %s

// CHECK:       builtin.module attributes {tg.target = #tg.target<h200, dequant, cache = f32, state = f32>} {
// CHECK-NEXT:    func.func @step(%token: memref<1xi32> {tg.arg = #tg.arg<token, 0, "token">}, %position: memref<1xi32> {tg.arg = #tg.arg<position, 0, "position">}, %blk.0.k: memref<64x128xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">}, %blk.0.v: memref<64x128xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.v">}, {{.*}}) -> (tensor<1x128xf32>, tensor<1xi32>) {
// CHECK-NEXT:      %rope_cos, %rope_sin = tg.rope_table base 1{{.*}} -> tensor<64x32xf32>, tensor<64x32xf32>
// CHECK-NEXT:      %token_embd.weight = tg.constant "token_embd.weight" : tensor<128x256xf32, #tg.rows<f32>>
// CHECK-NEXT:      %token_embd = tg.gather %token_embd.weight[%token]
// CHECK-NEXT:      %blk.0.attn_norm.weight = tg.constant "blk.0.attn_norm.weight" : tensor<256xf32>
// CHECK-NEXT:      %blk.0.attn_norm = tg.rms_norm %token_embd weight %blk.0.attn_norm.weight eps
// CHECK-NEXT:      %blk.0.attn_q.weight = tg.constant "blk.0.attn_q.weight" : tensor<256x256xf32, #tg.rows<f32>>
// CHECK-NEXT:      %blk.0.attn_q = tg.matmul %blk.0.attn_norm, %blk.0.attn_q.weight
// CHECK-NEXT:      %blk.0.attn_k.weight = tg.constant "blk.0.attn_k.weight" : tensor<128x256xf32, #tg.rows<f32>>
// CHECK-NEXT:      %blk.0.attn_k = tg.matmul %blk.0.attn_norm, %blk.0.attn_k.weight
// CHECK-NEXT:      %blk.0.attn_v.weight = tg.constant "blk.0.attn_v.weight" : tensor<128x256xf32, #tg.rows<f32>>
// CHECK-NEXT:      %blk.0.attn_v = tg.matmul %blk.0.attn_norm, %blk.0.attn_v.weight
// CHECK-NEXT:      %blk.0.attn_q.heads = tg.view %blk.0.attn_q from 0 : (tensor<1x256xf32>) -> tensor<4x64xf32>
// CHECK-NEXT:      %blk.0.attn_q.rope = tg.rope %blk.0.attn_q.heads by %rope_cos, %rope_sin at %position heads 4 interleaved
// CHECK-NEXT:      %blk.0.attn_q.rows = tg.view %blk.0.attn_q.rope from 0 : (tensor<4x64xf32>) -> tensor<1x256xf32>
// CHECK-NEXT:      %blk.0.attn_k.heads = tg.view
// CHECK-NEXT:      %blk.0.attn_k.rope = tg.rope
// CHECK-NEXT:      %blk.0.attn_k.rows = tg.view
// CHECK-NEXT:      tg.set_row %blk.0.attn_k.rows into %blk.0.k[%position]
// CHECK-NEXT:      tg.set_row %blk.0.attn_v into %blk.0.v[%position]
// CHECK-NEXT:      %blk.0.attention = tg.attention %blk.0.attn_q.rows, %blk.0.k, %blk.0.v at %position heads 4 / 2 scale
// CHECK-NEXT:      %blk.0.attn_output.weight = tg.constant
// CHECK-NEXT:      %blk.0.attn_output = tg.matmul %blk.0.attention, %blk.0.attn_output.weight
// CHECK-NEXT:      %blk.0.attn_residual = tg.binary add %token_embd, %blk.0.attn_output
// CHECK-NEXT:      %blk.0.ffn_norm.weight = tg.constant
// CHECK-NEXT:      %blk.0.ffn_norm = tg.rms_norm %blk.0.attn_residual
// CHECK-NEXT:      %blk.0.ffn_gate.weight = tg.constant
// CHECK-NEXT:      %blk.0.ffn_gate = tg.matmul %blk.0.ffn_norm
// CHECK-NEXT:      %blk.0.ffn_up.weight = tg.constant
// CHECK-NEXT:      %blk.0.ffn_up = tg.matmul %blk.0.ffn_norm
// CHECK-NEXT:      %blk.0.ffn_act = tg.unary silu %blk.0.ffn_gate
// CHECK-NEXT:      %blk.0.ffn_gated = tg.binary mul %blk.0.ffn_act, %blk.0.ffn_up
// CHECK-NEXT:      %blk.0.ffn_down.weight = tg.constant
// CHECK-NEXT:      %blk.0.ffn_down = tg.matmul %blk.0.ffn_gated
// CHECK-NEXT:      %blk.0.ffn_residual = tg.binary add %blk.0.attn_residual, %blk.0.ffn_down
// CHECK:           %output_norm = tg.rms_norm %blk.1.ffn_residual
// CHECK-NEXT:      %output.weight = tg.constant "output.weight" : tensor<128x256xf32, #tg.rows<f32>>
// CHECK-NEXT:      %output = tg.matmul %output_norm, %output.weight
// CHECK-NEXT:      %id = tg.argmax %output
// CHECK-NEXT:      tg.advance %id to %token, %position
// CHECK-NEXT:      func.return %output, %id : tensor<1x128xf32>, tensor<1xi32>

// Every op says what it came from.
// RUN: lane-import %S/../../data/models/llama-f32.gguf --locations | filecheck %s --check-prefix=LOCATIONS
// LOCATIONS: %blk.1.ffn_up = tg.matmul {{.*}} loc("blk.1.ffn_up.weight")
// LOCATIONS: %blk.1.ffn_residual = tg.binary add {{.*}} loc("blk.1.ffn_residual")
