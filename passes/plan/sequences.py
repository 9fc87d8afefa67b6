"""
The rule sequences: what a step runs once for each of its sequences, in one launch for all.

First their buffers become parts of arrays: positions and state; results that are set into rows of one table, which then
land there; and what the launches of one kind read and write. Then, kind by kind, the launches that are alike but for
their sequence become one, at the place of the last of them, unless what runs between would see the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, cast

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.utils.exceptions import VerifyException

from lane_mlir.chips import Chip
from lane_mlir.cuda.kernels.attention import chunks_apart
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
    NumberAttr,
    NumbersAttr,
    Part,
    RopeOp,
    RopePartsOp,
    Rotation,
    ScheduleOp,
    SetRowOp,
    Target,
    Touch,
    ViewOp,
    buffer_of,
    length_of,
)
from lane_mlir.passes.plan.arrays import Arrays, Owners
from lane_mlir.passes.plan.spans import SpansOf

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

_SHARED: Mapping[type[LaunchOp], frozenset[str]] = MappingProxyType(
    {
        DeltaOp: frozenset({"gn"}),
        GatesOp: frozenset({"dt", "al"}),
        ConvPartsOp: frozenset({"w"}),
        AttentionOp: frozenset({"sinks"}),
        ArgMaxOp: frozenset({"token"}),
    }
)
"""The operands that are the same for every sequence; of all others, each has its own."""

Signature: TypeAlias = tuple[Hashable, ...]


def merge_sequences(schedule: ScheduleOp, chip: Chip) -> bool:
    """
    Merge the launches of a schedule's sequences in place. Whether it has several; forms and types must be known, and
    forms have to be marked again.
    """
    arrays = Arrays(schedule)
    if arrays.sequences == 1:
        return False
    arrays.hold_arguments()
    land_in_rows(schedule, arrays)
    merger = Merger(schedule, arrays, chip)
    for kinds in _KINDS:
        for members in merger.groups(kinds):
            merger.merge(members)
    return True


def land_in_rows(schedule: ScheduleOp, arrays: Arrays) -> None:
    """Let results that are copied into rows of a table, and nothing else, land there; the copies go."""
    outputs = {buffer_of(value).holder(Touch.PLAIN)[0] for value in schedule.outputs()}
    readers: dict[BufferOp, set[LaunchOp]] = defaultdict(set)
    writers: dict[BufferOp, set[LaunchOp]] = defaultdict(set)
    launches = [launch for launch in schedule.launches() if not isinstance(launch, ViewOp)]
    for launch in launches:
        for values, users in ((launch.reads(), readers), (launch.writes(), writers)):
            for value in values:
                users[buffer_of(value).holder(Touch.PLAIN)[0]].add(launch)
    for launch in launches:
        if not isinstance(launch, SetRowOp) or not _is_row_of_fresh_table(launch, writers):
            continue
        table = buffer_of(launch.table)
        source, start, stop = buffer_of(launch.src).holder(Touch.PLAIN)
        own = source.fill.data is Fill.COMPUTED and (start, stop) == (0, source.length) and source not in outputs
        if not own or readers[source] != {launch} or len(writers[source]) != 1:
            continue
        if (source.plain, source.quantized) != (launch.f32, launch.quant) or source.dtype != table.dtype:
            continue
        (producer,) = writers[source]
        row = launch.dst.data.row
        if row is None or row.index is None:
            continue
        if launch.quant is not None and not quantizes_in_place(row.pitch):
            continue
        arrays.hold_row(source, table, row.index * row.pitch)
        producer.covers = NumbersAttr(tuple(sorted({*producer.covers.data, *launch.covers.data})))
        launch.detach()
        launch.erase()


def _is_row_of_fresh_table(launch: SetRowOp, writers: Mapping[BufferOp, set[LaunchOp]]) -> bool:
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

    def __init__(self, schedule: ScheduleOp, arrays: Arrays, chip: Chip):
        self._arrays = arrays
        self._chip = chip
        self._slots: list[LaunchOp | None] = []
        self._index: dict[LaunchOp, int] = {}
        self._alike: dict[Signature, list[list[LaunchOp]]] = {}
        """Launches that are alike but for their sequence: those of each, in order."""
        owners = Owners(arrays.sequences)
        for launch in schedule.launches():
            # A view runs nothing.
            if isinstance(launch, ViewOp):
                owners.launch(launch)
                continue
            self._index[launch] = len(self._slots)
            self._slots.append(launch)
            sequence = owners.launch(launch)
            if sequence is not None and any(isinstance(launch, kinds) for kinds in _KINDS):
                each = self._alike.setdefault(_signature(launch, owners), [[] for _ in range(arrays.sequences)])
                each[sequence].append(launch)

    def groups(self, kinds: tuple[type[LaunchOp], ...]) -> Iterator[Sequence[LaunchOp]]:
        """The launches of some kinds that may become one, those of the first sequence first."""
        for each in self._alike.values():
            if isinstance(each[0][0] if each[0] else None, kinds) and len({len(of_one) for of_one in each}) == 1:
                yield from zip(*each, strict=True)

    def merge(self, members: Sequence[LaunchOp]) -> bool:
        """Let launches of every sequence become one, if a kernel runs them so and nothing between is in the way."""
        if self._crosses(members):
            return False
        merged = merged_launch(members, self._arrays, self._chip)
        if merged is None:
            return False
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
        return True

    def _crosses(self, members: Sequence[LaunchOp]) -> bool:
        """
        Whether a launch between would see that the members run later: one that writes what a member before it reads or
        writes, or reads what one writes.
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
            elif any(touched.meet(*span) for span in writes) or any(written.meet(*span) for span in reads):
                return True
        return False


def _spans(values: Sequence[SSAValue]) -> list[tuple[BufferOp, int, int]]:
    return [buffer_of(value).holder(Touch.PLAIN) for value in values]


def _signature(launch: LaunchOp, owners: Owners) -> Signature:
    """What launches have in common that are alike but for their sequence."""
    operands: list[Hashable] = []
    for value in launch.operands:
        root, start, stop = buffer_of(value).holder(Touch.PLAIN)
        if owners.buffer(value) is not None:
            operands.append((root.dtype.data, stop - start))
        else:
            # In an array of all sequences, they take the same part of the row of each.
            operands.append((root, start % max(1, root.length // owners.sequences), stop - start))
    own = ("covers", "rules", "item")
    properties = tuple((name, value) for name, value in launch.properties.items() if name not in own)
    return (type(launch), properties, *operands)


def merged_launch(members: Sequence[LaunchOp], arrays: Arrays, chip: Chip) -> LaunchOp | None:
    """The one launch of launches that are alike but for their sequence; None if no kernel runs them as one."""
    first = members[0]
    if isinstance(first, RopeOp | RopePartsOp):
        merged = _merged_rotations(cast("Sequence[RopeOp | RopePartsOp]", members), arrays)
    else:
        changes = _changes(members, chip)
        operands = None if changes is None else _merged_operands(members, arrays)
        if changes is None or operands is None:
            return None
        merged = first.clone()
        merged.operands = operands
        for name, value in changes.items():
            setattr(merged, name, value)
    try:
        if merged is not None:
            merged.verify_()
    except VerifyException:
        return None
    return merged


def _merged_operands(members: Sequence[LaunchOp], arrays: Arrays) -> list[SSAValue] | None:
    """The operands of all members as one: the same, or the arrays whose parts they are."""
    merged: list[SSAValue] = []
    shared = _SHARED.get(type(members[0]), frozenset())
    for name, of_each in _named_operands(members):
        value = of_each[0] if name in shared else arrays.joined(of_each)
        if value is None:
            return None
        merged.append(value)
    return merged


def _named_operands(members: Sequence[LaunchOp]) -> Iterator[tuple[str, Sequence[SSAValue]]]:
    """The operands of launches of one kind: each one's name, and what it is in every launch."""
    first = members[0]
    assert isinstance(first, IRDLOperation)
    for name, _ in first.get_irdl_definition().operands:
        fields: list[SSAValue | Sequence[SSAValue] | None] = [getattr(member, name) for member in members]
        rows = [(field,) if isinstance(field, SSAValue) else tuple(field or ()) for field in fields]
        yield from ((name, of_each) for of_each in zip(*rows, strict=True))


def _changes(members: Sequence[LaunchOp], chip: Chip) -> dict[str, Attribute | None] | None:
    """The properties of the one launch that differ from those of each; None if these cannot be one."""
    count = len(members)
    match members[0]:
        case DeltaOp(rows=NumberAttr(data=1), seqs=NumberAttr(data=1)) | ConvPartsOp(seqs=NumberAttr(data=1)):
            return {"seqs": NumberAttr(count)}
        case GatesOp() as gates:
            return {"n": NumberAttr(gates.n.data * count)}
        case AttentionOp(rows=NumberAttr(data=1), seq=None, split=None, goff=NumberAttr(data=0)) as op:
            return _attention_changes(op, count, chip)
        case JoinOp(rows=NumberAttr(data=1), yz=NumberAttr(data=0)) as join:
            row, unit = join.dst.data.row, join.dst.data.unit
            if unit is not None or (row is not None and join.param is None):
                return None
            return {"rows": NumberAttr(count), "yz": NumberAttr(0 if row is None else length_of(join.y))}
        case SetRowOp(count=NumberAttr(data=1), seq=None, quant=None) as store if store.param is not None:
            return {"count": NumberAttr(count), "seq": NumberAttr(length_of(store.table))}
        case ArgMaxOp(rows=NumberAttr(data=1)) as argmax if argmax.advance is not None:
            items = [member.advance[2] for member in members if isinstance(member, ArgMaxOp) and member.advance]
            return {"rows": NumberAttr(count), "item": NumberAttr(0)} if items == list(range(count)) else None
        case _:
            return None


def _attention_changes(op: AttentionOp, count: int, chip: Chip) -> dict[str, Attribute | None] | None:
    """Of attention: every sequence reads arrays of its own, keys and values of one length."""
    if length_of(op.kc) != length_of(op.vc):
        return None
    apart = chunks_apart(op.splits.data, count, op.heads.data // op.per_block.data, chip.multiprocessors)
    return {
        "rows": NumberAttr(count),
        "seq": NumberAttr(length_of(op.kc)),
        "parallel": UnitAttr() if apart else None,
    }


def _merged_rotations(members: Sequence[RopeOp | RopePartsOp], arrays: Arrays) -> RopePartsOp | None:
    first = members[0]
    pos = None if first.pos is None else arrays.joined([member.pos for member in members if member.pos is not None])
    if pos is None or (isinstance(first, RopePartsOp) and first.seqs is not None):
        return None
    sides: list[Rotation] = []
    for each in zip(*(_rotations(member) for member in members), strict=True):
        side = _merged_rotation(each, first.hd.data, arrays)
        if side is None:
            return None
        sides.append(side)
    return RopePartsOp(
        *(sides, first.cos, first.sin, pos),
        hd=first.hd.data,
        half=first.half.data,
        pairing=first.pairing.data,
        seqs=True,
    )


def _rotations(op: RopeOp | RopePartsOp) -> Sequence[Rotation]:
    if isinstance(op, RopePartsOp):
        return op.each()
    norm = (op.norm, op.eps.data) if op.norm is not None and op.eps is not None else None
    part = op.part.data if op.part is not None else None
    return [Rotation(op.x, op.target, op.heads.data, op.per_row.data, part, norm)]


def _merged_rotation(each: Sequence[Rotation], width: int, arrays: Arrays) -> Rotation | None:
    """One rotation of all sequences: of one row each, landing in a row of the result or of each one's table."""
    first = each[0]
    if first.heads != first.per_row or first.y.dst.unit is not None:
        return None
    x, part = arrays.joined([r.x for r in each]), first.part
    if x is None and first.heads == 1 and first.part is None:
        # One head a row can be read in place in rows that are wider.
        found = arrays.strided([r.x for r in each])
        x, part = (None, None) if found is None else (found[0], Part(found[1], found[2]))
    y = arrays.joined([r.y.buffer for r in each])
    if x is None or y is None:
        return None
    param, apart = None, 0
    if first.y.dst.row is not None:
        params = [r.y.param for r in each if r.y.param is not None]
        param = arrays.joined(params) if len(params) == len(each) else None
        if param is None:
            return None
        apart = length_of(first.y.buffer)
    return Rotation(x, Target(y, param, first.y.dst), first.heads * len(each), first.per_row, part, first.norm, apart)
