// RUN: lane-opt %s -p fuse-gemv-bias,fuse-head-norm-rope,fuse-row-write,fuse-qkv-head-epilogue | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=qkv_head_epilogue}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=qkv_head_epilogue remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gemv-bias,fuse-head-norm-rope,fuse-row-write,fuse-qkv-head-epilogue{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: qkv_head_epilogue held on
// WOULD-NOT: qkv_head_epilogue held on
// HELD-NOT: "qkv_head_epilogue"

!x = tensor<2x64xf32>
!heads = tensor<4x32xf32>
!n = tensor<32xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!table = tensor<16x16xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @query(
// CHECK-NEXT:    tg.fused "qkv_head_epilogue" {
// CHECK-NEXT:      %[[Y:.+]] = tg.matmul[0] %x, %w
// CHECK-NEXT:      %[[V:.+]] = tg.view[1] %[[Y]] from 0
// CHECK-NEXT:      tg.rope[2] %[[V]]
// WHY: remark: @query: qkv_head_epilogue fired on [0, 1, 2]
func.func @query(%x: !x, %w: !w, %cos: !table, %sin: !table, %pos: !pos) -> !heads {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %v = tg.view %y from 0 : (!x) -> !heads
  %z = tg.rope %v by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %z : !heads
}

// With its bias, the norm of its heads, and the row of a cache that it lands in.
// CHECK-LABEL: func.func @key(
// CHECK-NEXT:    tg.fused "qkv_head_epilogue" {
// CHECK-NEXT:      tg.fused "gemv_bias" {
// CHECK:           tg.view[2]
// CHECK-NEXT:      tg.fused "row_write" {
// CHECK-NEXT:        tg.fused "head_norm_rope" {
// WHY-NEXT: remark: @key: qkv_head_epilogue fired on [0, 1, 2, 3, 4, 5, 6]
func.func @key(%x: !x, %w: !w, %b: tensor<64xf32>, %n: !n, %cos: !table, %sin: !table, %k: memref<16x64xf32>,
               %pos: !pos) {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %c = tg.binary add %y, %b : (!x, tensor<64xf32>) -> !x
  %v = tg.view %c from 0 : (!x) -> !heads
  %m = tg.rms_norm %v weight %n eps 1.0e-6 : (!heads, !n) -> !heads
  %z = tg.rope %m by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  %r = tg.view %z from 0 : (!heads) -> !x
  tg.set_row %r into %k[%pos] : !x, memref<16x64xf32>, !pos
  func.return
}

// CHECK-LABEL: func.func @plain_weight(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @plain_weight: qkv_head_epilogue refused on [0, 1, 2]: the kernel of a product by plain f32 values has no epilogue
func.func @plain_weight(%x: !x, %w: tensor<64x64xf32>, %cos: !table, %sin: !table, %pos: !pos) -> !heads {
  %y = tg.matmul %x, %w : (!x, tensor<64x64xf32>) -> !x
  %v = tg.view %y from 0 : (!x) -> !heads
  %z = tg.rope %v by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %z : !heads
}

// CHECK-LABEL: func.func @product_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @product_read_again: qkv_head_epilogue refused on [0, 1, 2]: matmul[0] has another reader, func.return
func.func @product_read_again(%x: !x, %w: !w, %cos: !table, %sin: !table, %pos: !pos) -> (!x, !heads) {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %v = tg.view %y from 0 : (!x) -> !heads
  %z = tg.rope %v by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  func.return %y, %z : !x, !heads
}

// CHECK-LABEL: func.func @first_row(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @first_row: qkv_head_epilogue refused on [0, 1, 2]: view[1] takes some rows of a result that is computed as a whole
func.func @first_row(%x: !x, %w: !w, %cos: !table, %sin: !table, %pos: !pos) -> tensor<2x32xf32> {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %v = tg.view %y from 0 : (!x) -> tensor<2x32xf32>
  %z = tg.rope %v by %cos, %sin at %pos heads 2 half : (tensor<2x32xf32>, !table, !table, !pos) -> tensor<2x32xf32>
  func.return %z : tensor<2x32xf32>
}

// CHECK-LABEL: func.func @many_rows(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @many_rows: qkv_head_epilogue refused on [0, 1, 2]: the product of 17 rows runs in tiles, which have no epilogue (up to 16 rows do)
func.func @many_rows(%x: tensor<17x64xf32>, %w: !w, %cos: tensor<17x16xf32>, %sin: tensor<17x16xf32>, %pos: !pos)
    -> tensor<34x32xf32> {
  %y = tg.matmul %x, %w : (tensor<17x64xf32>, !w) -> tensor<17x64xf32>
  %v = tg.view %y from 0 : (tensor<17x64xf32>) -> tensor<34x32xf32>
  %z = tg.rope %v by %cos, %sin at %pos heads 2 half
    : (tensor<34x32xf32>, tensor<17x16xf32>, tensor<17x16xf32>, !pos) -> tensor<34x32xf32>
  func.return %z : tensor<34x32xf32>
}

// CHECK-LABEL: func.func @scaled_before(
// CHECK-NOT:     "qkv_head_epilogue"
// WHY-NEXT: remark: @scaled_before: qkv_head_epilogue refused on [0, 1, 3]: scale[1] stands between matmul[0] and the rotation
func.func @scaled_before(%x: tensor<1x64xf32>, %w: tensor<64x64xf32, #tg.rows<q8_0>>, %cos: tensor<16x16xf32>,
                         %sin: tensor<16x16xf32>, %pos: memref<1xi32>) -> tensor<2x32xf32> {
  %p = tg.matmul %x, %w : (tensor<1x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<1x64xf32>
  %q = tg.scale %p by 2.0 : (tensor<1x64xf32>) -> tensor<1x64xf32>
  %h = tg.view %q from 0 : (tensor<1x64xf32>) -> tensor<2x32xf32>
  %y = tg.rope %h by %cos, %sin at %pos heads 2 half
    : (tensor<2x32xf32>, tensor<16x16xf32>, tensor<16x16xf32>, memref<1xi32>) -> tensor<2x32xf32>
  func.return %y : tensor<2x32xf32>
}

// WHY-NOT: remark
