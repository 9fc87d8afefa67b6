"""Numbers of the gated delta rule's kernels, delta.cuh."""

from __future__ import annotations

DELTA_CHUNK = 32
"""Rows that the chunked kernel takes at once: their 32 x 32 triangular system is solved by one warp."""

_MAX_HEAD = 128
"""Head width up to which a head's state, half its columns a block, stays in shared memory."""


def delta_chunks_take(d: int) -> bool:
    """Whether the chunked kernel takes heads of width d: whole tiles of 16, and a state that fits."""
    return d % 16 == 0 and d <= _MAX_HEAD
