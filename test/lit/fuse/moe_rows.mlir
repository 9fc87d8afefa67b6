// RUN: lane-opt %s -p fuse --split-input-file | filecheck %s
// RUN: lane-opt %s -p "fuse{held=moe_rows}" --split-input-file | filecheck %s --check-prefix=HELD
// RUN: lane-opt %s -p fuse,link --split-input-file | filecheck %s --check-prefix=LINK
// RUN: lane-opt %s -p 'fuse{held=moe_rows remarks=true}' --split-input-file -o /dev/null 2>&1 | filecheck %s --check-prefix=WOULD
// RUN: lane-opt %s -p 'fuse{remarks=true}' --split-input-file -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// The mixtures of both rows, each put into its row of one tensor, are one mixture of two rows of sequences.

// WOULD-COUNT-1: moe_rows held on
// WOULD-NOT: moe_rows held on
// CHECK-LABEL: func.func @rows
// CHECK: %mixed = tg.fused "moe_rows" {
// CHECK-NEXT: tg.moe
// CHECK-NEXT: tg.insert
// CHECK-NEXT: tg.moe
// CHECK-NEXT: tg.insert
// CHECK-NEXT: tg.yield
// CHECK: func.return %mixed
// HELD-LABEL: func.func @rows
// HELD-COUNT-2: tg.insert
// HELD-NOT: tg.fused
// HELD: func.return %mixed
// LINK-LABEL: launch.schedule @rows
// LINK: launch.moe %x router {{.*}} into %mixed {{.*}} rows = 2) batch covers [3, 4, 5, 6] by [moe_rows]
// LINK-NEXT: launch.yield %mixed
// WHY: remark: @rows: moe_rows fired on [3, 4, 5, 6]
func.func @rows(%token: memref<2xi32> {tg.arg = #tg.arg<token, 0>}, %a: memref<1xi32> {tg.arg = #tg.arg<position, 0>}, %b: memref<1xi32> {tg.arg = #tg.arg<position, 1>}) -> tensor<2x64xf32> {
  %table = tg.constant "token_embd.weight" : tensor<9x64xf32>
  %router = tg.constant "router" : tensor<4x64xf32>
  %up = tg.constant "up" : tensor<4x32x64xf32>
  %down = tg.constant "down" : tensor<4x64x32xf32>
  %x = tg.gather[0] %table[%token] : (tensor<9x64xf32>, memref<2xi32>) -> tensor<2x64xf32>
  %x0 = tg.view[1] %x from 0 : (tensor<2x64xf32>) -> tensor<1x64xf32>
  %x1 = tg.view[2] %x from 64 : (tensor<2x64xf32>) -> tensor<1x64xf32>
  %empty = tg.empty : tensor<2x64xf32>
  %y0 = tg.moe[3] %x0 router %router gate %up up %up down %down used 2 of groups 1 / 1 by softmax scale 1.0 silu : tensor<1x64xf32>, tensor<4x64xf32>, tensor<4x32x64xf32>, tensor<4x32x64xf32>, tensor<4x64x32xf32> -> tensor<1x64xf32>
  %one = tg.insert[4] %y0 into %empty every 128 from 0 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %y1 = tg.moe[5] %x1 router %router gate %up up %up down %down used 2 of groups 1 / 1 by softmax scale 1.0 silu : tensor<1x64xf32>, tensor<4x64xf32>, tensor<4x32x64xf32>, tensor<4x32x64xf32>, tensor<4x64x32xf32> -> tensor<1x64xf32>
  %mixed = tg.insert[6] %y1 into %one every 128 from 64 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %mixed : tensor<2x64xf32>
}

// -----

// The second row is routed otherwise.

// CHECK-LABEL: func.func @others
// CHECK-NOT: tg.fused
// CHECK: func.return
// LINK-LABEL: launch.schedule @others
// LINK: launch.moe %x0 {{.*}} into %y0
// LINK-NEXT: launch.set_row %y0 into %one at row 0 pitch 64 (cols = 64, count = 1) f32
// LINK-NEXT: launch.moe %x1 {{.*}} into %y1
// LINK-NEXT: launch.set_row %y1 into %one at row 1 pitch 64 (cols = 64, count = 1) f32
// LINK-NEXT: launch.yield %one
// WHY: remark: @others: moe_rows refused on [2, 3, 4, 5]: its parts are no mixtures of the rows of one activation by the same experts, put together again
func.func @others(%x: tensor<2x64xf32>) -> tensor<2x64xf32> {
  %router = tg.constant "router" : tensor<4x64xf32>
  %up = tg.constant "up" : tensor<4x32x64xf32>
  %down = tg.constant "down" : tensor<4x64x32xf32>
  %x0 = tg.view %x from 0 : (tensor<2x64xf32>) -> tensor<1x64xf32>
  %x1 = tg.view %x from 64 : (tensor<2x64xf32>) -> tensor<1x64xf32>
  %empty = tg.empty : tensor<2x64xf32>
  %y0 = tg.moe %x0 router %router gate %up up %up down %down used 2 of groups 1 / 1 by softmax scale 1.0 silu : tensor<1x64xf32>, tensor<4x64xf32>, tensor<4x32x64xf32>, tensor<4x32x64xf32>, tensor<4x64x32xf32> -> tensor<1x64xf32>
  %one = tg.insert %y0 into %empty every 128 from 0 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %y1 = tg.moe %x1 router %router gate %up up %up down %down used 2 of groups 1 / 1 by sigmoid scale 1.0 silu : tensor<1x64xf32>, tensor<4x64xf32>, tensor<4x32x64xf32>, tensor<4x32x64xf32>, tensor<4x64x32xf32> -> tensor<1x64xf32>
  %mixed = tg.insert %y1 into %one every 128 from 64 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %mixed : tensor<2x64xf32>
}

// -----

// Inserts into one empty tensor are two tensors, in two buffers.

// LINK-LABEL: launch.schedule @two_tensors
// LINK: launch.set_row %x into %left at row 0
// LINK: launch.set_row %x into %right at row 1
// LINK: launch.yield %left, %right
func.func @two_tensors(%x: tensor<1x64xf32>) -> (tensor<2x64xf32>, tensor<2x64xf32>) {
  %empty = tg.empty : tensor<2x64xf32>
  %left = tg.insert %x into %empty every 128 from 0 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  %right = tg.insert %x into %empty every 128 from 64 : (tensor<1x64xf32>, tensor<2x64xf32>) -> tensor<2x64xf32>
  func.return %left, %right : tensor<2x64xf32>, tensor<2x64xf32>
}

// WHY-NOT: moe_rows fired
