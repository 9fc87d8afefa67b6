// RUN: lane-opt %s -p fuse-gemv-bias,fuse-row-write,fuse-gemv-parts | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=gemv_parts}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=gemv_parts remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gemv-bias,fuse-row-write,fuse-gemv-parts{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY
// RUN: lane-opt %s -p 'fuse{held=sequences,add_norm,rows_a_warp}' -o /dev/null 2>&1 | filecheck %s --check-prefix=PLAN

// PLAN: warning: fuse: sequences,rows_a_warp is held in plan, where it acts: plan{held=sequences,rows_a_warp}
// WOULD-COUNT-4: gemv_parts held on
// WOULD-NOT: gemv_parts held on
// HELD-NOT: "gemv_parts"

!x = tensor<2x64xf32>
!y = tensor<2x32xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!n = tensor<32x64xf32, #tg.rows<q8_0>>
!q4 = tensor<64x64xf32, #tg.rows<q4_0>>
!f16 = tensor<64x64xf32, #tg.rows<f16>>
!cache = memref<16x64xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @queries_keys_values(
// CHECK-NEXT:    %{{.+}}, %{{.+}} = tg.fused "gemv_parts" {
// CHECK-NEXT:      tg.matmul[0] %x, %wq
// CHECK-NEXT:      tg.fused "gemv_bias" {
// CHECK:           tg.fused "row_write" {
// CHECK:           tg.yield %{{.+}}, %{{.+}} : tensor<2x64xf32>, tensor<2x32xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    tg.unary[1]
// WHY: remark: @queries_keys_values: gemv_parts fired on [0, 2, 3, 4, 5]
func.func @queries_keys_values(%x: !x, %wq: !w, %wk: !n, %b: tensor<32xf32>, %wv: !w, %v: !cache, %pos: !pos)
    -> (!x, !y) {
  %q = tg.matmul %x, %wq : (!x, !w) -> !x
  %s = tg.unary silu %q : (!x) -> !x
  %p = tg.matmul %x, %wk : (!x, !n) -> !y
  %k = tg.binary add %p, %b : (!y, tensor<32xf32>) -> !y
  %r = tg.matmul %x, %wv : (!x, !w) -> !x
  tg.set_row %r into %v[%pos] : !x, !cache, !pos
  func.return %s, %k : !x, !y
}

// The constants of those that move up, and views of them, move up as well.
// CHECK-LABEL: func.func @parts_of_one_tensor(
// CHECK-NEXT:    %[[W:.+]] = tg.constant "qkv"
// CHECK-NEXT:    %[[A:.+]] = tg.view[0] %[[W]] from 0
// CHECK-NEXT:    %[[B:.+]] = tg.view[3] %[[W]] from 2048
// CHECK-NEXT:    tg.fused "gemv_parts" {
// CHECK-NEXT:      tg.matmul[1] %x, %[[A]]
// CHECK-NEXT:      tg.matmul[4] %x, %[[B]]
// WHY-NEXT: remark: @parts_of_one_tensor: gemv_parts fired on [1, 4]
func.func @parts_of_one_tensor(%x: !x) -> (!y, !y) {
  %w = tg.constant "qkv" : !w
  %a = tg.view %w from 0 : (!w) -> !n
  %q = tg.matmul %x, %a : (!x, !n) -> !y
  %s = tg.unary silu %q : (!y) -> !y
  %b = tg.view %w from 2048 : (!w) -> !n
  %k = tg.matmul %x, %b : (!x, !n) -> !y
  func.return %s, %k : !y, !y
}

// Blocks of any format read the same form of the activation.
// CHECK-LABEL: func.func @formats_in_blocks(
// CHECK:         tg.fused "gemv_parts" {
// CHECK-NEXT:      tg.matmul[0] %x, %a
// CHECK-NEXT:      tg.matmul[1] %x, %b
// CHECK-NEXT:      tg.yield
// WHY-NEXT: remark: @formats_in_blocks: gemv_parts fired on [0, 1]
func.func @formats_in_blocks(%x: !x, %a: !w, %b: !q4) -> (!x, !x) {
  %p = tg.matmul %x, %a : (!x, !w) -> !x
  %q = tg.matmul %x, %b : (!x, !q4) -> !x
  func.return %p, %q : !x, !x
}

// CHECK-LABEL: func.func @blocks_and_plain_weights(
// CHECK:         tg.fused "gemv_parts" {
// CHECK-NEXT:      tg.matmul[0] %x, %a
// CHECK-NEXT:      tg.matmul[2] %x, %c
// CHECK-NEXT:      tg.yield
// CHECK-NEXT:    }
// CHECK-NEXT:    tg.matmul[1] %x, %b
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @blocks_and_plain_weights: gemv_parts fired on [0, 2]
// WHY-NEXT: remark: @blocks_and_plain_weights: gemv_parts refused on [1]: its weight is stored as f16, those of the activation's other products as q8_0, q4_0
func.func @blocks_and_plain_weights(%x: !x, %a: !w, %b: !f16, %c: !q4) -> (!x, !x, !x) {
  %p = tg.matmul %x, %a : (!x, !w) -> !x
  %q = tg.matmul %x, %b : (!x, !f16) -> !x
  %r = tg.matmul %x, %c : (!x, !q4) -> !x
  func.return %p, %q, %r : !x, !x, !x
}

// CHECK-LABEL: func.func @two_activations(
// CHECK-NOT:     tg.fused
func.func @two_activations(%x: !x, %z: !x, %a: !w, %b: !w) -> (!x, !x) {
  %p = tg.matmul %x, %a : (!x, !w) -> !x
  %q = tg.matmul %z, %b : (!x, !w) -> !x
  func.return %p, %q : !x, !x
}

// CHECK-LABEL: func.func @plain_weights(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @plain_weights: gemv_parts refused on [0, 1]: the kernel of several products takes weights in rows of a format, not plain f32 values
func.func @plain_weights(%x: !x, %a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> (!x, !x) {
  %p = tg.matmul %x, %a : (!x, tensor<64x64xf32>) -> !x
  %q = tg.matmul %x, %b : (!x, tensor<64x64xf32>) -> !x
  func.return %p, %q : !x, !x
}

// One launch would write both rows at once.
// CHECK-LABEL: func.func @one_row_of_one_cache(
// CHECK-NOT:     "gemv_parts"
// WHY-NEXT: remark: @one_row_of_one_cache: gemv_parts refused on [0, 1, 2, 3]: "row_write"[0, 1] and "row_write"[2, 3] both touch %k, and the launch runs them at once
func.func @one_row_of_one_cache(%x: !x, %a: !w, %b: !w, %k: !cache, %pos: !pos) {
  %p = tg.matmul %x, %a : (!x, !w) -> !x
  tg.set_row %p into %k[%pos] : !x, !cache, !pos
  %q = tg.matmul %x, %b : (!x, !w) -> !x
  tg.set_row %q into %k[%pos] : !x, !cache, !pos
  func.return
}

// The second lands in a cache that is read before it.
// CHECK-LABEL: func.func @cache_read_between(
// CHECK-NOT:     "gemv_parts"
// WHY-NEXT: remark: @cache_read_between: gemv_parts refused on [0, 2, 3]: attention[1] stands between and touches the same state as "row_write"[2, 3]
func.func @cache_read_between(%x: !x, %a: !w, %b: !w, %k: !cache, %pos: !pos) -> !x {
  %q = tg.matmul %x, %a : (!x, !w) -> !x
  %y = tg.attention %q, %k, %k at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %r = tg.matmul %x, %b : (!x, !w) -> !x
  tg.set_row %r into %k[%pos] : !x, !cache, !pos
  func.return %y : !x
}

// CHECK-LABEL: func.func @weight_computed_between(
// CHECK-NOT:     "gemv_parts"
// WHY-NEXT: remark: @weight_computed_between: gemv_parts refused on [0, 2]: matmul[2] reads scale[1], which is computed after matmul[0]
func.func @weight_computed_between(%x: tensor<2x64xf32>, %a: tensor<32x64xf32>, %w: tensor<32x64xf32>)
    -> (tensor<2x32xf32>, tensor<2x32xf32>) {
  %y = tg.matmul %x, %a : (tensor<2x64xf32>, tensor<32x64xf32>) -> tensor<2x32xf32>
  %b = tg.scale %w by 2.0 : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %z = tg.matmul %x, %b : (tensor<2x64xf32>, tensor<32x64xf32>) -> tensor<2x32xf32>
  func.return %y, %z : tensor<2x32xf32>, tensor<2x32xf32>
}

// CHECK-LABEL: func.func @beside_one_that_is_normed(
// CHECK-NOT:     "gemv_parts"
// WHY-NEXT: remark: @beside_one_that_is_normed: gemv_parts refused on [2]: the other product of its activation is "gemv_norm_epilogue"[0, 1], whose last block norms its rows
func.func @beside_one_that_is_normed(%x: tensor<1x64xf32>, %w: tensor<64x64xf32, #tg.rows<q8_0>>, %n: tensor<64xf32>)
    -> (tensor<1x64xf32>, tensor<1x64xf32>) {
  %y = tg.fused "gemv_norm_epilogue" {
    %p = tg.matmul %x, %w : (tensor<1x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<1x64xf32>
    %q = tg.rms_norm %p weight %n eps 1.0e-5 : (tensor<1x64xf32>, tensor<64xf32>) -> tensor<1x64xf32>
    tg.yield %q : tensor<1x64xf32>
  }
  %z = tg.matmul %x, %w : (tensor<1x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<1x64xf32>
  func.return %y, %z : tensor<1x64xf32>, tensor<1x64xf32>
}

// WHY-NOT: remark
