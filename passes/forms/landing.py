"""Where an op's result goes: a tensor of its own, rows of a state table, and whether it is quantized on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from lane_mlir.dialects.launch.attributes import OWN, Dst, Part, Row
from lane_mlir.dialects.tg import InsertOp, LiftedOperation, QuantizeOp, SetRowOp, ViewOp, shape_of
from lane_mlir.passes.forms.scope import Scope, is_reshape


@dataclass(frozen=True)
class Landing:
    """
    Where a result goes.

    `value` is the tensor that it is, or the table in whose rows it lands at `dst`, from the row on that `param` holds.
    Where it lands in part of a tensor, `value` is that tensor afterwards and `into` before: they are one buffer.
    `plain` and `quantized` say in which forms it is written. `inside` are the values on the way that are not written
    anywhere.
    """

    value: SSAValue
    dst: Dst = OWN
    param: SSAValue | None = None
    into: SSAValue | None = None
    plain: bool = True
    quantized: bool = False
    inside: Sequence[SSAValue] = ()


def landing(result: SSAValue, after: Sequence[LiftedOperation], scope: Scope) -> Landing | None:
    """
    Where a result goes by the leaves after the one that computes it: nowhere else, through views into rows of a table,
    or into its own quantization. None if the leaves are anything else.
    """
    value, rest, inside = scope.canonical(result), list(after), [result]
    while len(rest) > 1 and isinstance(view := rest[0], ViewOp):
        if not scope.same(view.x, value) or not is_reshape(view):
            return None
        value = scope.canonical(view.result)
        inside.append(view.result)
        del rest[0]
    match rest:
        case []:
            return Landing(value)
        case [SetRowOp() as store] if scope.same(store.src, value):
            return Landing(store.table, Dst(Row(shape_of(store.table)[1])), store.pos, inside=inside)
        case [InsertOp() as insert] if scope.same(insert.src, value):
            part = Part(insert.every.value.data, insert.start.value.data)
            after_insert = scope.canonical(insert.result)
            return Landing(after_insert, Dst(unit=part), into=scope.canonical(insert.dst), inside=inside)
        case [QuantizeOp() as quantize] if scope.same(quantize.x, value) and len(inside) == 1:
            return Landing(value, plain=scope.escapes(value), quantized=True)
        case _:
            return None
