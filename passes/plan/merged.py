"""The one launch of launches that are alike but for their sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.utils.exceptions import VerifyException

from lane_mlir.chips import Chip
from lane_mlir.cuda.kernels.attention import chunks_apart
from lane_mlir.dialects.launch import (
    ArgMaxOp,
    AttentionOp,
    ConvPartsOp,
    DeltaOp,
    GatesOp,
    JoinOp,
    LaunchOp,
    NumberAttr,
    Part,
    RopeOp,
    RopePartsOp,
    Rotation,
    SetRowOp,
    Target,
    length_of,
)
from lane_mlir.passes.plan.arrays import Arrays
from lane_mlir.passes.plan.errors import named

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


class Apart(Exception):
    """The launches of several sequences stay apart. The message says why, in a sentence."""


def merged_launch(members: Sequence[LaunchOp], arrays: Arrays, chip: Chip) -> LaunchOp:
    """The one launch of launches that are alike but for their sequence. Raises Apart if no kernel runs them as one."""
    first = members[0]
    if _is_of_several(first):
        raise Apart("it is of several sequences already")
    if isinstance(first, RopeOp | RopePartsOp):
        merged = _merged_rotations(cast("Sequence[RopeOp | RopePartsOp]", members), arrays)
    else:
        changes = changes_of(members, chip)
        operands = _merged_operands(members, arrays)
        merged = first.clone()
        merged.operands = operands
        for name, value in changes.items():
            setattr(merged, name, value)
    try:
        merged.verify_()
    except VerifyException as error:
        raise Apart(f"as one it is no launch: {error}") from error
    return merged


def _is_of_several(launch: LaunchOp) -> bool:
    match launch:
        case DeltaOp() | ConvPartsOp():
            return launch.seqs.data != 1
        case AttentionOp() | SetRowOp():
            return launch.seq is not None
        case JoinOp():
            return launch.yz.data != 0
        case RopePartsOp():
            return launch.seqs is not None
        case _:
            return False


def _joined(values: Sequence[SSAValue], arrays: Arrays) -> SSAValue:
    """The array whose parts buffers are. Raises Apart if they cannot be."""
    array = arrays.joined(values)
    if array is None:
        raise Apart(f"{named(values[0])} and those of the other sequences are no parts of one array, in their order")
    return array


def _merged_operands(members: Sequence[LaunchOp], arrays: Arrays) -> list[SSAValue]:
    """The operands of all members as one: the same, or the arrays whose parts they are."""
    shared = _SHARED.get(type(members[0]), frozenset())
    return [of_each[0] if name in shared else _joined(of_each, arrays) for name, of_each in _named_operands(members)]


def _named_operands(members: Sequence[LaunchOp]) -> Iterator[tuple[str, Sequence[SSAValue]]]:
    """The operands of launches of one kind: each one's name, and what it is in every launch."""
    first = members[0]
    assert isinstance(first, IRDLOperation)
    for name, _ in first.get_irdl_definition().operands:
        fields: list[SSAValue | Sequence[SSAValue] | None] = [getattr(member, name) for member in members]
        rows = [(field,) if isinstance(field, SSAValue) else tuple(field or ()) for field in fields]
        yield from ((name, of_each) for of_each in zip(*rows, strict=True))


def changes_of(members: Sequence[LaunchOp], chip: Chip) -> Mapping[str, Attribute | None]:
    """The properties of the one launch that differ from those of each. Raises Apart if these cannot be one."""
    count = len(members)
    match members[0]:
        case DeltaOp() as delta:
            _expect_one_row(delta.rows)
            return {"seqs": NumberAttr(count)}
        case ConvPartsOp():
            return {"seqs": NumberAttr(count)}
        case GatesOp() as gates:
            return {"n": NumberAttr(count * gates.n.data)}
        case AttentionOp() as attention:
            return _attention_changes(attention, count, chip)
        case JoinOp() as join:
            return _join_changes(join, count)
        case SetRowOp() as store:
            return _store_changes(store, count)
        case ArgMaxOp():
            return _argmax_changes(cast("Sequence[ArgMaxOp]", members))
        case RopeOp() | RopePartsOp():
            return {}
        case other:
            raise Apart(f"no kernel runs the {other.kind()} of several sequences")


def _expect_one_row(rows: NumberAttr) -> None:
    if rows.data != 1:
        raise Apart(f"the kernel of several sequences takes one row of each, not {rows.data}")


def _attention_changes(op: AttentionOp, count: int, chip: Chip) -> Mapping[str, Attribute | None]:
    """Of attention: every sequence reads arrays of its own, keys and values of one length."""
    _expect_one_row(op.rows)
    if op.split is not None:
        raise Apart("the kernel of several sequences takes no keys in two arrays")
    if op.goff.data != 0:
        raise Apart("the kernel of several sequences takes no gate inside wider rows")
    if length_of(op.kc) != length_of(op.vc):
        keys, values = length_of(op.kc), length_of(op.vc)
        raise Apart(f"the kernel of several sequences takes keys and values of one length, not {keys} and {values}")
    apart = chunks_apart(op.splits.data, count, op.heads.data // op.per_block.data, chip.multiprocessors)
    return {
        "rows": NumberAttr(count),
        "seq": NumberAttr(length_of(op.kc)),
        "parallel": UnitAttr() if apart else None,
    }


def _join_changes(join: JoinOp, count: int) -> Mapping[str, Attribute | None]:
    _expect_one_row(join.rows)
    row, unit = join.dst.data.row, join.dst.data.unit
    if unit is not None:
        raise Apart("the kernel of several sequences lands in no part of wider units")
    if row is not None and join.param is None:
        raise Apart(f"it lands in row {row.index} of a table, not at a position of its sequence")
    return {"rows": NumberAttr(count), "yz": NumberAttr(0 if row is None else length_of(join.y))}


def _store_changes(store: SetRowOp, count: int) -> Mapping[str, Attribute | None]:
    _expect_one_row(store.count)
    if store.quant is not None:
        raise Apart("the kernel of several sequences sets no quantized rows")
    row = store.dst.data.row
    if store.param is None:
        raise Apart(
            f"it sets row {'?' if row is None else row.index} of a table, not one at a position of its sequence"
        )
    return {"count": NumberAttr(count), "seq": NumberAttr(length_of(store.table))}


def _argmax_changes(members: Sequence[ArgMaxOp]) -> Mapping[str, Attribute | None]:
    _expect_one_row(members[0].rows)
    if members[0].advance is None:
        raise Apart("the kernel of several sequences moves each step on, and these do not")
    items = [member.advance[2] for member in members if member.advance is not None]
    if items != list(range(len(members))):
        raise Apart(f"the tokens that they choose are {items} of the step's, not one of each sequence in order")
    return {"rows": NumberAttr(len(members)), "item": NumberAttr(0)}


def _merged_rotations(members: Sequence[RopeOp | RopePartsOp], arrays: Arrays) -> RopePartsOp:
    first = members[0]
    if first.pos is None:
        raise Apart("its rows are at no position of a sequence")
    pos = _joined([member.pos for member in members if member.pos is not None], arrays)
    sides = [_merged_rotation(each, arrays) for each in zip(*(member.each() for member in members), strict=True)]
    return RopePartsOp(
        *(sides, first.cos, first.sin, pos),
        hd=first.hd.data,
        half=first.half.data,
        pairing=first.pairing.data,
        seqs=True,
    )


def _merged_rotation(each: Sequence[Rotation], arrays: Arrays) -> Rotation:
    """One rotation of all sequences: of one row each, landing in a row of the result or of each one's table."""
    first = each[0]
    if first.heads != first.per_row:
        raise Apart(f"the kernel of several sequences takes one row of each, not {first.heads // first.per_row}")
    if first.y.dst.unit is not None:
        raise Apart("the kernel of several sequences lands in no part of wider units")
    xs, part = [r.x for r in each], first.part
    x = arrays.joined(xs)
    if x is None and first.heads == 1 and first.part is None and (found := arrays.strided(xs)) is not None:
        # One head a row can be read in place in rows that are wider.
        x, part = found[0], Part(found[1], found[2])
    if x is None:
        x = _joined(xs, arrays)
    y = _joined([r.y.buffer for r in each], arrays)
    param, apart = None, 0
    if first.y.dst.row is not None:
        params = [r.y.param for r in each if r.y.param is not None]
        if len(params) < len(each):
            raise Apart(f"it lands in row {first.y.dst.row.index} of a table, not at a position of its sequence")
        param, apart = _joined(params, arrays), length_of(first.y.buffer)
    return Rotation(x, Target(y, param, first.y.dst), first.heads * len(each), first.per_row, part, first.norm, apart)
