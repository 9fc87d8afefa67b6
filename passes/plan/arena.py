"""One arena for all computed buffers: each form has its place while it is live, and its bytes serve others after."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from lane_mlir.dialects.launch import BufferOp, Fill, NumberAttr, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.launch.operation import Touched
from lane_mlir.dialects.tg import Numerics

ALIGNMENT = 256
"""Bytes to which places are aligned: what device allocations are, so that the widest loads are."""


@dataclass(frozen=True)
class Live:
    """A form of a buffer, and the launches from which on and up to which it is live, both included."""

    buffer: BufferOp
    form: Touch
    first: int
    last: int


def lifetimes(schedule: ScheduleOp, touches: Sequence[tuple[Touched, Touched]]) -> list[Live]:
    """
    When each form of each buffer that needs a place is live: from the first launch that touches it to the last; an
    output to the end. A launch's own inputs and outputs are thus live together, and never share memory.
    """
    spans: dict[tuple[BufferOp, Touch], tuple[int, int]] = {}

    def touch(value: SSAValue, form: Touch, index: int) -> None:
        held = buffer_of(value).holder(form)[0]
        if held.fill.data is Fill.COMPUTED or (held.fill.data is Fill.ALIAS and form is Touch.QUANT):
            first, _ = spans.get((held, form), (index, index))
            spans[(held, form)] = (first, index)

    for index, (reads, writes) in enumerate(touches):
        for value, form in (*reads, *writes):
            touch(value, form, index)
    for output in schedule.outputs():
        touch(output, Touch.PLAIN, len(touches))
    return [Live(buffer, form, first, last) for (buffer, form), (first, last) in spans.items()]


def place(schedule: ScheduleOp, touches: Sequence[tuple[Touched, Touched]], numerics: Numerics) -> None:
    """Give every form that needs it its place, and the schedule its arena."""
    for buffer in schedule.buffers():
        buffer.at = None
        buffer.quantized_at = None
    starting: dict[int, list[Live]] = defaultdict(list)
    for live in lifetimes(schedule, touches):
        starting[live.first].append(live)
    arena = Arena()
    ending: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index in range(len(touches) + 1):
        # Large ones first: what is left between them is for the small ones.
        for live in sorted(starting[index], key=lambda live: -live.buffer.bytes(live.form, numerics)):
            size = live.buffer.bytes(live.form, numerics)
            at = arena.take(size)
            ending[live.last].append((at, size))
            if live.form is Touch.PLAIN:
                live.buffer.at = NumberAttr(at)
            else:
                live.buffer.quantized_at = NumberAttr(at)
        for at, size in ending.pop(index, ()):
            arena.give(at, size)
    schedule.arena = NumberAttr(arena.size)


class Arena:
    """
    Memory in one piece, handed out by best fit: the smallest free block that is large enough, else new bytes at the
    end. Free neighbours are one block, so there are about as many as are live, and each call costs their logarithm.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes handed out at most at once, free ones between included."""
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        """(bytes, start) of the free blocks, sorted."""

    def take(self, size: int) -> int:
        """The first of `size` bytes that nobody has, rounded up to the alignment."""
        size = aligned(size)
        fit = bisect_left(self._by_size, (size, 0))
        if fit < len(self._by_size):
            free, start = self._by_size[fit]
            self._remove(start, free)
            if free > size:
                self._add(start + size, free - size)
            return start
        # A free block at the end is grown.
        start = self._by_end.get(self.size, self.size)
        if start < self.size:
            self._remove(start, self.size - start)
        self.size = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Return what `take` gave."""
        size = aligned(size)
        end = start + size
        if (before := self._by_end.get(start)) is not None:
            self._remove(before, start - before)
            start = before
        if (after := self._by_start.get(end)) is not None:
            self._remove(end, after)
            end += after
        self._add(start, end - start)

    def _add(self, start: int, size: int) -> None:
        self._by_start[start] = size
        self._by_end[start + size] = start
        insort(self._by_size, (size, start))

    def _remove(self, start: int, size: int) -> None:
        del self._by_start[start]
        del self._by_end[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
