// RUN: lane-opt %s -p fuse-add-norm,fuse-sandwich-norm,fuse-gemv-norm-epilogue | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=gemv_norm_epilogue}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=gemv_norm_epilogue remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-add-norm,fuse-sandwich-norm,fuse-gemv-norm-epilogue{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-5: gemv_norm_epilogue held on
// WOULD-NOT: gemv_norm_epilogue held on
// HELD-NOT: "gemv_norm_epilogue"

!x = tensor<2x64xf32>
!n = tensor<64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>

// CHECK-LABEL: func.func @norm_alone(
// CHECK-NEXT:    tg.fused "gemv_norm_epilogue" {
// CHECK-NEXT:      %[[Y:.+]] = tg.matmul[0] %x, %w
// CHECK-NEXT:      tg.rms_norm[1] %[[Y]] weight %n eps 1.000000e-05
// WHY: remark: @norm_alone: gemv_norm_epilogue fired on [0, 1]
func.func @norm_alone(%x: !x, %w: !w, %n: !n) -> !x {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %z = tg.rms_norm %y weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @residual(
// CHECK-NEXT:    %[[SUM:.+]], %[[Z:.+]] = tg.fused "gemv_norm_epilogue" {
// CHECK-NEXT:      %[[Y:.+]] = tg.matmul[0] %x, %w
// CHECK-NEXT:      %{{.+}}, %{{.+}} = tg.fused "add_norm" {
// CHECK-NEXT:        tg.binary[1] add %x, %[[Y]]
// CHECK:         func.return %[[SUM]], %[[Z]]
// WHY-NEXT: remark: @residual: gemv_norm_epilogue fired on [0, 1, 2]
func.func @residual(%x: !x, %w: !w, %n: !n) -> (!x, !x) {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %sum = tg.binary add %x, %y : (!x, !x) -> !x
  %z = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %sum, %z : !x, !x
}

// CHECK-LABEL: func.func @product_first(
// CHECK-NEXT:    tg.fused "gemv_norm_epilogue" {
// WHY-NEXT: remark: @product_first: gemv_norm_epilogue fired on [0, 1, 2]
func.func @product_first(%x: !x, %w: !w, %n: !n) -> !x {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %sum = tg.binary add %y, %x : (!x, !x) -> !x
  %z = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @sandwich(
// CHECK-NEXT:    tg.fused "gemv_norm_epilogue" {
// CHECK-NEXT:      tg.matmul[0] %x, %w
// CHECK-NEXT:      tg.fused "sandwich_norm" {
// WHY-NEXT: remark: @sandwich: gemv_norm_epilogue fired on [0, 1, 2, 3]
func.func @sandwich(%x: !x, %w: !w, %n: !n, %m: !n) -> !x {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %branch = tg.rms_norm %y weight %m eps 1.0e-6 : (!x, !n) -> !x
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %z = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %z : !x
}

// The product is written anyway: others may read it.
// CHECK-LABEL: func.func @product_read_again(
// CHECK-NEXT:    %{{.+}}, %{{.+}} = tg.fused "gemv_norm_epilogue" {
// WHY-NEXT: remark: @product_read_again: gemv_norm_epilogue fired on [0, 1]
func.func @product_read_again(%x: !x, %w: !w, %n: !n) -> (!x, !x) {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %z = tg.rms_norm %y weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %y, %z : !x, !x
}

// CHECK-LABEL: func.func @plain_weight(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @plain_weight: gemv_norm_epilogue refused on [0, 1]: the kernel of a product by plain f32 values has no epilogue
func.func @plain_weight(%x: !x, %w: tensor<64x64xf32>, %n: !n) -> !x {
  %y = tg.matmul %x, %w : (!x, tensor<64x64xf32>) -> !x
  %z = tg.rms_norm %y weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @norm_of_heads(
// CHECK-NOT:     tg.fused
func.func @norm_of_heads(%x: !x, %w: !w, %n: tensor<32xf32>) -> tensor<4x32xf32> {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %v = tg.view %y from 0 : (!x) -> tensor<4x32xf32>
  %z = tg.rms_norm %v weight %n eps 1.0e-5 : (tensor<4x32xf32>, tensor<32xf32>) -> tensor<4x32xf32>
  func.return %z : tensor<4x32xf32>
}

// Rows beyond 16 are computed in tiles, which have no last block.
// CHECK-LABEL: func.func @many_rows(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @many_rows: gemv_norm_epilogue refused on [0, 1]: the product of 17 rows runs in tiles, which have no epilogue (up to 16 rows do)
func.func @many_rows(%x: tensor<17x64xf32>, %w: !w, %n: !n) -> tensor<17x64xf32> {
  %y = tg.matmul %x, %w : (tensor<17x64xf32>, !w) -> tensor<17x64xf32>
  %z = tg.rms_norm %y weight %n eps 1.0e-5 : (tensor<17x64xf32>, !n) -> tensor<17x64xf32>
  func.return %z : tensor<17x64xf32>
}

// CHECK-LABEL: func.func @scaled_before(
// CHECK-NOT:     "gemv_norm_epilogue"
// WHY-NEXT: remark: @scaled_before: gemv_norm_epilogue refused on [0, 1, 2, 3]: scale[1] stands between matmul[0] and the norm
func.func @scaled_before(%x: tensor<2x64xf32>, %r: tensor<2x64xf32>, %w: tensor<64x64xf32, #tg.rows<q8_0>>,
                         %n: tensor<64xf32>) -> tensor<2x64xf32> {
  %p = tg.matmul %x, %w : (tensor<2x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<2x64xf32>
  %q = tg.scale %p by 2.0 : (tensor<2x64xf32>) -> tensor<2x64xf32>
  %s = tg.binary add %r, %q : (tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %y = tg.rms_norm %s weight %n eps 1.0e-5 : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32>
  func.return %y : tensor<2x64xf32>
}

// WHY-NOT: remark
