"""The rule that closes the table: advance."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from lane_mlir.dialects.tg import AdvanceOp, ArgmaxOp
from lane_mlir.passes.forms import ADVANCE
from lane_mlir.passes.fuse.rule import FusionRule, Place


class Advance(FusionRule):
    """The arg-max that picks the next token moves the step on: its launch writes token and position."""

    name = ADVANCE
    anchors = (AdvanceOp,)
    always = True

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, AdvanceOp)
        source = self.graph.slot_of(op.id)
        if isinstance(source, ArgmaxOp):
            yield Place("advance", (source, op))
