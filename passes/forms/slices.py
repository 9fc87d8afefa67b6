"""Slices as rules and `link` read them: as copies, or as parts of wider units that their reader reads in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from lane_mlir.dialects.launch.attributes import Part
from lane_mlir.dialects.tg import LiftedOperation, SliceOp, ViewOp
from lane_mlir.passes.forms.scope import Scope, is_reshape


@dataclass(frozen=True)
class InPlace:
    """
    What an op reads through a slice: the tensor that is sliced, the leaves after the slice and its views, and the
    slice. `inside` are the values on the way.
    """

    x: SSAValue
    slice: SliceOp
    rest: Sequence[LiftedOperation]
    inside: Sequence[SSAValue]

    def part(self, width: int) -> Part | None:
        """The part of every unit that a reader of units of a width reads; None if no pitch reaches them."""
        if self.slice.width.value.data != width:
            return None
        return Part(self.slice.every.value.data, self.slice.start.value.data)


def in_place(scope: Scope) -> InPlace | None:
    """The slice that an op begins with, if its other leaves read nothing but that."""
    leaves: list[LiftedOperation] = list(scope.leaves)
    first = leaves[0]
    if len(leaves) < 2 or not isinstance(first, SliceOp):
        return None
    value: SSAValue = scope.canonical(first.result)
    inside: list[SSAValue] = [first.result]
    leaves = leaves[1:]
    while len(leaves) > 1:
        view = leaves[0]
        if not isinstance(view, ViewOp) or not scope.same(view.x, value) or not is_reshape(view):
            break
        value = scope.canonical(view.result)
        inside.append(view.result)
        leaves = leaves[1:]
    if not scope.same(leaves[0].operands[0], value):
        return None
    return InPlace(first.x, first, leaves, inside)


def is_view(op: SliceOp) -> bool:
    """Whether a slice is one run of a tensor's elements, which need not be copied."""
    return op.groups == 1 and isinstance(op.x.type, TensorType)
