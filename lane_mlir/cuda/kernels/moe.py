"""Numbers of the kernels of mixtures of experts, moe_router.cuh and moe.cuh: how they split their work."""

from __future__ import annotations

from dataclasses import replace

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS, GemvSplit, gemv_f32_parts, rows_a_warp, split_gemv, unit_values
from lane_mlir.formats import Format

ROUTER_COLUMNS = 8
"""Experts of a block where the router is stored transposed, as in moe_router.cuh."""

ROUTER_WARPS = 8
"""Warps of a block where it is stored in rows, an expert each."""

_FEW_ROWS, _MANY_ROWS = 4, 8
"""Rows that a block routes at most: of a few, few, so that more blocks are at work; of many, more for each weight."""

MOST_CHOSEN = 32
"""Experts that a row can choose, and groups they can be in: a lane each."""

_WARP = 32

_DOWN_AHEAD = 256
"""Bytes of down weights that a lane loads before the hidden values are there."""


def router_rows(rows: int) -> int:
    """Rows that a block routes."""
    return min(rows, _FEW_ROWS if rows <= GEMV_ROWS else _MANY_ROWS)


def router_warps(experts: int, d: int, multiprocessors: int) -> int:
    """Warps of a block where the router is stored transposed."""
    return max(gemv_f32_parts(experts, d, multiprocessors), 1)


def split_down(fmt: Format, d: int, k: int, *, words: int, multiprocessors: int) -> GemvSplit:
    """
    The split of the product of a row's hidden values, `k` of them in all its experts, by their down weights [d, …]: all
    lanes of a warp share rows, whatever the experts' width, so that a shared expert's product can be split alike.
    """
    rows = rows_a_warp(fmt, d, k, 1)
    split = split_gemv(fmt, d, k, 1, words=words, per_warp=rows, whole_blocks=False, multiprocessors=multiprocessors)
    unit = unit_values(fmt)
    steps = -(-k // (unit * _WARP))
    depth = max(1, min(_DOWN_AHEAD // (rows * fmt.bytes * unit // fmt.values), steps))
    return replace(split, lanes=_WARP, rows=rows, depth=depth, tile=k)
