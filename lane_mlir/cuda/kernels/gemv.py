"""Numbers of the matrix-vector kernels, gemv.cuh: how many rows they take and how they split their work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lane_mlir.formats import Format

QBLOCK = 32
"""Values of an activation that share one scale when quantized."""

GEMV_ROWS = 16
"""Rows of activations that the matrix-vector kernels take at most; beyond, the tile kernels of gemm.cuh."""

MAX_CHUNK = 512
"""Rows of a prefill chunk at most."""

GEMV_MMA_MIN_ROWS = 8
"""
Sequences from which a batch's products use tensor cores.

One mma.m16n8k32 takes 8 rows of activations, so fewer leave its columns idle. On dp4a, 8 rows is also about where
unpacking and scaling, not reading the weights, becomes the limit: an H200 does 6e13 multiply-adds a second by dp4a and
reads 4e12 bytes, 15 a byte, about half of which go into scales.
"""

_ROWS_A_WARP = 4
"""Rows a warp where there are rows enough: with 16-byte loads it has 4 x 512 bytes in flight, the most it gained by."""

_MIN_WARPS = 1024
"""Warps below which a multiprocessor of a large chip has too few (8) to hide the latency of memory."""

_WARP_VALUES = 512
"""Values of a row that a warp reads at once, 16 a lane."""

_WARP = 32
"""Lanes of a warp."""

_BYTES_AHEAD = 128
"""Bytes of weights that a lane has on their way: 32 lanes, 16 warps a multiprocessor and 132 of those hold 8.6 MB."""

_MAX_DEPTH = 4
"""Steps loaded ahead at most; beyond, the registers would."""

_MAX_STAGED = 48 * 1024
"""Bytes of activations that a block keeps in shared memory, so that several blocks share a multiprocessor."""

_WARPS = 8
"""Warps of a block where nothing asks for more or fewer."""

_F32_COLUMNS = 8
"""Rows of a plain weight (columns of the result) of a block."""

_F32_LANES = 4
"""Lanes of a warp that share such a row."""

_F32_AHEAD = 16
"""Elements of it that a lane loads at once."""

_MIN_BLOCK_WARPS = 4
"""Warps of a block at least."""


def quantizes_in_place(offset: int) -> bool:
    """Whether a view that starts at an element can share the blocks of what it views."""
    return offset % QBLOCK == 0


def rows_a_warp(fmt: Format, n: int, k: int, m: int) -> int:
    """
    Output rows that one warp computes at once of an [m, k] by [n, k] product: 1, 2 or 4.

    More rows reuse each load of the activation and keep more weight loads in flight, until too few warps are left to
    cover the chip or the m x rows sums no longer fit in registers. Rows shorter than one load of the warp gain less.
    """
    rows = _ROWS_A_WARP if m <= 2 else 2
    if k < _WARP_VALUES or (not fmt.is_block and m > 1):
        rows = min(rows, 2)
    while rows > 1 and (n % rows or n // rows < _MIN_WARPS):
        rows //= 2
    return rows


def gemv_f32_parts(n: int, k: int, multiprocessors: int) -> int:
    """
    Parts into which a product by a few plain rows (a router, per-head gates) splits its columns: warps of a block that
    works on 8 rows.

    Few rows are few blocks: split until a thread has 16 columns, all of which it can load at once. Where the rows alone
    give every multiprocessor 8 warps, splits of 8 warps are enough. A power of two.
    """
    most = 8 if n // _F32_COLUMNS >= multiprocessors else 32
    wanted = min(k // (_F32_LANES * _F32_AHEAD), most)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1


def unit_values(fmt: Format) -> int:
    """Values of a row that a lane takes at once: 32 of a block format, 16 bytes of plain values."""
    return 32 if fmt.is_block else 16 // fmt.bytes


@dataclass(frozen=True)
class GemvSplit:
    """How a product is split between lanes, warps and steps: the fields of GemvShape in gemv.cuh."""

    lanes: int
    """Lanes that share rows of the weight."""
    rows: int
    """Rows that they share."""
    warps: int
    """Warps of a block."""
    depth: int
    """Steps whose weights are loaded ahead."""
    tile: int
    """Columns of the activation that are in shared memory at once."""

    @property
    def columns(self) -> int:
        """Output columns of a block."""
        return self.warps * (_WARP // self.lanes) * self.rows


def split_gemv(
    fmt: Format, n: int, k: int, m: int, *, words: int, per_warp: int, whole_blocks: bool, multiprocessors: int
) -> GemvSplit:
    """
    The split of an [m, k] by [n, k] product that computes `per_warp` rows a warp.

    A row is shared by as many lanes as it keeps busy in its last step. `whole_blocks`: a block owns a multiple of 32
    columns, to quantize them.
    """
    unit = unit_values(fmt)
    units = k // unit
    lanes = _lanes(units, per_warp)
    rows = per_warp * lanes // _WARP
    steps = -(-units // lanes)
    unit_bytes = fmt.bytes * unit // fmt.values
    depth = max(1, min(_BYTES_AHEAD // (rows * unit_bytes), _MAX_DEPTH, steps))
    warps = _WARP // per_warp if whole_blocks else _warps(n, per_warp, multiprocessors)
    return GemvSplit(lanes, rows, warps, depth, _tile(k, m, words, unit * lanes * depth))


def staged_bytes(split: GemvSplit, fmt: Format, m: int, words: int) -> int:
    """Bytes of shared memory that the activation's tile takes."""
    if words:
        return m * words * (split.tile // QBLOCK) * 40
    unit = unit_values(fmt)
    return m * (unit // 4) * (split.tile // unit | 1) * 16


def _lanes(units: int, per_warp: int) -> int:
    """The most lanes that waste the least of a row's last step."""
    choices = [lanes for lanes in (32, 16, 8, 4) if per_warp * lanes >= _WARP]
    return min(choices, key=lambda lanes: (-(-units // lanes) * lanes, -lanes))


def _warps(n: int, per_warp: int, multiprocessors: int) -> int:
    """Warps of a block: fewer where blocks would otherwise not reach all multiprocessors."""
    warps = _WARPS
    while warps > _MIN_BLOCK_WARPS and -(-n // (per_warp * warps)) < multiprocessors:
        warps //= 2
    return warps


def _tile(k: int, m: int, words: int, step: int) -> int:
    """Columns in shared memory at once: all of them, or as many whole groups of steps as fit."""
    column_bytes = m * words * 40 / QBLOCK if words else 4 * m
    if k * column_bytes <= _MAX_STAGED:
        return k
    steps = math.floor(_MAX_STAGED / (step * column_bytes))
    return min(max(steps, 1) * step, -(-k // step) * step)
