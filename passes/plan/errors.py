"""The ways in which a plan fails, each one line."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.launch import BufferOp, LaunchOp, buffer_of
from lane_mlir.locations import OpFailedException


class NoKernel(OpFailedException):
    """No kernel runs a launch as it is planned."""

    def __init__(self, launch: LaunchOp, why: str) -> None:
        super().__init__(launch, f"no kernel for {described(launch)}: {why}")


class Shape(OpFailedException):
    """A buffer has not the length that a launch needs."""

    def __init__(self, launch: LaunchOp, buffer: BufferOp, needed: int, why: str) -> None:
        super().__init__(
            launch,
            f'"{buffer.label.data}" of {described(launch)} has {buffer.length} elements, expected {needed}: {why}',
        )


class Unbound(OpFailedException):
    """A schedule refers to what it does not hold."""

    def __init__(self, op: Operation, what: str) -> None:
        super().__init__(op, f"unbound: {what}")


def described(launch: LaunchOp) -> str:
    """A launch in a message: the first lifted op that it covers, its kind, its output."""
    ops = launch.covers.data
    number = f"op {min(ops)} " if ops else ""
    written = launch.writes()
    return f"{number}{launch.kind()} into {named(written[0])}" if written else f"{number}{launch.kind()}"


def named(buffer: SSAValue) -> str:
    """A buffer in a message: its name in quotes."""
    return f'"{buffer_of(buffer).label.data}"'
