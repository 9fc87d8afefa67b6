// RUN: lane-opt %s -p fuse-gather-scale | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=gather_scale}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=gather_scale remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gather-scale{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-1: gather_scale held on
// WOULD-NOT: gather_scale held on
// HELD-NOT: "gather_scale"

!table = tensor<50x64xf32, #tg.rows<q8_0>>
!ids = memref<2xi32>
!x = tensor<2x64xf32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "gather_scale" {
// CHECK-NEXT:      %[[X:.+]] = tg.gather[0] %table[%ids]
// CHECK-NEXT:      tg.scale[1] %[[X]] by 8.000000e+00
// WHY: remark: @fires: gather_scale fired on [0, 1]
func.func @fires(%table: !table, %ids: !ids) -> !x {
  %x = tg.gather %table[%ids] : (!table, !ids) -> !x
  %y = tg.scale %x by 8.0 : (!x) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @row_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @row_read_again: gather_scale refused on [0, 1]: gather[0] has another reader, and the launch would not write its result
func.func @row_read_again(%table: !table, %ids: !ids) -> (!x, !x) {
  %x = tg.gather %table[%ids] : (!table, !ids) -> !x
  %y = tg.scale %x by 8.0 : (!x) -> !x
  func.return %x, %y : !x, !x
}

// The token moves on between the gather and the scale.
// CHECK-LABEL: func.func @token_written_between(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @token_written_between: gather_scale refused on [0, 2]: advance[1] stands between and touches the same state as gather[0]
func.func @token_written_between(%table: !table, %id: tensor<1xi32>, %token: memref<1xi32>, %pos: memref<1xi32>)
    -> tensor<1x64xf32> {
  %x = tg.gather %table[%token] : (!table, memref<1xi32>) -> tensor<1x64xf32>
  tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, memref<1xi32>
  %y = tg.scale %x by 8.0 : (tensor<1x64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// WHY-NOT: remark
