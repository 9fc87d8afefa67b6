// RUN: lane-opt %s -p fuse-row-write | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=row_write}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=row_write remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-row-write{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-5: row_write held on
// WOULD-NOT: row_write held on
// HELD-NOT: "row_write"

!x = tensor<2x64xf32>
!heads = tensor<4x32xf32>
!w = tensor<64x64xf32, #tg.rows<q8_0>>
!cache = memref<16x64xf32>
!table = tensor<16x16xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @product(
// CHECK-NEXT:    tg.fused "row_write" {
// CHECK-NEXT:      %[[Y:.+]] = tg.matmul[0] %x, %w
// CHECK-NEXT:      tg.set_row[1] %[[Y]] into %k[%pos]
// CHECK-NEXT:      tg.yield
// WHY: remark: @product: row_write fired on [0, 1]
func.func @product(%x: !x, %w: !w, %k: !cache, %pos: !pos) {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  tg.set_row %y into %k[%pos] : !x, !cache, !pos
  func.return
}

// CHECK-LABEL: func.func @rotation_through_a_view(
// CHECK-NEXT:    tg.fused "row_write" {
// CHECK-NEXT:      tg.rope[0]
// CHECK-NEXT:      tg.view[1]
// CHECK-NEXT:      tg.set_row[2]
// WHY-NEXT: remark: @rotation_through_a_view: row_write fired on [0, 1, 2]
func.func @rotation_through_a_view(%x: !heads, %cos: !table, %sin: !table, %k: !cache, %pos: !pos) {
  %y = tg.rope %x by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  %v = tg.view %y from 0 : (!heads) -> !x
  tg.set_row %v into %k[%pos] : !x, !cache, !pos
  func.return
}

// The product moves down to its row, past what does not touch the cache; the row stays where it is.
// CHECK-LABEL: func.func @read_between(
// CHECK-NEXT:    tg.attention[1]
// CHECK-NEXT:    tg.fused "row_write" {
// WHY-NEXT: remark: @read_between: row_write fired on [0, 2]
func.func @read_between(%x: !x, %w: !w, %k: !cache, %pos: !pos) -> !x {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %a = tg.attention %x, %k, %k at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  tg.set_row %y into %k[%pos] : !x, !cache, !pos
  func.return %a : !x
}

// Two rows of one cache keep their order.
// CHECK-LABEL: func.func @two_sets(
// CHECK-NEXT:    tg.fused "row_write" {
// CHECK-NEXT:      tg.matmul[1]
// CHECK:         tg.fused "row_write" {
// CHECK-NEXT:      tg.matmul[0]
// WHY-NEXT: remark: @two_sets: row_write fired on [1, 2]
// WHY-NEXT: remark: @two_sets: row_write fired on [0, 3]
func.func @two_sets(%x: !x, %w: !w, %v: !w, %k: !cache, %pos: !pos) {
  %a = tg.matmul %x, %w : (!x, !w) -> !x
  %b = tg.matmul %x, %v : (!x, !w) -> !x
  tg.set_row %b into %k[%pos] : !x, !cache, !pos
  tg.set_row %a into %k[%pos] : !x, !cache, !pos
  func.return
}

// CHECK-LABEL: func.func @result_read_again(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @result_read_again: row_write refused on [0, 1]: matmul[0] has another reader, and the launch would not write its result
func.func @result_read_again(%x: !x, %w: !w, %k: !cache, %pos: !pos) -> !x {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  tg.set_row %y into %k[%pos] : !x, !cache, !pos
  func.return %y : !x
}

// CHECK-LABEL: func.func @first_row_only(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @first_row_only: row_write refused on [0, 1, 2]: view[1] takes some rows of a result that is computed as a whole
func.func @first_row_only(%x: !x, %w: !w, %k: !cache, %pos: !pos) {
  %y = tg.matmul %x, %w : (!x, !w) -> !x
  %v = tg.view %y from 0 : (!x) -> tensor<1x64xf32>
  tg.set_row %v into %k[%pos] : tensor<1x64xf32>, !cache, !pos
  func.return
}

// CHECK-LABEL: func.func @activation(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @activation: row_write refused on [0, 1]: the kernel of unary[0] does not write its result into rows of a table
func.func @activation(%x: !x, %k: !cache, %pos: !pos) {
  %y = tg.unary silu %x : (!x) -> !x
  tg.set_row %y into %k[%pos] : !x, !cache, !pos
  func.return
}

// The position changes between the rotation and the row.
// CHECK-LABEL: func.func @state_touched_between(
// CHECK-NOT:     tg.fused
// WHY-NEXT: remark: @state_touched_between: row_write refused on [0, 1, 3]: advance[2] stands between and touches the same state as rope[0]
func.func @state_touched_between(%x: !heads, %id: tensor<1xi32>, %token: memref<1xi32>, %cos: !table, %sin: !table,
                                 %k: !cache, %pos: !pos) {
  %y = tg.rope %x by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  %v = tg.view %y from 0 : (!heads) -> !x
  tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, !pos
  tg.set_row %v into %k[%pos] : !x, !cache, !pos
  func.return
}

// CHECK-LABEL: func.func @argument(
// CHECK-NOT:     tg.fused
func.func @argument(%x: !x, %k: !cache, %pos: !pos) {
  tg.set_row %x into %k[%pos] : !x, !cache, !pos
  func.return
}

// WHY-NOT: remark
