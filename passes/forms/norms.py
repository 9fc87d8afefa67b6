"""Norms and gathers as rules and `link` read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import BinaryOp, BinaryOperator, GatherOp, RmsNormOp, ScaleOp, shape_of
from lane_mlir.passes.forms.landing import Landing, landing
from lane_mlir.passes.forms.scope import Scope


@dataclass(frozen=True)
class NormForm:
    """
    An RMS norm: the input it reads, the operand it adds first and the sum of the two, its weight, rows and columns,
    epsilon, and where it lands. `writes_sum`: whether others read the sum.
    """

    x: SSAValue
    add: SSAValue | None
    sum: SSAValue | None
    writes_sum: bool
    weight: SSAValue | None
    rows: int
    columns: int
    eps: float
    landing: Landing
    inside: Sequence[SSAValue]


def norm(op: Operation, scope: Scope | None = None) -> NormForm | None:
    """The RMS norm that an op is: a lifted one, or one that a rule built."""
    scope = scope or Scope(op)
    match list(scope.leaves):
        case [RmsNormOp() as normed, *after]:
            x, add, total = normed.x, None, None
        case [BinaryOp() as sum_, RmsNormOp() as normed, *after] if is_residual_add(sum_) and scope.same(
            normed.x, sum_.result
        ):
            x, add, total = sum_.a, sum_.b, sum_.result
        case _:
            return None
    place = landing(normed.result, after, scope)
    if place is None:
        return None
    rows, columns = shape_of(normed.x)
    writes_sum = total is not None and scope.escapes(total)
    return NormForm(
        scope.canonical(x),
        None if add is None else scope.canonical(add),
        None if total is None else scope.canonical(total),
        writes_sum,
        normed.w,
        rows,
        columns,
        normed.eps.value.data,
        place,
        place.inside,
    )


def is_residual_add(op: BinaryOp) -> bool:
    """Whether an op adds two tensors of one shape."""
    return op.operator.data is BinaryOperator.ADD and shape_of(op.a) == shape_of(op.b)


@dataclass(frozen=True)
class GatherForm:
    """Rows of a table by index, and the factor they are multiplied by."""

    table: SSAValue
    index: SSAValue
    rows: int
    columns: int
    scale: float | None
    result: SSAValue
    inside: Sequence[SSAValue]


def gather(op: Operation, scope: Scope | None = None) -> GatherForm | None:
    """The gather that an op is, its scale folded in or not."""
    scope = scope or Scope(op)
    match list(scope.leaves):
        case [GatherOp() as rows]:
            factor, result = None, rows.result
        case [GatherOp() as rows, ScaleOp() as scale] if scope.same(scale.x, rows.result):
            factor, result = scale.factor.value.data, scale.result
        case _:
            return None
    count, columns = shape_of(rows.result)
    inside = [] if factor is None else [rows.result]
    return GatherForm(rows.table, rows.index, count, columns, factor, scope.canonical(result), inside)
