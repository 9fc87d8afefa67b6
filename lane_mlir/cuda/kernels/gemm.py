"""Numbers of the tile kernels, gemm.cuh: the tiles of products over more than GEMV_ROWS rows."""

from __future__ import annotations

from lane_mlir.formats import Format

GEMM_TILE_N = 128
"""Output columns of a tile; a gate and an up projection share it, half each."""

GEMM_TILE_K = 32
"""Columns multiplied in one step: a block of the quantized activation."""

GEMM_BLK_TILE_M = 128
"""Rows of a tile at most."""

GEMM_F32_TILE = 64
"""Rows and columns of a tile of the f32 kernel."""

GEMM_F32_TILE_K = 32
"""Columns that the f32 kernel multiplies in one step."""

_MIN_STEPS = 4
"""Steps a split keeps, below which filling the pipeline costs as much as it saves."""

_TABLE_FORMATS = frozenset(f for f in Format if str(f).startswith(("iq", "tq", "q2", "q3")))
"""Formats whose unpacking (code books, bit planes) takes the registers that a second set of rows would."""


def gemm_blk_rows(fmt: Format, two_pass: bool) -> int:
    """
    Rows of a tile: 128, or 64 where two words of the activation or the format's unpacking need the registers.
    """
    return GEMM_BLK_TILE_M // 2 if two_pass or fmt in _TABLE_FORMATS else GEMM_BLK_TILE_M


def gemm_f32_splits(tiles: int, multiprocessors: int, steps: int) -> int:
    """
    Parts into which the columns of an f32 product are split, so that its tiles fill the chip's multiprocessors once.

    `tiles` is the number of output tiles, `steps` the number of steps over all columns.
    """
    return max(1, min(multiprocessors // max(tiles, 1), steps // _MIN_STEPS))
