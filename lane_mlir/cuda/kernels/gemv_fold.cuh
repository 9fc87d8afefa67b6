// Folds of products of a few rows with what is done with their result: a norm of its rows, rotations of its heads.
//
// The results are in memory; the last block to write a part of what a norm or a rotation reads does it. Blocks count
// themselves off at counters that are zero at load and that the last sets back to zero.
#pragma once

#include "gemv.cuh"
#include "norm.cuh"
#include "rope.cuh"

namespace lane {

// The last block of all norms the rows of the result.
template <NormShape N, typename T>
struct NormAfter {
  NormOperands<T> operands;
  u32* counter;

  template <GemvShape S>
  LANE_DEVICE void run(int, int, int) const {
    __shared__ float partial[WARP];
    if (!is_last_block(counter, gridDim.x)) return;
    NormWeights<N, S.threads()> weights;
    weights.load(operands);
    for (int row = 0; row < S.m; row++) norm_row_of(static_cast<i64>(row), weights, operands, partial);
  }
};

// Heads of product PRODUCT are rotated by the last block to write columns of them, a warp each. Head h of a row begins
// at column FIRST + h·PITCH; of `side`, x is the result of the product. `next`: the same for another product, or nothing.
template <RopeShape R, int PRODUCT, int FIRST, int PITCH, typename SIDE, typename NEXT>
struct RopeAfter {
  RopeTables tables;
  SIDE side;
  u32* counters;  // one for each head of a row
  NEXT next;

  template <GemvShape S>
  LANE_DEVICE void run(int product, int first, int last) const {
    if (product != PRODUCT) {
      next.template run<S>(product, first, last);
      return;
    }
    constexpr int COLUMNS = S.columns(), TOUCHED = COLUMNS / PITCH + 2, HEADS = SIDE::shape.per_row;
    __shared__ bool complete[TOUCHED];
    int from = max((first - FIRST - R.hd) / PITCH, 0);  // no head before it has columns here
    __threadfence();
    __syncthreads();
    for (int i = threadIdx.x; i < TOUCHED; i += S.threads()) {
      int head = from + i, begin = FIRST + head * PITCH, end = begin + R.hd;
      bool touched = head < HEADS && begin < last && end > first;
      u32 blocks = (end - 1) / COLUMNS - begin / COLUMNS + 1;
      complete[i] = touched && atomicInc(counters + head, blocks - 1) == blocks - 1;
    }
    __syncthreads();
    __threadfence();
    for (int i = threadIdx.x / WARP; i < TOUCHED * S.m; i += S.warps) {
      if (!complete[i % TOUCHED]) continue;
      int unit = i / TOUCHED * HEADS + from + i % TOUCHED;
      HeadValues<R> head, norm;
      if constexpr (SIDE::shape.norm) norm.load(side.norm);
      head.load(side.x + SIDE::shape.part.at(unit, R.hd, 0));
      rope_head(head, norm, side, unit, tables);
    }
  }
};

}  // namespace lane
