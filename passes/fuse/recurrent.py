"""Rules about layers with recurrent state: conv_silu, conv_silu_l2, conv_parts, gates, gate_projections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import (
    Activation,
    ConvOp,
    DecayOp,
    DeltaOp,
    FusedOp,
    L2NormOp,
    MatmulOp,
    UnaryOp,
    ViewOp,
)
from lane_mlir.passes.forms import ConvForm, convolution
from lane_mlir.passes.fuse.rule import FusionRule, Place


class ConvSilu(FusionRule):
    """A causal convolution, then SiLU."""

    name = "conv_silu"
    anchors = (UnaryOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, UnaryOp)
        source = self.graph.slot_of(op.x)
        if isinstance(source, ConvOp):
            yield Place("conv_silu", (source, op))


class ConvSiluL2(FusionRule):
    """A causal convolution and SiLU, then the L2 norm of every head."""

    name = "conv_silu_l2"
    anchors = (L2NormOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, L2NormOp)
        parts: list[Operation] = [op]
        source = self.graph.slot_of(op.x)
        while isinstance(source, ViewOp):
            parts.append(source)
            source = self.graph.slot_of(source.x)
        if source is not None and convolution(source) is not None:
            yield Place("conv_silu_l2", (source, *reversed(parts)))


class ConvParts(FusionRule):
    """The convolutions of queries, keys and values in one launch."""

    name = "conv_parts"
    anchors = (ConvOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        form = convolution(op)
        if form is None:
            return
        run = self._run(op, form)
        if len(run) > 1:
            yield Place("conv_parts", run)

    def _run(self, first: Operation, form: ConvForm) -> Sequence[Operation]:
        """A convolution and the like ones after it, up to the first op that needs what one of them computes."""
        run, results, op = [first], set(first.results), first.next_op
        while op is not None:
            reads = any(operand in results for inner in op.walk() for operand in inner.operands)
            if reads and not isinstance(op, ViewOp):
                break
            other = convolution(op) if isinstance(op, ConvOp | FusedOp) else None
            if reads or other is not None:
                results.update(op.results)
            if other is not None and (other.taps, other.rows) == (form.taps, form.rows):
                run.append(op)
            op = op.next_op
        return run


class Gates(FusionRule):
    """Beta and decay of the delta rule."""

    name = "gates"
    anchors = (DeltaOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        if not isinstance(op, DeltaOp):
            return
        beta, decay = self.graph.slot_of(op.beta), self.graph.slot_of(op.decay)
        if not isinstance(beta, UnaryOp) or beta.activation.data is not Activation.SIGMOID:
            return
        if isinstance(decay, DecayOp):
            yield Place("gates", (beta, decay))


class GateProjections(FusionRule):
    """The gates of the delta rule, with the two small products before them."""

    name = "gate_projections"
    anchors = (FusedOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, FusedOp)
        if op.fusion_class.data != "gates":
            return
        products: list[Operation] = []
        for value in gate_inputs(op):
            source = self.graph.slot_of(value)
            if not isinstance(source, MatmulOp):
                return
            products.append(source)
        yield Place("gate_projections", (*dict.fromkeys(products), op))


def gate_inputs(op: FusedOp) -> Sequence[SSAValue]:
    """What the gates of an op are computed of: beta's, then the decay's."""
    beta = next(leaf.x for leaf in op.leaves() if isinstance(leaf, UnaryOp))
    decay = next(leaf.a for leaf in op.leaves() if isinstance(leaf, DecayOp))
    return beta, decay
