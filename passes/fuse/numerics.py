"""The numerics fold: a producer takes the quantize of its result."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from lane_mlir.dialects.tg import BinaryOp, DeltaOp, FusedOp, QuantizeOp
from lane_mlir.passes.forms import FUSED_QUANT, attention, gemv, glu, leaves, norm
from lane_mlir.passes.fuse.rule import FusionRule, Place
from lane_mlir.passes.link.norms import FOLDS


class FusedQuant(FusionRule):
    """A producer, then the quantize of its result, which products read; it is still written plain if it is read so."""

    name = FUSED_QUANT
    anchors = (QuantizeOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, QuantizeOp)
        source = self.graph.slot_of(op.x)
        if source is not None:
            yield Place(_class(source), (source, op), at_first=True)


def _class(producer: Operation) -> str:
    """The class of a producer with its quantize."""
    fusion_class = producer.fusion_class.data if isinstance(producer, FusedOp) else ""
    if fusion_class == "embed_norm":
        return "embed_norm_quant"
    normed = producer.parts[-1] if isinstance(producer, FusedOp) and fusion_class in FOLDS else producer
    form = norm(normed)
    if form is not None:
        return "norm_quant" if form.add is None else "add_norm_quant"
    last = leaves(producer)[-1]
    if attention(producer) is not None:
        return "attn_output_quant"
    if isinstance(last, DeltaOp):
        return "gdn_output_quant"
    if glu(producer) is not None or (
        isinstance(producer, FusedOp) and isinstance(last, BinaryOp) and gemv(producer) is None
    ):
        return "glu_act_mul_quant"
    return "gemv_quant" if gemv(producer) is not None else "elementwise_quant"
