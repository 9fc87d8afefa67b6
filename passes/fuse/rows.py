"""Rules about where results land: row_write."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from lane_mlir.dialects.tg import SetRowOp, ViewOp
from lane_mlir.passes.fuse.rule import FusionRule, Place, takes_part


class RowWrite(FusionRule):
    """A result set into rows of a state table by its only reader, through views or not."""

    name = "row_write"
    anchors = (SetRowOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, SetRowOp)
        parts: list[Operation] = [op]
        source = self.graph.slot_of(op.src)
        while isinstance(source, ViewOp):
            parts.append(source)
            source = self.graph.slot_of(source.x)
        if source is not None:
            yield Place("row_write", (source, *reversed(parts)), refusal=takes_part(parts))
