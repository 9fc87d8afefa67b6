// RUN: lane-opt %s -p link | filecheck %s
// RUN: lane-opt %s -p fuse,link | filecheck %s --check-prefix=FUSED

// Each op as the launch that runs it, in the order of the step; fused, one launch for all that it covers.

!x = tensor<1x64xf32>
!heads = tensor<2x32xf32>
!n = tensor<64xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!cache = memref<16x64xf32>
!table = tensor<16x16xf32>
!pos = memref<1xi32>

// CHECK-LABEL: launch.schedule @step
// CHECK:         launch.norm {{.*}} covers [0]
// CHECK-NEXT:    launch.gemv {{.*}} covers [1]
// CHECK-NEXT:    launch.view {{.*}} covers [2]
// CHECK-NEXT:    launch.rope {{.*}} covers [3]
// CHECK-NEXT:    launch.view {{.*}} covers [4]
// CHECK-NEXT:    launch.set_row {{.*}} covers [5]
// CHECK-NEXT:    launch.attention {{.*}} covers [6]
// CHECK-NEXT:    launch.gemv {{.*}} covers [7]
// CHECK-NEXT:    launch.binary {{.*}} covers [8]
// CHECK-NEXT:    launch.norm {{.*}} covers [9]
// CHECK-NEXT:    launch.yield

// FUSED-LABEL: launch.schedule @step
// FUSED:         launch.norm {{.*}} covers [0]
// FUSED-NEXT:    launch.fold {
// FUSED-NEXT:      launch.gemv
// FUSED-NEXT:      launch.rope_parts {{.*}} covers [3, 4, 5] by [row_write]
// FUSED-NEXT:    } covers [1, 2, 3, 4, 5] by [row_write, qkv_head_epilogue]
// FUSED-NEXT:    launch.attention {{.*}} covers [6]
// FUSED-NEXT:    launch.fold {
// FUSED-NEXT:      launch.gemv
// FUSED-NEXT:      launch.norm
// FUSED-NEXT:    } covers [7, 8, 9] by [add_norm, gemv_norm_epilogue]
// FUSED-NEXT:    launch.yield
func.func @step(%x: !x, %token: !pos {tg.arg = #tg.arg<token, 0>}, %pos: !pos {tg.arg = #tg.arg<position, 0>},
                %k: !cache {tg.arg = #tg.arg<kv_cache, 0, "k">}) -> !x {
  %n = tg.constant "norm" : !n
  %wk = tg.constant "wk" : !w
  %wo = tg.constant "wo" : !w
  %cos, %sin = tg.rope_table base 1.0e4 freq_scale 1.0 ext_factor 0.0 attn_factor 1.0 beta 32.0, 1.0
    original_context 0 -> !table, !table
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  %p = tg.matmul %y, %wk : (!x, !w) -> !x
  %h = tg.view %p from 0 : (!x) -> !heads
  %r = tg.rope %h by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  %v = tg.view %r from 0 : (!heads) -> !x
  tg.set_row %v into %k[%pos] : !x, !cache, !pos
  %a = tg.attention %y, %k, %k at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %o = tg.matmul %a, %wo : (!x, !w) -> !x
  %sum = tg.binary add %x, %o : (!x, !x) -> !x
  %z = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %z : !x
}
