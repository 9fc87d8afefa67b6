"""What a step can take: tokens of its vocabulary, positions of its context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import AttentionOp, BufferOp, GatherOp, LaunchOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import ArgumentKind


@dataclass(frozen=True)
class Limits:
    """The rows of a step, the positions that there are (None: any), and the tokens of each array of them."""

    rows: int
    """Rows that each position stands for."""
    positions: int | None
    vocabulary: dict[BufferOp, int]

    @staticmethod
    def of(schedule: ScheduleOp) -> Limits:
        """Read them off a schedule: its caches and tables of rotations are as long as its context."""
        parts = [part for launch in schedule.launches() for part in launch.parts()]
        lengths = [part.len.data for part in parts if isinstance(part, AttentionOp)]
        lengths += list(_table_lengths(schedule))
        tokens, positions = (
            sum(op.length for op in parameters(schedule, kind)) for kind in (ArgumentKind.TOKEN, ArgumentKind.POSITION)
        )
        return Limits(max(tokens // max(positions, 1), 1), min(lengths, default=None), dict(_vocabulary(parts)))

    def check_position(self, position: int) -> None:
        """Raises LaneError for a position that leaves no room for the step's rows."""
        if position < 0 or (self.positions is not None and position + self.rows > self.positions):
            rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
            context = "" if self.positions is None else f" of {self.positions} positions"
            raise LaneError(f"position {position} with {rows} is not within the context{context}")

    def room(self, position: int) -> int | None:
        """How many steps of one row can run from a position on; None for any number."""
        return None if self.positions is None else max(self.positions - position, 0)


def parameters(schedule: ScheduleOp, kind: ArgumentKind) -> list[BufferOp]:
    """The arguments of a step of a kind, in the order of their sequences."""
    roles = ((op, op.role) for op in schedule.buffers() if op.is_argument)
    found = [(role.sequence.data, op) for op, role in roles if role is not None and role.kind.data is kind]
    return [op for _, op in sorted(found, key=lambda entry: entry[0])]


def _table_lengths(schedule: ScheduleOp) -> Iterator[int]:
    for buffer in schedule.buffers():
        if isinstance(buffer.constant, DictionaryAttr) and "rope_table" in buffer.constant.data:
            yield buffer.shape.data[0]


def _vocabulary(parts: list[LaunchOp]) -> Iterator[tuple[BufferOp, int]]:
    """Each array of tokens, and the rows of the shortest table that it points into."""
    found: dict[BufferOp, int] = {}
    for part in parts:
        if isinstance(part, GatherOp):
            index, rows = buffer_of(part.index).holder(Touch.PLAIN)[0], buffer_of(part.table).length // part.cols.data
            found[index] = min(rows, found.get(index, rows))
    yield from found.items()
