"""Mixtures as rules and `link` read them: with a shared expert, and of several rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Attribute, Operation, SSAValue

from lane_mlir.dialects.tg import (
    Activation,
    BinaryOp,
    BinaryOperator,
    EmptyOp,
    FusedOp,
    InsertOp,
    MatmulOp,
    MoeOp,
    QuantizeOp,
    UnaryOp,
    ViewOp,
    shape_of,
    size_of,
)
from lane_mlir.passes.forms.norms import is_residual_add
from lane_mlir.passes.forms.products import GemvForm, GluForm, gemv, glu
from lane_mlir.passes.forms.scope import Scope, leaves


@dataclass(frozen=True)
class SharedExpertForm:
    """
    A routed mixture, plus the expert that every row takes: its gated pair of products, the quantize of what they give,
    the product of that, and the product whose sigmoid gates it. `inside` are the values on the way to the sum.
    """

    moe: MoeOp
    pair: GluForm
    quantize: QuantizeOp | None
    down: GemvForm
    gate: MatmulOp | None
    result: SSAValue
    inside: Sequence[SSAValue]


def shared_expert(op: Operation, scope: Scope | None = None) -> SharedExpertForm | None:
    """The mixture with a shared expert that a fused op is."""
    if not isinstance(op, FusedOp) or not isinstance(total := op.parts[-1], BinaryOp) or not is_residual_add(total):
        return None
    scope = scope or Scope(op)
    for routed, shared in ((total.a, total.b), (total.b, total.a)):
        if isinstance(moe := routed.owner, MoeOp) and (form := _form(op, moe, shared, total, scope)) is not None:
            return form
    return None


def _form(op: FusedOp, moe: MoeOp, shared: SSAValue, total: BinaryOp, scope: Scope) -> SharedExpertForm | None:
    parts: list[object] = [moe, total]
    gate, last = None, shared.owner
    if isinstance(last, BinaryOp):
        sigmoid = last.b.owner
        gate = sigmoid.x.owner if isinstance(sigmoid, UnaryOp) else None
        gates = last.operator.data is BinaryOperator.MUL and last.column_broadcast
        if not gates or not isinstance(gate, MatmulOp) or not _is_sigmoid(sigmoid):
            return None
        parts += [last, sigmoid, gate]
        last = last.a.owner
    down = gemv(last, scope.of(leaves(last))) if isinstance(last, Operation) else None
    if down is None or not down.landing.dst.own:
        return None
    hidden, quantize = down.x.owner, None
    parts.append(last)
    if isinstance(hidden, QuantizeOp):
        quantize = hidden
        parts.append(hidden)
        hidden = hidden.x.owner
    pair = glu(hidden, scope.of(leaves(hidden))) if isinstance(hidden, Operation) else None
    if pair is None or {*parts, hidden} != set(op.parts):
        return None
    inside = [result for part in op.parts[:-1] for result in part.results]
    return SharedExpertForm(moe, pair, quantize, down, gate, scope.canonical(total.result), inside)


def _is_sigmoid(op: object) -> bool:
    return isinstance(op, UnaryOp) and op.activation.data is Activation.SIGMOID


@dataclass(frozen=True)
class MixtureRowsForm:
    """
    The mixtures of all rows of an activation by the same experts, each row's put into one tensor: the mixture of the
    first row, with a shared expert or without. `x` is the whole activation; `inside` are the values on the way.
    """

    moe: MoeOp
    shared: SharedExpertForm | None
    x: SSAValue
    result: SSAValue
    inside: Sequence[SSAValue]


def mixture_rows(op: Operation, scope: Scope | None = None) -> MixtureRowsForm | None:
    """The mixtures of rows that a fused op is: of each row in turn, and its insert."""
    if not isinstance(op, FusedOp):
        return None
    scope = scope or Scope(op)
    inserts = [part for part in op.parts if isinstance(part, InsertOp)]
    mixtures = [part for part in op.parts if not isinstance(part, InsertOp)]
    if not inserts or len(inserts) != len(mixtures) or not _are_chained(inserts):
        return None
    rows = [mixture_of(mixture, scope.of(leaves(mixture))) for mixture in mixtures]
    first = rows[0]
    x = None if first is None else row_of(first[0].x, 0, len(rows))
    if first is None or x is None:
        return None
    for i, (row, mixture, insert) in enumerate(zip(rows, mixtures, inserts, strict=True)):
        if row is None or not scope.same(insert.src, mixture.results[0]) or insert.start.value.data != i * insert.width:
            return None
        if row_of(row[0].x, i, len(rows)) is not x or not _are_alike(first, row, i, len(rows)):
            return None
    inside = [result for part in op.parts[:-1] for result in part.results]
    return MixtureRowsForm(*first, x, scope.canonical(inserts[-1].result), inside)


def mixture_of(op: Operation, scope: Scope | None = None) -> tuple[MoeOp, SharedExpertForm | None] | None:
    """The mixture that an op is, with a shared expert or without."""
    if isinstance(op, MoeOp):
        return op, None
    shared = shared_expert(op, scope)
    return None if shared is None else (shared.moe, shared)


def row_of(value: SSAValue, row: int, rows: int) -> SSAValue | None:
    """The tensor of some rows that a value is a row of."""
    view = value.owner
    if not isinstance(view, ViewOp) or shape_of(view.x) != (rows, size_of(value)):
        return None
    return view.x if view.offset.value.data == row * size_of(value) else None


def _are_chained(inserts: Sequence[InsertOp]) -> bool:
    """Whether inserts replace all of an empty tensor, one after the other."""
    dst, width = inserts[0].dst, inserts[0].width
    if not isinstance(dst.owner, EmptyOp) or size_of(dst) != len(inserts) * width:
        return False
    for insert in inserts:
        if insert.units != 1 or insert.width != width or insert.dst is not dst:
            return False
        dst = insert.result
    return True


def _are_alike(
    first: tuple[MoeOp, SharedExpertForm | None], other: tuple[MoeOp, SharedExpertForm | None], row: int, rows: int
) -> bool:
    """Whether the mixtures of the first and of another row take the same experts, of the same activation."""
    (a, with_a), (b, with_b) = first, other
    if _choice(a) != _choice(b) or len(a.operands) != len(b.operands):
        return False
    # x and x quantized are rows; all others are the same for every row.
    for x, y in zip(a.operands, b.operands, strict=True):
        whole = row_of(x, 0, rows)
        if (x is not y) if whole is None else (row_of(y, row, rows) is not whole):
            return False
    return _weights(with_a) == _weights(with_b)


def _choice(moe: MoeOp) -> dict[str, Attribute]:
    return {name: value for name, value in moe.properties.items() if name != "number"}


def _weights(form: SharedExpertForm | None) -> tuple[SSAValue | None, ...] | None:
    """The weights of a shared expert."""
    if form is None:
        return None
    return (form.pair.gate.w, form.pair.up.w, form.down.w, None if form.gate is None else form.gate.w)
