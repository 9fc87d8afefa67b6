"""Numbers of the matrix-vector kernels, gemv.cuh: how many rows they take and how they split their work."""

from __future__ import annotations

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


def quantizes_in_place(offset: int) -> bool:
    """Whether a view that starts at an element can share the blocks of what it views."""
    return offset % QBLOCK == 0


def rows_a_warp(fmt: Format, n: int, k: int, m: int) -> int:
    """
    Output rows that one warp computes at once of an [m, k] by [n, k] product: 1, 2 or 4.

    More rows reuse each load of the activation and keep more weight loads in flight, until too few warps are left to
    cover the chip or the m x rows sums no longer fit in registers. Rows shorter than one load of the warp gain less.
    """
    rows = _ROWS_A_WARP if m <= 2 else 2 if m <= 8 else 1
    if k < _WARP_VALUES or (not fmt.is_block and m > 1):
        rows = min(rows, 2)
    while rows > 1 and (n % rows or n // rows < _MIN_WARPS):
        rows //= 2
    return rows


def gemv_f32_parts(n: int, k: int, multiprocessors: int) -> int:
    """
    Parts into which a product by a few plain rows (a router, per-head gates) splits its columns.

    A warp a row leaves most of the chip idle below a few hundred rows: split until there are 4 warps a multiprocessor,
    but keep 256 columns a part, below which summing the parts costs more than it saves. A power of two.
    """
    wanted = min(-(-4 * multiprocessors // n), k // 256, 32)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1
