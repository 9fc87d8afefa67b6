"""The graph of a step while rules rewrite it: the order of its ops, and whether several may run as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import FusedLoc, LocationAttr, NoneAttr, UnknownLoc
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from lane_mlir.dialects.tg import (
    ConstantOp,
    EmptyOp,
    FusedOp,
    LiftedOperation,
    RopeTableOp,
    TensorGraphOperation,
    ViewOp,
    YieldOp,
)
from lane_mlir.passes.forms import describe, locations, op_name

# Ops of a step's block are numbered this far apart, so that none is renumbered when one is put between.
_STRIDE = 1 << 20


class Illegal(Exception):
    """Several ops may not run as one. The message says why, in a sentence."""


@dataclass(frozen=True)
class Candidate:
    """
    Ops that may run as one: the fused op, not in the graph yet, the op at whose place it would stand, and views of its
    results that stand before that place, where nothing reads them yet: they move behind it.
    """

    op: FusedOp
    parts: Sequence[Operation]
    place: Operation
    views: Sequence[Operation] = ()


class StepGraph:
    """The ops of a step's block in order."""

    def __init__(self, block: Block):
        self.block = block
        self._order: dict[Operation, int] = {}

    def index(self, op: Operation) -> int:
        """A number that grows along the block."""
        if op not in self._order:
            self._order = {op: i * _STRIDE for i, op in enumerate(self.block.ops)}
        return self._order[op]

    def at_step_level(self, op: Operation) -> Operation:
        """The op of the step's block that an op is, or is inside of."""
        while op.parent_block() is not self.block:
            parent = op.parent_op()
            assert parent is not None, "the op is not in this step"
            op = parent
        return op

    def readers(self, value: SSAValue) -> Sequence[Operation]:
        """The ops of the step's block that read a value, each once."""
        return tuple(dict.fromkeys(self.at_step_level(use.operation) for use in value.uses))

    def slot_of(self, value: SSAValue) -> Operation | None:
        """The op of the step's block that computes a value."""
        owner = value.owner
        return owner if isinstance(owner, LiftedOperation | FusedOp) and owner.parent_block() is self.block else None

    def insert_before(self, ops: Sequence[Operation], place: Operation) -> None:
        """Put new ops before an op of the block, in order."""
        index = self.index(place)
        for i, op in enumerate(ops):
            self.block.insert_op_before(op, place)
            self._order[op] = index - len(ops) + i

    def remove(self, op: Operation) -> None:
        """Take out an op whose results nothing reads."""
        self._order.pop(op, None)
        op.detach()
        op.erase()

    # Several ops as one.

    def candidate(self, fusion_class: str, parts: Sequence[Operation], *, at_first: bool = False) -> Candidate:
        """
        The fused op of parts in the order of the block, to stand at the place of the last of them, or of the first.

        Raises Illegal if a value or an array of state would then be read or written out of order.
        """
        parts = sorted(parts, key=self.index)
        place = parts[0] if at_first else parts[-1]
        views: list[Operation] = []
        if at_first:
            self._check_hoist(parts)
        else:
            self._check_sink(parts, views)
        return Candidate(self._fuse(fusion_class, parts), parts, place, views)

    def commit(self, candidate: Candidate) -> None:
        """Put a candidate into the graph in place of its parts."""
        self._define_before(candidate)
        self.block.insert_op_before(candidate.op, candidate.place)
        self._order[candidate.op] = self.index(candidate.place)
        outputs = iter(candidate.op.outputs)
        for part in candidate.parts:
            for result in part.results:
                if self._read_outside(result, candidate.parts):
                    output = next(outputs)
                    output.name_hint = result.name_hint
                    result.replace_uses_with_if(output, lambda use: not _inside(use.operation, candidate))
        for part in reversed(candidate.parts):
            self.remove(part)
        after: Operation = candidate.op
        for view in sorted(candidate.views, key=self.index):
            view.detach()
            self.block.insert_op_after(view, after)
            self._order[view] = self._order[after] + 1
            after = view

    @staticmethod
    def drop(candidate: Candidate) -> None:
        """Forget a candidate that is not committed: its reads of the graph's values are no uses."""
        candidate.op.erase()

    def _fuse(self, fusion_class: str, parts: Sequence[Operation]) -> FusedOp:
        body, values = Block(), dict[SSAValue, SSAValue]()
        for part in parts:
            clone = part.clone(value_mapper=values)
            for old, new in zip(part.results, clone.results, strict=True):
                new.name_hint = old.name_hint
            body.add_op(clone)
        results = [result for part in parts for result in part.results if self._read_outside(result, parts)]
        body.add_op(YieldOp(*(values[result] for result in results)))
        op = FusedOp(fusion_class, Region(body))
        op.location = _location(parts)
        return op

    def _read_outside(self, value: SSAValue, parts: Sequence[Operation]) -> bool:
        return any(
            use.operation.parent_block() is not None and self._outside(use.operation, parts) for use in value.uses
        )

    def _outside(self, op: Operation, parts: Sequence[Operation]) -> bool:
        """Whether a reader is an op of the step other than the parts; a candidate not in the graph is none."""
        while op.parent_block() is not self.block:
            parent = op.parent_op()
            if parent is None:
                return False
            op = parent
        return op not in parts

    def _check_sink(self, parts: Sequence[Operation], views: list[Operation]) -> None:
        last = parts[-1]
        for part in parts[:-1]:
            for result in part.results:
                self._check_readers(part, result, last, parts, views)
            self._check_crossing(part, parts, self._between(part, last))

    def _check_readers(
        self, part: Operation, value: SSAValue, last: Operation, parts: Sequence[Operation], views: list[Operation]
    ) -> None:
        """
        Refuse if a value of a part, or of a view of one, would be read before it is computed. Views that nothing reads
        yet may follow the fused op, but the parts cannot read them then.
        """
        for reader in self.readers(value):
            if reader in parts and part not in parts:
                raise Illegal(f"{describe(part)} stands between, and {describe(reader)} reads it")
            if reader in parts or self.index(reader) > self.index(last):
                continue
            if not isinstance(reader, ViewOp):
                raise Illegal(f"{describe(part)} is read by {describe(reader)}, before {describe(last)}")
            self._check_readers(reader, reader.result, last, parts, views)
            if reader not in views:
                views.append(reader)

    def _check_hoist(self, parts: Sequence[Operation]) -> None:
        first = parts[0]
        for part in parts[1:]:
            for operand in _captured(part):
                owner = operand.owner
                if not isinstance(owner, Operation) or owner.parent_block() is not self.block:
                    continue
                if owner not in parts and not _moves_freely(owner) and self.index(owner) > self.index(first):
                    raise Illegal(
                        f"{describe(part)} reads {describe(owner)}, which is computed after {describe(first)}"
                    )
            self._check_crossing(part, parts, self._between(first, part))

    def _check_crossing(self, part: Operation, parts: Sequence[Operation], between: Iterator[Operation]) -> None:
        """Refuse to move a part across an op that touches the state that it touches."""
        if is_side_effect_free(part):
            return
        assert isinstance(part, TensorGraphOperation)
        reads, writes = set(part.memory_reads()), set(part.memory_writes())
        for op in between:
            if op in parts or is_side_effect_free(op):
                continue
            if not isinstance(op, TensorGraphOperation):
                raise Illegal(f"'{op_name(op)}' stands between, and what it touches is not known")
            if not (reads | writes).isdisjoint(op.memory_writes()) or not writes.isdisjoint(op.memory_reads()):
                raise Illegal(f"{describe(op)} stands between and touches the same state as {describe(part)}")

    def _between(self, start: Operation, end: Operation) -> Iterator[Operation]:
        op = start.next_op
        while op is not None and op is not end:
            yield op
            op = op.next_op

    def _define_before(self, candidate: Candidate) -> None:
        """Move the constants that a candidate reads, and views of them, before its place."""
        place = self.index(candidate.place)
        for operand in _captured(candidate.op):
            owner = operand.owner
            if isinstance(owner, Operation) and owner.parent_block() is self.block and _moves_freely(owner):
                self._hoist(owner, candidate.place, place)

    def _hoist(self, op: Operation, place: Operation, index: int) -> None:
        if self.index(op) < index:
            return
        for operand in op.operands:
            if isinstance(operand.owner, Operation):
                self._hoist(operand.owner, place, index)
        op.detach()
        self.block.insert_op_before(op, place)
        self._order[op] = index - 1


def _moves_freely(op: Operation) -> bool:
    """Whether an op may stand anywhere before what reads it: a constant, or a view of one or of an argument."""
    if not isinstance(op, ConstantOp | RopeTableOp | EmptyOp | ViewOp):
        return False
    owners = (operand.owner for operand in op.operands)
    return all(not isinstance(owner, Operation) or _moves_freely(owner) for owner in owners)


def _captured(op: Operation) -> Iterator[SSAValue]:
    """The values from outside that an op or the ops in it read."""
    for inner in op.walk():
        for operand in inner.operands:
            owner = operand.owner
            if not (isinstance(owner, Operation) and op.is_ancestor(owner)):
                yield operand


def _inside(op: Operation, candidate: Candidate) -> bool:
    return candidate.op.is_ancestor(op) or any(part.is_ancestor(op) for part in candidate.parts)


def _location(parts: Sequence[Operation]) -> LocationAttr:
    all_places = tuple(dict.fromkeys(place for part in parts for place in locations(part)))
    if len(all_places) > 1:
        return FusedLoc(all_places, NoneAttr())
    return all_places[0] if all_places else UnknownLoc()
