"""Rules about mixtures of experts: shared_expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import BinaryOp, BinaryOperator, MatmulOp, MoeOp, QuantizeOp, UnaryOp
from lane_mlir.passes.forms import gemv, glu, is_residual_add
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
