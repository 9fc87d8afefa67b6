"""From the launch dialect to CUDA C: a translation unit with one kernel for each distinct launch of a schedule."""

from __future__ import annotations

from lane_mlir.cuda.printer.kernel import BufferArgument, Form, Kernel, Printing, ScratchArgument
from lane_mlir.cuda.printer.unit import Unit, Use, print_unit

__all__ = [
    "BufferArgument",
    "Form",
    "Kernel",
    "Printing",
    "ScratchArgument",
    "Unit",
    "Use",
    "print_unit",
]
