// RUN: lane-opt %s -p fuse-strided-values | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=strided_values}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=strided_values remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-strided-values{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-1: strided_values held on
// WOULD-NOT: strided_values held on
// HELD-NOT: "strided_values"

!q = tensor<2x64xf32>
!cache = memref<16x64xf32>
!v = tensor<16x32xf32>
!y = tensor<2x32xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.fused "strided_values" {
// CHECK-NEXT:      %[[V:.+]] = tg.slice[0] %k every 64 from 16 width 32
// CHECK-NEXT:      tg.attention[1] %q, %k, %[[V]] at %pos
// WHY: remark: @fires: strided_values fired on [0, 1]
func.func @fires(%q: !q, %k: !cache, %pos: !pos) -> !y {
  %v = tg.slice %k every 64 from 16 width 32 : (!cache) -> !v
  %y = tg.attention %q, %k, %v at %pos heads 1 / 1 scale 0.2 : !q, !cache, !v, !pos -> !y
  func.return %y : !y
}

// The values are those before the row is set.
// CHECK-LABEL: func.func @row_set_between(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @row_set_between: strided_values refused on [0, 2]: set_row[1] stands between and touches the same state as slice[0]
func.func @row_set_between(%q: !q, %k: !cache, %pos: !pos) -> !y {
  %v = tg.slice %k every 64 from 16 width 32 : (!cache) -> !v
  tg.set_row %q into %k[%pos] : !q, !cache, !pos
  %y = tg.attention %q, %k, %v at %pos heads 1 / 1 scale 0.2 : !q, !cache, !v, !pos -> !y
  func.return %y : !y
}

// CHECK-LABEL: func.func @values_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @values_read_again: strided_values refused on [0, 1]: slice[0] has another reader, and the launch would not write its result
func.func @values_read_again(%q: !q, %k: !cache, %pos: !pos) -> (!y, !v) {
  %v = tg.slice %k every 64 from 16 width 32 : (!cache) -> !v
  %y = tg.attention %q, %k, %v at %pos heads 1 / 1 scale 0.2 : !q, !cache, !v, !pos -> !y
  func.return %y, %v : !y, !v
}

// Two rows of values from each row of the keys: no single pitch reaches them.
// CHECK-LABEL: func.func @other_rows(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @other_rows: strided_values refused on [0, 1]: its parts are no attention, where it reads its values, and what gates it
func.func @other_rows(%q: !q, %k: !cache, %keys: memref<32x64xf32>, %pos: !pos) -> tensor<2x16xf32> {
  %v = tg.slice %k every 64 from 16 width 32 : (!cache) -> tensor<32x16xf32>
  %y = tg.attention %q, %keys, %v at %pos heads 1 / 1 scale 0.2
    : !q, memref<32x64xf32>, tensor<32x16xf32>, !pos -> tensor<2x16xf32>
  func.return %y : tensor<2x16xf32>
}

// CHECK-LABEL: func.func @of_parts_of_rows(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @of_parts_of_rows: strided_values refused on [0, 1]: its parts are no attention, where it reads its values, and what gates it
func.func @of_parts_of_rows(%q: !q, %k: !cache, %pos: !pos) -> !y {
  %v = tg.slice %k every 32 from 0 width 16 : (!cache) -> !v
  %y = tg.attention %q, %k, %v at %pos heads 1 / 1 scale 0.2 : !q, !cache, !v, !pos -> !y
  func.return %y : !y
}

// WHY-NOT: remark
