"""The ways in which a plan fails, each one line."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.launch import BufferOp, LaunchOp, buffer_of
from lane_mlir.locations import OpFailedException


class PlanFailed(OpFailedException):
    """
    A plan that cannot be made: `op`, the launch (or the buffer) at fault; `number`, the first lifted op that it covers;
    its `kind`; its `output`, the name of what it writes (or its own); and the `reason`.
    """

    def __init__(self, op: Operation, message: str, reason: str) -> None:
        super().__init__(op, message)
        self.reason = reason
        self.number: int | None = None
        self.kind, self.output = op.name.rpartition(".")[2], ""
        match op:
            case LaunchOp():
                written = op.writes()
                self.number = min(op.covers.data, default=None)
                self.kind, self.output = op.kind(), buffer_of(written[0]).label.data if written else ""
            case BufferOp():
                self.output = op.label.data
            case _:
                pass


class NoKernel(PlanFailed):
    """No kernel runs a launch as it is planned."""

    def __init__(self, launch: LaunchOp, reason: str) -> None:
        super().__init__(launch, f"no kernel for {described(launch)}: {reason}", reason)


class Shape(PlanFailed):
    """A buffer has not the length that a launch needs."""

    def __init__(self, launch: LaunchOp, buffer: BufferOp, needed: int, reason: str) -> None:
        found = f'"{buffer.label.data}" of {described(launch)} has {buffer.length} elements, expected {needed}'
        super().__init__(launch, f"{found}: {reason}", reason)


class Unbound(PlanFailed):
    """A schedule refers to what it does not hold."""

    def __init__(self, op: Operation, reason: str) -> None:
        super().__init__(op, f"unbound: {reason}", reason)


def described(launch: LaunchOp) -> str:
    """A launch in a message: the first lifted op that it covers, its kind, its output."""
    ops = launch.covers.data
    number = f"op {min(ops)} " if ops else ""
    written = launch.writes()
    return f"{number}{launch.kind()} into {named(written[0])}" if written else f"{number}{launch.kind()}"


def named(buffer: SSAValue) -> str:
    """A buffer in a message: its name in quotes."""
    return f'"{buffer_of(buffer).label.data}"'
