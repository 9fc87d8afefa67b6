"""Rules about norms and what feeds them: add_norm, sandwich_norm, gather_scale, embed_norm."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from lane_mlir.dialects.tg import BinaryOp, FusedOp, GatherOp, LayerNormOp, RmsNormOp, ScaleOp, ViewOp
from lane_mlir.passes.forms import describe, gather, is_residual_add, norm
from lane_mlir.passes.fuse.rule import FusionRule, Place


class AddNorm(FusionRule):
    """An add of two tensors, then the norm of the sum; the sum is still written if it has another reader."""

    name = "add_norm"
    anchors = (RmsNormOp, LayerNormOp)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, RmsNormOp | LayerNormOp)
        source = self.graph.slot_of(op.x)
        if isinstance(op, LayerNormOp):
            if isinstance(source, BinaryOp) and is_residual_add(source):
                yield Place("add_norm", (source, op), refusal="the kernel of a layer norm adds nothing")
        elif isinstance(source, BinaryOp) and is_residual_add(source):
            yield Place("add_norm", (source, op))
        elif isinstance(source, ViewOp):
            add = self.graph.slot_of(source.x)
            if isinstance(add, BinaryOp) and is_residual_add(add):
                refusal = f"{describe(source)} stands between {describe(add)} and its norm: the rows differ"
                yield Place("add_norm", (add, source, op), refusal=refusal)
        elif isinstance(source, FusedOp) and source.fusion_class.data == "add_norm":
            refusal = f"the sum is already that of {describe(source)}, which writes it"
            yield Place("add_norm", (source, op), refusal=refusal)


class SandwichNorm(FusionRule):
    """A norm of a branch, added to the residual, then a norm of the sum."""

    name = "sandwich_norm"
    anchors = (FusedOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, FusedOp)
        form = norm(op) if op.fusion_class.data == "add_norm" else None
        if form is None or form.add is None:
            return
        for operand in (form.x, form.add):
            source = self.graph.slot_of(operand)
            if isinstance(source, RmsNormOp):
                yield Place("sandwich_norm", (source, op))


class GatherScale(FusionRule):
    """A row of the embedding table, and its scale."""

    name = "gather_scale"
    anchors = (ScaleOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, ScaleOp)
        source = self.graph.slot_of(op.x)
        if isinstance(source, GatherOp):
            yield Place("gather_scale", (source, op))


class EmbedNorm(FusionRule):
    """A row of the embedding table, scaled or not, and the first norm of it; the row is still written if it is read."""

    name = "embed_norm"
    anchors = (RmsNormOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, RmsNormOp)
        source = self.graph.slot_of(op.x)
        if source is not None and gather(source) is not None:
            yield Place("embed_norm", (source, op))
