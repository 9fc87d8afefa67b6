// RUN: lane-opt %s -p fuse-add-norm | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=add_norm}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=add_norm remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-add-norm{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-5: add_norm held on
// WOULD-NOT: add_norm held on
// HELD-NOT: "add_norm"

!x = tensor<2x64xf32>
!w = tensor<64xf32>

// CHECK-LABEL: func.func @residual_first(
// CHECK-NEXT:    %[[Y:.+]] = tg.fused "add_norm" {
// CHECK-NEXT:      %[[SUM:.+]] = tg.binary[0] add %x, %branch
// CHECK-NEXT:      %[[NORM:.+]] = tg.rms_norm[1] %[[SUM]] weight %w eps 1.000000e-05
// CHECK-NEXT:      tg.yield %[[NORM]] : tensor<2x64xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return %[[Y]]
// WHY: remark: @residual_first: add_norm fired on [0, 1]
func.func @residual_first(%x: !x, %branch: !x, %w: !w) -> !x {
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @residual_second(
// CHECK-NEXT:    tg.fused "add_norm" {
// CHECK-NEXT:      tg.binary[0] add %branch, %x
// WHY-NEXT: remark: @residual_second: add_norm fired on [0, 1]
func.func @residual_second(%x: !x, %branch: !x, %w: !w) -> !x {
  %sum = tg.binary add %branch, %x : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y : !x
}

// The sum is written too, for whoever else reads it.
// CHECK-LABEL: func.func @sum_read_again(
// CHECK-NEXT:    %[[SUM:.+]], %[[Y:.+]] = tg.fused "add_norm" {
// CHECK:           tg.yield %{{.+}}, %{{.+}} : tensor<2x64xf32>, tensor<2x64xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[S:.+]] = tg.scale[2] %[[SUM]]
// CHECK-NEXT:    func.return %[[SUM]], %[[Y]], %[[S]]
// WHY-NEXT: remark: @sum_read_again: add_norm fired on [0, 1]
func.func @sum_read_again(%x: !x, %branch: !x, %w: !w) -> (!x, !x, !x) {
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  %s = tg.scale %sum by 2.0 : (!x) -> !x
  func.return %sum, %y, %s : !x, !x, !x
}

// Each norm has its own epsilon, and the second is of a sum already written.
// CHECK-LABEL: func.func @two_norms_of_one_sum(
// CHECK-NEXT:    %[[SUM:.+]], %{{.+}} = tg.fused "add_norm" {
// CHECK:           tg.rms_norm[1] %{{.+}} weight %w eps 1.000000e-05
// CHECK:         tg.rms_norm[2] %[[SUM]] weight %w eps 1.000000e-02
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @two_norms_of_one_sum: add_norm fired on [0, 1]
// WHY-NEXT: remark: @two_norms_of_one_sum: add_norm refused on [0, 1, 2]: the sum is already that of "add_norm"[0, 1], which writes it
func.func @two_norms_of_one_sum(%x: !x, %branch: !x, %w: !w) -> (!x, !x) {
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  %z = tg.rms_norm %sum weight %w eps 1.0e-2 : (!x, !w) -> !x
  func.return %y, %z : !x, !x
}

// What the rule moves over is what reads nothing of it.
// CHECK-LABEL: func.func @unrelated_between(
// CHECK-NEXT:    tg.scale[1] %x
// CHECK-NEXT:    tg.fused "add_norm" {
// WHY-NEXT: remark: @unrelated_between: add_norm fired on [0, 2]
func.func @unrelated_between(%x: !x, %branch: !x, %w: !w) -> (!x, !x) {
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %s = tg.scale %x by 2.0 : (!x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y, %s : !x, !x
}

// CHECK-LABEL: func.func @sum_read_between(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @sum_read_between: add_norm refused on [0, 2]: binary[0] is read by scale[1], before rms_norm[2]
func.func @sum_read_between(%x: !x, %branch: !x, %w: !w) -> (!x, !x) {
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %s = tg.scale %sum by 2.0 : (!x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y, %s : !x, !x
}

// CHECK-LABEL: func.func @last_row(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @last_row: add_norm refused on [0, 1, 2]: view[1] stands between binary[0] and its norm: the rows differ
func.func @last_row(%x: !x, %branch: !x, %w: !w) -> tensor<1x64xf32> {
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %last = tg.view %sum from 64 : (!x) -> tensor<1x64xf32>
  %y = tg.rms_norm %last weight %w eps 1.0e-5 : (tensor<1x64xf32>, !w) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// CHECK-LABEL: func.func @bias_row(
// CHECK-NOT:     tg.fused
func.func @bias_row(%x: !x, %bias: !w, %w: !w) -> !x {
  %sum = tg.binary add %x, %bias : (!x, !w) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @difference(
// CHECK-NOT:     tg.fused
func.func @difference(%x: !x, %branch: !x, %w: !w) -> !x {
  %sum = tg.binary sub %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @of_another_dialect(
// CHECK-NOT:     "add_norm"
// WHY-NEXT: remark: @of_another_dialect: add_norm refused on [0, 1]: %z is computed by 'arith.addf', which is no op of tg
func.func @of_another_dialect(%x: !x, %w: !w) -> !x {
  %z = arith.addf %x, %x : !x
  %s = tg.binary add %x, %z : (!x, !x) -> !x
  %y = tg.rms_norm %s weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @layer_norm(
// CHECK-NOT:     "add_norm"
// WHY-NEXT: remark: @layer_norm: add_norm refused on [0, 1]: the kernel of a layer norm adds nothing
func.func @layer_norm(%x: !x, %r: !x, %w: !w) -> !x {
  %s = tg.binary add %x, %r : (!x, !x) -> !x
  %y = tg.layer_norm %s weight %w eps 1.0e-5 : (!x, !w) -> !x
  func.return %y : !x
}

// WHY-NOT: remark
