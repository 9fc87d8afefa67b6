// RUN: lane-opt %s -p fuse-gemv-bias | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=gemv_bias}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=gemv_bias remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gemv-bias{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-8: gemv_bias held on
// WOULD-NOT: gemv_bias held on
// HELD-NOT: "gemv_bias"

!x = tensor<2x64xf32>
!y = tensor<2x32xf32>
!w = tensor<32x64xf32, #tg.rows<q8_0>>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "gemv_bias" {
// CHECK-NEXT:      %[[Y:.+]] = tg.matmul[0] %x, %w
// CHECK-NEXT:      tg.binary[1] add %[[Y]], %b
// WHY: remark: @fires: gemv_bias fired on [0, 1]
func.func @fires(%x: !x, %w: !w, %b: tensor<32xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary add %y, %b : (!y, tensor<32xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @plain_weight(
// CHECK-NEXT:    tg.fused "gemv_bias" {
// WHY-NEXT: remark: @plain_weight: gemv_bias fired on [0, 1]
func.func @plain_weight(%x: !x, %w: tensor<32x64xf32>, %b: tensor<32xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, tensor<32x64xf32>) -> !y
  %z = tg.binary add %y, %b : (!y, tensor<32xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @product_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @product_read_again: gemv_bias refused on [0, 1]: matmul[0] has another reader, and the launch would not write its result
func.func @product_read_again(%x: !x, %w: !w, %b: tensor<32xf32>) -> (!y, !y) {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary add %y, %b : (!y, tensor<32xf32>) -> !y
  func.return %y, %z : !y, !y
}

// CHECK-LABEL: func.func @view_between(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @view_between: gemv_bias refused on [0, 1, 2]: view[1] stands between matmul[0] and its bias: the rows differ
func.func @view_between(%x: !x, %w: !w, %b: tensor<16xf32>) -> tensor<4x16xf32> {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %v = tg.view %y from 0 : (!y) -> tensor<4x16xf32>
  %z = tg.binary add %v, %b : (tensor<4x16xf32>, tensor<16xf32>) -> tensor<4x16xf32>
  func.return %z : tensor<4x16xf32>
}

// CHECK-LABEL: func.func @column(
// CHECK-NOT:     tg.fused
func.func @column(%x: !x, %w: !w, %b: tensor<2x1xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary add %y, %b : (!y, tensor<2x1xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @scaled_by_a_row(
// CHECK-NOT:     tg.fused
func.func @scaled_by_a_row(%x: !x, %w: !w, %b: tensor<32xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary mul %y, %b : (!y, tensor<32xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @scaled_before(
// CHECK-NOT:     "gemv_bias"
// WHY-NEXT: remark: @scaled_before: gemv_bias refused on [0, 1, 2]: scale[1] stands between matmul[0] and the bias
func.func @scaled_before(%x: !x, %w: !w, %b: tensor<32xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %s = tg.scale %y by 2.0 : (!y) -> !y
  %z = tg.binary add %s, %b : (!y, tensor<32xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @scale(
// CHECK-NEXT:    tg.fused "gemv_bias" {
// CHECK-NEXT:      %[[Y:.+]] = tg.matmul[0] %x, %w
// CHECK-NEXT:      tg.binary[1] mul %[[Y]], %s
// WHY-NEXT: remark: @scale: gemv_bias fired on [0, 1]
func.func @scale(%x: !x, %w: !w, %s: tensor<1xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary mul %y, %s : (!y, tensor<1xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @scale_then_bias(
// CHECK-NEXT:    tg.fused "gemv_bias" {
// CHECK-NEXT:      %[[Y:.+]] = tg.fused "gemv_bias" {
// CHECK:           tg.binary[2] add %[[Y]], %b
// WHY-NEXT: remark: @scale_then_bias: gemv_bias fired on [0, 1]
// WHY-NEXT: remark: @scale_then_bias: gemv_bias fired on [0, 1, 2]
func.func @scale_then_bias(%x: !x, %w: !w, %s: tensor<1xf32>, %b: tensor<32xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary mul %y, %s : (!y, tensor<1xf32>) -> !y
  %u = tg.binary add %z, %b : (!y, tensor<32xf32>) -> !y
  func.return %u : !y
}

// CHECK-LABEL: func.func @bias_then_scale(
// CHECK-NEXT:    tg.fused "gemv_bias" {
// CHECK-NEXT:      %[[Y:.+]] = tg.fused "gemv_bias" {
// CHECK:           tg.binary[2] mul %[[Y]], %s
// WHY-NEXT: remark: @bias_then_scale: gemv_bias fired on [0, 1]
// WHY-NEXT: remark: @bias_then_scale: gemv_bias fired on [0, 1, 2]
func.func @bias_then_scale(%x: !x, %w: !w, %s: tensor<1xf32>, %b: tensor<32xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary add %y, %b : (!y, tensor<32xf32>) -> !y
  %u = tg.binary mul %z, %s : (!y, tensor<1xf32>) -> !y
  func.return %u : !y
}

// CHECK-LABEL: func.func @two_scales(
// CHECK-COUNT-1: "gemv_bias"
// CHECK-NOT:     "gemv_bias"
// WHY-NEXT: remark: @two_scales: gemv_bias fired on [0, 1]
// WHY-NEXT: remark: @two_scales: gemv_bias refused on [0, 1, 2]: its parts are no product, a scale and a bias of it, and where it lands
func.func @two_scales(%x: !x, %w: !w, %s: tensor<1xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary mul %y, %s : (!y, tensor<1xf32>) -> !y
  %u = tg.binary mul %z, %s : (!y, tensor<1xf32>) -> !y
  func.return %u : !y
}

// A value added to all is neither.
// CHECK-LABEL: func.func @one_value_added(
// CHECK-NOT:     tg.fused
func.func @one_value_added(%x: !x, %w: !w, %s: tensor<1xf32>) -> !y {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %z = tg.binary add %y, %s : (!y, tensor<1xf32>) -> !y
  func.return %z : !y
}

// CHECK-LABEL: func.func @scale_through_a_view(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @scale_through_a_view: gemv_bias refused on [0, 1, 2]: view[1] stands between matmul[0] and its scale: the rows differ
func.func @scale_through_a_view(%x: !x, %w: !w, %s: tensor<1xf32>) -> tensor<4x16xf32> {
  %y = tg.matmul %x, %w : (!x, !w) -> !y
  %v = tg.view %y from 0 : (!y) -> tensor<4x16xf32>
  %z = tg.binary mul %v, %s : (tensor<4x16xf32>, tensor<1xf32>) -> tensor<4x16xf32>
  func.return %z : tensor<4x16xf32>
}

// WHY-NOT: remark
