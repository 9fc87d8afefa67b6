// RUN: lane-opt %s -p fuse,link,plan -t cuda | filecheck %s
// RUN: lane-opt %s -p 'fuse{remarks=true},link,plan' -o /dev/null 2>&1 | filecheck %s --check-prefix=WHY

// Rows of f32 are read four values at a time; of 66 values, as plain values, which any length may have.

builtin.module attributes {tg.target = #tg.target<h200, int8, cache = f32, state = f32>} {
  // CHECK: // launch.gemv_f32 %{{.*}} by %w into %{{.*}} (k = 66, n = 64, m = 1)
  // WHY: remark: @rows: gemv_norm_epilogue refused on {{.*}}: the kernel of a product by plain f32 values has no epilogue
  func.func @rows(%x: tensor<1x66xf32>) -> tensor<1x64xf32> {
    %w = tg.constant "w" : tensor<64x66xf32, #tg.rows<f32>>
    %g = tg.constant "g" : tensor<64xf32>
    %y = tg.matmul %x, %w : (tensor<1x66xf32>, tensor<64x66xf32, #tg.rows<f32>>) -> tensor<1x64xf32>
    %n = tg.rms_norm %y weight %g eps 1.0e-05 : (tensor<1x64xf32>, tensor<64xf32>) -> tensor<1x64xf32>
    func.return %n : tensor<1x64xf32>
  }
}
