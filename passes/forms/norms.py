"""Norms and gathers as rules and `link` read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.launch.attributes import Part
from lane_mlir.dialects.tg import (
    BinaryOp,
    BinaryOperator,
    GatherOp,
    InsertOp,
    QuantizeOp,
    RmsNormOp,
    ScaleOp,
    SetRowOp,
    ViewOp,
    shape_of,
)
from lane_mlir.passes.forms.landing import Landing, landing
from lane_mlir.passes.forms.scope import Scope
from lane_mlir.passes.forms.slices import in_place


@dataclass(frozen=True)
class NormForm:
    """
    An RMS norm: the input it reads (whole or in part of every unit), the norm (weight and epsilon) that it takes of
    that first, the operand it then adds and the sum, its weight, rows and columns, epsilon, and where it lands.
    `writes_sum`: whether others read the sum.
    """

    x: SSAValue
    part: Part | None
    pre: tuple[SSAValue | None, float] | None
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
    source = in_place(scope)
    if source is not None:
        scope = scope.of(source.rest)
    before: RmsNormOp | None = None
    add: SSAValue | None = None
    total: SSAValue | None = None
    match list(scope.leaves):
        case [RmsNormOp() as normed, QuantizeOp() | ViewOp() | SetRowOp() | InsertOp(), *_] | [RmsNormOp() as normed]:
            x, after = normed.x, scope.leaves[1:]
        case [BinaryOp() as sum_, RmsNormOp() as normed, *after] if _norms_sum(normed, sum_, scope):
            x, add, total = sum_.a, sum_.b, sum_.result
        case [RmsNormOp() as before, BinaryOp() as sum_, RmsNormOp() as normed, *after] if (
            _norms_sum(normed, sum_, scope) and _other_operand(sum_, before.result, scope) is not None
        ):
            x, add, total = before.x, _other_operand(sum_, before.result, scope), sum_.result
        case _:
            return None
    place = landing(normed.result, after, scope)
    if place is None:
        return None
    rows, columns = shape_of(normed.x)
    part = None if source is None else source.part(columns)
    if source is not None and (part is None or add is not None):
        return None
    writes_sum = total is not None and scope.escapes(total)
    return NormForm(
        scope.canonical(x if source is None else source.x),
        part,
        None if before is None else (before.w, before.eps.value.data),
        None if add is None else scope.canonical(add),
        None if total is None else scope.canonical(total),
        writes_sum,
        normed.w,
        rows,
        columns,
        normed.eps.value.data,
        place,
        [*(source.inside if source else ()), *([] if before is None else [before.result]), *place.inside],
    )


def _norms_sum(norm: RmsNormOp, add: BinaryOp, scope: Scope) -> bool:
    return is_residual_add(add) and scope.same(norm.x, add.result)


def _other_operand(add: BinaryOp, value: SSAValue, scope: Scope) -> SSAValue | None:
    """The operand of an add that is not a value, if the other one is."""
    if scope.same(add.a, value) == scope.same(add.b, value):
        return None
    return add.b if scope.same(add.a, value) else add.a


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
