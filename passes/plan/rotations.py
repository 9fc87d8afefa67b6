"""
The rule deferred_rope: a rotation is left to the attention that reads it.

A rotation of one token's heads is a few hundred values, and a launch of its own, or the wait of a product's last blocks
for whole heads, takes many times as long as it. A block of attention reads one key head and some query heads: it
rotates them itself, and sets the key's row, before it attends. A rule of our own, beside the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lane_mlir.dialects.launch import (
    AttentionOp,
    FoldOp,
    LaunchOp,
    NamesAttr,
    NumbersAttr,
    RopeOp,
    RopePartsOp,
    Rotation,
    ScheduleOp,
    buffer_of,
    elements,
)
from lane_mlir.passes.fuse.report import Decision, Outcome, Report
from lane_mlir.passes.plan.errors import named
from lane_mlir.passes.plan.uses import Uses, holder

DEFERRED_ROPE = "deferred_rope"

Rope: TypeAlias = RopeOp | RopePartsOp


class Apart(Exception):
    """A rotation is not left to attention. The message says why, in a sentence."""


def defer_rotations(schedule: ScheduleOp, report: Report, *, held: bool = False) -> bool:
    """
    Let attention rotate the heads it reads, in place, where nothing else sees them before. Whether any does.

    `held`: only the decisions are made.
    """
    uses = Uses(schedule)
    index = {launch: i for i, launch in enumerate(uses.launches)}
    deferred = False
    for attention in uses.launches:
        if not isinstance(attention, AttentionOp):
            continue
        writers = uses.writers[holder(attention.q)]
        rope = _rotation(writers[0]) if len(writers) == 1 else None
        if rope is None:
            continue
        outcome, reason = Outcome.HELD if held else Outcome.FIRED, f"{DEFERRED_ROPE} is held" if held else ""
        try:
            _check_heads(rope, attention)
            if list(uses.readers_within(writers[0], attention.q)) != [attention]:
                raise Apart(f"{named(attention.q)} is read by others too")
            _check_between(rope, uses.launches[index[writers[0]] + 1 : index[attention]])
        except Apart as why:
            outcome, reason = Outcome.REFUSED, str(why)
        covers = tuple(sorted({*rope.covers.data, *attention.covers.data}))
        where = buffer_of(attention.q).label.data
        decision = Decision(DEFERRED_ROPE, "rope_attention", covers, outcome, reason, where)
        report.record(decision, nth=len(report))
        if outcome is Outcome.FIRED:
            _defer(writers[0], rope, attention, covers)
            deferred = True
    return deferred


def _rotation(launch: LaunchOp) -> Rope | None:
    """The rotation that a launch is, or ends with."""
    rope = launch.then if isinstance(launch, FoldOp) else launch
    return rope if isinstance(rope, Rope) else None


def _check_heads(rope: Rope, attention: AttentionOp) -> None:
    """Raises Apart unless the rotations are those of the queries, and of the one key row of each sequence, or none."""
    rows, heads = attention.rows.data, attention.heads.data
    if rows > 1 and attention.seq is None:
        raise Apart(f"each of its {rows} rows attends keys that other rows rotate")
    if attention.split is not None or attention.shared is not None:
        raise Apart("its keys are not rotated whole")
    if rope.pos is not attention.pos or rope.hd.data != attention.hd.data:
        raise Apart("the rotation is at another position, or of heads of another width")
    queries = [side for side in rope.each() if side.y.own is not None and elements(side.y.own) == elements(attention.q)]
    keys = [side for side in rope.each() if side not in queries]
    if len(queries) != 1 or (queries[0].heads, queries[0].per_row) != (rows * heads, heads):
        raise Apart("the rotation is not of the queries as attention reads them")
    if not all(_sets_key_row(key, rope, attention) for key in keys) or len(keys) > 1:
        raise Apart("what else the launch rotates is not the key row that attention reads")


def _sets_key_row(key: Rotation, rope: Rope, attention: AttentionOp) -> bool:
    """Whether a rotation's heads are the key heads of the row, or rows, that attention stands at."""
    kv, dst = attention.heads.data // attention.group.data, key.y.dst
    heads = (key.heads, key.per_row) == (attention.rows.data * kv, kv)
    at_row = dst.row is not None and dst.row.pitch == attention.key_width and dst.unit is None
    seq = attention.seq.data if attention.seq is not None else 0
    at_row = at_row and key.y.param is rope.pos and key.yz == seq
    return elements(key.y.buffer) == elements(attention.kc) and heads and at_row


def _check_between(rope: Rope, launches: Sequence[LaunchOp]) -> None:
    """Raises Apart if what runs between would see that the rotation is later."""
    read, written = {holder(v) for v in rope.reads()}, {holder(v) for v in rope.writes()}
    for launch in launches:
        reads, writes = {holder(v) for v in launch.reads()}, {holder(v) for v in launch.writes()}
        if written & (reads | writes) or read & writes:
            raise Apart(f"{launch.kind()} between them touches what the rotation does")


def _defer(before: LaunchOp, rope: Rope, attention: AttentionOp, covers: tuple[int, ...]) -> None:
    rules = attention.rules.data
    rope.detach()
    if isinstance(before, FoldOp):
        product = before.first
        product.detach()
        product.covers = NumbersAttr(tuple(n for n in before.covers.data if n not in rope.covers.data))
        product.rules = before.rules
        product.location = before.location
        block = before.parent_block()
        assert block is not None
        block.insert_op_before(product, before)
        before.detach()
        before.erase()
    else:
        rules = (*rope.rules.data, *rules)
        rope.rules = NamesAttr(())
    block = attention.parent_block()
    assert block is not None
    after = attention.next_op
    attention.detach()
    attention.covers, attention.rules = NumbersAttr(()), NamesAttr(())
    fold = FoldOp(rope, attention, covers=covers, rules=(*rules, DEFERRED_ROPE))
    fold.location = attention.location
    if after is None:
        block.add_op(fold)
    else:
        block.insert_op_before(fold, after)
