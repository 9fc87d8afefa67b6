// RUN: lane-opt %s -p fuse-add-norm,fuse-sandwich-norm | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=sandwich_norm}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=sandwich_norm remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-add-norm,fuse-sandwich-norm{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-3: sandwich_norm held on
// WOULD-NOT: sandwich_norm held on
// HELD-NOT: "sandwich_norm"

!x = tensor<2x64xf32>
!w = tensor<64xf32>

// CHECK-LABEL: func.func @branch_second(
// CHECK-NEXT:    tg.fused "sandwich_norm" {
// CHECK-NEXT:      %[[BRANCH:.+]] = tg.rms_norm[0] %b weight %v eps 1.000000e-03
// CHECK-NEXT:      tg.fused "add_norm" {
// CHECK-NEXT:        tg.binary[1] add %x, %[[BRANCH]]
// CHECK-NEXT:        tg.rms_norm[2] %{{.+}} weight %w eps 1.000000e-06
// WHY: remark: @branch_second: sandwich_norm fired on [0, 1, 2]
func.func @branch_second(%x: !x, %b: !x, %v: !w, %w: !w) -> !x {
  %branch = tg.rms_norm %b weight %v eps 1.0e-3 : (!x, !w) -> !x
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-6 : (!x, !w) -> !x
  func.return %y : !x
}

// CHECK-LABEL: func.func @branch_first(
// CHECK-NEXT:    tg.fused "sandwich_norm" {
// WHY-NEXT: remark: @branch_first: sandwich_norm fired on [0, 1, 2]
func.func @branch_first(%x: !x, %b: !x, %v: !w, %w: !w) -> !x {
  %branch = tg.rms_norm %b weight %v eps 1.0e-3 : (!x, !w) -> !x
  %sum = tg.binary add %branch, %x : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-6 : (!x, !w) -> !x
  func.return %y : !x
}

// The residual is what the branch is of, and the sum is read again: both are written.
// CHECK-LABEL: func.func @residual_of_itself(
// CHECK-NEXT:    %{{.+}}, %{{.+}} = tg.fused "sandwich_norm" {
// WHY-NEXT: remark: @residual_of_itself: sandwich_norm fired on [0, 1, 2]
func.func @residual_of_itself(%x: !x, %v: !w, %w: !w) -> (!x, !x) {
  %branch = tg.rms_norm %x weight %v eps 1.0e-3 : (!x, !w) -> !x
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-6 : (!x, !w) -> !x
  func.return %sum, %y : !x, !x
}

// CHECK-LABEL: func.func @branch_read_again(
// CHECK:         tg.fused "add_norm" {
// CHECK-NOT:     "sandwich_norm"
// WHY-NEXT: remark: @branch_read_again: sandwich_norm refused on [0, 1, 2]: rms_norm[0] has another reader, and the launch would not write its result
func.func @branch_read_again(%x: !x, %b: !x, %v: !w, %w: !w) -> (!x, !x) {
  %branch = tg.rms_norm %b weight %v eps 1.0e-3 : (!x, !w) -> !x
  %sum = tg.binary add %x, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-6 : (!x, !w) -> !x
  func.return %y, %branch : !x, !x
}

// CHECK-LABEL: func.func @branch_twice(
// CHECK-NOT:     "sandwich_norm"
// WHY-NEXT: remark: @branch_twice: sandwich_norm refused on [0, 1, 2]: its parts are no norm of a sum or of one tensor
func.func @branch_twice(%b: !x, %v: !w, %w: !w) -> !x {
  %branch = tg.rms_norm %b weight %v eps 1.0e-3 : (!x, !w) -> !x
  %sum = tg.binary add %branch, %branch : (!x, !x) -> !x
  %y = tg.rms_norm %sum weight %w eps 1.0e-6 : (!x, !w) -> !x
  func.return %y : !x
}

// WHY-NOT: remark
