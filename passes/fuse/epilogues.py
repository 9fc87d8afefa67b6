"""Rules about what the last block of a launch does: gemv_norm_epilogue, qkv_head_epilogue, moe_deferred_finalize."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import FusedOp, MoeOp, RmsNormOp, RopeOp, ViewOp
from lane_mlir.passes.forms import describe, gemv, norm, rope
from lane_mlir.passes.fuse.products import behind
from lane_mlir.passes.fuse.rule import FusionRule, Place, takes_part


class GemvNormEpilogue(FusionRule):
    """A product, then the norm of its whole row (with what is added and normed before), by the last block to finish."""

    name = "gemv_norm_epilogue"
    anchors = (RmsNormOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        for source in _normed(self, op):
            product = gemv(source)
            if product is not None and product.landing.dst.own:
                rotation = self._rotation_of(op)
                refusal = "" if rotation is None else f"{describe(rotation)}, which reads the norm, takes it instead"
                yield Place("gemv_norm_epilogue", (source, op), refusal=refusal)
            elif (found := behind(self.graph, source)) is not None:
                yield found.place("gemv_norm_epilogue", op, "the norm")

    def _rotation_of(self, norm: Operation) -> RopeOp | None:
        """The rotation of heads that are normed, if nothing else reads them."""
        readers = [reader for result in norm.results for reader in self.graph.readers(result)]
        while len(readers) == 1 and isinstance(readers[0], ViewOp):
            readers = list(self.graph.readers(readers[0].result))
        return readers[0] if len(readers) == 1 and isinstance(readers[0], RopeOp) else None


class MoeDeferredFinalize(FusionRule):
    """A mixture, the residual added to it and the norm of the sum, by the last block to finish."""

    name = "moe_deferred_finalize"
    anchors = (RmsNormOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        for source in _normed(self, op):
            if isinstance(source, MoeOp) or (
                isinstance(source, FusedOp) and source.fusion_class.data in ("shared_expert", "moe_rows")
            ):
                yield Place("moe_deferred_finalize", (source, op))


def _normed(rule: FusionRule, op: Operation) -> Iterator[Operation]:
    """The ops that compute what a norm reads: its input, and what it adds."""
    form = norm(op)
    if form is None:
        return
    operands: list[SSAValue] = [form.x] if form.add is None else [form.x, form.add]
    yield from (source for value in operands if (source := rule.graph.slot_of(value)) is not None)


class QkvHeadEpilogue(FusionRule):
    """A product of queries or keys, then the rotation of its heads (normed first or not, landing in a cache or not)."""

    name = "qkv_head_epilogue"
    anchors = (RopeOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        form = rope(op)
        if form is None:
            return
        views: list[Operation] = []
        source = self.graph.slot_of(form.x)
        while isinstance(source, ViewOp):
            views.append(source)
            source = self.graph.slot_of(source.x)
        product = None if source is None else gemv(source)
        if (found := behind(self.graph, source)) is not None:
            yield found.place("qkv_head_epilogue", op, "the rotation")
        if source is None or product is None or not product.landing.dst.own:
            return
        parts = (source, *reversed(views), op)
        if part := takes_part(views):
            yield Place("qkv_head_epilogue", parts, refusal=part)
            return
        others = [reader for reader in self.graph.readers(product.landing.value) if reader not in parts]
        refusal = f"{describe(source)} has another reader, {describe(others[0])}" if others else ""
        yield Place("qkv_head_epilogue", parts, refusal=refusal)
