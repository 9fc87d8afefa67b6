// RUN: lane-opt %s -p fuse-act-gate,fuse-attn-output-gate | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=attn_output_gate}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'fuse{held=attn_output_gate remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse-act-gate,fuse-attn-output-gate{remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// WOULD-COUNT-2: attn_output_gate held on
// WOULD-NOT: attn_output_gate held on
// HELD-NOT: "attn_output_gate"

!x = tensor<2x64xf32>
!cache = memref<16x64xf32>
!pos = memref<1xi32>

// CHECK-LABEL: func.func @attention_first(
// CHECK-NEXT:    tg.fused "attn_output_gate" {
// CHECK-NEXT:      %[[Y:.+]] = tg.attention[0] %q, %k, %v at %pos
// CHECK-NEXT:      tg.fused "act_gate" {
// CHECK-NEXT:        %[[A:.+]] = tg.unary[1] sigmoid %g
// CHECK-NEXT:        tg.binary[2] mul %[[Y]], %[[A]]
// WHY: remark: @attention_first: attn_output_gate fired on [0, 1, 2]
func.func @attention_first(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %a = tg.unary sigmoid %g : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @gate_first(
// CHECK-NEXT:    tg.fused "attn_output_gate" {
// WHY-NEXT: remark: @gate_first: attn_output_gate fired on [1, 0, 2]
func.func @gate_first(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %a = tg.unary sigmoid %g : (!x) -> !x
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %z = tg.binary mul %a, %y : (!x, !x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @attention_read_again(
// CHECK-NOT:     "attn_output_gate"
// WHY-NEXT: remark: @attention_read_again: attn_output_gate refused on [0, 1, 2]: attention[0] has another reader, and the launch would not write its result
func.func @attention_read_again(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> (!x, !x) {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %a = tg.unary sigmoid %g : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %y, %z : !x, !x
}

// CHECK-LABEL: func.func @gated_by_itself(
// CHECK-NOT:     "attn_output_gate"
// WHY-NEXT: remark: @gated_by_itself: attn_output_gate refused on [0, 1, 2]: its parts are no attention, where it reads its values, and what gates it
func.func @gated_by_itself(%q: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %a = tg.unary sigmoid %y : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %z : !x
}

// The cache is written between the attention and its gate.
// CHECK-LABEL: func.func @row_set_between(
// CHECK-NOT:     "attn_output_gate"
// WHY-NEXT: remark: @row_set_between: attn_output_gate refused on [0, 2, 3]: set_row[1] stands between and touches the same state as attention[0]
func.func @row_set_between(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  tg.set_row %q into %v[%pos] : !x, !cache, !pos
  %a = tg.unary sigmoid %g : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %z : !x
}

// WHY-NOT: remark
