"""Buffers of several sequences as one array each, and which sequence a buffer belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import quantizes_in_place
from lane_mlir.dialects.launch import (
    BufferOp,
    Fill,
    FillAttr,
    LaunchOp,
    NumberAttr,
    ScheduleOp,
    SetRowOp,
    Touch,
    ViewOp,
    buffer_of,
    elements,
)
from lane_mlir.dialects.tg import ArgumentKind


class Arrays:
    """The buffers of a schedule, of which those of all its sequences can become parts of one array."""

    def __init__(self, schedule: ScheduleOp):
        self.schedule = schedule
        buffers = schedule.buffers()
        self.sequences: int = 1 + max((_sequence_by_role(buffer) or 0 for buffer in buffers), default=0)
        self._order = {buffer: i for i, buffer in enumerate(buffers)}
        self._names = {buffer.label.data for buffer in buffers}
        self._numbers = count()

    # --- making arrays ---

    def hold_arguments(self) -> None:
        """Let the positions and each array of state of all sequences be one array; its parts stay the arguments."""
        found: dict[tuple[ArgumentKind, str], dict[int, BufferOp]] = {}
        unnamed: dict[tuple[ArgumentKind, int], int] = {}
        for buffer in self._order:
            if (sequence := _sequence_by_role(buffer)) is None or buffer.of is not None:
                continue
            assert buffer.role is not None
            kind, name = buffer.role.kind.data, buffer.role.label.data
            if not name:
                nth = unnamed[kind, sequence] = unnamed.get((kind, sequence), 0) + 1
                name = f" {nth}"
            found.setdefault((kind, name), {})[sequence] = buffer
        for members in found.values():
            if len(members) == self.sequences:
                self.hold([members[sequence] for sequence in range(self.sequences)])

    def hold(self, members: Sequence[BufferOp]) -> bool:
        """Let buffers that are alike be the parts of one new array; False where they are not."""
        first = members[0]
        if len({*members}) < len(members) or not all(_are_alike(first, member) for member in members):
            return False
        array = BufferOp(
            self._name(f"{first.label.data}.sequences"),
            (len(members) * first.shape.data[0], *first.shape.data[1:]),
            first.fill.data,
            dtype=first.dtype.data,
            plain=first.plain is not None,
            quantized=first.quantized is not None,
        )
        self._put_before(array, members)
        for sequence, member in enumerate(members):
            _become_part(member, array, sequence * first.length)
        return True

    def hold_row(self, member: BufferOp, table: BufferOp, offset: int) -> None:
        """Let a buffer be a row of a table."""
        if self._order[table] > self._order[member]:
            table.detach()
            self._put_before(table, [member])
        _become_part(member, table, offset)

    def _put_before(self, array: BufferOp, members: Sequence[BufferOp]) -> None:
        first = min(members, key=self._order.__getitem__)
        self.schedule.body.block.insert_op_before(array, first)
        # What is put before the same buffer twice stands in any order: neither is part of the other.
        self._order[array] = self._order[first]

    def _name(self, wanted: str) -> str:
        name = wanted
        while name in self._names:
            name = f"{wanted}_{next(self._numbers)}"
        self._names.add(name)
        return name

    # --- reading them ---

    def joined(self, values: Sequence[SSAValue]) -> SSAValue | None:
        """The array whose equal parts buffers are, in order and whole; what can be one becomes one."""
        held = [elements(value) for value in values]
        # Each is all of a buffer of its own.
        whole = all((start, stop) == (0, root.length) for root, start, stop in held)
        if whole and self.hold([root for root, _, _ in held]):
            held = [elements(value) for value in values]
        root, _, length = held[0]
        evenly = all(h == (root, i * length, (i + 1) * length) for i, h in enumerate(held))
        return root.buffer if evenly and root.length == len(values) * length else None

    def strided(self, values: Sequence[SSAValue]) -> tuple[SSAValue, int, int] | None:
        """The array of whose equal rows buffers are the same part: it, the elements of a row, where the part begins."""
        held = [elements(value) for value in values]
        root, start, _ = held[0]
        pitch, rest = divmod(root.length, len(values))
        if rest or any(h[0] is not root or h[1] != i * pitch + start for i, h in enumerate(held)):
            return None
        return root.buffer, pitch, start


class Owners:
    """
    Which sequence launches and buffers belong to: positions and state say so themselves; a launch is of the sequence of
    what it touches, and what it writes is of its own. A row of an array with one for each sequence is of that sequence.
    """

    def __init__(self, sequences: int):
        self.sequences = sequences
        self._of: dict[BufferOp, int] = {}

    def launch(self, launch: LaunchOp) -> int | None:
        """The sequence of a launch that follows those asked for before; None if it is of all, or of none alone."""
        touched = (*launch.reads(), *launch.writes())
        found = {sequence for value in touched if (sequence := self.buffer(value)) is not None}
        if len(found) != 1:
            return None
        (sequence,) = found
        if not isinstance(launch, ViewOp):
            for value in launch.writes():
                root, start, stop = elements(value)
                if root.fill.data is Fill.COMPUTED and (start, stop) == (0, root.length) and not _sets_one_row(launch):
                    self._of[root] = sequence
        return sequence

    def buffer(self, value: SSAValue) -> int | None:
        """The sequence of a buffer."""
        buffer = buffer_of(value)
        by_role = _sequence_by_role(buffer)
        if by_role is not None:
            return by_role
        root, start, stop = buffer.holder(Touch.PLAIN)
        if root in self._of:
            return self._of[root]
        if root.fill.data is not Fill.COMPUTED:
            return _sequence_by_role(root)
        length = stop - start
        if root.length == self.sequences * length and start % length == 0:
            return start // length
        return None


def _sets_one_row(launch: LaunchOp) -> bool:
    return isinstance(launch, SetRowOp) and not launch.target.dst.own


def _sequence_by_role(buffer: BufferOp) -> int | None:
    """The sequence of a position or state; the tokens of all are one array."""
    if buffer.role is None or buffer.role.kind.data is ArgumentKind.TOKEN:
        return None
    return buffer.role.sequence.data


def _are_alike(first: BufferOp, other: BufferOp) -> bool:
    fields = ("dtype", "fill", "plain", "quantized")
    if first.fill.data not in (Fill.ZERO, Fill.PARAM, Fill.COMPUTED) or first.length != other.length:
        return False
    alike = all(first.properties.get(name) == other.properties.get(name) for name in fields)
    return alike and (first.quantized is None or quantizes_in_place(first.length))


def _become_part(member: BufferOp, array: BufferOp, offset: int) -> None:
    member.fill = FillAttr(Fill.ALIAS)
    member.operands = [array.buffer]
    member.offset = NumberAttr(offset)
