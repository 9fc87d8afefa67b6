"""
The translation unit of a schedule: for each distinct launch one kernel, and which kernels run each launch.

The same IR gives the same text, byte for byte: kernels are numbered in the order in which their launches run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from xdsl.ir import SSAValue
from xdsl.printer import Printer

from lane_mlir.chips import CHIPS, DEFAULT_CHIP, Chip
from lane_mlir.cuda.printer import (
    attention,
    elementwise,
    folds,
    mixture,
    movement,
    norms,
    products,
    recurrent,
    rotations,
)
from lane_mlir.cuda.printer.constants import check_constants
from lane_mlir.cuda.printer.kernel import Argument, Kernel, LaunchPrinter, Printers, Printing, refuse
from lane_mlir.dialects.launch import LaunchOp, ScheduleOp, ViewOp, buffer_of
from lane_mlir.dialects.tg import Numerics

PRINTERS: Printers = {
    **products.PRINTERS,
    **norms.PRINTERS,
    **rotations.PRINTERS,
    **elementwise.PRINTERS,
    **movement.PRINTERS,
    **attention.PRINTERS,
    **recurrent.PRINTERS,
    **mixture.PRINTERS,
    **folds.PRINTERS,
}
"""How each class of launch is printed."""

_WIDTH = 116
"""Columns of a comment's text."""


@dataclass(frozen=True)
class Use:
    """One kernel launch of a step: the symbol in the unit, and the kernel with the buffers of this launch."""

    launch: LaunchOp
    symbol: str
    kernel: Kernel

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.kernel.arguments


@dataclass(frozen=True)
class Unit:
    """A translation unit and, in the order in which they run, the launches of its kernels."""

    text: str
    uses: tuple[Use, ...]


@dataclass
class _Distinct:
    """A kernel of the unit and the launches that it runs."""

    symbol: str
    kernel: Kernel
    launches: list[LaunchOp]


def print_unit(schedule: ScheduleOp, chip: Chip | None = None) -> Unit:
    """
    Print the kernels of a planned schedule, for its own target's chip unless another is given.

    Raises: LaneError if a launch has no kernel, or a weight or table of it is what another writes, naming it.
    """
    check_constants(schedule)
    target = schedule.target
    numerics = target.numerics.data if target is not None else Numerics.DEQUANT
    if chip is None:
        chip = CHIPS[target.chip.data if target is not None else DEFAULT_CHIP]
    distinct: dict[tuple[object, ...], _Distinct] = {}
    uses: list[Use] = []
    for launch in schedule.launches():
        for kernel in print_launch(launch, Printing(numerics, chip)):
            symbol = f"{kernel.name}_{len(distinct)}"
            made = distinct.setdefault(kernel.signature(), _Distinct(symbol, kernel, []))
            made.launches.append(launch)
            uses.append(Use(launch, made.symbol, kernel))
    return Unit(_text(schedule, chip, list(distinct.values())), tuple(uses))


def print_launch(launch: LaunchOp, printing: Printing) -> Sequence[Kernel]:
    """
    The kernels that run one launch; none for a view.

    Raises: LaneError if it has no kernel, naming it.
    """
    if isinstance(launch, ViewOp):
        return ()
    return printer_of(launch)(launch, printing)


def printer_of(launch: LaunchOp) -> LaunchPrinter:
    printer = PRINTERS.get(type(launch))
    if printer is None:
        raise refuse(launch, "none is written for launches of its class")
    return printer


def _text(schedule: ScheduleOp, chip: Chip, kernels: Sequence[_Distinct]) -> str:
    headers = sorted({made.kernel.header for made in kernels})
    target = schedule.target
    numerics = f", {target.numerics.data}" if target is not None else ""
    lines = [
        f"// Kernels of the step @{schedule.sym_name.data} for {chip.name} ({chip.arch}){numerics}.",
        "",
        *(f'#include "{header}"' for header in headers),
        "",
        "using namespace lane;",
    ]
    for made in kernels:
        lines += ["", *_comment(made), *_definition(made)]
    return "\n".join(lines) + "\n"


def _definition(made: _Distinct) -> list[str]:
    kernel = made.kernel
    bounds = str(kernel.block)
    if kernel.blocks_per_multiprocessor:
        bounds += f", {kernel.blocks_per_multiprocessor}"
    parameters = ", ".join(f"{a.c_type}* {a.name}" for a in kernel.arguments)
    return [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        *_code(f"{made.symbol}({parameters}) {{", "    "),
        *_code(f"  {kernel.call};", "      "),
        "}",
    ]


def _code(text: str, indent: str) -> list[str]:
    """A line of code, broken after its commas."""
    kept = text.replace(" ", "\0").replace(",\0", ", ")
    lines = textwrap.wrap(kept, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _comment(made: _Distinct) -> list[str]:
    """The launch as it is printed, where it comes from and how it runs."""
    kernel, first = made.kernel, made.launches[0]
    grid = "x".join(map(str, kernel.grid)).removesuffix("x1").removesuffix("x1")
    how = f"{grid} block{'' if grid == '1' else 's'} of {kernel.block} threads"
    if kernel.shared:
        how += f", {kernel.shared} bytes of shared memory"
    covers = [launch.covers.data for launch in made.launches]
    text = [
        *ir_text(first).splitlines(),
        f"runs {'once' if len(covers) == 1 else f'{len(covers)} times'}: {how}",
    ]
    if any(covers):
        text.append("covers " + " ".join(f"[{', '.join(map(str, numbers))}]" for numbers in covers))
    if first.rules.data:
        text.append(f"by {', '.join(first.rules.data)}")
    return [line for piece in text for line in _wrapped(piece)]


def ir_text(launch: LaunchOp) -> str:
    """A launch as IR, its operands by the names of their buffers, without its origin."""
    copy = launch.clone()
    for op in copy.walk():
        op.properties.pop("covers", None)
        op.properties.pop("rules", None)
    stream = StringIO()
    printer = _NamingPrinter(stream=stream)
    printer.print_op(copy)
    copy.erase()
    return stream.getvalue()


class _NamingPrinter(Printer):
    """Prints buffers by their names in the schedule."""

    def print_ssa_value(self, value: SSAValue) -> str:
        name = f"%{buffer_of(value).label.data}"
        self.print_string(name)
        return name


def _wrapped(text: str) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()))
    return [f"// {line}" for line in textwrap.wrap(text, _WIDTH, subsequent_indent=indent + "    ") or [""]]
