"""What kernels read before they wait for their predecessors, and so no launch of the step may write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from xdsl.ir import SSAValue

from lane_mlir.cuda.printer.kernel import refuse
from lane_mlir.dialects.launch import LaunchOp, NormOp, ScheduleOp, ViewOp, holder

_OPERANDS = (
    *("w", "wg", "wu", "wd", "wr", "wa", "wb", "swg", "swu", "swd", "sgate", "norm", "pre_w", "gn"),
    *("scale", "sg", "su", "bias", "bg", "bu", "bd", "rb", "sb", "dt", "al", "sinks", "table", "cos", "sin"),
)
"""Operands of launches that hold weights or tables."""


def constants_of(launch: LaunchOp) -> Iterator[SSAValue]:
    """The buffers that the kernels of a launch may read before they have waited."""
    for part in launch.parts():
        names = (*_OPERANDS, "b") if isinstance(part, NormOp) else _OPERANDS
        written = part.writes()
        for name in names:
            for value in _values(getattr(part, name, None)):
                if value not in written:
                    yield value


def _values(operand: object) -> Iterator[SSAValue]:
    """The values of an operand, of which there may be none, one or several."""
    if isinstance(operand, SSAValue):
        yield operand
    elif isinstance(operand, tuple):
        yield from (value for value in cast("tuple[object, ...]", operand) if isinstance(value, SSAValue))


def check_constants(schedule: ScheduleOp) -> None:
    """Raises LaneError for a launch that takes as a weight or a table what a launch of the schedule writes."""
    # A view runs nothing.
    run = [launch for launch in schedule.launches() if not isinstance(launch, ViewOp)]
    writers = {holder(value): launch for launch in run for value in launch.writes()}
    for launch in run:
        for value in constants_of(launch):
            if (writer := writers.get(holder(value))) is not None:
                name = f'"{holder(value).label.data}"'
                why = f"it reads {name} before it waits for the launch before it, and {writer.name} writes that"
                raise refuse(launch, why)
