"""Rules about products and gates: gemv_bias, act_gate, attn_output_gate, glu_pair, gemv_parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import TypeIs
from xdsl.ir import Operation

from lane_mlir.dialects.tg import BinaryOp, BinaryOperator, FusedOp, MatmulOp, ScaleOp, UnaryOp, ViewOp
from lane_mlir.formats import Format
from lane_mlir.passes.forms import (
    GemvForm,
    Scope,
    attention,
    describe,
    gated,
    gemv,
    head_parts,
    is_bias_add,
    is_product_scale,
    is_residual_add,
    leaves,
    rules_of,
)
from lane_mlir.passes.fuse.graph import StepGraph
from lane_mlir.passes.fuse.rule import FusionRule, Place


class GemvBias(FusionRule):
    """A product, then a bias row added to it, or a scale that all of it is multiplied by, or one and then the other."""

    name = "gemv_bias"
    anchors = (BinaryOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, BinaryOp)
        if not is_bias_add(op) and not is_product_scale(op):
            return
        what = "bias" if is_bias_add(op) else "scale"
        source = self.graph.slot_of(op.a)
        if _is_product(source):
            yield Place("gemv_bias", (source, op))
        elif isinstance(source, ViewOp) and _is_product(product := self.graph.slot_of(source.x)):
            refusal = f"{describe(source)} stands between {describe(product)} and its {what}: the rows differ"
            yield Place("gemv_bias", (product, source, op), refusal=refusal)
        elif (found := behind(self.graph, source)) is not None:
            yield found.place("gemv_bias", op, f"the {what}")


class ActGate(FusionRule):
    """act(g)·u: an activation, and the product by it."""

    name = "act_gate"
    anchors = (BinaryOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, BinaryOp)
        if op.operator.data is not BinaryOperator.MUL or op.single:
            return
        for operand in (op.a, op.b):
            source = self.graph.slot_of(operand)
            if isinstance(source, UnaryOp):
                yield Place("act_gate", (source, op))


class AttnOutputGate(FusionRule):
    """Attention, times an activation of its gate."""

    name = "attn_output_gate"
    anchors = (FusedOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, FusedOp)
        scope = Scope(op)
        gating = gated(scope.leaves, scope) if op.fusion_class.data == "act_gate" else None
        source = None if gating is None else self.graph.slot_of(gating.up)
        if source is not None and attention(source) is not None:
            yield Place("attn_output_gate", (source, op))


class GluPair(FusionRule):
    """A gate product, an up product of the same activation, and the gating of one by the other."""

    name = "glu_pair"
    anchors = (FusedOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, FusedOp)
        scope = Scope(op)
        gating = gated(scope.leaves, scope) if op.fusion_class.data == "act_gate" else None
        if gating is None:
            return
        gate, up = self.graph.slot_of(gating.gate), self.graph.slot_of(gating.up)
        if gate is None or up is None or gate is up:
            return
        if gemv(gate) is not None and gemv(up) is not None:
            yield Place("glu_pair", (gate, up, op))
        elif (found := behind(self.graph, gate) or behind(self.graph, up)) is not None:
            yield found.place("glu_pair", op, "the gating")


class GemvParts(FusionRule):
    """Products of one activation in one launch."""

    name = "gemv_parts"
    anchors = (MatmulOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        form = gemv(head_parts(op)[0])
        if form is None:
            return
        products = self._products_of(form)
        if next(iter(products)) is not op:
            return
        if len(products) == 1 and (other := self._normed_product_of(form)) is not None:
            refusal = f"the other product of its activation is {describe(other)}, whose last block norms its rows"
            yield Place("gemv_parts", (op,), refusal=refusal)
        all_forms = (*self._merged_products_of(form), *products.values())
        for kind in dict.fromkeys(_kind(product) for product in products.values()):
            group = [product for product, other in products.items() if _kind(other) == kind]
            others = dict.fromkeys(str(other.format) for other in all_forms if _kind(other) != kind)
            if len(group) > 1:
                yield Place("gemv_parts", group, at_first=True)
            elif others:
                stored = products[group[0]].format
                refusal = f"its weight is stored as {stored}, those of the activation's other products as "
                yield Place("gemv_parts", group, refusal=refusal + ", ".join(others))

    def _products_of(self, form: GemvForm) -> dict[Operation, GemvForm]:
        """The products of an activation, in order."""
        readers = sorted(self.graph.readers(form.x), key=self.graph.index)
        forms = ((reader, gemv(head_parts(reader)[0])) for reader in readers)
        return {reader: other for reader, other in forms if other is not None and other.x == form.x}

    def _merged_products_of(self, form: GemvForm) -> Iterator[GemvForm]:
        """The products of each launch of several that an activation has already."""
        for reader in sorted(self.graph.readers(form.x), key=self.graph.index):
            if isinstance(reader, FusedOp) and reader.fusion_class.data == "gemv_parts":
                forms = (gemv(head_parts(part)[0]) for part in reader.parts)
                yield from (product for product in forms if product is not None)

    def _normed_product_of(self, form: GemvForm) -> Operation | None:
        """A product of an activation that is normed by its last block."""
        for reader in self.graph.readers(form.x):
            product = next(iter(leaves(reader)), None)
            if isinstance(product, MatmulOp) and product.x is form.x and rules_of(reader).count("gemv_norm_epilogue"):
                return reader
        return None


@dataclass(frozen=True)
class Behind:
    """A product, and the op between it and what would be one with it."""

    product: Operation
    between: Operation

    def place(self, fusion_class: str, op: Operation, what: str) -> Place:
        """The place that this is not: of the product, and the op that would be one with it."""
        refusal = f"{describe(self.between)} stands between {describe(self.product)} and {what}"
        return Place(fusion_class, (self.product, self.between, op), refusal=refusal)


def behind(graph: StepGraph, op: Operation | None) -> Behind | None:
    """The product that an op is computed of by elementwise ops that add no residual, and the first of these."""
    between: Operation | None = None
    while isinstance(op, ScaleOp | UnaryOp | BinaryOp | ViewOp):
        if isinstance(op, BinaryOp) and is_residual_add(op):
            return None
        between = op if between is None or not isinstance(op, ViewOp) else between
        op = graph.slot_of(op.a if isinstance(op, BinaryOp) else op.x)
        if op is not None and gemv(op) is not None and not isinstance(between, ViewOp):
            return Behind(op, between)
    return None


def _is_product(op: Operation | None) -> TypeIs[MatmulOp | FusedOp]:
    """Whether an op is a product, with a scale or a bias or not."""
    return isinstance(op, MatmulOp) or (isinstance(op, FusedOp) and op.fusion_class.data == "gemv_bias")


def _kind(form: GemvForm) -> tuple[Format | None, bool]:
    """What the products of one launch have in common: weights in blocks, or in one plain format, or plain values."""
    return None if form.format.is_block else form.format, form.values
