// A step of two sequences: products of both rows at once, what has a position or state once for each.
// RUN: lane-import %S/../../data/models/llama-Q4_K_M.gguf --sequences 2 --context 32 | filecheck %s
// RUN: lane-opt -f "gguf{sequences=2 context=32}" %S/../../data/models/llama-Q4_K_M.gguf | filecheck %s
// RUN: not lane-import %S/../../data/models/llama-Q4_K_M.gguf --sequences 17 2>&1 | filecheck %s --check-prefix=MANY
// RUN: not lane-import %S/../../data/models/llama-Q4_K_M.gguf --sequences 2 --rows 4 2>&1 | filecheck %s --check-prefix=ROWS

// MANY: lane-import: error: sequences is 17, expected 1 to 16
// ROWS: lane-import: error: a step of 2 sequences takes one token of each, not 4 rows

// CHECK: func.func @step(%token: memref<2xi32> {tg.arg = #tg.arg<token, 0, "token">},
// CHECK-SAME: %position: memref<1xi32> {tg.arg = #tg.arg<position, 0, "position">},
// CHECK-SAME: %position_1: memref<1xi32> {tg.arg = #tg.arg<position, 1, "position">},
// CHECK-SAME: %blk.0.k: memref<32x128xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">},
// CHECK-SAME: %blk.0.v: memref<32x128xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.v">},
// CHECK-SAME: %blk.0.k_1: memref<32x128xf32> {tg.arg = #tg.arg<kv_cache, 1, "blk.0.k">},
// CHECK-SAME: -> (tensor<2x128xf32>, tensor<1xi32>, tensor<1xi32>)
// CHECK: %blk.0.attn_q = tg.matmul {{.*}} -> tensor<2x256xf32>
// CHECK: tg.view %blk.0.attn_q from 0 : (tensor<2x256xf32>) -> tensor<1x256xf32>
// CHECK: tg.set_row {{.*}} into %blk.0.k[%position]
// CHECK: [[FIRST:%.*]] = tg.attention {{.*}}%position
// CHECK: tg.view %blk.0.attn_q from 256 : (tensor<2x256xf32>) -> tensor<1x256xf32>
// CHECK: tg.set_row {{.*}} into %blk.0.k_1[%position_1]
// CHECK: [[SECOND:%.*]] = tg.attention {{.*}}%position_1
// CHECK: [[EMPTY:%.*]] = tg.empty : tensor<2x256xf32>
// CHECK-NEXT: [[ONE:%.*]] = tg.insert [[FIRST]] into [[EMPTY]] every 512 from 0
// CHECK-NEXT: [[BOTH:%.*]] = tg.insert [[SECOND]] into [[ONE]] every 512 from 256
// CHECK: %blk.0.attn_output = tg.matmul [[BOTH]]
// CHECK: %last_logits = tg.view %output from 0
// CHECK-NEXT: %id = tg.argmax %last_logits
// CHECK-NEXT: tg.advance %id to %token, %position :
// CHECK-NEXT: %last_logits_1 = tg.view %output from 128
// CHECK-NEXT: %id_1 = tg.argmax %last_logits_1
// CHECK-NEXT: tg.advance %id_1 to %token item 1, %position_1 :
// CHECK-NEXT: func.return %output, %id, %id_1
