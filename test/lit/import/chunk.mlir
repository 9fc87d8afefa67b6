// A chunk computes the head for its last row alone, and does not advance.
// RUN: lane-import %S/../../data/models/llama-Q4_K_M.gguf --rows 4 --numerics int8 --cache f16 --state bf16 --chip l40s | filecheck %s
// RUN: lane-import %S/../../data/models/llama-Q4_K_M.gguf --rows 4 --logits all | filecheck %s --check-prefix=ALL

// CHECK: tg.target = #tg.target<l40s, int8, cache = f16, state = bf16>
// CHECK: %blk.0.attn_output = {{.*}} -> tensor<4x256xf32>
// CHECK: %blk.1.attention = {{.*}} -> tensor<4x256xf32>
// CHECK-NEXT: %blk.1.attention.tail = tg.view %blk.1.attention from 768 : (tensor<4x256xf32>) -> tensor<1x256xf32>
// CHECK: %blk.1.attn_output = {{.*}} -> tensor<1x256xf32>
// CHECK-NEXT: %blk.1.attn_residual.tail = tg.view %blk.0.ffn_residual from 768 : (tensor<4x256xf32>) -> tensor<1x256xf32>
// CHECK-NEXT: %blk.1.attn_residual = tg.binary add %blk.1.attn_residual.tail, %blk.1.attn_output
// CHECK: %output = {{.*}} -> tensor<1x128xf32>
// CHECK-NEXT: %id = tg.argmax %output
// CHECK-NEXT: func.return %output, %id

// ALL-NOT: tail
// ALL: %output = {{.*}} -> tensor<4x128xf32>
// ALL-NEXT: %last_logits = tg.view %output from 384 : (tensor<4x128xf32>) -> tensor<1x128xf32>
// ALL-NEXT: %id = tg.argmax %last_logits
// ALL-NEXT: func.return %output, %id : tensor<4x128xf32>, tensor<1xi32>
