// RUN: lane-opt %s -p plan | filecheck %s
// RUN: lane-opt %s -p 'plan{remarks=true}' -o /dev/null 2>&1 | grep deferred_rope | filecheck %s --check-prefix=WHY
// RUN: lane-opt %s -p 'plan{held=deferred_rope}' | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'plan{held=deferred_rope remarks=true}' -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD

// HELD-NOT: deferred_rope
// WOULD-COUNT-3: deferred_rope held on
// WOULD-NOT: deferred_rope held on

// The queries and the key of one token.
// CHECK-LABEL: launch.schedule @token
// CHECK: launch.fold {
// CHECK-NEXT: launch.rope_parts [%xq into %q
// CHECK-NEXT: launch.attention %q, %k, %v
// CHECK-NEXT: } covers [1, 2, 3] by [rope_parts, deferred_rope]
// WHY: remark: @token: deferred_rope fired on [1, 2, 3] (q)
launch.schedule @token {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// Of a product folded with the rotation, the product stays where it is; the rules that made the rotation go with it.
// CHECK-LABEL: launch.schedule @product
// CHECK: launch.gemv %x by %wq<q8_0> into %xq
// CHECK-SAME: covers [1] by [row_write, qkv_head_epilogue]
// CHECK-NEXT: launch.fold {
// CHECK-NEXT: launch.rope_parts [%xq into %q heads = 2 per_row = 2]
// CHECK-NEXT: launch.attention %q, %k, %v
// CHECK-NEXT: } covers [2, 3] by [head_norm_rope, row_write, deferred_rope]
// WHY-NEXT: remark: @product: deferred_rope fired on [2, 3] (q)
launch.schedule @product {
  %wq = launch.buffer "wq" f32[64x64] constant #launch.tensor<"wq", q8_0>
  %x = launch.buffer "x" f32[1x64] param
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] computed
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  launch.fold {
    launch.gemv %x by %wq<q8_0> into %xq (k = 64, n = 64, m = 1) f32
    launch.rope_parts [%xq into %q heads = 2 per_row = 2] by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [2]
      by [head_norm_rope, row_write]
  } covers [1, 2] by [row_write, head_norm_rope, row_write, qkv_head_epilogue]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// A token of each of two sequences.
// CHECK-LABEL: launch.schedule @sequences
// CHECK: launch.fold {
// CHECK-NEXT: launch.rope_parts [%xq into %q
// CHECK-NEXT: launch.attention %q, %k, %v
// CHECK-NEXT: } covers [1, 2, 3] by [rope_parts, deferred_rope]
// WHY-NEXT: remark: @sequences: deferred_rope fired on [1, 2, 3] (q)
launch.schedule @sequences {
  %pos = launch.buffer "pos" i32[2] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[2x64] param
  %xk = launch.buffer "xk" f32[2x32] param
  %q = launch.buffer "q" f32[2x64] computed
  %k = launch.buffer "k" f32[32x32] zero
  %v = launch.buffer "v" f32[32x32] zero
  %o = launch.buffer "o" f32[2x64] computed
  launch.rope_parts [%xq into %q heads = 4 per_row = 2, %xk into %k at row %pos pitch 32 heads = 2 per_row = 1 apart 512]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) seqs covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 2)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) seq = 512 f32 covers [3]
  launch.yield %o
}

// Rows of a chunk.
// CHECK-LABEL: launch.schedule @chunk
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @chunk: deferred_rope refused on [1, 2, 3] (q): each of its 2 rows attends keys that other rows rotate
launch.schedule @chunk {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[2x64] param
  %xk = launch.buffer "xk" f32[2x32] param
  %q = launch.buffer "q" f32[2x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[2x64] computed
  launch.rope_parts [%xq into %q heads = 4 per_row = 2, %xk into %k at row %pos pitch 32 heads = 2 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 2)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// Another reader of the queries.
// CHECK-LABEL: launch.schedule @another_reader
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @another_reader: deferred_rope refused on [1, 2, 3] (q): "q" is read by others too
launch.schedule @another_reader {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  %u = launch.buffer "u" f32[1x64] computed
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.unary silu %q into %u (n = 64)
  launch.yield %o, %u
}

// What runs between reads the cache.
// CHECK-LABEL: launch.schedule @between
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @between: deferred_rope refused on [1, 2, 3] (q): unary between them touches what the rotation does
launch.schedule @between {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  %u = launch.buffer "u" f32[1x512] computed
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.unary silu %k into %u (n = 512)
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o, %u
}

// Another position.
// CHECK-LABEL: launch.schedule @another_position
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @another_position: deferred_rope refused on [1, 2, 3] (q): the rotation is at another position, or of heads of another width
launch.schedule @another_position {
  %p = launch.buffer "p" i32[1] param #tg.arg<position, 1>
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %p pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// Heads at two positions.
// CHECK-LABEL: launch.schedule @other_rows
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @other_rows: deferred_rope refused on [1, 2, 3] (q): the rotation is not of the queries as attention reads them
launch.schedule @other_rows {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  launch.rope_parts [%xq into %q heads = 2 per_row = 1, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// What else is rotated is no key row of the attention.
// CHECK-LABEL: launch.schedule @another_key
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @another_key: deferred_rope refused on [1, 2, 3] (q): what else the launch rotates is not the key row that attention reads
launch.schedule @another_key {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  %t = launch.buffer "t" f32[16x32] zero
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %t at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// Keys in two arrays, of which one is rotated.
// CHECK-LABEL: launch.schedule @tails
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @tails: deferred_rope refused on [1, 3] (q): its keys are not rotated whole
launch.schedule @tails {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  %qt = launch.buffer "qt" f32[1x32] param
  %kt = launch.buffer "kt" f32[16x16] zero
  launch.rope %xq by %cos, %sin at %pos into %q pairing half (heads = 2, per_row = 2, hd = 32, half = 16) covers [1]
  launch.attention %q, %k, %v at %pos tails %qt, %kt[own = 32 q_pitch = 32 q_tail 16 from 0 k_tail 16 from 0] into %o (heads = 2, group = 2, hd = 48, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// Values that lie where the keys do.
// CHECK-LABEL: launch.schedule @values_in_keys
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @values_in_keys: deferred_rope refused on [1, 2, 3] (q): its values lie where its keys do, and are read before the key row is set
launch.schedule @values_in_keys {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %k at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}

// Attention writes over what is rotated.
// CHECK-LABEL: launch.schedule @over_the_input
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @over_the_input: deferred_rope refused on [1, 2, 3] (q): one of the two reads what the other, or it itself, writes, and blocks do both at once
launch.schedule @over_the_input {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] computed
  %xs = launch.buffer "xs" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  launch.unary silu %xs into %xq (n = 64)
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %k, %v at %pos into %xq (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %xq
}

// Attention reads the keys by another name.
// CHECK-LABEL: launch.schedule @keys_by_alias
// CHECK-NOT: launch.fold
// WHY-NEXT: remark: @keys_by_alias: deferred_rope refused on [1, 2, 3] (q): what else the launch rotates is not the key row that attention reads
launch.schedule @keys_by_alias {
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0>
  %cos = launch.buffer "cos" f32[16x16] param
  %sin = launch.buffer "sin" f32[16x16] param
  %xq = launch.buffer "xq" f32[1x64] param
  %xk = launch.buffer "xk" f32[1x32] param
  %q = launch.buffer "q" f32[1x64] computed
  %k = launch.buffer "k" f32[16x32] zero
  %v = launch.buffer "v" f32[16x32] zero
  %o = launch.buffer "o" f32[1x64] computed
  %ka = launch.buffer "ka" f32[16x32] alias %k + 0
  launch.rope_parts [%xq into %q heads = 2 per_row = 2, %xk into %k at row %pos pitch 32 heads = 1 per_row = 1]
    by %cos, %sin at %pos pairing half (hd = 32, half = 16) covers [1, 2] by [rope_parts]
  launch.attention %q, %ka, %v at %pos into %o (heads = 2, group = 2, hd = 32, vd = 32, len = 16, rows = 1)
    values 32 + 0 scale = 0.25 (per_block = 2, splits = 1) f32 covers [3]
  launch.yield %o
}
