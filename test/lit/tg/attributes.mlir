// RUN: LANE_ROUNDTRIP
// RUN: LANE_GENERIC_ROUNDTRIP

// What a module is compiled for, and what the arguments of its steps are.

// CHECK: builtin.module attributes {tg.target = #tg.target<h200, dequant, cache = f32, state = f32>} {
builtin.module attributes {tg.target = #tg.target<h200, dequant, cache = f32, state = f32>} {
  // CHECK: func.func @step(%token: memref<1xi32> {tg.arg = #tg.arg<token, 0>},
  // CHECK-SAME: %pos: memref<1xi32> {tg.arg = #tg.arg<position, 0, "position">},
  // CHECK-SAME: %k: memref<64x32xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">},
  // CHECK-SAME: %ring: memref<4x32xf32> {tg.arg = #tg.arg<conv_ring, 0, "blk.1.\22ring\22">},
  // CHECK-SAME: %pos1: memref<1xi32> {tg.arg = #tg.arg<position, 1>},
  // CHECK-SAME: %state: memref<64x16xf32> {tg.arg = #tg.arg<delta_state, 1, "blk.1.state.1">}) {
  func.func @step(
    %token: memref<1xi32> {tg.arg = #tg.arg<token, 0>},
    %pos: memref<1xi32> {tg.arg = #tg.arg<position, 0, "position">},
    %k: memref<64x32xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">},
    %ring: memref<4x32xf32> {tg.arg = #tg.arg<conv_ring, 0, "blk.1.\22ring\22">},
    %pos1: memref<1xi32> {tg.arg = #tg.arg<position, 1>},
    %state: memref<64x16xf32> {tg.arg = #tg.arg<delta_state, 1, "blk.1.state.1">}
  ) {
    func.return
  }
}

// -----

// CHECK: builtin.module attributes {tg.target = #tg.target<rtx4090, int8, cache = f16, state = bf16>} {
builtin.module attributes {tg.target = #tg.target<rtx4090, int8, cache = f16, state = bf16>} {
}

// -----

// CHECK: builtin.module attributes {tg.target = #tg.target<b200, two_pass_int8, cache = f16, state = f32>} {
builtin.module attributes {tg.target = #tg.target<b200, two_pass_int8, cache = f16, state = f32>} {
}

// -----

// Every enumeration, as an attribute by itself.

// CHECK: "test.op"() {
// CHECK-SAME: operators = [#tg<binary_operator add>, #tg<binary_operator sub>, #tg<binary_operator mul>, #tg<binary_operator div>],
// CHECK-SAME: activations = [#tg<activation silu>, #tg<activation gelu>, #tg<activation gelu_tanh>, #tg<activation sigmoid>, #tg<activation softplus>, #tg<activation tanh>, #tg<activation relu>, #tg<activation exp>],
// CHECK-SAME: pairings = [#tg<pairing half>, #tg<pairing interleaved>],
// CHECK-SAME: orders = [#tg<key_head_order blocked>, #tg<key_head_order cyclic>],
// CHECK-SAME: scorings = [#tg<scoring softmax>, #tg<scoring sigmoid>, #tg<scoring softmax_chosen>],
// CHECK-SAME: experts = [#tg<expert_activation silu>, #tg<expert_activation gelu_tanh>, #tg<expert_activation clamped_swiglu>],
// CHECK-SAME: numerics = [#tg<numerics dequant>, #tg<numerics int8>, #tg<numerics two_pass_int8>]} : () -> ()
"test.op"() {
  operators = [#tg<binary_operator add>, #tg<binary_operator sub>, #tg<binary_operator mul>, #tg<binary_operator div>],
  activations = [#tg<activation silu>, #tg<activation gelu>, #tg<activation gelu_tanh>, #tg<activation sigmoid>, #tg<activation softplus>, #tg<activation tanh>, #tg<activation relu>, #tg<activation exp>],
  pairings = [#tg<pairing half>, #tg<pairing interleaved>],
  orders = [#tg<key_head_order blocked>, #tg<key_head_order cyclic>],
  scorings = [#tg<scoring softmax>, #tg<scoring sigmoid>, #tg<scoring softmax_chosen>],
  experts = [#tg<expert_activation silu>, #tg<expert_activation gelu_tanh>, #tg<expert_activation clamped_swiglu>],
  numerics = [#tg<numerics dequant>, #tg<numerics int8>, #tg<numerics two_pass_int8>]
} : () -> ()
