"""Rules about joins: join_in_place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter

from lane_mlir.dialects.tg import EmptyOp, InsertOp, JoinOp, ViewOp
from lane_mlir.passes.forms import covers
from lane_mlir.passes.fuse.rule import FusionRule, Place, takes_part


class JoinInPlace(FusionRule):
    """
    A join of two results, each landing in its units of the joined rows: the join becomes two inserts into one tensor,
    and each result's op takes its insert. Both do, or neither.
    """

    name = "join_in_place"
    anchors = (JoinOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, JoinOp)
        chains = [self._chain(value) for value in (op.a, op.b)]
        if all(chains):
            yield Place(self.name, (*chains[0], *chains[1], op))

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        assert isinstance(op, JoinOp)
        if op.parent_block() is not self.graph.block or self.rewriting.exhausted():
            return
        for place in self.places(op):
            numbers = tuple(number for part in place.parts for number in covers(part))
            reason = self._join_in_place(op)
            if self.decide(place, reason, numbers):
                rewriter.has_done_action = True

    def _chain(self, value: SSAValue) -> Sequence[Operation]:
        """The op that computes a value, and the views of its result that lead there."""
        chain: list[Operation] = []
        source = self.graph.slot_of(value)
        while isinstance(source, ViewOp):
            chain.append(source)
            source = self.graph.slot_of(source.x)
        return () if source is None else (source, *reversed(chain))

    def _join_in_place(self, op: JoinOp) -> str:
        """Rewrite a join, or leave it as it is and say why."""
        chains = {value: self._chain(value) for value in (op.a, op.b)}
        if chains[op.a][0] is chains[op.b][0]:
            return "both its sides are of one result"
        if part := takes_part((*chains[op.a], *chains[op.b])):
            return part
        first, second = sorted((op.a, op.b), key=lambda value: self.graph.index(chains[value][0]))
        empty, inserts = self._inserts(op, (first, second))
        # While it stands, the join is one more reader of both sides.
        a, b, heads, number, location = op.a, op.b, op.heads, op.number, op.location
        op.result.replace_all_uses_with(inserts[1].result)
        self.graph.remove(op)
        places = [Place(self.name, (*chains[insert.src], insert), at_first=True) for insert in inserts]
        reason = self.refusal(places[0]) or self.refusal(places[1])
        if reason:
            join = JoinOp(a, b, empty.result.type, heads=heads)
            join.number, join.location, join.result.name_hint = number, location, inserts[1].result.name_hint
            self.graph.insert_before((join,), empty)
            inserts[1].result.replace_all_uses_with(join.result)
            for made in (*inserts, empty):
                self.graph.remove(made)
            return reason
        inserts[1].operands[1] = inserts[0].result
        for place in places:
            self.fuse(place)
        return ""

    def _inserts(self, op: JoinOp, values: Sequence[SSAValue]) -> tuple[EmptyOp, Sequence[InsertOp]]:
        """The join as inserts of its sides into one tensor, before the join; each into the empty one as yet."""
        a, b = op.widths
        empty = EmptyOp(op.result.type)
        inserts = [InsertOp(value, empty.result, every=a + b, start=0 if value is op.a else a) for value in values]
        for insert in inserts:
            insert.number, insert.location = op.number, op.location
            insert.result.name_hint = op.result.name_hint
        self.graph.insert_before((empty, *inserts), op)
        return empty, inserts
