"""Numbers of the attention kernels, attention.cuh: heads a block, splits of the context, shared memory."""

from __future__ import annotations

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
