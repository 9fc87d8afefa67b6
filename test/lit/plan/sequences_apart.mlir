// RUN: lane-opt %s -p 'plan{remarks=true}' --split-input-file -o /dev/null 2>&1 | filecheck %s

// Why what sequences run each stays as many launches.

// As many launches of each sequence are expected.
// CHECK: remark: @one_has_none: sequences refused on [] (ka): its sequences have 1, 0 launches alike, expected as many of each
launch.schedule @one_has_none {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32
  launch.yield %x
}

// -----

// No kernel takes convolutions alone, of several sequences.
// CHECK-NEXT: remark: @no_kernel: sequences refused on [] (y0): no kernel runs the conv of several sequences
launch.schedule @no_kernel {
  %ra = launch.buffer "ra" f32[2x4] zero #tg.arg<conv_ring, 0, "r">
  %rb = launch.buffer "rb" f32[2x4] zero #tg.arg<conv_ring, 1, "r">
  %w = launch.buffer "w" f32[4x2] constant #launch.tensor<"w", f32>
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %y0 = launch.buffer "y0" f32[1x4] computed
  %y1 = launch.buffer "y1" f32[1x4] computed
  launch.conv %x0 by %w ring %ra into %y0 (chan = 4, taps = 2, rows = 1)
  launch.conv %x1 by %w ring %rb into %y1 (chan = 4, taps = 2, rows = 1)
  launch.yield %y0, %y1
}

// -----

// Each sequence takes rows of its own, one.
// CHECK-NEXT: remark: @two_rows: sequences refused on [] (ka): the kernel of several sequences takes one row of each, not 2
launch.schedule @two_rows {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[4x4] param
  %x0 = launch.buffer "x0" f32[2x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[2x4] alias %x + 8
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 2) f32
  launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 2) f32
  launch.yield %x
}

// -----

// The second sequence takes the first one's row.
// CHECK-NEXT: remark: @other_rows: sequences refused on [] (ka): "x0" and those of the other sequences are no parts of one array, in their order
launch.schedule @other_rows {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32
  launch.set_row %x0 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32
  launch.yield %x
}

// -----

// Rows of a table, whatever the position.
// CHECK-NEXT: remark: @at_fixed_rows: sequences refused on [] (ka): it sets row 3 of a table, not one at a position of its sequence
launch.schedule @at_fixed_rows {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  launch.set_row %x0 into %ka at row 3 pitch 4 (cols = 4, count = 1) f32
  launch.set_row %x1 into %kb at row 3 pitch 4 (cols = 4, count = 1) f32
  launch.yield %x
}

// -----

// Attention whose keys lie in two arrays.
// CHECK-NEXT: remark: @two_arrays: sequences refused on [] (y0): the kernel of several sequences takes no keys in two arrays
launch.schedule @two_arrays {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %ta = launch.buffer "ta" f32[8x2] zero #tg.arg<kv_cache, 0, "t">
  %tb = launch.buffer "tb" f32[8x2] zero #tg.arg<kv_cache, 1, "t">
  %y0 = launch.buffer "y0" f32[1x4] computed
  %y1 = launch.buffer "y1" f32[1x4] computed
  launch.attention %x0, %ka, %ka at %pa tails %x0, %ta[own = 2 q_pitch = 4 q_tail 4 from 2 k_tail 2 from 0] into %y0 (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32
  launch.attention %x1, %kb, %kb at %pb tails %x1, %tb[own = 2 q_pitch = 4 q_tail 4 from 2 k_tail 2 from 0] into %y1 (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32
  launch.yield %y0, %y1
}

// -----

// Values are longer than keys.
// CHECK-NEXT: remark: @other_values: sequences refused on [] (y0): the kernel of several sequences takes keys and values of one length, not 32 and 64
launch.schedule @other_values {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %va = launch.buffer "va" f32[8x8] zero #tg.arg<kv_cache, 0, "v">
  %vb = launch.buffer "vb" f32[8x8] zero #tg.arg<kv_cache, 1, "v">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %y0 = launch.buffer "y0" f32[1x4] computed
  %y1 = launch.buffer "y1" f32[1x4] computed
  launch.attention %x0, %ka, %va at %pa into %y0 (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 8 + 0 scale = 0.5 (per_block = 1, splits = 1) f32
  launch.attention %x1, %kb, %vb at %pb into %y1 (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 8 + 0 scale = 0.5 (per_block = 1, splits = 1) f32
  launch.yield %y0, %y1
}

// -----

// A gate inside wider rows.
// CHECK-NEXT: remark: @gate_inside: sequences refused on [] (y0): the kernel of several sequences takes no gate inside wider rows
launch.schedule @gate_inside {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %g = launch.buffer "g" f32[2x8] param
  %g0 = launch.buffer "g0" f32[1x8] alias %g + 0
  %g1 = launch.buffer "g1" f32[1x8] alias %g + 8
  %y0 = launch.buffer "y0" f32[1x4] computed
  %y1 = launch.buffer "y1" f32[1x4] computed
  launch.attention %x0, %ka, %ka at %pa gate sigmoid %g0 + 4 into %y0 (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32
  launch.attention %x1, %kb, %kb at %pb gate sigmoid %g1 + 4 into %y1 (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32
  launch.yield %y0, %y1
}

// -----

// A join that lands in a row of a table, whatever the position.
// CHECK-NEXT: remark: @join_at_a_fixed_row: sequences refused on [] (ka): it lands in row 3 of a table, not at a position of its sequence
launch.schedule @join_at_a_fixed_row {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x2] param
  %x0 = launch.buffer "x0" f32[1x2] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x2] alias %x + 2
  launch.join %x0, %x0 into %ka at row 3 pitch 4 (rows = 1, heads = 1, ha = 2, hb = 2)
  launch.join %x1, %x1 into %kb at row 3 pitch 4 (rows = 1, heads = 1, ha = 2, hb = 2)
  launch.yield %x
}

// -----

// A join that lands in part of wider units.
// CHECK-NEXT: remark: @join_in_units: sequences refused on [] (y0): the kernel of several sequences lands in no part of wider units
launch.schedule @join_in_units {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x2] constant #launch.tensor<"w", f32>
  %x = launch.buffer "x" f32[2x2] computed
  %x0 = launch.buffer "x0" f32[1x2] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x2] alias %x + 2
  %y0 = launch.buffer "y0" f32[1x8] computed
  %y1 = launch.buffer "y1" f32[1x8] computed
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  launch.gather %w at %t into %x (rows = 2, cols = 2)
  launch.join %x0, %x0 into %y0 every 8 from 4 (rows = 1, heads = 1, ha = 2, hb = 2)
  launch.join %x1, %x1 into %y1 every 8 from 4 (rows = 1, heads = 1, ha = 2, hb = 2)
  launch.yield %y0, %y1
}

// -----

// Tokens in the other order.
// CHECK-NEXT: remark: @tokens_crossed: sequences refused on [] (i0): the tokens that they choose are [1, 0] of the step's, not one of each sequence in order
launch.schedule @tokens_crossed {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %x = launch.buffer "x" f32[2x4] computed
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %i0 = launch.buffer "i0" i32[1] computed
  %i1 = launch.buffer "i1" i32[1] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.argmax %x0 into %i0 (n = 4, rows = 1) advance %t, %pa item 1
  launch.argmax %x1 into %i1 (n = 4, rows = 1) advance %t, %pb item 0
  launch.yield %i0, %i1
}

// -----

// Steps that do not move on.
// CHECK-NEXT: remark: @no_advance: sequences refused on [] (i0): the kernel of several sequences moves each step on, and these do not
launch.schedule @no_advance {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %x = launch.buffer "x" f32[2x4] computed
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %i0 = launch.buffer "i0" i32[1] computed
  %i1 = launch.buffer "i1" i32[1] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.argmax %x0 into %i0 (n = 4, rows = 1)
  launch.argmax %x1 into %i1 (n = 4, rows = 1)
  launch.yield %i0, %i1
}

// -----

// Rotations of two rows each.
// CHECK-NEXT: remark: @rotation_of_two_rows: sequences refused on [] (y0): the kernel of several sequences takes one row of each, not 2
launch.schedule @rotation_of_two_rows {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %cos = launch.buffer "cos" f32[8x2] param
  %sin = launch.buffer "sin" f32[8x2] param
  %x = launch.buffer "x" f32[4x4] param
  %x0 = launch.buffer "x0" f32[2x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[2x4] alias %x + 8
  %y0 = launch.buffer "y0" f32[2x4] computed
  %y1 = launch.buffer "y1" f32[2x4] computed
  launch.rope %x0 by %cos, %sin at %pa into %y0 pairing half (heads = 2, per_row = 1, hd = 4, half = 2)
  launch.rope %x1 by %cos, %sin at %pb into %y1 pairing half (heads = 2, per_row = 1, hd = 4, half = 2)
  launch.yield %y0, %y1
}

// -----

// Rotations that land in part of wider units.
// CHECK-NEXT: remark: @rotation_in_units: sequences refused on [] (y0): the kernel of several sequences lands in no part of wider units
launch.schedule @rotation_in_units {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %cos = launch.buffer "cos" f32[8x2] param
  %sin = launch.buffer "sin" f32[8x2] param
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %y0 = launch.buffer "y0" f32[1x8] computed
  %y1 = launch.buffer "y1" f32[1x8] computed
  launch.rope %x0 by %cos, %sin at %pa into %y0 every 8 from 4 pairing half (heads = 1, per_row = 1, hd = 4, half = 2)
  launch.rope %x1 by %cos, %sin at %pb into %y1 every 8 from 4 pairing half (heads = 1, per_row = 1, hd = 4, half = 2)
  launch.yield %y0, %y1
}

// -----

// Rotations that land in a row of a table, whatever the position.
// CHECK-NEXT: remark: @rotation_at_a_fixed_row: sequences refused on [] (ka): it lands in row 3 of a table, not at a position of its sequence
launch.schedule @rotation_at_a_fixed_row {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %cos = launch.buffer "cos" f32[8x2] param
  %sin = launch.buffer "sin" f32[8x2] param
  launch.rope %x0 by %cos, %sin at %pa into %ka at row 3 pitch 4 pairing half (heads = 1, per_row = 1, hd = 4, half = 2)
  launch.rope %x1 by %cos, %sin at %pb into %kb at row 3 pitch 4 pairing half (heads = 1, per_row = 1, hd = 4, half = 2)
  launch.yield %x
}

// -----

// Rotations at no position.
// CHECK-NEXT: remark: @rotation_at_no_position: sequences refused on [] (y0): its rows are at no position of a sequence
launch.schedule @rotation_at_no_position {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %x = launch.buffer "x" f32[2x4] computed
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %cos = launch.buffer "cos" f32[8x2] param
  %sin = launch.buffer "sin" f32[8x2] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %y0 = launch.buffer "y0" f32[1x4] computed
  %y1 = launch.buffer "y1" f32[1x4] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.rope %x0 by %cos, %sin into %y0 pairing half (heads = 1, per_row = 1, hd = 4, half = 2)
  launch.rope %x1 by %cos, %sin into %y1 pairing half (heads = 1, per_row = 1, hd = 4, half = 2)
  launch.yield %y0, %y1
}

// -----

// Row sets of several sequences already.
// CHECK-NEXT: remark: @of_several_already: sequences refused on [] (ka): it is of several sequences already
launch.schedule @of_several_already {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) seq = 32 f32
  launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 1) seq = 32 f32
  launch.yield %x
}

// CHECK-NOT: remark
