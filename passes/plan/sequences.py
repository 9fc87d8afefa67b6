"""
The rule sequences: what a step runs once for each of its sequences, in one launch for all.

First their buffers become parts of arrays: positions and state; results that are set into rows of one table, which then
land there; and what the launches of one kind read and write. Then, kind by kind, the launches that are alike but for
their sequence become one, at the place of the last of them, unless what runs between would see the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.chips import Chip
from lane_mlir.cuda.kernels.gemv import quantizes_in_place
from lane_mlir.dialects.launch import (
    ArgMaxOp,
    AttentionOp,
    BufferOp,
    ConvPartsOp,
    DeltaOp,
    Fill,
    GatesOp,
    JoinOp,
    LaunchOp,
    NamesAttr,
    NumbersAttr,
    RopeOp,
    RopePartsOp,
    ScheduleOp,
    SetRowOp,
    ViewOp,
    buffer_of,
    elements,
)
from lane_mlir.passes.forms import place_name
from lane_mlir.passes.fuse.report import Decision, Report
from lane_mlir.passes.plan.arrays import Arrays, Owners
from lane_mlir.passes.plan.errors import described
from lane_mlir.passes.plan.merged import Apart, changes_of, merged_launch
from lane_mlir.passes.plan.spans import SpansOf
from lane_mlir.passes.plan.uses import Uses

SEQUENCES = "sequences"

_KINDS: Sequence[tuple[type[LaunchOp], ...]] = (
    (DeltaOp,),
    (GatesOp,),
    (ConvPartsOp,),
    (AttentionOp,),
    (JoinOp,),
    (SetRowOp,),
    (RopeOp, RopePartsOp),
    (ArgMaxOp,),
)
"""The launches that become one, in the order they do: what reads results before what makes them."""

Signature: TypeAlias = tuple[Hashable, ...]


def merge_sequences(schedule: ScheduleOp, chip: Chip, report: Report, *, held: bool = False) -> bool:
    """
    Merge the launches of a schedule's sequences in place, and report on each place. Whether it has several; forms and
    types must be known, and forms have to be marked again. `held`: what merges is reported as held.
    """
    arrays = Arrays(schedule)
    if arrays.sequences == 1:
        return False
    arrays.hold_arguments()
    land_in_rows(schedule, arrays)
    merger = Merger(schedule, arrays, chip, report, held)
    for kinds in _KINDS:
        for members in merger.groups(kinds):
            merger.merge(members)
    merger.report_apart()
    return True


def land_in_rows(schedule: ScheduleOp, arrays: Arrays) -> None:
    """Let results that are copied into rows of a table, and nothing else, land there; the copies go."""
    uses = Uses(schedule)
    for launch in uses.launches:
        if not isinstance(launch, SetRowOp) or not _is_row_of_fresh_table(launch, uses.writers):
            continue
        table = buffer_of(launch.table)
        source, start, stop = elements(launch.src)
        own = source.fill.data is Fill.COMPUTED and (start, stop) == (0, source.length) and source not in uses.outputs
        if not own or uses.readers[source] != [launch] or len(uses.writers[source]) != 1:
            continue
        if (source.plain, source.quantized) != (launch.f32, launch.quant) or source.dtype != table.dtype:
            continue
        (producer,) = uses.writers[source]
        row = launch.dst.data.row
        if row is None or row.index is None:
            continue
        if launch.quant is not None and not quantizes_in_place(row.pitch):
            continue
        arrays.hold_row(source, table, row.index * row.pitch)
        producer.covers = NumbersAttr(tuple(sorted({*producer.covers.data, *launch.covers.data})))
        launch.detach()
        launch.erase()


def _is_row_of_fresh_table(launch: SetRowOp, writers: Mapping[BufferOp, Sequence[LaunchOp]]) -> bool:
    """Whether a row set is of one row of a table that is made of nothing but such rows, each set once."""
    table = buffer_of(launch.table)
    if table.fill.data is not Fill.COMPUTED or launch.count.data != 1 or launch.seq is not None:
        return False
    rows: set[int] = set()
    for writer in writers[table]:
        row = writer.dst.data.row if isinstance(writer, SetRowOp) else None
        if row is None or row.index is None or row.pitch != launch.cols.data or row.index in rows:
            return False
        rows.add(row.index)
    return True


class Merger:
    """The launches of a schedule as slots, in order, in which those of several sequences become one."""

    def __init__(self, schedule: ScheduleOp, arrays: Arrays, chip: Chip, report: Report, held: bool):
        self._arrays = arrays
        self._chip = chip
        self._report = report
        self._held = held
        self._slots: list[LaunchOp | None] = []
        self._index: dict[LaunchOp, int] = {}
        self._alike: dict[Signature, list[list[LaunchOp]]] = {}
        """Launches that are alike but for their sequence: those of each, in order."""
        self._others: dict[Signature, list[LaunchOp]] = {}
        """Launches of a sequence whose kind never becomes one: the first of each sequence, the second, and so on."""
        owners, seen = Owners(arrays.sequences), Counter[tuple[str, int]]()
        for launch in schedule.launches():
            # A view runs nothing.
            if isinstance(launch, ViewOp):
                owners.launch(launch)
                continue
            self._index[launch] = len(self._slots)
            self._slots.append(launch)
            sequence = owners.launch(launch)
            if sequence is None:
                continue
            if any(isinstance(launch, kinds) for kinds in _KINDS):
                each = self._alike.setdefault(_signature(launch, owners), [[] for _ in range(arrays.sequences)])
                each[sequence].append(launch)
            else:
                nth = seen[launch.kind(), sequence] = seen[launch.kind(), sequence] + 1
                self._others.setdefault((launch.kind(), nth), []).append(launch)

    def groups(self, kinds: tuple[type[LaunchOp], ...]) -> Iterator[Sequence[LaunchOp]]:
        """The launches of some kinds that may become one, those of the first sequence first."""
        for each in self._alike.values():
            if isinstance(each[0][0] if each[0] else None, kinds) and _is_complete(each):
                yield from zip(*each, strict=True)

    def report_apart(self) -> None:
        """Report on the launches that no other sequences have the like of, or that never become one."""
        for each in self._alike.values():
            if _is_complete(each):
                continue
            members = [launch for of_one in each for launch in of_one]
            numbers = ", ".join(str(len(of_one)) for of_one in each)
            reason = f"its sequences have {numbers} launches alike, expected as many of each"
            self._decide(members, self._why_apart(members) or reason)
        for members in self._others.values():
            self._decide(members, self._why_apart(members))

    def _why_apart(self, members: Sequence[LaunchOp]) -> str:
        """Why no kernel runs launches as one, whatever their operands; empty if one does."""
        try:
            changes_of(members, self._chip)
        except Apart as apart:
            return str(apart)
        return ""

    def merge(self, members: Sequence[LaunchOp]) -> None:
        """Let launches of every sequence become one, if a kernel runs them so and nothing between is in the way."""
        try:
            self._check_crossing(members)
            merged = merged_launch(members, self._arrays, self._chip)
        except Apart as apart:
            self._decide(members, str(apart))
            return
        self._decide(members, "")
        merged.covers = NumbersAttr(tuple(sorted(number for member in members for number in member.covers.data)))
        rules = tuple(rule for member in members for rule in member.rules.data)
        merged.rules = NamesAttr((*rules, SEQUENCES))
        merged.location = members[0].location
        last = max(members, key=self._index.__getitem__)
        at = self._index[last]
        block = last.parent_block()
        assert block is not None
        block.insert_op_before(merged, last)
        for member in members:
            self._slots[self._index.pop(member)] = None
            member.detach()
            member.erase()
        self._slots[at] = merged
        self._index[merged] = at

    def _decide(self, members: Sequence[LaunchOp], reason: str) -> None:
        covers = tuple(sorted(number for member in members for number in member.covers.data))
        first = members[0]
        where = place_name(first) or next((buffer_of(value).label.data for value in first.writes()), "")
        self._report.add(Decision.of(SEQUENCES, first.kind(), covers, where, refusal=reason, held=self._held))

    def _check_crossing(self, members: Sequence[LaunchOp]) -> None:
        """
        Raise Apart if a launch between would see that the members run later: one that writes what a member before it
        reads or writes, or reads what one writes.
        """
        places = sorted(self._index[member] for member in members)
        among = {*places}
        touched, written = SpansOf[BufferOp](), SpansOf[BufferOp]()
        for at in range(places[0], places[-1]):
            launch = self._slots[at]
            if launch is None:
                continue
            reads, writes = _spans(launch.reads()), _spans(launch.writes())
            if at in among:
                for span in (*reads, *writes):
                    touched.add(*span)
                for span in writes:
                    written.add(*span)
            elif any(touched.meet(*span) for span in writes):
                raise Apart(f"{described(launch)} runs between and writes what one before it touches")
            elif any(written.meet(*span) for span in reads):
                raise Apart(f"{described(launch)} runs between and reads what one before it writes")


def _is_complete(each: Sequence[Sequence[LaunchOp]]) -> bool:
    """Whether every sequence has as many launches."""
    return len({len(of_one) for of_one in each}) == 1


def _spans(values: Sequence[SSAValue]) -> list[tuple[BufferOp, int, int]]:
    return [elements(value) for value in values]


def _signature(launch: LaunchOp, owners: Owners) -> Signature:
    """What launches have in common that are alike but for their sequence."""
    operands: list[Hashable] = []
    for value in launch.operands:
        root, start, stop = elements(value)
        if owners.buffer(value) is not None:
            operands.append((root.dtype.data, stop - start))
        else:
            # In an array of all sequences, they take the same part of the row of each.
            operands.append((root, start % max(1, root.length // owners.sequences), stop - start))
    own = ("covers", "rules", "item")
    properties = tuple((name, value) for name, value in launch.properties.items() if name not in own)
    return (type(launch), properties, *operands)
