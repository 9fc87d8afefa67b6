"""Rotations as rules and `link` read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.launch.attributes import Part
from lane_mlir.dialects.tg import Pairing, RmsNormOp, RopeOp, shape_of
from lane_mlir.passes.forms.landing import Landing, landing
from lane_mlir.passes.forms.scope import Scope
from lane_mlir.passes.forms.slices import in_place


@dataclass(frozen=True)
class RopeForm:
    """
    A rotation: its input (whole or as a part of every unit of a wider tensor), the per-head norm folded in (its weight
    and epsilon), its tables, its position, where it lands, and its heads (per_row a row), head width and rotated half.
    """

    x: SSAValue
    part: Part | None
    norm: tuple[SSAValue | None, float] | None
    cos: SSAValue
    sin: SSAValue
    pos: SSAValue
    landing: Landing
    heads: int
    per_row: int
    width: int
    half: int
    pairing: Pairing
    inside: Sequence[SSAValue]


def rope(op: Operation, scope: Scope | None = None) -> RopeForm | None:
    """The rotation that an op is: a lifted one, or one that a rule built."""
    scope = scope or Scope(op)
    source = in_place(scope)
    if source is not None:
        scope = scope.of(source.rest)
    match list(scope.leaves):
        case [RopeOp() as rotation, *after]:
            x, folded = rotation.x, None
        case [RmsNormOp() as norm, RopeOp() as rotation, *after] if scope.same(norm.result, rotation.x):
            x, folded = norm.x, norm
        case _:
            return None
    place = landing(rotation.result, after, scope)
    if place is None or place.quantized:
        return None
    heads, width = shape_of(rotation.x)
    part = None if source is None else source.part(width)
    if source is not None and part is None:
        return None
    inside = [*(source.inside if source else ()), *([] if folded is None else [folded.result]), *place.inside]
    return RopeForm(
        scope.canonical(x if source is None else source.x),
        part,
        None if folded is None else (folded.w, folded.eps.value.data),
        rotation.cos,
        rotation.sin,
        rotation.pos,
        place,
        heads,
        rotation.per_row.value.data,
        width,
        rotation.half,
        rotation.pairing.data,
        inside,
    )
