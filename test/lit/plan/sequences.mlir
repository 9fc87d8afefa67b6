// RUN: lane-opt %s -p plan --split-input-file | filecheck %s
// RUN: lane-opt %s -p "plan{held=sequences}" --split-input-file | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p 'plan{remarks=true}' --split-input-file -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY
// RUN: lane-opt %s -p 'plan{held=sequences remarks=true}' --split-input-file -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD

// WOULD-COUNT-3: sequences held on
// WOULD-NOT: sequences held on

// What two sequences run each is one launch: state and positions become arrays, of which the arguments are parts;
// results that are set into rows of a table land there.
// CHECK: launch.schedule @merged target<h200, dequant, cache = f32, state = f32> arena 256 {
// CHECK-NEXT: %pa.sequences = launch.buffer "pa.sequences" i32[2] param plain
// CHECK-NEXT: %pa = launch.buffer "pa" i32[1] alias #tg.arg<position, 0> %pa.sequences + 0
// CHECK-NEXT: %pb = launch.buffer "pb" i32[1] alias #tg.arg<position, 1> %pa.sequences + 1
// CHECK-NEXT: %ka.sequences = launch.buffer "ka.sequences" f32[16x4] zero plain
// CHECK-NEXT: %ka = launch.buffer "ka" f32[8x4] alias #tg.arg<kv_cache, 0, "k"> %ka.sequences + 0
// CHECK-NEXT: %kb = launch.buffer "kb" f32[8x4] alias #tg.arg<kv_cache, 1, "k"> %ka.sequences + 32
// CHECK-NEXT: %x = launch.buffer "x" f32[2x4] param plain
// CHECK-NEXT: %x0 = launch.buffer "first" f32[1x4] alias %x + 0
// CHECK-NEXT: %x1 = launch.buffer "second" f32[1x4] alias %x + 4
// CHECK-NEXT: %y = launch.buffer "y" f32[2x4] computed plain at 0
// CHECK-NEXT: launch.view %x from 0 into %x0 covers [0]
// CHECK-NEXT: launch.view %x from 4 into %x1 covers [4]
// CHECK-NEXT: launch.set_row %x into %ka.sequences at row %pa.sequences pitch 4 (cols = 4, count = 2) seq = 32 f32 covers [1, 5] by [sequences]
// CHECK-NEXT: launch.attention %x, %ka.sequences, %ka.sequences at %pa.sequences into %y (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 2) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) seq = 32 f32 covers [2, 3, 6, 7] by [sequences]
// CHECK-NEXT: launch.yield %y
// CHECK-NEXT: }
// HELD: launch.schedule @merged
// HELD: %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k"> plain
// HELD: launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32 covers [1]
// HELD: launch.attention %x0, %ka, %ka at %pa into %ya (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32 covers [2]
// HELD: launch.set_row %ya into %y at row 0 pitch 4 (cols = 4, count = 1) f32 covers [3]
// HELD: launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32 covers [5]
// HELD: launch.attention %x1, %kb, %kb at %pb into %yb (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32 covers [6]
// HELD: launch.set_row %yb into %y at row 1 pitch 4 (cols = 4, count = 1) f32 covers [7]
// WHY: remark: @merged: sequences fired on [2, 3, 6, 7] (left)
// WHY-NEXT: remark: @merged: sequences fired on [1, 5] (ka)
launch.schedule @merged {
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] param
  %x0 = launch.buffer "first" f32[1x4] alias %x + 0
  %x1 = launch.buffer "second" f32[1x4] alias %x + 4
  %ya = launch.buffer "left" f32[1x4] computed
  %yb = launch.buffer "right" f32[1x4] computed
  %y = launch.buffer "y" f32[2x4] computed
  launch.view %x from 0 into %x0 covers [0]
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32 covers [1]
  launch.attention %x0, %ka, %ka at %pa into %ya (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32 covers [2]
  launch.set_row %ya into %y at row 0 pitch 4 (cols = 4, count = 1) f32 covers [3]
  launch.view %x from 4 into %x1 covers [4]
  launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32 covers [5]
  launch.attention %x1, %kb, %kb at %pb into %yb (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = 1) values 4 + 0 scale = 0.5 (per_block = 1, splits = 1) f32 covers [6]
  launch.set_row %yb into %y at row 1 pitch 4 (cols = 4, count = 1) f32 covers [7]
  launch.yield %y
}

// -----

// What stands between reads what the first one writes: they cannot move behind it.
// CHECK-LABEL: launch.schedule @reads_what_was_written
// CHECK: launch.set_row %x0 into %ka at row %pa
// CHECK: launch.slice %ka
// CHECK: launch.set_row %x1 into %kb at row %pb
// WHY-NEXT: remark: @reads_what_was_written: sequences refused on [] (ka): slice into "s" runs between and reads what one before it writes
// WHY-NEXT: remark: @reads_what_was_written: sequences refused on [] (s): no kernel runs the slice of several sequences
launch.schedule @reads_what_was_written {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] computed
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %s = launch.buffer "s" f32[8x2] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32
  launch.slice %ka into %s (groups = 8, every = 4, start = 0, width = 2)
  launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32
  launch.yield %s
}

// -----

// What stands between writes over what the first one reads.
// CHECK-LABEL: launch.schedule @writes_what_was_read
// CHECK: launch.set_row %x0 into %ka at row %pa
// CHECK: launch.unary silu %x1 into %x0
// CHECK: launch.set_row %x1 into %kb at row %pb
// WHY-NEXT: remark: @writes_what_was_read: sequences refused on [] (ka): unary into "x0" runs between and writes what one before it touches
launch.schedule @writes_what_was_read {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] computed
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %s = launch.buffer "s" f32[8x2] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32
  launch.unary silu %x1 into %x0 (n = 4)
  launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32
  launch.yield %x
}

// -----

// What stands between reads what the last one writes, which stays behind it.
// CHECK-LABEL: launch.schedule @reads_what_is_written_later
// CHECK: launch.slice %kb into %s
// CHECK: launch.set_row %x into %ka.sequences at row %pa.sequences {{.*}} count = 2
// WHY-NEXT: remark: @reads_what_is_written_later: sequences fired on [] (ka)
// WHY-NEXT: remark: @reads_what_is_written_later: sequences refused on [] (s): no kernel runs the slice of several sequences
launch.schedule @reads_what_is_written_later {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] computed
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %s = launch.buffer "s" f32[8x2] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32
  launch.slice %kb into %s (groups = 8, every = 4, start = 0, width = 2)
  launch.set_row %x1 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32
  launch.yield %s
}

// -----

// The second sequence takes the first one's row.
// CHECK-LABEL: launch.schedule @other_rows
// CHECK: launch.set_row %x0 into %ka at row %pa
// CHECK-NOT: count = 2
// WHY-NEXT: remark: @other_rows: sequences refused on [] (ka): its sequences have 1, 0 launches alike, expected as many of each
launch.schedule @other_rows {
  %t = launch.buffer "t" i32[2] param #tg.arg<token, 0>
  %w = launch.buffer "w" f32[9x4] constant #launch.tensor<"w", f32>
  %pa = launch.buffer "pa" i32[1] param #tg.arg<position, 0>
  %pb = launch.buffer "pb" i32[1] param #tg.arg<position, 1>
  %ka = launch.buffer "ka" f32[8x4] zero #tg.arg<kv_cache, 0, "k">
  %kb = launch.buffer "kb" f32[8x4] zero #tg.arg<kv_cache, 1, "k">
  %x = launch.buffer "x" f32[2x4] computed
  %x0 = launch.buffer "x0" f32[1x4] alias %x + 0
  %x1 = launch.buffer "x1" f32[1x4] alias %x + 4
  %s = launch.buffer "s" f32[8x2] computed
  launch.gather %w at %t into %x (rows = 2, cols = 4)
  launch.set_row %x0 into %ka at row %pa pitch 4 (cols = 4, count = 1) f32
  launch.set_row %x0 into %kb at row %pb pitch 4 (cols = 4, count = 1) f32
  launch.yield %x
}

// WHY-NOT: remark
