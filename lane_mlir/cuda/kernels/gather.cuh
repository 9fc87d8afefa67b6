// launch.gather, and the fold of it and a norm.
//
//     out[r] = scale·table[index[r]]
//
// table [TABLE, cols] in a format of formats.cuh, index [rows], out [rows, cols] f32. A block takes a row, a thread 4
// columns of it at a time; neighbouring threads share a unit of the table. An index that is no row of the table gives NaN.
//
// Limits: cols a multiple of the format's unit.
#pragma once

#include "formats.cuh"
#include "norm.cuh"

namespace lane {

// Columns 4·quad on of a row of a table.
template <typename F>
LANE_DEVICE float4 table_quad(const Planes<F>& table, i64 row, int units, int quad) {
  constexpr int QUADS = F::UNIT / 4;
  auto unit = F::decode(F::load(table, row * units + quad / QUADS));
  float4 value = unit.quad(0);
  // Every quad by its constant index, so that the unit stays in registers.
#pragma unroll
  for (int i = 1; i < QUADS; i++) {
    if (quad % QUADS == i) value = unit.quad(i);
  }
  return value;
}

// The row of the table for row `row` of the result, times `scale`; a norm's shape says how the threads share it.
template <typename F, i64 TABLE, NormShape S, int THREADS>
LANE_DEVICE RowValues<S, THREADS> gather_row(const u8* table, const int* index, i64 row, float scale) {
  static_assert(S.vec == 4 && S.cols % F::UNIT == 0, "a row is whole units");
  using Row = RowValues<S, THREADS>;
  Planes<F> planes = planes_of<F, TABLE, S.cols>(table);
  i64 from = index[row];
  bool exists = from >= 0 && from < TABLE;
  Row values;
#pragma unroll
  for (int i = 0; i < Row::COUNT; i++) {
    float nan = __uint_as_float(0x7fc00000u);
    float4 quad = {nan, nan, nan, nan};
    if (Row::inside(i) && exists) quad = table_quad<F>(planes, from, S.cols / F::UNIT, Row::vector(i));
    values.value[i] = {quad.x * scale, quad.y * scale, quad.z * scale, quad.w * scale};
  }
  return values;
}

template <typename F, i64 TABLE, NormShape S, int THREADS>
LANE_DEVICE void gather(const u8* table, const int* index, float scale, float* out) {
  let_successor_start();
  wait_for_predecessor();
  i64 row = blockIdx.x;
  gather_row<F, TABLE, S, THREADS>(table, index, row, scale).store(out + row * S.cols);
}

// launch.fold of a gather and the norm of its result.
template <typename F, i64 TABLE, NormShape S, int THREADS, typename T>
LANE_DEVICE void gather_norm(const u8* table, const int* index, float scale, float* out, const NormOperands<T>& o) {
  __shared__ float partial[WARP];
  let_successor_start();
  NormWeights<S, THREADS> weights;
  weights.load(o);
  wait_for_predecessor();
  i64 row = blockIdx.x;
  auto values = gather_row<F, TABLE, S, THREADS>(table, index, row, scale);
  values.store(out + row * S.cols);
  norm_row(values, row, weights, o, partial);
}

}  // namespace lane
