// RUN: lane-opt %s --validate --pass-pipeline=canonicalize,cse,fuse,dce,link,plan | filecheck %s
// RUN: lane-opt %s --validate --pass-pipeline='fuse{numerics=int8},link,plan' | filecheck %s
// RUN: lane-opt %s --validate --pass-pipeline='fuse{numerics=two_pass_int8 held=embed_norm},link,plan' | filecheck %s
// RUN: lane-opt %s --validate | filecheck %s --check-prefix=NONE

// CHECK: launch.schedule @step
// NONE: func.func @step
builtin.module attributes {tg.target = #tg.target<h200, dequant, cache = f16, state = f32>} {
  func.func @step(%token: memref<1xi32> {tg.arg = #tg.arg<token, 0>},
                  %pos: memref<1xi32> {tg.arg = #tg.arg<position, 0>},
                  %k: memref<16x64xf32> {tg.arg = #tg.arg<kv_cache, 0>},
                  %v: memref<16x64xf32> {tg.arg = #tg.arg<kv_cache, 0>}) -> (tensor<1x50xf32>, tensor<1xi32>) {
    %table = tg.constant "token_embd.weight" : tensor<50x64xf32, #tg.rows<q8_0>>
    %g = tg.constant "norm.weight" : tensor<64xf32>
    %w = tg.constant "proj.weight" : tensor<64x64xf32, #tg.rows<q8_0>>
    %cos, %sin = tg.rope_table base 10000.0 freq_scale 1.0 ext_factor 0.0 attn_factor 1.0 beta 32.0, 1.0
      original_context 0 -> tensor<16x16xf32>, tensor<16x16xf32>
    %x = tg.gather %table[%token] : (tensor<50x64xf32, #tg.rows<q8_0>>, memref<1xi32>) -> tensor<1x64xf32>
    %n = tg.rms_norm %x weight %g eps 1.0e-5 : (tensor<1x64xf32>, tensor<64xf32>) -> tensor<1x64xf32>
    %p = tg.matmul %n, %w : (tensor<1x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<1x64xf32>
    %u = tg.view %p from 0 : (tensor<1x64xf32>) -> tensor<2x32xf32>
    %r = tg.rope %u by %cos, %sin at %pos heads 2 half
      : (tensor<2x32xf32>, tensor<16x16xf32>, tensor<16x16xf32>, memref<1xi32>) -> tensor<2x32xf32>
    %q = tg.view %r from 0 : (tensor<2x32xf32>) -> tensor<1x64xf32>
    tg.set_row %q into %k[%pos] : tensor<1x64xf32>, memref<16x64xf32>, memref<1xi32>
    tg.set_row %p into %v[%pos] : tensor<1x64xf32>, memref<16x64xf32>, memref<1xi32>
    %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2
      : tensor<1x64xf32>, memref<16x64xf32>, memref<16x64xf32>, memref<1xi32> -> tensor<1x64xf32>
    %o = tg.matmul %y, %w : (tensor<1x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<1x64xf32>
    %sum = tg.binary add %x, %o : (tensor<1x64xf32>, tensor<1x64xf32>) -> tensor<1x64xf32>
    %m = tg.rms_norm %sum weight %g eps 1.0e-6 : (tensor<1x64xf32>, tensor<64xf32>) -> tensor<1x64xf32>
    %logits = tg.matmul %m, %table : (tensor<1x64xf32>, tensor<50x64xf32, #tg.rows<q8_0>>) -> tensor<1x50xf32>
    %id = tg.argmax %logits : (tensor<1x50xf32>) -> tensor<1xi32>
    tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, memref<1xi32>
    func.return %logits, %id : tensor<1x50xf32>, tensor<1xi32>
  }
}
