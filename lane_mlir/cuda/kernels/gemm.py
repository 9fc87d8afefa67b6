"""Numbers of the tile kernels, gemm.cuh: the tiles of products over more than GEMV_ROWS rows."""

from __future__ import annotations

from lane_mlir.formats import Format

GEMM_TILE_N = 128
"""Output columns of a tile; a gate and an up projection share it, half each."""

GEMM_BLK_TILE_M = 128
"""Rows of a tile at most."""

GEMM_F32_TILE = 64
"""Rows and columns of a tile of the f32 kernel."""

GEMM_F32_TILE_K = 32
"""Columns that the f32 kernel multiplies in one step."""

_STEP_BLOCKS = 4
"""Blocks of 32 columns of a step of the int8 kernel."""

_MIN_STEPS = 4
"""Steps a split keeps, below which filling the pipeline costs as much as it saves."""

_TABLE_FORMATS = frozenset(f for f in Format if str(f).startswith(("iq", "tq", "q2", "q3")))
"""Formats whose unpacking (code books, bit planes) takes the registers that a second set of rows would."""


def gemm_blk_rows(fmt: Format, two_pass: bool) -> int:
    """
    Rows of a tile: 128, or 64 where two words of the activation or the format's unpacking need the registers.
    """
    return GEMM_BLK_TILE_M // 2 if two_pass or fmt in _TABLE_FORMATS else GEMM_BLK_TILE_M


def tile_rows(m: int, most: int) -> int:
    """Rows of a tile for a product of m rows: 32, 64 or 128, no more than `most`, the fewest that hold them all."""
    return next((rows for rows in (32, 64) if m <= rows), min(most, GEMM_BLK_TILE_M))


def gemm_shared_bytes(rows: int, words: int, halves: bool, minima: bool) -> int:
    """Shared memory of a tile: two steps of words and scales, as GemmShared in gemm.cuh has them."""
    parts = 2 * _STEP_BLOCKS if halves else _STEP_BLOCKS
    input_bytes = words * rows * (_STEP_BLOCKS * 32 + 4 * _STEP_BLOCKS + (4 * parts if minima else 0))
    weight_bytes = GEMM_TILE_N * (_STEP_BLOCKS * 32 + 4 * parts * (2 if minima else 1))
    return 2 * (input_bytes + weight_bytes)


def scales_halves(fmt: Format) -> bool:
    """Whether a format changes its scale after 16 values, not 32."""
    return fmt in (Format.Q2_K, Format.Q3_K, Format.Q6_K)


def has_minima(fmt: Format) -> bool:
    """Whether a format's values are a code times a scale plus a minimum."""
    return fmt in (Format.Q4_1, Format.Q5_1, Format.Q2_K, Format.Q4_K, Format.Q5_K)


def gemm_f32_tile(m: int, n: int, multiprocessors: int) -> tuple[int, int]:
    """Rows and columns of a tile in f32: 128 by 128 if such tiles fill the chip, else 64 by 64."""
    wide = -(-m // 128) * -(-n // 128)
    return (128, 128) if wide >= multiprocessors else (GEMM_F32_TILE, GEMM_F32_TILE)


def gemm_f32_splits(tiles: int, multiprocessors: int, steps: int) -> int:
    """
    Parts into which the columns of an f32 product are split, so that its tiles fill the chip's multiprocessors once.

    `tiles` is the number of output tiles, `steps` the number of steps over all columns.
    """
    return max(1, min(multiprocessors // max(tiles, 1), steps // _MIN_STEPS))
