// RUN: lane-opt %s -p fuse-act-gate,fuse-attn-output-gate | filecheck %s
// RUN: lane-opt %s -p 'fuse{held=attn_output_gate}' | filecheck %s --check-prefix=HELD

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
func.func @attention_first(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %a = tg.unary sigmoid %g : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @gate_first(
// CHECK-NEXT:    tg.fused "attn_output_gate" {
func.func @gate_first(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %a = tg.unary sigmoid %g : (!x) -> !x
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %z = tg.binary mul %a, %y : (!x, !x) -> !x
  func.return %z : !x
}

// CHECK-LABEL: func.func @attention_read_again(
// CHECK-NOT:     "attn_output_gate"
func.func @attention_read_again(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> (!x, !x) {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %a = tg.unary sigmoid %g : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %y, %z : !x, !x
}

// CHECK-LABEL: func.func @gated_by_itself(
// CHECK-NOT:     "attn_output_gate"
func.func @gated_by_itself(%q: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  %a = tg.unary sigmoid %y : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %z : !x
}

// The cache is written between the attention and its gate.
// CHECK-LABEL: func.func @row_set_between(
// CHECK-NOT:     "attn_output_gate"
func.func @row_set_between(%q: !x, %g: !x, %k: !cache, %v: !cache, %pos: !pos) -> !x {
  %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2 : !x, !cache, !cache, !pos -> !x
  tg.set_row %q into %v[%pos] : !x, !cache, !pos
  %a = tg.unary sigmoid %g : (!x) -> !x
  %z = tg.binary mul %y, %a : (!x, !x) -> !x
  func.return %z : !x
}
