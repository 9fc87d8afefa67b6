// RUN: lane-opt %s -p 'fuse{numerics=int8}' | filecheck %s
// RUN: lane-opt %s -p 'fuse{numerics=int8 held=fused_quant}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p fuse | filecheck %s --check-prefix=F32
// RUN: lane-opt %s -p 'fuse{numerics=int8 held=fused_quant remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse{numerics=int8 remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-6: fused_quant held on
// WOULD-NOT: fused_quant held on
// HELD-NOT: _quant"
// F32-NOT: tg.quantize

!x = tensor<2x64xf32>
!n = tensor<64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>

// CHECK-LABEL: func.func @norm(
// CHECK-NEXT:    %[[Q:.+]] = tg.fused "norm_quant" {
// CHECK-NEXT:      %[[Y:.+]] = tg.rms_norm[0]
// CHECK-NEXT:      tg.quantize[2] %[[Y]] : tensor<2x64xf32> -> tensor<2x64xf32, #tg.quantized<int8>>
// CHECK-NEXT:      tg.yield %{{.+}} : tensor<2x64xf32, #tg.quantized<int8>>
// CHECK-NEXT:    }
// CHECK-NEXT:    tg.matmul[1] %[[Q]], %w
// HELD-LABEL: func.func @norm(
// HELD:         tg.quantize[2]
// WHY: remark: @norm: fused_quant fired on [0, 2]
func.func @norm(%x: !x, %n: !n, %w: !w) -> !x {
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z : !x
}

// Plain too, for whoever reads it so.
// CHECK-LABEL: func.func @read_plain_too(
// CHECK-NEXT:    %[[Y:.+]], %[[Q:.+]] = tg.fused "norm_quant" {
// CHECK:         func.return %{{.+}}, %[[Y]]
// WHY: remark: @read_plain_too: fused_quant fired on [0, 2]
func.func @read_plain_too(%x: !x, %n: !n, %w: !w) -> (!x, !x) {
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z, %y : !x, !x
}

// CHECK-LABEL: func.func @gating(
// CHECK-NEXT:    tg.fused "glu_act_mul_quant" {
// WHY: remark: @gating: fused_quant fired on [0, 1, 3]
func.func @gating(%g: !x, %u: !x, %w: !w) -> !x {
  %a = tg.unary silu %g : (!x) -> !x
  %y = tg.binary mul %a, %u : (!x, !x) -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @sum(
// CHECK-NEXT:    tg.fused "elementwise_quant" {
// WHY: remark: @sum: fused_quant fired on [0, 2]
func.func @sum(%a: !x, %b: !x, %w: !w) -> !x {
  %y = tg.binary add %a, %b : (!x, !x) -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @attention(
// CHECK-NEXT:    tg.fused "attn_output_quant" {
// WHY: remark: @attention: fused_quant fired on [0, 2]
func.func @attention(%q: !x, %k: memref<16x64xf32>, %pos: memref<1xi32>, %w: !w) -> !x {
  %y = tg.attention %q, %k, %k at %pos heads 2 / 2 scale 0.2
    : !x, memref<16x64xf32>, memref<16x64xf32>, memref<1xi32> -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z : !x
}

// The kernel of an activation does not quantize.
// CHECK-LABEL: func.func @activation(
// CHECK-NEXT:    %[[Y:.+]] = tg.unary[0]
// CHECK-NEXT:    %[[Q:.+]] = tg.quantize[2] %[[Y]]
// CHECK-NEXT:    tg.matmul[1] %[[Q]]
// WHY: remark: @activation: fused_quant refused on [0, 2]: the kernel of unary does not quantize its result
func.func @activation(%x: !x, %w: !w) -> !x {
  %y = tg.unary silu %x : (!x) -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z : !x
}

// A weight that is no block format takes its activation plain.
// CHECK-LABEL: func.func @plain_weight(
// CHECK-NOT:     tg.quantize
func.func @plain_weight(%x: !x, %n: !n, %w: tensor<64x64xf32, #tg.rows<f16>>) -> !x {
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  %z = tg.matmul %y, %w : (!x, tensor<64x64xf32, #tg.rows<f16>>) -> !x
  func.return %z : !x
}

// A row of whole blocks is a view of the blocks.
// CHECK-LABEL: func.func @last_row(
// CHECK-NEXT:    %[[Q:.+]] = tg.fused "norm_quant" {
// CHECK:         %[[V:.+]] = tg.view[1] %[[Q]] from 64 : (tensor<2x64xf32, #tg.quantized<int8>>)
// CHECK:         tg.matmul[2] %[[V]]
// WHY: remark: @last_row: fused_quant fired on [0, 3]
func.func @last_row(%x: !x, %n: !n, %w: !w) -> tensor<1x64xf32> {
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  %v = tg.view %y from 64 : (!x) -> tensor<1x64xf32>
  %z = tg.matmul %v, %w : (tensor<1x64xf32>, !w) -> tensor<1x64xf32>
  func.return %z : tensor<1x64xf32>
}

// CHECK-LABEL: func.func @plain_product(
// CHECK-NOT:     _quant"
// CHECK:         func.return
// WHY: remark: @plain_product: fused_quant refused on [0, 2]: the kernel of a product by plain f32 values does not quantize its result
func.func @plain_product(%x: !x, %p: tensor<64x64xf32>, %w: !w) -> !x {
  %y = tg.matmul %x, %p : (!x, tensor<64x64xf32>) -> !x
  %z = tg.matmul %y, %w : (!x, !w) -> !x
  func.return %z : !x
}

// WHY-NOT: fused_quant fired
