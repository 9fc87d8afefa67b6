// RUN: lane-opt %s -p fuse,link,plan | filecheck %s

// A tensor may have a name that no value can have in text.

// CHECK: %x = launch.buffer "x" f32[1x64] param plain
// CHECK: %[[WEIGHT:.*]] = launch.buffer "the norm's: weight" f32[64] constant #launch.tensor<"the norm's: weight", f32> plain
// CHECK: launch.norm %x weight %[[WEIGHT]] out
func.func @step(%x: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %w = tg.constant "the norm's: weight" : tensor<64xf32>
  %y = tg.rms_norm %x weight %w eps 1.0e-5 : (tensor<1x64xf32>, tensor<64xf32>) -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}
