"""Products as rules and `link` read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Operation, SSAValue

from lane_mlir.cuda.kernels.gemv import unit_values
from lane_mlir.dialects.launch.multiplying import PLAIN, Affine
from lane_mlir.dialects.tg import (
    Activation,
    BinaryOp,
    BinaryOperator,
    FusedOp,
    LiftedOperation,
    MatmulOp,
    UnaryOp,
    encoding_of,
    format_of_weight,
    shape_of,
)
from lane_mlir.formats import Format
from lane_mlir.passes.forms.landing import Landing, landing
from lane_mlir.passes.forms.scope import Scope


@dataclass(frozen=True)
class GemvForm:
    """
    A matrix product by a weight: its activation, the weight and how it is stored, its scale and bias, where it lands,
    and its shape (k in, n out, m rows). `values` says that the weight is read as plain f32 values. `inside` are the
    values it computes on the way, which nobody else may read.
    """

    x: SSAValue
    w: SSAValue
    format: Format
    values: bool
    affine: Affine
    landing: Landing
    k: int
    n: int
    m: int
    inside: Sequence[SSAValue]


def gemv(op: Operation, scope: Scope | None = None) -> GemvForm | None:
    """The matrix product that an op is, lifted or built by a rule."""
    scope = scope or Scope(op)
    inside: list[SSAValue] = []
    match list(scope.leaves):
        case [MatmulOp() as product, *after]:
            affine, result = PLAIN, product.result
        case _:
            return None
    while after and isinstance(next := after[0], BinaryOp) and scope.same(next.a, result):
        more = _and_then(affine, next)
        if more is None:
            return None
        inside.append(result)
        affine, result = more, next.result
        del after[0]
    place = landing(result, after, scope)
    if place is None:
        return None
    inside.extend(place.inside)
    (m, k), n = shape_of(product.x), shape_of(product.w)[0]
    # A kernel reads rows in whole units; f32 rows are plain values as they are.
    format = format_of_weight(product.w)
    values = encoding_of(product.w) is None or (format is Format.F32 and k % unit_values(format) != 0)
    return GemvForm(scope.canonical(product.x), product.w, format, values, affine, place, k, n, m, inside)


def _and_then(affine: Affine, op: BinaryOp) -> Affine | None:
    """What is done to a product's sums, and then an op to the result; None if that is more than a scale and a bias."""
    if is_product_scale(op) and affine.scale is None:
        return replace(affine, scale=op.b, scaled_bias=affine.bias is not None)
    if is_bias_add(op) and affine.bias is None:
        return replace(affine, bias=op.b)
    return None


def is_product_scale(op: BinaryOp) -> bool:
    """Whether an op multiplies every element of its first operand by one value."""
    return op.operator.data is BinaryOperator.MUL and op.single


def is_bias_add(op: BinaryOp) -> bool:
    """Whether an op adds one row, of the width of its first operand, to every row of it."""
    return op.operator.data is BinaryOperator.ADD and shape_of(op.b) == shape_of(op.a)[1:]


@dataclass(frozen=True)
class GatedForm:
    """An elementwise product by an activation: y = act(gate)·up."""

    gate: SSAValue
    up: SSAValue
    activation: Activation
    landing: Landing
    inside: Sequence[SSAValue]


def gated(leaves: Sequence[LiftedOperation], scope: Scope) -> GatedForm | None:
    """The gating that leaves are: an activation, then the product by it (either way round)."""
    match list(leaves):
        case [UnaryOp() as unary, BinaryOp() as product, *after] if product.operator.data is BinaryOperator.MUL:
            if scope.same(product.a, unary.result):
                up = product.b
            elif scope.same(product.b, unary.result):
                up = product.a
            else:
                return None
        case _:
            return None
    if shape_of(product.a) != shape_of(product.b) or scope.same(up, unary.result):
        return None
    place = landing(product.result, after, scope)
    if place is None:
        return None
    inside = [unary.result, *place.inside]
    return GatedForm(scope.canonical(unary.x), scope.canonical(up), unary.activation.data, place, inside)


@dataclass(frozen=True)
class GluForm:
    """A gate and an up product of one activation, and the gating of one by the other."""

    gate: GemvForm
    up: GemvForm
    gating: GatedForm
    inside: Sequence[SSAValue]


def glu(op: Operation, scope: Scope | None = None) -> GluForm | None:
    """The gated pair of products that an op is."""
    scope = scope or Scope(op)
    if not isinstance(op, FusedOp):
        return None
    leaves = list(scope.leaves)
    split = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, UnaryOp)), None)
    starts = [i for i, leaf in enumerate(leaves) if isinstance(leaf, MatmulOp)]
    if split is None or len(starts) != 2 or starts[0] != 0:
        return None
    first = gemv(op, scope.of(leaves[: starts[1]]))
    second = gemv(op, scope.of(leaves[starts[1] : split]))
    gating = gated(leaves[split:], scope)
    if first is None or second is None or gating is None:
        return None
    if gating.gate == first.landing.value and gating.up == second.landing.value:
        gate, up = first, second
    elif gating.gate == second.landing.value and gating.up == first.landing.value:
        gate, up = second, first
    else:
        return None
    inside = [*gate.inside, *up.inside, gate.landing.value, up.landing.value, *gating.inside]
    return GluForm(gate, up, gating, inside)


def head_parts(op: Operation) -> tuple[Operation, Operation | None]:
    """The product of a product and the rotation of its heads, and the rotation; of anything else, itself and None."""
    if isinstance(op, FusedOp) and op.fusion_class.data == "qkv_head_epilogue":
        return op.parts[0], op.parts[-1]
    return op, None
