"""How wide the loads of a kernel can be, how many threads rows take, and results that are quantized apart."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import SSAValue

from lane_mlir.cuda.printer.kernel import Kernel, Printing
from lane_mlir.dialects.launch import Dst, Part, Touch, buffer_of
from lane_mlir.dialects.launch.operation import ceil_div

WARP = 32
"""Lanes of a warp."""

QUANT_THREADS = 128
"""Threads of a block that quantizes a buffer, 4 values each."""


def vector_width(buffers: Iterable[SSAValue | None], numbers: Iterable[int], largest: int = 4) -> int:
    """
    Elements that can be loaded at once: the largest power of two up to `largest` that divides all numbers (sizes,
    pitches, offsets) and the element that each buffer begins with in its storage, which is aligned itself.
    """
    starts = [buffer_of(value).holder(Touch.PLAIN)[1] for value in buffers if value is not None]
    width = largest
    while any(number % width for number in (*starts, *numbers)):
        width //= 2
    return width


def numbers_of(place: Dst | Part | None) -> tuple[int, ...]:
    """The pitches and offsets of a place, which addresses in it are made of."""
    match place:
        case Part():
            return place.pitch, place.offset
        case Dst():
            row = () if place.row is None else (place.row.pitch,)
            return (*row, *numbers_of(place.unit))
        case None:
            return ()


def threads_for(vectors: int, most: int = 512) -> int:
    """Threads of a block that takes a row of vectors: whole warps, as few as give each thread as few as `most` do."""
    each = ceil_div(vectors, most)
    return ceil_div(ceil_div(vectors, each), WARP) * WARP


def quantize_apart(printing: Printing, source: str, out: SSAValue, n: int) -> Kernel:
    """
    A kernel that quantizes a result after the kernel that made it, where that one's threads do not own whole blocks.
    `source` names the result's values, asked of `printing` just before.
    """
    quantized = printing.writes_quantized("y", out)
    return Kernel(
        name="quant",
        header="quant.cuh",
        call=f"quant<{printing.words}>({source}, {n}, {quantized})",
        arguments=printing.take(),
        grid=(ceil_div(n, 4 * QUANT_THREADS), 1, 1),
        block=QUANT_THREADS,
    )
