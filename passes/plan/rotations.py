"""
The rule deferred_rope: a rotation is left to the attention that reads it.

A rotation of one token's heads is a few hundred values, and a launch of its own, or the wait of a product's last blocks
for whole heads, takes many times as long as it. A block of attention reads one key head and some query heads: it
rotates them itself, and sets the key's row, before it attends. A rule of our own, beside the table.
"""

from __future__ import annotations

from collections import Counter
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
    ScheduleOp,
    buffer_of,
    holder,
    why_apart,
)
from lane_mlir.passes.fuse.report import Decision, Report
from lane_mlir.passes.plan.errors import named
from lane_mlir.passes.plan.uses import Uses

DEFERRED_ROPE = "deferred_rope"

Rope: TypeAlias = RopeOp | RopePartsOp


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
        between = uses.launches[index[writers[0]] + 1 : index[attention]]
        reason = why_apart(rope, attention)
        if not reason and list(uses.readers_within(writers[0], attention.q)) != [attention]:
            reason = f"{named(attention.q)} is read by others too"
        reason = reason or _why_not_later(rope, between)
        covers = tuple(sorted({*rope.covers.data, *attention.covers.data}))
        where = buffer_of(attention.q).label.data
        report.add(Decision.of(DEFERRED_ROPE, "rope_attention", covers, where, refusal=reason, held=held))
        if not reason and not held:
            _defer(writers[0], rope, attention, covers)
            deferred = True
    return deferred


def _rotation(launch: LaunchOp) -> Rope | None:
    """The rotation that a launch is, or ends with."""
    rope = launch.then if isinstance(launch, FoldOp) else launch
    return rope if isinstance(rope, Rope) else None


def _why_not_later(rope: Rope, launches: Sequence[LaunchOp]) -> str:
    """Why a rotation cannot run after launches that follow it, which would see that; empty if none would."""
    read, written = {holder(v) for v in rope.reads()}, {holder(v) for v in rope.writes()}
    for launch in launches:
        reads, writes = {holder(v) for v in launch.reads()}, {holder(v) for v in launch.writes()}
        if written & (reads | writes) or read & writes:
            return f"{launch.kind()} between them touches what the rotation does"
    return ""


def _defer(before: LaunchOp, rope: Rope, attention: AttentionOp, covers: tuple[int, ...]) -> None:
    rules = (*rope.rules.data, *attention.rules.data)
    rope.detach()
    if isinstance(before, FoldOp):
        product = before.first
        product.detach()
        product.covers = NumbersAttr(tuple(n for n in before.covers.data if n not in rope.covers.data))
        product.rules = NamesAttr(_without(before.rules.data, rope.rules.data))
        product.location = before.location
        block = before.parent_block()
        assert block is not None
        block.insert_op_before(product, before)
        before.detach()
        before.erase()
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


def _without(rules: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The firings of rules but for some of them."""
    left, rest = Counter(others), list[str]()
    for rule in rules:
        if left[rule]:
            left[rule] -= 1
        else:
            rest.append(rule)
    return tuple(rest)
