"""Rules about mixtures of experts: shared_expert, moe_rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import BinaryOp, BinaryOperator, InsertOp, MatmulOp, MoeOp, QuantizeOp, UnaryOp
from lane_mlir.passes.forms import gemv, glu, is_residual_add, mixture_of
from lane_mlir.passes.fuse.rule import FusionRule, Place


class SharedExpert(FusionRule):
    """The routed mixture, plus the expert that every row takes, gated or not."""

    name = "shared_expert"
    anchors = (BinaryOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, BinaryOp)
        if not is_residual_add(op):
            return
        for routed, shared in ((op.a, op.b), (op.b, op.a)):
            mixture = self.graph.slot_of(routed)
            expert = self._expert(shared)
            if isinstance(mixture, MoeOp) and expert:
                yield Place("shared_expert", (mixture, *expert, op))

    def _expert(self, value: SSAValue) -> Sequence[Operation]:
        """The ops of the shared expert that computes a value; none if nothing like it does."""
        gate: list[Operation] = []
        last = self.graph.slot_of(value)
        if isinstance(last, BinaryOp) and last.operator.data is BinaryOperator.MUL and last.column_broadcast:
            sigmoid = self.graph.slot_of(last.b)
            product = self.graph.slot_of(sigmoid.x) if isinstance(sigmoid, UnaryOp) else None
            if sigmoid is None or not isinstance(product, MatmulOp):
                return ()
            gate = [product, sigmoid, last]
            last = self.graph.slot_of(last.a)
        down = None if last is None else gemv(last)
        if last is None or down is None:
            return ()
        hidden = self.graph.slot_of(down.x)
        quantize: list[Operation] = []
        if isinstance(hidden, QuantizeOp):
            quantize = [hidden]
            hidden = self.graph.slot_of(hidden.x)
        return () if hidden is None or glu(hidden) is None else (hidden, *quantize, last, *gate)


class MoeRows(FusionRule):
    """A block's mixtures, of the rows of one activation and put into one tensor row by row, as one of all rows."""

    name = "moe_rows"
    anchors = (InsertOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, InsertOp)
        if any(isinstance(reader, InsertOp) and reader.dst is op.result for reader in self.graph.readers(op.result)):
            # The last insert is the anchor.
            return
        parts: list[Operation] = []
        insert: Operation | None = op
        while isinstance(insert, InsertOp):
            mixture = self.graph.slot_of(insert.src)
            if mixture is None or mixture_of(mixture) is None:
                return
            parts += [insert, mixture]
            insert = self.graph.slot_of(insert.dst)
        yield Place("moe_rows", tuple(reversed(parts)))
