"""Convolutions as rules and `link` read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import Activation, ConvOp, L2NormOp, LiftedOperation, UnaryOp, ViewOp, shape_of
from lane_mlir.passes.forms.scope import Scope, is_reshape


@dataclass(frozen=True)
class ConvForm:
    """
    A convolution: its input, weights, ring, output, channels, taps, rows, whether a SiLU and a per-head L2 norm (of
    `block` channels, with an epsilon) follow inside it.
    """

    x: SSAValue
    w: SSAValue
    ring: SSAValue
    result: SSAValue
    channels: int
    taps: int
    rows: int
    silu: bool
    l2: tuple[int, float] | None
    inside: Sequence[SSAValue]


def convolution(op: Operation, scope: Scope | None = None) -> ConvForm | None:
    """The convolution that an op is: a lifted one, or one that a rule built."""
    scope = scope or Scope(op)
    leaves: list[LiftedOperation] = list(scope.leaves)
    if not leaves or not isinstance(conv := leaves.pop(0), ConvOp):
        return None
    value, inside, silu = conv.result, list[SSAValue](), False
    if leaves and isinstance(act := leaves[0], UnaryOp) and scope.same(act.x, value):
        if act.activation.data is not Activation.SILU:
            return None
        inside.append(value)
        value, silu = act.result, True
        del leaves[0]
    if leaves and isinstance(view := leaves[0], ViewOp) and scope.same(view.x, value) and is_reshape(view):
        inside.append(value)
        value = view.result
        del leaves[0]
    l2 = None
    if leaves and isinstance(norm := leaves[0], L2NormOp) and scope.same(norm.x, value):
        inside.append(value)
        value, l2 = norm.result, (shape_of(norm.x)[1], norm.eps.value.data)
        del leaves[0]
    if leaves:
        return None
    rows, channels = shape_of(conv.x)
    taps = shape_of(conv.w)[1]
    return ConvForm(conv.x, conv.w, conv.ring, scope.canonical(value), channels, taps, rows, silu, l2, inside)
