"""Attention as rules and `link` read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import Activation, AttentionOp, LiftedOperation, SliceOp, UnaryOp, shape_of
from lane_mlir.passes.forms.landing import Landing, landing
from lane_mlir.passes.forms.products import gated
from lane_mlir.passes.forms.scope import Scope


@dataclass(frozen=True)
class AttentionForm:
    """
    An attention: the lifted op, where it reads its values (in which array, at which stride and offset), what gates its
    result, and where that lands.
    """

    op: AttentionOp
    values: SSAValue
    value_stride: int
    value_offset: int
    gate: tuple[SSAValue, Activation] | None
    landing: Landing
    inside: Sequence[SSAValue]


def attention(op: Operation, scope: Scope | None = None) -> AttentionForm | None:
    """The attention that an op is: a lifted one, or one that a rule built."""
    scope = scope or Scope(op)
    leaves: list[LiftedOperation] = list(scope.leaves)
    at = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, AttentionOp)), None)
    if at is None:
        return None
    attended = leaves.pop(at)
    assert isinstance(attended, AttentionOp)
    inside: list[SSAValue] = []
    values, stride, offset = attended.v, shape_of(attended.v)[1], 0
    for leaf in [leaf for leaf in leaves if isinstance(leaf, SliceOp)]:
        rows, columns = shape_of(leaf.x)
        if not scope.same(leaf.result, attended.v) or leaf.every.value.data != columns:
            return None
        if shape_of(leaf.result)[0] != rows:
            return None
        values, stride, offset = leaf.x, leaf.every.value.data, leaf.start.value.data
        inside.append(leaf.result)
        leaves.remove(leaf)
    gate, place = None, landing(attended.result, leaves, scope)
    if place is None and any(isinstance(leaf, UnaryOp) for leaf in leaves):
        gating = gated(leaves, scope)
        result = scope.canonical(attended.result)
        if gating is None or gating.up != result or gating.gate == result:
            return None
        gate, place = (gating.gate, gating.activation), gating.landing
        inside.extend([attended.result, *gating.inside])
    if place is None or not place.dst.own:
        return None
    return AttentionForm(attended, scope.canonical(values), stride, offset, gate, place, inside)
