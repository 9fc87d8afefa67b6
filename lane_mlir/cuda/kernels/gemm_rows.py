"""Numbers of the kernels of 8 to 16 rows on tensor cores, gemm_rows.cuh: what they take and how they split it."""

from __future__ import annotations

from dataclasses import dataclass

from lane_mlir.cuda.kernels.gemv import GEMV_MMA_MIN_ROWS, GEMV_ROWS, QBLOCK
from lane_mlir.cuda.layout import layout
from lane_mlir.formats import Format

GEMM_ROWS_WARPS = 8
"""Warps of a block, each with one block of 32 columns of a step."""

_FORMATS = frozenset({Format.Q8_0, Format.Q4_0, Format.Q4_1, Format.Q4_K})
"""Formats that are taken apart as they come from shared memory."""

_STEP = GEMM_ROWS_WARPS * QBLOCK
"""Columns of a step."""

_TILE = 16
"""Rows of weights of a tile."""

_SHARED = 108 * 1024
"""Bytes of shared memory of a block, so that two share a multiprocessor, be they of two kernels."""

_MOST_STAGES = 8


@dataclass(frozen=True)
class GemmRowsSplit:
    """The fields of GemmRowsShape in gemm_rows.cuh that say how a product is split."""

    tiles: int
    """Tiles of 16 rows of weights of a block."""
    stages: int
    """Steps in shared memory."""
    columns: int
    """Output columns of a block."""
    shared: int
    """Bytes of shared memory of a block."""


def takes_rows(formats: tuple[Format, ...], m: int, k: int) -> bool:
    """Whether an int8 product of m rows by weights of some formats, all read alike, runs on these kernels."""
    alike = len(set(formats)) == 1 and formats[0] in _FORMATS
    return alike and GEMV_MMA_MIN_ROWS <= m <= GEMV_ROWS and k % _STEP == 0


def split_gemm_rows(fmt: Format, n: int, k: int, *, words: int, glu: bool, quant: bool, fill: int) -> GemmRowsSplit:
    """
    The split of a product by an [n, k] weight, or a pair of them: more rows a block share what is read of the
    activation, as long as blocks fill the multiprocessors, `fill`. A block that quantizes owns 32 columns.
    """
    tiles = 4 if glu or n // (4 * _TILE) >= 2 * fill else 2
    if tiles == 2 and not quant and n // (2 * _TILE) < fill // 2:
        tiles = 1
    rows = tiles * _TILE
    planes = layout(fmt).planes
    codes = [plane for plane in planes if plane.bytes == 16]
    scales = sum(-(-rows * _pitch(k // p.values * p.bytes) // 16) * 16 for p in planes if p.bytes != 16)
    stage = 128 * rows * len(codes) + _TILE * words * (256 + 4 * GEMM_ROWS_WARPS)
    stages = max(2, min((_SHARED - scales) // stage, _MOST_STAGES, k // _STEP + 1))
    sums = 4 * GEMM_ROWS_WARPS * _TILE * (rows + 4)
    return GemmRowsSplit(tiles, stages, rows // 2 if glu else rows, max(scales + stages * stage, sums))


def _pitch(bytes: int) -> int:
    """Bytes from one row of scales to the next in shared memory, as GemmRowsShared has it."""
    piece = 16 if bytes % 16 == 0 else 4
    return (bytes // piece | 1) * piece
