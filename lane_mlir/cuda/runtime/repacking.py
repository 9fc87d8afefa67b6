"""The unit of kernels that repack a checkpoint's weights at load."""

from __future__ import annotations

from collections.abc import Iterable

from lane_mlir.cuda.layout import LAYOUTS
from lane_mlir.formats import Format

REPACK_THREADS = 256
"""Threads of a block; each takes 32 values."""

REPACK_UNIT = 32
"""Values that a thread takes."""


_PARAMETERS = "const u8* raw, u8* weight, i64 first, i64 units, i64 at0, i64 at1, i64 at2, i64 at3"


def repack_kernel(fmt: Format) -> str:
    """
    The symbol of the kernel that repacks a block format.

    Its arguments: the checkpoint's bytes, the weight's planes, the first unit of 32 values to write (which begins a
    block), how many units, and the first byte of each plane (`Layout.offsets`, 0 beyond the last).
    """
    return f"repack_{fmt}"


def print_repacking(formats: Iterable[Format] = LAYOUTS) -> str:
    """One kernel for each of the block formats; others are copied as they are."""
    lines = ["// Kernels that repack weights at load.", "", '#include "repack.cuh"', "", "using namespace lane;"]
    for fmt in sorted(f for f in formats if f.is_block):
        lines += [
            "",
            f'extern "C" __global__ void __launch_bounds__({REPACK_THREADS})',
            f"{repack_kernel(fmt)}({_PARAMETERS}) {{",
            f"  repack<{str(fmt).upper()}>(raw, weight, first, units, at0, at1, at2, at3);",
            "}",
        ]
    return "\n".join(lines) + "\n"
