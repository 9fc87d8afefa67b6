"""Rules about slices that their reader can read in place: slice_read, strided_values."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import AttentionOp, FusedOp, HeadMatmulOp, RmsNormOp, RopeOp, SliceOp, ViewOp
from lane_mlir.passes.forms import attention, describe, is_view, norm, rope
from lane_mlir.passes.fuse.rule import FusionRule, Place, takes_part


class SliceRead(FusionRule):
    """A slice whose only reader can read in place, strided: a norm, a rotation, a product by each head's own weight."""

    name = "slice_read"
    anchors = (RmsNormOp, RopeOp, HeadMatmulOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        value = unit_input(op)
        if value is None:
            return
        parts = [op]
        source = self.graph.slot_of(value)
        while isinstance(source, ViewOp):
            parts.append(source)
            source = self.graph.slot_of(source.x)
        if isinstance(source, SliceOp):
            refusal = (
                f"{describe(source)} is one run of elements: a view, which costs no launch" if is_view(source) else ""
            )
            yield Place("slice_read", (source, *reversed(parts)), refusal=refusal or takes_part(parts))


def unit_input(op: Operation) -> SSAValue | None:
    """The input that an op reads unit by unit, if it could read it as a part of every unit of a wider tensor."""
    if isinstance(op, HeadMatmulOp):
        return op.x
    normed = norm(op)
    if normed is not None:
        return normed.x if normed.add is None and normed.part is None else None
    rotated = rope(op)
    return rotated.x if rotated is not None and rotated.part is None else None


class StridedValues(FusionRule):
    """Attention that reads its values inside the rows of another array, its keys'."""

    name = "strided_values"
    anchors = (AttentionOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        form = attention(op)
        if form is None:
            return
        source = self.graph.slot_of(form.values)
        if isinstance(source, SliceOp):
            yield Place("strided_values", (source, op))
