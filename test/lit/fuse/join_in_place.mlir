// RUN: lane-opt %s -p fuse-join-in-place | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=join_in_place}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=join_in_place remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-join-in-place{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: join_in_place held on
// WOULD-NOT: join_in_place held on
// HELD-NOT: tg.insert

!x = tensor<2x64xf32>
!own = tensor<2x32xf32>
!joined = tensor<2x64xf32>
!w = tensor<2x16x32xf32>
!heads = tensor<4x16xf32>
!table = tensor<16x8xf32>
!pos = memref<1xi32>

// Each side lands in its units of the joined rows.
// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    %[[EMPTY:.+]] = tg.empty : tensor<2x64xf32>
// CHECK-NEXT:    %[[OWN:.+]] = tg.fused "join_in_place" {
// CHECK-NEXT:      %[[A:.+]] = tg.head_matmul[0] %x, %w
// CHECK-NEXT:      tg.insert[3] %[[A]] into %[[EMPTY]] every 32 from 0
// CHECK:         %[[BOTH:.+]] = tg.fused "join_in_place" {
// CHECK-NEXT:      tg.rope[1]
// CHECK-NEXT:      %[[B:.+]] = tg.view[2]
// CHECK-NEXT:      tg.insert[3] %[[B]] into %[[OWN]] every 32 from 16
// CHECK:         func.return %[[BOTH]]
// WHY: remark: @fires: join_in_place fired on [0, 1, 2, 3]
func.func @fires(%x: !x, %w: !w, %q: !heads, %cos: !table, %sin: !table, %pos: !pos) -> !joined {
  %a = tg.head_matmul %x, %w : (!x, !w) -> !own
  %r = tg.rope %q by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  %b = tg.view %r from 0 : (!heads) -> !own
  %y = tg.join %a, %b heads 2 : (!own, !own) -> !joined
  func.return %y : !joined
}

// CHECK-LABEL: func.func @other_way_round(
// CHECK:           tg.insert[3] %{{.+}} into %{{.+}} every 32 from 16
// CHECK:           tg.insert[3] %{{.+}} into %{{.+}} every 32 from 0
// WHY-NEXT: remark: @other_way_round: join_in_place fired on [1, 2, 0, 3]
func.func @other_way_round(%x: !x, %w: !w, %q: !heads, %cos: !table, %sin: !table, %pos: !pos) -> !joined {
  %a = tg.head_matmul %x, %w : (!x, !w) -> !own
  %r = tg.rope %q by %cos, %sin at %pos heads 2 half : (!heads, !table, !table, !pos) -> !heads
  %b = tg.view %r from 0 : (!heads) -> !own
  %y = tg.join %b, %a heads 2 : (!own, !own) -> !joined
  func.return %y : !joined
}

// CHECK-LABEL: func.func @side_read_again(
// CHECK-NOT:     tg.insert
// CHECK:         tg.join[2]
// WHY-NEXT: remark: @side_read_again: join_in_place refused on [0, 1, 2]: head_matmul[0] has another reader, and the launch would not write its result
func.func @side_read_again(%x: !x, %w: !w, %v: !w) -> (!joined, !own) {
  %a = tg.head_matmul %x, %w : (!x, !w) -> !own
  %b = tg.head_matmul %x, %v : (!x, !w) -> !own
  %y = tg.join %a, %b heads 2 : (!own, !own) -> !joined
  func.return %y, %a : !joined, !own
}

// CHECK-LABEL: func.func @product(
// CHECK-NOT:     tg.insert
// CHECK:         tg.join[2]
// WHY-NEXT: remark: @product: join_in_place refused on [0, 1, 2]: the kernel of matmul[1] does not write its result in part of wider units
func.func @product(%x: !x, %w: !w, %v: tensor<32x64xf32, #tg.rows<q8_0>>) -> !joined {
  %a = tg.head_matmul %x, %w : (!x, !w) -> !own
  %b = tg.matmul %x, %v : (!x, tensor<32x64xf32, #tg.rows<q8_0>>) -> !own
  %y = tg.join %a, %b heads 2 : (!own, !own) -> !joined
  func.return %y : !joined
}

// CHECK-LABEL: func.func @one_result_twice(
// CHECK-NOT:     tg.insert
// WHY-NEXT: remark: @one_result_twice: join_in_place refused on [0, 0, 1]: both its sides are of one result
func.func @one_result_twice(%x: !x, %w: !w) -> !joined {
  %a = tg.head_matmul %x, %w : (!x, !w) -> !own
  %y = tg.join %a, %a heads 2 : (!own, !own) -> !joined
  func.return %y : !joined
}

// CHECK-LABEL: func.func @arguments(
// CHECK-NOT:     tg.insert
func.func @arguments(%a: !own, %b: !own) -> !joined {
  %y = tg.join %a, %b heads 2 : (!own, !own) -> !joined
  func.return %y : !joined
}

// WHY-NOT: remark
