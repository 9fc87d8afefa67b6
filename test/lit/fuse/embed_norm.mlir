// RUN: lane-opt %s -p fuse-gather-scale,fuse-embed-norm | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=embed_norm}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=embed_norm remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-gather-scale,fuse-embed-norm{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: embed_norm held on
// WOULD-NOT: embed_norm held on
// HELD-NOT: "embed_norm"

!table = tensor<50x64xf32, #tg.rows<q8_0>>
!ids = memref<2xi32>
!x = tensor<2x64xf32>
!n = tensor<64xf32>

// The row is written too, for the residual.
// CHECK-LABEL: func.func @row_read_again(
// CHECK-NEXT:    %[[X:.+]], %[[Y:.+]] = tg.fused "embed_norm" {
// CHECK-NEXT:      %[[R:.+]] = tg.gather[0] %table[%ids]
// CHECK-NEXT:      tg.rms_norm[1] %[[R]] weight %n
// CHECK:         func.return %[[X]], %[[Y]]
// WHY: remark: @row_read_again: embed_norm fired on [0, 1]
func.func @row_read_again(%table: !table, %ids: !ids, %n: !n) -> (!x, !x) {
  %x = tg.gather %table[%ids] : (!table, !ids) -> !x
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %x, %y : !x, !x
}

// CHECK-LABEL: func.func @scaled(
// CHECK-NEXT:    tg.fused "embed_norm" {
// CHECK-NEXT:      tg.fused "gather_scale" {
// WHY-NEXT: remark: @scaled: embed_norm fired on [0, 1, 2]
func.func @scaled(%table: !table, %ids: !ids, %n: !n) -> !x {
  %x = tg.gather %table[%ids] : (!table, !ids) -> !x
  %s = tg.scale %x by 8.0 : (!x) -> !x
  %y = tg.rms_norm %s weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @row_read_between(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @row_read_between: embed_norm refused on [0, 2]: gather[0] is read by unary[1], before rms_norm[2]
func.func @row_read_between(%table: !table, %ids: !ids, %n: !n) -> (!x, !x) {
  %x = tg.gather %table[%ids] : (!table, !ids) -> !x
  %s = tg.unary silu %x : (!x) -> !x
  %y = tg.rms_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %s, %y : !x, !x
}

// CHECK-LABEL: func.func @layer_norm(
// CHECK-NOT:     tg.fused
func.func @layer_norm(%table: !table, %ids: !ids, %n: !n) -> !x {
  %x = tg.gather %table[%ids] : (!table, !ids) -> !x
  %y = tg.layer_norm %x weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %y : !x
}

// WHY-NOT: remark
