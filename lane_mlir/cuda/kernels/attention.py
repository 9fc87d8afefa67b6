"""Numbers of the attention kernels, attention.cuh: heads a block, splits of the context, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

ATTN_SHARED_HEADS = 128
"""Heads that read the same key rows together at most: one warp serves 8 of them, and a block has 16 warps."""

ATTN_TILE = 32
"""Key rows that a block holds at once."""

_BLOCK_HEADS = 8
"""Query heads a block at most: one a warp."""

_MIN_SPLIT = 64
"""Key rows a split keeps: fewer cost more to combine than they save."""

_MAX_SPLITS = 64
"""Splits at most: the combining block reads one partial result a split and lane, two a lane."""


def attended_span(length: int, window: int | None) -> int:
    """Positions of a cache of `length` rows that one query attends to at most."""
    return length if window is None else min(window, length)


def attention_per_block(group: int) -> int:
    """
    Query heads of a block: the most, up to 8, that divide the heads of a group, so that a block reads one key head.
    """
    return max(h for h in range(1, _BLOCK_HEADS + 1) if group % h == 0)


def attention_splits(span: int, rows: int, head_blocks: int, multiprocessors: int) -> int:
    """
    Parts of the context, so that two blocks a multiprocessor are at work on one step's attention.

    `head_blocks` is the number of blocks over heads, `rows` the number of queries.
    """
    blocks = max(rows * head_blocks, 1)
    return max(1, min(-(-span // _MIN_SPLIT), 2 * multiprocessors // blocks, _MAX_SPLITS))


def chunks_apart(splits: int, rows: int, head_blocks: int, multiprocessors: int) -> bool:
    """
    Whether the splits run as blocks of their own and are combined, not one after the other in one block.

    They do as long as the queries and heads alone leave multiprocessors idle.
    """
    return splits > 1 and rows * head_blocks < multiprocessors


def attn_shared_splits(span: int, multiprocessors: int) -> int:
    """Parts of the context where one block serves all heads: one a multiprocessor, each at least a tile of key rows."""
    return max(1, min(multiprocessors, -(-span // ATTN_TILE)))


def attn_shared_smem_bytes(heads: int, hd: int) -> int:
    """
    Shared memory of a block that serves all heads: the queries, a tile of key rows, and the tile's scores with each
    head's maximum and sum, in f32.
    """
    return 4 * (heads * hd + ATTN_TILE * hd + heads * (ATTN_TILE + 2))


# The kernel that attends row by row: how its threads share keys.

PART_KEYS = 128
"""Positions below which one block takes a context alone: reading them takes less time than summing two blocks."""

_WARP = 32

_LANE_COLUMNS = 8
"""Columns of a key that a lane multiplies, as far as 32 lanes reach: 16 bytes of f16."""

_RESULT_REGISTERS = 64
"""Weighted values that a lane keeps in registers: its columns of several heads."""

_REGISTERS = 112
"""Registers of a lane for results, keys, values and scores: two blocks of 256 threads share a multiprocessor."""

_ROW_WARPS = 8
"""Warps of a block."""


@dataclass(frozen=True)
class RowSplit:
    """How a block's threads share its keys: the fields of AttentionShape in attention_parts.cuh."""

    lanes: int
    key_vec: int
    value_vec: int
    at_once: int
    heads_a_warp: int
    warps: int


def split_rows(
    hd: int, vd: int, per_block: int, *, key_vec: int, value_vec: int, key_bytes: int, value_bytes: int
) -> RowSplit:
    """
    The split of a block of `per_block` heads of widths hd and vd, whose keys and values can be loaded in vectors of
    `key_vec` and `value_vec` elements of so many bytes.
    """
    lanes = 1
    while lanes < _WARP and -(-max(hd, vd) // lanes) > _LANE_COLUMNS:
        lanes *= 2
    key_vec, value_vec = min(key_vec, _LANE_COLUMNS), min(value_vec, _LANE_COLUMNS)
    keys, values = _columns(hd, key_vec, lanes), _columns(vd, value_vec, lanes)
    wanted = (h for h in range(per_block, 0, -1) if per_block % h == 0)
    heads = next((h for h in wanted if h * values <= _RESULT_REGISTERS), 1)
    at_once = 4
    while at_once > 1:
        stored = at_once * ((keys - key_vec) * key_bytes + values * value_bytes) // 4
        used = heads * values + stored + at_once * key_vec + at_once * heads + key_vec
        if used <= _REGISTERS:
            break
        at_once //= 2
    sets = per_block // heads
    return RowSplit(lanes, key_vec, value_vec, at_once, heads, sets * max(1, _ROW_WARPS // sets))


def _columns(width: int, vec: int, lanes: int) -> int:
    """Columns that a lane has of a row of `width`."""
    return -(-(width // vec) // lanes) * vec
