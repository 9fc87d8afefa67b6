// RUN: lane-opt %s -p fuse-row-write,fuse-rope-parts | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=rope_parts}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=rope_parts remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-row-write,fuse-rope-parts{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: rope_parts held on
// WOULD-NOT: rope_parts held on
// HELD-NOT: "rope_parts"

!q = tensor<4x32xf32>
!k = tensor<2x32xf32>
!row = tensor<1x64xf32>
!cache = memref<16x64xf32>
!table = tensor<16x16xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @queries_and_keys(
// CHECK-NEXT:    %[[Q:.+]] = tg.fused "rope_parts" {
// CHECK-NEXT:      tg.rope[0] %q by %cos, %sin at %pos heads 4 half
// CHECK-NEXT:      tg.fused "row_write" {
// CHECK:         func.return %[[Q]]
// WHY: remark: @queries_and_keys: rope_parts fired on [0, 1, 2, 3]
func.func @queries_and_keys(%q: !q, %k: !k, %cos: !table, %sin: !table, %keys: !cache, %pos: !pos) -> !q {
  %a = tg.rope %q by %cos, %sin at %pos heads 4 half : (!q, !table, !table, !pos) -> !q
  %b = tg.rope %k by %cos, %sin at %pos heads 2 half : (!k, !table, !table, !pos) -> !k
  %v = tg.view %b from 0 : (!k) -> !row
  tg.set_row %v into %keys[%pos] : !row, !cache, !pos
  func.return %a : !q
}

// CHECK-LABEL: func.func @other_tables(
// CHECK-NOT:     "rope_parts"
func.func @other_tables(%q: !q, %k: !k, %cos: !table, %sin: !table, %c: !table, %s: !table, %pos: !pos) -> (!q, !k) {
  %a = tg.rope %q by %cos, %sin at %pos heads 4 half : (!q, !table, !table, !pos) -> !q
  %b = tg.rope %k by %c, %s at %pos heads 2 half : (!k, !table, !table, !pos) -> !k
  func.return %a, %b : !q, !k
}

// CHECK-LABEL: func.func @other_pairing(
// CHECK-NOT:     "rope_parts"
func.func @other_pairing(%q: !q, %k: !k, %cos: !table, %sin: !table, %pos: !pos) -> (!q, !k) {
  %a = tg.rope %q by %cos, %sin at %pos heads 4 half : (!q, !table, !table, !pos) -> !q
  %b = tg.rope %k by %cos, %sin at %pos heads 2 interleaved : (!k, !table, !table, !pos) -> !k
  func.return %a, %b : !q, !k
}

// CHECK-LABEL: func.func @first_read_between(
// CHECK-NOT:     "rope_parts"
func.func @first_read_between(%q: !q, %k: !k, %cos: !table, %sin: !table, %pos: !pos) -> (!q, !k) {
  %a = tg.rope %q by %cos, %sin at %pos heads 4 half : (!q, !table, !table, !pos) -> !q
  %s = tg.scale %a by 2.0 : (!q) -> !q
  %b = tg.rope %k by %cos, %sin at %pos heads 2 half : (!k, !table, !table, !pos) -> !k
  func.return %s, %b : !q, !k
}

// CHECK-LABEL: func.func @position_moves_between(
// CHECK-NOT:     "rope_parts"
// WHY-NEXT: remark: @position_moves_between: rope_parts refused on [0, 2]: advance[1] stands between and touches the same state as rope[0]
func.func @position_moves_between(%q: !q, %k: !k, %cos: !table, %sin: !table, %id: tensor<1xi32>,
                                  %token: memref<1xi32>, %pos: !pos) -> (!q, !k) {
  %a = tg.rope %q by %cos, %sin at %pos heads 4 half : (!q, !table, !table, !pos) -> !q
  tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, !pos
  %b = tg.rope %k by %cos, %sin at %pos heads 2 half : (!k, !table, !table, !pos) -> !k
  func.return %a, %b : !q, !k
}

// CHECK-LABEL: func.func @computed_between(
// CHECK:         tg.unary[1] silu
// CHECK-NEXT:    tg.fused "rope_parts" {
// WHY-NEXT: remark: @computed_between: rope_parts fired on [0, 2]
func.func @computed_between(%q: !q, %k: !k, %cos: !table, %sin: !table, %pos: !pos) -> (!q, !k) {
  %a = tg.rope %q by %cos, %sin at %pos heads 4 half : (!q, !table, !table, !pos) -> !q
  %s = tg.unary silu %k : (!k) -> !k
  %b = tg.rope %s by %cos, %sin at %pos heads 2 half : (!k, !table, !table, !pos) -> !k
  func.return %a, %b : !q, !k
}

// WHY-NOT: remark
