// RUN: LANE_ROUNDTRIP
// RUN: LANE_GENERIC_ROUNDTRIP

// Every storage format, as the encoding of a weight, and both of a quantized activation.

func.func @formats(%x: tensor<1x512xf32>) {
  // CHECK: %w_f32_rows = tg.constant "f32" : tensor<8x512xf32, #tg.rows<f32>>
  %w_f32_rows = tg.constant "f32" : tensor<8x512xf32, #tg.rows<f32>>
  // CHECK: %w_f16_rows = tg.constant "f16" : tensor<8x512xf32, #tg.rows<f16>>
  %w_f16_rows = tg.constant "f16" : tensor<8x512xf32, #tg.rows<f16>>
  // CHECK: %w_bf16_rows = tg.constant "bf16" : tensor<8x512xf32, #tg.rows<bf16>>
  %w_bf16_rows = tg.constant "bf16" : tensor<8x512xf32, #tg.rows<bf16>>
  // CHECK: %w_q4_0_rows = tg.constant "q4_0" : tensor<8x512xf32, #tg.rows<q4_0>>
  %w_q4_0_rows = tg.constant "q4_0" : tensor<8x512xf32, #tg.rows<q4_0>>
  // CHECK: %w_q4_1_rows = tg.constant "q4_1" : tensor<8x512xf32, #tg.rows<q4_1>>
  %w_q4_1_rows = tg.constant "q4_1" : tensor<8x512xf32, #tg.rows<q4_1>>
  // CHECK: %w_q5_0_rows = tg.constant "q5_0" : tensor<8x512xf32, #tg.rows<q5_0>>
  %w_q5_0_rows = tg.constant "q5_0" : tensor<8x512xf32, #tg.rows<q5_0>>
  // CHECK: %w_q5_1_rows = tg.constant "q5_1" : tensor<8x512xf32, #tg.rows<q5_1>>
  %w_q5_1_rows = tg.constant "q5_1" : tensor<8x512xf32, #tg.rows<q5_1>>
  // CHECK: %w_q8_0_rows = tg.constant "q8_0" : tensor<8x512xf32, #tg.rows<q8_0>>
  %w_q8_0_rows = tg.constant "q8_0" : tensor<8x512xf32, #tg.rows<q8_0>>
  // CHECK: %w_q2_k_rows = tg.constant "q2_k" : tensor<8x512xf32, #tg.rows<q2_k>>
  %w_q2_k_rows = tg.constant "q2_k" : tensor<8x512xf32, #tg.rows<q2_k>>
  // CHECK: %w_q3_k_rows = tg.constant "q3_k" : tensor<8x512xf32, #tg.rows<q3_k>>
  %w_q3_k_rows = tg.constant "q3_k" : tensor<8x512xf32, #tg.rows<q3_k>>
  // CHECK: %w_q4_k_rows = tg.constant "q4_k" : tensor<8x512xf32, #tg.rows<q4_k>>
  %w_q4_k_rows = tg.constant "q4_k" : tensor<8x512xf32, #tg.rows<q4_k>>
  // CHECK: %w_q5_k_rows = tg.constant "q5_k" : tensor<8x512xf32, #tg.rows<q5_k>>
  %w_q5_k_rows = tg.constant "q5_k" : tensor<8x512xf32, #tg.rows<q5_k>>
  // CHECK: %w_q6_k_rows = tg.constant "q6_k" : tensor<8x512xf32, #tg.rows<q6_k>>
  %w_q6_k_rows = tg.constant "q6_k" : tensor<8x512xf32, #tg.rows<q6_k>>
  // CHECK: %w_tq1_0_rows = tg.constant "tq1_0" : tensor<8x512xf32, #tg.rows<tq1_0>>
  %w_tq1_0_rows = tg.constant "tq1_0" : tensor<8x512xf32, #tg.rows<tq1_0>>
  // CHECK: %w_tq2_0_rows = tg.constant "tq2_0" : tensor<8x512xf32, #tg.rows<tq2_0>>
  %w_tq2_0_rows = tg.constant "tq2_0" : tensor<8x512xf32, #tg.rows<tq2_0>>
  // CHECK: %w_mxfp4_rows = tg.constant "mxfp4" : tensor<8x512xf32, #tg.rows<mxfp4>>
  %w_mxfp4_rows = tg.constant "mxfp4" : tensor<8x512xf32, #tg.rows<mxfp4>>
  // CHECK: %w_nvfp4_rows = tg.constant "nvfp4" : tensor<8x512xf32, #tg.rows<nvfp4>>
  %w_nvfp4_rows = tg.constant "nvfp4" : tensor<8x512xf32, #tg.rows<nvfp4>>
  // CHECK: %w_iq1_s_rows = tg.constant "iq1_s" : tensor<8x512xf32, #tg.rows<iq1_s>>
  %w_iq1_s_rows = tg.constant "iq1_s" : tensor<8x512xf32, #tg.rows<iq1_s>>
  // CHECK: %w_iq1_m_rows = tg.constant "iq1_m" : tensor<8x512xf32, #tg.rows<iq1_m>>
  %w_iq1_m_rows = tg.constant "iq1_m" : tensor<8x512xf32, #tg.rows<iq1_m>>
  // CHECK: %w_iq2_xxs_rows = tg.constant "iq2_xxs" : tensor<8x512xf32, #tg.rows<iq2_xxs>>
  %w_iq2_xxs_rows = tg.constant "iq2_xxs" : tensor<8x512xf32, #tg.rows<iq2_xxs>>
  // CHECK: %w_iq2_xs_rows = tg.constant "iq2_xs" : tensor<8x512xf32, #tg.rows<iq2_xs>>
  %w_iq2_xs_rows = tg.constant "iq2_xs" : tensor<8x512xf32, #tg.rows<iq2_xs>>
  // CHECK: %w_iq2_s_rows = tg.constant "iq2_s" : tensor<8x512xf32, #tg.rows<iq2_s>>
  %w_iq2_s_rows = tg.constant "iq2_s" : tensor<8x512xf32, #tg.rows<iq2_s>>
  // CHECK: %w_iq3_xxs_rows = tg.constant "iq3_xxs" : tensor<8x512xf32, #tg.rows<iq3_xxs>>
  %w_iq3_xxs_rows = tg.constant "iq3_xxs" : tensor<8x512xf32, #tg.rows<iq3_xxs>>
  // CHECK: %w_iq3_s_rows = tg.constant "iq3_s" : tensor<8x512xf32, #tg.rows<iq3_s>>
  %w_iq3_s_rows = tg.constant "iq3_s" : tensor<8x512xf32, #tg.rows<iq3_s>>
  // CHECK: %w_iq4_nl_rows = tg.constant "iq4_nl" : tensor<8x512xf32, #tg.rows<iq4_nl>>
  %w_iq4_nl_rows = tg.constant "iq4_nl" : tensor<8x512xf32, #tg.rows<iq4_nl>>
  // CHECK: %w_iq4_xs_rows = tg.constant "iq4_xs" : tensor<8x512xf32, #tg.rows<iq4_xs>>
  %w_iq4_xs_rows = tg.constant "iq4_xs" : tensor<8x512xf32, #tg.rows<iq4_xs>>
  // CHECK: %w_int8_rows = tg.quantize %x : tensor<1x512xf32> -> tensor<1x512xf32, #tg.quantized<int8>>
  %w_int8_rows = tg.quantize %x : tensor<1x512xf32> -> tensor<1x512xf32, #tg.quantized<int8>>
  // CHECK: %w_two_pass_int8_rows = tg.quantize %x : tensor<1x512xf32> -> tensor<1x512xf32, #tg.quantized<two_pass_int8>>
  %w_two_pass_int8_rows = tg.quantize %x : tensor<1x512xf32> -> tensor<1x512xf32, #tg.quantized<two_pass_int8>>
  func.return
}
