// RUN: lane-opt %s -p link --verify-diagnostics --split-input-file | filecheck %s
// RUN: lane-opt %s -p 'link{numerics=int8}' --verify-diagnostics --split-input-file | filecheck %s --check-prefix=INT8

// What no kernel runs is refused by op, result and reason.

!x = tensor<1x64xf32>
!id = tensor<1xi32>
!i = memref<1xi32>

// CHECK: advance[1]{{.*}} runs only with its arg-max: run fuse first, whose closing rule joins them
// INT8: advance[1]{{.*}} runs only with its arg-max
func.func @unclosed(%x: !x, %token: !i, %pos: !i) -> !id {
  %id = tg.argmax %x : (!x) -> !id
  tg.advance %id to %token, %pos : !id, !i, !i
  func.return %id : !id
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "nonsense"[0]{{.*}}, which computes %y: no kernel runs "nonsense"[0]
// INT8: no kernel runs "nonsense"[0]
func.func @unknown_class(%x: !x) -> !x {
  %y = tg.fused "nonsense" {
    %a = tg.unary silu %x : (!x) -> !x
    tg.yield %a : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: no kernel for "act_gate"[0, 1]{{.*}}, which computes %y: its parts are no activation and the product by it
// INT8: its parts are no activation and the product by it
func.func @wrong_class(%x: !x) -> !x {
  %y = tg.fused "act_gate" {
    %a = tg.unary silu %x : (!x) -> !x
    %b = tg.binary add %a, %x : (!x, !x) -> !x
    tg.yield %b : !x
  }
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>

// CHECK: unary[0]{{.*}} has another reader, and the launch would not write its result
// INT8: has another reader
func.func @yields_too_much(%x: !x) -> (!x, !x) {
  %y, %z = tg.fused "act_gate" {
    %a = tg.unary silu %x : (!x) -> !x
    %b = tg.binary mul %a, %x : (!x, !x) -> !x
    tg.yield %b, %a : !x, !x
  }
  func.return %y, %z : !x, !x
}

// -----

!x = tensor<2x64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!cache = memref<16x64xf32>
!i = memref<1xi32>

// CHECK: does not write its result into rows of a table
// INT8: does not write its result into rows of a table
func.func @first_row_lands(%x: !x, %w: !w, %k: !cache, %pos: !i) {
  tg.fused "row_write" {
    %y = tg.matmul %x, %w : (!x, !w) -> !x
    %v = tg.view %y from 0 : (!x) -> tensor<1x64xf32>
    tg.set_row %v into %k[%pos] : tensor<1x64xf32>, !cache, !i
    tg.yield
  }
  func.return
}

// -----

!x = tensor<1x64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!cache = memref<16x64xf32>
!i = memref<1xi32>

// CHECK: both touch %k, and the launch runs them at once
// INT8: both touch %k, and the launch runs them at once
func.func @one_row_twice(%x: !x, %w: !w, %k: !cache, %pos: !i) {
  tg.fused "gemv_parts" {
    tg.fused "row_write" {
      %y = tg.matmul %x, %w : (!x, !w) -> !x
      tg.set_row %y into %k[%pos] : !x, !cache, !i
      tg.yield
    }
    tg.fused "row_write" {
      %z = tg.matmul %x, %w : (!x, !w) -> !x
      tg.set_row %z into %k[%pos] : !x, !cache, !i
      tg.yield
    }
    tg.yield
  }
  func.return
}

// -----

!x = tensor<1x64xf32>
!q = tensor<1x64xf32, #tg.quantized<two_pass_int8>>
!w = tensor<64x64xf32, #tg.rows<q8_0>>

// CHECK: it quantizes to two_pass_int8, and the step is compiled for dequant
// INT8: it quantizes to two_pass_int8, and the step is compiled for int8
func.func @other_numerics(%x: !x, %w: !w) -> !x {
  %q = tg.quantize %x : !x -> !q
  %y = tg.matmul %q, %w : (!q, !w) -> !x
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!q = tensor<1x64xf32, #tg.quantized<int8>>
!w = tensor<64x64xf32>

// CHECK: it quantizes to int8, and the step is compiled for dequant
// INT8: its activation is quantized, and the kernel of a product by f32 takes it plain
func.func @plain_weight(%x: !x, %w: !w) -> !x {
  %q = tg.quantize %x : !x -> !q
  %y = tg.matmul %q, %w : (!q, !w) -> !x
  func.return %y : !x
}

// -----

!x = tensor<1x64xf32>
!y = tensor<2x64xf32>

// CHECK: it would write over a tensor that the step does not compute
// INT8: it would write over a tensor that the step does not compute
func.func @insert_into_an_argument(%x: !x, %y: !y) -> !y {
  %z = tg.insert %x into %y every 128 from 0 : (!x, !y) -> !y
  func.return %z : !y
}
