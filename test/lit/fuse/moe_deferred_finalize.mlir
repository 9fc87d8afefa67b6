// RUN: lane-opt %s -p fuse-add-norm,fuse-moe-deferred-finalize | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=moe_deferred_finalize}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=moe_deferred_finalize remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-add-norm,fuse-moe-deferred-finalize{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: moe_deferred_finalize held on
// WOULD-NOT: moe_deferred_finalize held on
// HELD-NOT: "moe_deferred_finalize"

!x = tensor<2x64xf32>
!n = tensor<64xf32>
!router = tensor<4x64xf32>
!up = tensor<4x32x64xf32, #tg.rows<q8_0>>
!down = tensor<4x64x32xf32, #tg.rows<q8_0>>

// CHECK-LABEL: func.func @residual_first(
// CHECK-NEXT:    %[[SUM:.+]], %[[Y:.+]] = tg.fused "moe_deferred_finalize" {
// CHECK-NEXT:      %[[M:.+]] = tg.moe[0] %x
// CHECK-NEXT:      tg.fused "add_norm" {
// CHECK-NEXT:        tg.binary[1] add %h, %[[M]]
// CHECK-NEXT:        tg.rms_norm[2]
// CHECK:         func.return %[[SUM]], %[[Y]]
// WHY: remark: @residual_first: moe_deferred_finalize fired on [0, 1, 2]
func.func @residual_first(%x: !x, %h: !x, %n: !n, %r: !router, %g: !up, %u: !up, %d: !down) -> (!x, !x) {
  %m = tg.moe %x router %r gate %g up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %sum = tg.binary add %h, %m : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %sum, %y : !x, !x
}

// CHECK-LABEL: func.func @mixture_first(
// CHECK-NEXT:    tg.fused "moe_deferred_finalize" {
// WHY-NEXT: remark: @mixture_first: moe_deferred_finalize fired on [0, 1, 2]
func.func @mixture_first(%x: !x, %h: !x, %n: !n, %r: !router, %g: !up, %u: !up, %d: !down) -> !x {
  %m = tg.moe %x router %r gate %g up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %sum = tg.binary add %m, %h : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @mixture_read_between(
// CHECK-NOT:     "moe_deferred_finalize"
// WHY-NEXT: remark: @mixture_read_between: moe_deferred_finalize refused on [0, 2, 3]: moe[0] is read by scale[1], before "add_norm"[2, 3]
func.func @mixture_read_between(%x: !x, %h: !x, %n: !n, %r: !router, %g: !up, %u: !up, %d: !down) -> (!x, !x) {
  %m = tg.moe %x router %r gate %g up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : !x, !router, !up, !up, !down -> !x
  %s = tg.scale %m by 2.0 : (!x) -> !x
  %sum = tg.binary add %m, %h : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %n eps 1.0e-5 : (!x, !n) -> !x
  func.return %y, %s : !x, !x
}

// CHECK-LABEL: func.func @many_rows(
// CHECK-NOT:     "moe_deferred_finalize"
// WHY-NEXT: remark: @many_rows: moe_deferred_finalize refused on [0, 1, 2]: the product of 17 rows runs in tiles, which have no epilogue (up to 16 rows do)
func.func @many_rows(%x: tensor<17x64xf32>, %n: !n, %r: !router, %g: !up, %u: !up, %d: !down) -> tensor<17x64xf32> {
  %m = tg.moe %x router %r gate %g up %u down %d used 2 of groups 1 / 1 by softmax scale 1.0 silu
    : tensor<17x64xf32>, !router, !up, !up, !down -> tensor<17x64xf32>
  %sum = tg.binary add %m, %x : (tensor<17x64xf32>, tensor<17x64xf32>) -> tensor<17x64xf32>
  %y = tg.rms_norm %sum weight %n eps 1.0e-5 : (tensor<17x64xf32>, !n) -> tensor<17x64xf32>
  func.return %y : tensor<17x64xf32>
}

// WHY-NOT: remark
