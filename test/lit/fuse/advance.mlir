// RUN: lane-opt %s -p fuse | filecheck %s
// RUN: lane-opt %s -p 'fuse{limit=0}' | filecheck %s
// RUN: not lane-opt %s -p 'fuse{held=advance}' 2>&1 | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// The rule that closes the table always does: what it leaves out cannot run.
// HELD: unknown rule 'advance'

!x = tensor<1x50xf32>
!id = tensor<1xi32>
!token = memref<1xi32>

// CHECK-LABEL: func.func @fires(
// CHECK-NEXT:    tg.set_row
// CHECK-NEXT:    %[[ID:.+]] = tg.fused "advance" {
// CHECK-NEXT:      %[[T:.+]] = tg.argmax[0] %x
// CHECK-NEXT:      tg.advance[2] %[[T]] to %token, %pos
// CHECK:         func.return %[[ID]]
// WHY: remark: @fires: advance fired on [0, 2]
func.func @fires(%x: !x, %cache: memref<16x50xf32>, %token: !token, %pos: !token) -> !id {
  %id = tg.argmax %x : (!x) -> !id
  tg.set_row %x into %cache[%pos] : !x, memref<16x50xf32>, !token
  tg.advance %id to %token, %pos : !id, !token, !token
  func.return %id : !id
}

// CHECK-LABEL: func.func @nothing_picks_it(
// CHECK-NOT:     tg.fused
func.func @nothing_picks_it(%id: !id, %token: !token, %pos: !token) {
  tg.advance %id to %token, %pos : !id, !token, !token
  func.return
}

// WHY-NOT: advance fired
