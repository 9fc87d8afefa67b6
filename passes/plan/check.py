"""
Checks of a planned schedule that know nothing of how it was planned: they follow what each launch reads and writes
through memory, byte by byte.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lane_mlir.dialects.launch import (
    BufferOp,
    Fill,
    GemmPartsOp,
    GemvGluOp,
    GemvOp,
    LaunchOp,
    NormOp,
    ScheduleOp,
    Touch,
    buffer_of,
    holder,
)
from lane_mlir.dialects.launch.operation import Touched
from lane_mlir.dialects.tg import Numerics
from lane_mlir.locations import OpFailedException
from lane_mlir.passes.plan.errors import described, named
from lane_mlir.passes.plan.spans import Spans

Storage: TypeAlias = tuple[BufferOp, Touch]
"""A form of a buffer that holds elements of its own."""


@dataclass(frozen=True)
class Access:
    """What a launch touches of a storage: elements from one on and up to one, by which operand."""

    value: SSAValue
    storage: Storage
    start: int
    stop: int

    def meets(self, other: Access) -> bool:
        return self.storage == other.storage and self.start < other.stop and other.start < self.stop


def check(schedule: ScheduleOp) -> None:
    """
    Refuse a planned schedule that does not hold what its launches say they need:

    - every read is of what the host or the state provides, or of elements that a launch before has written;
    - nothing else has been written over them since: no two arrays that are live at once share bytes;
    - no launch writes what another of its operands reads, or writes twice, but in place where it says so;
    - what a norm has left undivided is read by products that divide it by the root of its own squares, by nothing else;
    - every form touched is there, every place is inside the arena, and only state, parameters and computed buffers are
      written.

    Raises: OpFailedException at the launch or buffer.
    """
    numerics = schedule.target.numerics.data if schedule.target is not None else Numerics.DEQUANT
    memory = Memory(schedule, numerics)
    for launch in schedule.launches():
        reads, writes = launch.touches(numerics)
        memory.run(launch, reads, writes)
    check_divisions(schedule)
    for output in schedule.outputs():
        memory.read(schedule, access(output, Touch.PLAIN), "the step's output")


def check_divisions(schedule: ScheduleOp) -> None:
    """Refuse a reader of an undivided row that does not divide it, or one that divides what is no such row."""
    undivided: dict[BufferOp, tuple[BufferOp, float]] = {}
    for launch in schedule.launches():
        for part in launch.parts():
            x, by = _division(part)
            for value in part.reads():
                expected = undivided.get(holder(value))
                if expected is not None and (value is not x or by != expected):
                    raise OpFailedException(
                        launch, f"{described(launch)} reads {named(value)}, which a norm has left undivided, as it is"
                    )
            if x is not None and by is not None and holder(x) not in undivided:
                raise OpFailedException(
                    launch, f"{described(launch)} divides {named(x)}, which no norm has left undivided"
                )
            for value in part.writes():
                undivided.pop(holder(value), None)
            if isinstance(part, NormOp) and part.squares is not None and part.out is not None:
                undivided[holder(part.out)] = (holder(part.squares), part.eps.data)
    for output in schedule.outputs():
        if holder(output) in undivided:
            raise OpFailedException(schedule, f"the step's output {named(output)} is left undivided by a norm")


def _division(launch: LaunchOp) -> tuple[SSAValue | None, tuple[BufferOp, float] | None]:
    """The activation of a product, and the squares and epsilon that it is divided by, if it is."""
    if not isinstance(launch, GemvOp | GemmPartsOp | GemvGluOp):
        return None, None
    if launch.squares is None or launch.norm_eps is None:
        return launch.x, None
    return launch.x, (holder(launch.squares), launch.norm_eps.data)


def access(value: SSAValue, form: Touch) -> Access:
    held, start, stop = buffer_of(value).holder(form)
    return Access(value, (held, form), start, stop)


@dataclass
class Memory:
    """The arena as launches fill it: which storage each byte is of, and which of its elements have been written."""

    schedule: ScheduleOp
    numerics: Numerics
    _owners: Owners = field(default_factory=lambda: Owners())
    _written: dict[Storage, Spans] = field(default_factory=dict["Storage", "Spans"])
    _lost: dict[Storage, LaunchOp] = field(default_factory=dict["Storage", "LaunchOp"])
    """The launch that wrote over a storage."""
    _placed: set[Storage] = field(default_factory=set["Storage"])

    def run(self, launch: LaunchOp, reads: Touched, writes: Touched) -> None:
        read = [access(value, form) for value, form in reads]
        written = [access(value, form) for value, form in writes]
        updates = launch.updates()
        for one in read:
            # What is updated in place may be written for the first time.
            updated = any(one.value is w.value and one.storage == w.storage and w.value in updates for w in written)
            self.read(launch, one, described(launch), new=updated)
        self._check_races(launch, read, written, updates)
        for one in written:
            self._write(launch, one)
        for one in (*read, *written):
            if one.storage in self._lost:
                by = self._lost[one.storage]
                if by is launch:
                    raise OpFailedException(
                        launch, f"{described(launch)} writes over {_called(one)}, another of its operands"
                    )

    def read(self, op: Operation, one: Access, by: str, *, new: bool = False) -> None:
        """Follow a read; `new`: of what may not have been written yet."""
        buffer = one.storage[0]
        self._place(op, one)
        if buffer.fill.data in (Fill.PARAM, Fill.ZERO, Fill.CONSTANT):
            return
        if one.storage in self._lost:
            raise OpFailedException(
                op, f"{by} reads {_called(one)}, which {described(self._lost[one.storage])} has written over"
            )
        spans = self._written.get(one.storage)
        if not new and (spans is None or not spans.cover(one.start, one.stop)):
            raise OpFailedException(op, f"{by} reads {_called(one)}, which nothing before has written")

    def _check_races(
        self, launch: LaunchOp, read: Sequence[Access], written: Sequence[Access], updates: Sequence[SSAValue]
    ) -> None:
        by_storage: dict[Storage, list[Access]] = {}
        for one in written:
            others = by_storage.setdefault(one.storage, [])
            if any(one.meets(other) and one.value is not other.value for other in others):
                raise OpFailedException(launch, f"{described(launch)} writes {_called(one)} twice")
            others.append(one)
        for one in read:
            for other in by_storage.get(one.storage, ()):
                in_place = other.value in updates and (one.start, one.stop) == (other.start, other.stop)
                if one.meets(other) and not in_place:
                    raise OpFailedException(
                        launch, f"{described(launch)} reads {_called(one)} while it writes {named(other.value)}"
                    )

    def _write(self, launch: LaunchOp, one: Access) -> None:
        buffer = one.storage[0]
        if buffer.fill.data is Fill.CONSTANT:
            raise OpFailedException(launch, f"{described(launch)} writes {_called(one)}, a constant")
        at = self._place(launch, one)
        if at is None:
            return
        self._lost.pop(one.storage, None)
        spans = self._written.setdefault(one.storage, Spans())
        for lost in self._owners.take(one.storage, *at):
            self._lost[lost] = launch
            self._written.pop(lost, None)
        spans.add(one.start, one.stop)

    def _place(self, op: Operation, one: Access) -> tuple[int, int] | None:
        """The bytes of the arena that a storage has; None for what is not in the arena."""
        buffer, form = one.storage
        if not buffer_of(one.value).has(form) or not buffer.has(form):
            raise OpFailedException(op, f"{_called(one)} is touched, but the buffer has no such form")
        if buffer.fill.data in (Fill.PARAM, Fill.ZERO, Fill.CONSTANT):
            return None
        at = buffer.place(form)
        if at is None or self.schedule.arena is None:
            raise OpFailedException(op, f"{_called(one)} has no place in the arena")
        end = at + buffer.bytes(form, self.numerics)
        if end > self.schedule.arena.data:
            raise OpFailedException(
                op, f"{_called(one)} ends at byte {end}, beyond the arena of {self.schedule.arena.data}"
            )
        return at, end


def _called(one: Access) -> str:
    return f"the {one.storage[1].value} form of {named(one.value)}"


class Owners:
    """Which storage each byte is of: disjoint ranges, sorted."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, Storage]] = []

    def take(self, storage: Storage, start: int, end: int) -> list[Storage]:
        """Let the bytes be the storage's. Returns those that had some of them and now have lost them."""
        first = bisect_right(self._starts, start)
        if first and self._ranges[first - 1][1] > start:
            first -= 1
        stop = bisect_left(self._starts, end)
        met = self._ranges[first:stop]
        if len(met) == 1 and met[0] == (start, end, storage):
            return []
        self._starts[first:stop] = [start]
        self._ranges[first:stop] = [(start, end, storage)]
        return [other for _, _, other in met if other != storage]


@dataclass(frozen=True)
class CheckPlanPass(ModulePass):
    """Checks every planned schedule of a module, if it has any; see `check`."""

    name = "check-plan"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for schedule in op.ops:
            if isinstance(schedule, ScheduleOp):
                check(schedule)
