// What a block of attention does before it attends: nothing, or the rotations that are left to it (launch.fold of
// launch.rope_parts and launch.attention).
//
// A block rotates the queries of its heads, which it keeps in shared memory, and, if it attends the newest position, the key
// head that it reads, which it sets in the cache. Blocks of other heads with the same key head set the same values: none
// reads what another has set.
#pragma once

#include "attention_parts.cuh"
#include "rope.cuh"

namespace lane {

struct NothingBefore {
  static constexpr bool ROTATES = false, SETS_KEY = false;
};

// KEY: the side of the key row, or NothingBefore where it is not rotated.
template <RopeShape R, typename QUERY, typename KEY>
struct RotateBefore {
  static constexpr bool ROTATES = true, SETS_KEY = !Same<KEY, NothingBefore>::value;
  RopeTables tables;
  QUERY query;
  KEY key;

  // The queries of a block's heads to `queries` [per_block][hd]; where `newest`, the key of the row's position to the cache
  // and, if it is not null, to `key_row`. A warp takes a head. By all threads of the block, which synchronize afterwards.
  template <AttentionShape S, typename T>
  LANE_DEVICE void run(int row, int first_head, bool newest, float* queries, T* key_row) const {
    static_assert(S.hd == R.hd, "heads are rotated as wide as they are attended");
    for (int item = threadIdx.x / WARP; item <= S.per_block; item += S.warps) {
      if (item < S.per_block) {
        int unit = row * S.heads + first_head + item;
        float* stored = blockIdx.x == 0 ? query.head(unit, R.hd) : nullptr;
        rotate(query, unit, queries + item * S.hd, stored);
      } else if constexpr (SETS_KEY) {
        constexpr int KEY_HEADS = S.heads / S.group;
        int unit = row * KEY_HEADS + first_head / S.group;
        if (newest) rotate(key, unit, key.head(unit, R.hd), key_row);
      }
    }
  }

 private:
  // To one place and, if it is not null, to another.
  template <typename SIDE, typename A, typename B>
  LANE_DEVICE void rotate(const SIDE& side, int unit, A* to, B* too) const {
    HeadValues<R> head, norm;
    if constexpr (SIDE::shape.norm) norm.load(side.norm);
    head.load(side.x + side.shape.part.at(unit, R.hd, 0));
    i64 position = position_of<R>(side, unit, tables);
    if constexpr (SIDE::shape.norm) head.normalize(SIDE::shape.eps, norm);
    head.store_rotated(tables, position, to);
    if (too != nullptr) head.store_rotated(tables, position, too);
  }
};

}  // namespace lane
