"""Numbers of the matrix-vector kernels, gemv.cuh: how many rows they take and how they split their work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lane_mlir.formats import Format

QBLOCK = 32
"""Values of an activation that share one scale when quantized."""

GEMV_ROWS = 16
"""Rows of activations that the matrix-vector kernels take at most; beyond, the tile kernels of gemm.cuh."""

GEMV_MMA_MIN_ROWS = 8
"""
Sequences from which a batch's products use tensor cores.

One mma.m16n8k32 takes 8 rows of activations, so fewer leave its columns idle. On dp4a, 8 rows is also about where
unpacking and scaling, not reading the weights, becomes the limit: an H200 does 6e13 multiply-adds a second by dp4a and
reads 4e12 bytes, 15 a byte, about half of which go into scales.
"""

_ROWS_A_WARP = 4
"""Rows a warp at most: each reuses the activation, and its weights are on their way beside those of the others."""

_MANY_ROWS = 6144
"""
Rows of a weight from which a warp takes four, with 8 warps a block more than one block for each multiprocessor of a
large chip; below, it takes two, so that blocks of 32 columns have 16 warps. Measured on an H200.
"""

_FEW_ROWS = 512
"""Rows of a weight below which a warp takes one: so few do not fill a chip however they are split."""

_MIN_WARPS = 1024
"""With more than two rows of activations: warps below which each takes one row of the weight only."""

_WARP_VALUES = 512
"""Values of a row that a warp reads at once, 16 a lane."""

_WARP = 32
"""Lanes of a warp."""

_IN_FLIGHT = 96 * 1024
"""
Bytes of weights that a multiprocessor has on their way: its share of the memory's rate (4.2 TB/s over 132) for 3 µs. A
plain read needs a third of that; the rest covers the start of a block, whose first loads are before its wait.
"""

_BYTES_AHEAD = 288
"""Bytes of weights that a lane has on their way at most, in as many registers' bytes."""

_BYTES_AHEAD_OF_MANY = 128
"""The same with more than two rows of activations, whose sums are in registers too."""

_MAX_DEPTH = 4
"""Steps loaded ahead at most."""

_MAX_THREADS = 2048
"""Threads of a multiprocessor."""

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


def rows_a_warp(fmt: Format, n: int, k: int, m: int, whole: int | None = None) -> int:
    """
    Output rows that one warp computes at once of an [m, k] by [n, k] product: 1, 2 or 4, a divisor of `whole`: of n, or
    of products side by side, with n rows in all, of what divides the rows of each.

    More rows reuse each load of the activation and keep more weight loads in flight, until too few warps are left to
    cover the chip or the m x rows sums no longer fit in registers. Rows shorter than one load of the warp gain less.
    """
    rows = _rows_by_count(n) if m <= 2 else 2 if n // 2 >= _MIN_WARPS else 1
    if k < _WARP_VALUES or (not fmt.is_block and m > 1):
        rows = min(rows, 2)
    while rows > 1 and (n if whole is None else whole) % rows:
        rows //= 2
    return rows


def _rows_by_count(n: int) -> int:
    if n >= _MANY_ROWS:
        return _ROWS_A_WARP
    return 2 if n >= _FEW_ROWS else 1


def why_one_row(n: int, m: int) -> str:
    """Why a warp computes one of n output rows at once (`rows_a_warp`) for m rows of activations, in a sentence."""
    if n % 2:
        return f"{n} output rows are an odd number"
    if m <= 2:
        return f"{n} output rows are fewer than the {_FEW_ROWS} that fill a chip"
    return f"{n} output rows, two a warp, are {n // 2} warps, fewer than the {_MIN_WARPS} that cover a chip"


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


def read_alike(*formats: Format) -> bool:
    """Whether lanes read weights in these formats in units of one size, as the products of one kernel must be."""
    return len({unit_values(fmt) for fmt in formats}) <= 1


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
    fmt: Format,
    n: int,
    k: int,
    m: int,
    *,
    words: int,
    per_warp: int,
    whole_blocks: bool,
    multiprocessors: int,
    weights: int = 1,
) -> GemvSplit:
    """
    The split of an [m, k] by [n, k] product, or of `weights` such at once, that computes `per_warp` rows a warp.

    A row is shared by as many lanes as it keeps busy in its last step. `whole_blocks`: a block owns a multiple of 32
    columns, to quantize them.
    """
    unit = unit_values(fmt)
    units = k // unit
    lanes = _lanes(units, per_warp)
    rows = per_warp * lanes // _WARP
    steps = -(-units // lanes)
    step_bytes = rows * weights * fmt.bytes * unit // fmt.values
    warps = _WARP // per_warp if whole_blocks else _warps(n, per_warp, multiprocessors)
    if m > 2:
        depth = max(1, min(_BYTES_AHEAD_OF_MANY // step_bytes, _MAX_DEPTH, steps))
    else:
        blocks = min(n / (warps * per_warp) / multiprocessors, _MAX_THREADS / (_WARP * warps))
        depth = _depth(step_bytes, blocks * _WARP * warps * step_bytes, steps)
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


def _depth(lane_bytes: int, step_bytes: float, steps: int) -> int:
    """Steps ahead, of so many bytes each for a lane and for a multiprocessor: a power of two, no more than help."""
    depth = 1
    while depth < min(_MAX_DEPTH, steps) and depth * step_bytes < _IN_FLIGHT and 2 * depth * lane_bytes <= _BYTES_AHEAD:
        depth *= 2
    return depth


def _warps(n: int, per_warp: int, multiprocessors: int) -> int:
    """Warps of a block, 32 columns' or fewer where blocks would otherwise not reach all multiprocessors."""
    warps = max(_WARPS, _WARP // max(per_warp, 2))
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
