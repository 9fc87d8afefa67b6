"""Launches of products by weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS, read_alike, rows_a_warp
from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import Affine, LaunchOp, Target
from lane_mlir.dialects.launch.multiplying import multiplies_in_int8
from lane_mlir.dialects.tg import Activation, Numerics
from lane_mlir.formats import Format
from lane_mlir.passes.forms import (
    GemvForm,
    RopeForm,
    Scope,
    covers,
    describe,
    gemv,
    glu,
    head_parts,
    in_place,
    leaves,
    rope,
)
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import share_quantized
from lane_mlir.passes.link.rotations import rope_parts


def link_gemv(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = gemv(op, scope)
    if form is None:
        raise Refusal("its parts are no product, a scale and a bias of it, and where it lands")
    judge.inside_only(scope, form.inside)
    check_activation(judge, form.x, form.format)
    x, w, y = judge.buffer(form.x), judge.buffer(form.w), judge.landing(form.landing)
    affine = affine_of(judge, form)
    if form.values:
        if form.landing.quantized:
            raise Refusal("the kernel of a product by plain f32 values does not quantize its result")
        return launch.GemvF32Op(x, w, y, affine=affine, k=form.k, n=form.n, m=form.m, batch=judge.is_batch(form.m))
    if form.landing.quantized:
        share_quantized(judge, scope)
    return launch.GemvOp(
        x,
        w,
        y,
        format=form.format,
        affine=affine,
        k=form.k,
        n=form.n,
        m=form.m,
        f32=form.landing.plain,
        quant=form.landing.quantized,
        batch=judge.is_batch(form.m),
    )


def affine_of(judge: Judge, form: GemvForm) -> Affine:
    """The scale and the bias of a product, in their buffers."""
    scale, bias = judge.optional_buffer(form.affine.scale), judge.optional_buffer(form.affine.bias)
    return replace(form.affine, scale=scale, bias=bias)


def check_activation(judge: Judge, x: SSAValue, *formats: Format) -> None:
    """Refuse a product whose activation is not in the form that its kernel reads by weights in these formats."""
    is_quantized = tg.encoding_of(x) is not None
    for weights in formats:
        takes_blocks = weights.is_block and judge.numerics is not Numerics.DEQUANT
        if is_quantized and not weights.is_block:
            raise Refusal(f"its activation is quantized, and the kernel of a product by {weights} takes it plain")
        if takes_blocks and not is_quantized:
            raise Refusal(f"its activation is plain, and the kernel of a product by {weights} takes it quantized")


def check_units(formats: Sequence[Format], weights: str = "its weights are stored in formats that") -> None:
    """Refuse weights of one kernel that lanes would read in different units."""
    if not read_alike(*formats):
        stored = ", ".join(map(str, dict.fromkeys(formats)))
        raise Refusal(f"{weights} are read in different units: {stored}")


def link_gemm_parts(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """Products of one activation, and the rotations of those that are heads."""
    assert isinstance(op, tg.FusedOp)
    judge.side_by_side(op)
    forms: list[GemvForm] = []
    rotations: list[RopeForm] = []
    rotated: list[int] = []
    for part in op.parts:
        product, rotation = head_parts(part)
        form = gemv(product, scope.of(leaves(product)))
        if form is None:
            raise Refusal(f"{describe(part)} is no product")
        judge.inside_only(scope, form.inside)
        forms.append(form)
        if rotation is not None:
            rotations.append(_rotation(judge, part, rotation, scope))
            rotated += covers(rotation)
    products = _gemm_parts(judge, forms)
    return launch.FoldOp(products, rope_parts(judge, rotations, scope, rotated)) if rotations else products


def _gemm_parts(judge: Judge, forms: Sequence[GemvForm]) -> launch.GemmPartsOp:
    first, formats = forms[0], [form.format for form in forms]
    check_activation(judge, first.x, *formats)
    if any(form.values for form in forms):
        raise Refusal("the kernel of several products takes weights in rows of a format, not plain f32 values")
    if any(form.x != first.x for form in forms):
        raise Refusal("its products are of several activations")
    check_units(formats)
    widths = [form.n for form in forms]
    return launch.GemmPartsOp(
        judge.buffer(first.x),
        [
            launch.Product(judge.buffer(f.w), f.format, judge.landing(f.landing), f.n, affine_of(judge, f))
            for f in forms
        ],
        k=first.k,
        m=first.m,
        per_warp=min(rows_a_warp(f, sum(widths), first.k, first.m, math.gcd(*widths)) for f in formats),
        batch=judge.is_batch(first.m),
    )


def link_head_epilogue(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A product, and the rotation of the heads that it is."""
    product, rotation = head_parts(op)
    if rotation is None:
        raise Refusal("its parts are no product and the rotation of its heads")
    form = _rotation(judge, op, rotation, scope)
    return launch.FoldOp(judge.link_part(product, scope), rope_parts(judge, [form], scope, covers(rotation)))


def _rotation(judge: Judge, op: Operation, rotation: Operation, scope: Scope) -> RopeForm:
    """The rotation of a head epilogue, reading the product through views."""
    assert isinstance(op, tg.FusedOp)
    product = gemv(op.parts[0], scope.of(leaves(op.parts[0])))
    form = rope(rotation, scope.of(leaves(rotation)))
    if product is None or form is None:
        raise Refusal(f"{describe(op)} is no product and the rotation of its heads")
    heads = product.landing.value
    for view in op.parts[1:-1]:
        if not isinstance(view, tg.ViewOp) or not scope.same(view.x, heads):
            raise Refusal(f"{describe(view)} stands between the product and the rotation of its heads")
        judge.alias(view.result, view.x, view.offset.value.data)
        heads = scope.canonical(view.result)
    if form.x != heads:
        raise Refusal("the rotation is of other heads than the product's")
    if product.values:
        raise Refusal("the kernel of a product by plain f32 values has no epilogue")
    rows = form.heads // form.per_row
    if rows > GEMV_ROWS:
        raise Refusal(f"the product of {rows} rows runs in tiles, which have no epilogue (up to {GEMV_ROWS} rows do)")
    return form


def link_glu(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = glu(op, scope)
    if form is None:
        raise Refusal("its parts are no gate and up product and the gating of one by the other")
    gate, up, gating = form.gate, form.up, form.gating
    judge.inside_only(scope, form.inside)
    if gate.values or up.values:
        raise Refusal("the kernel of a gated pair takes weights in rows of a format, not plain f32 values")
    if gate.x != up.x:
        raise Refusal("its products are of two activations")
    check_activation(judge, gate.x, gate.format, up.format)
    check_units((gate.format, up.format))
    in_int8 = multiplies_in_int8(judge.numerics, gate.format, up.format)
    if gate.m > GEMV_ROWS and not in_int8 and gate.format is not up.format:
        raise Refusal(
            f"the kernel of a gated pair of {gate.m} rows in f32 takes weights in one format, not {gate.format} and "
            f"{up.format}"
        )
    if gating.landing.quantized:
        share_quantized(judge, scope)
    return launch.GemvGluOp(
        judge.buffer(gate.x),
        judge.buffer(gate.w),
        judge.buffer(up.w),
        judge.landing(gating.landing).buffer,
        formats=(gate.format, up.format),
        gate=affine_of(judge, gate),
        up=affine_of(judge, up),
        act=None if gating.activation is Activation.SILU else gating.activation,
        f32=gating.landing.plain,
        quant=gating.landing.quantized,
        k=gate.k,
        n=gate.n,
        m=gate.m,
        batch=judge.is_batch(gate.m),
    )


def link_head_gemv(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.HeadMatmulOp)
    return head_gemv_launch(judge, op, Target(judge.buffer(op.result)), scope)


def head_gemv_launch(judge: Judge, op: tg.HeadMatmulOp, y: Target, scope: Scope) -> LaunchOp:
    """The launch of a product by each head's own weight whose result lands somewhere."""
    rows, heads, (b, a) = tg.shape_of(op.x)[0], tg.shape_of(op.w)[0], op.sides
    source = in_place(scope)
    part = None if source is None else source.part(a)
    if source is not None:
        judge.inside_only(scope, source.inside)
        if part is None:
            raise Refusal("the heads that it reads have no single pitch in the wider tensor")
    return launch.HeadGemvOp(
        judge.buffer(op.x if source is None else source.x),
        judge.buffer(op.w),
        y,
        format=tg.format_of_weight(op.w),
        m=rows,
        heads=heads,
        rows_out=y.dst.row is not None,
        a=a,
        b=b,
        part=part,
        shared=op.shared is not None,
        transposed=op.transposed is not None,
        upto=None if op.upto is None else (judge.buffer(op.upto), judge.rows),
        batch=judge.is_batch(rows),
    )
