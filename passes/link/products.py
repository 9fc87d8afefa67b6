"""Launches of products by weights."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from lane_mlir.cuda.kernels.gemv import rows_a_warp
from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp, Target
from lane_mlir.dialects.tg import Activation
from lane_mlir.passes.forms import GemvForm, Scope, describe, gemv, glu
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import share_quantized


def link_gemv(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = gemv(op, scope)
    if form is None:
        raise Refusal("its parts are no product, its bias and where it lands")
    judge.inside_only(scope, form.inside)
    x, w, y, bias = (
        judge.buffer(form.x),
        judge.buffer(form.w),
        judge.landing(form.landing),
        judge.optional_buffer(form.bias),
    )
    if form.values:
        if form.landing.quantized:
            raise Refusal("the kernel of a product by plain f32 values does not quantize its result")
        return launch.GemvF32Op(x, w, y, bias=bias, k=form.k, n=form.n, m=form.m)
    if form.landing.quantized:
        share_quantized(judge, scope)
    return launch.GemvOp(
        x,
        w,
        y,
        format=form.format,
        bias=bias,
        k=form.k,
        n=form.n,
        m=form.m,
        f32=form.landing.plain,
        quant=form.landing.quantized,
    )


def link_gemm_parts(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.FusedOp)
    forms = _products(op, scope)
    first = forms[0]
    if first.values:
        raise Refusal("the kernel of several products takes weights in rows of a format, not plain f32 values")
    for form in forms:
        judge.inside_only(scope, form.inside)
        if (form.x, form.format, form.values) != (first.x, first.format, first.values):
            raise Refusal("its products differ in their activation or in how their weights are stored")
    return launch.GemmPartsOp(
        judge.buffer(first.x),
        [
            launch.Product(judge.buffer(f.w), judge.landing(f.landing), f.n, judge.optional_buffer(f.bias))
            for f in forms
        ],
        format=first.format,
        k=first.k,
        m=first.m,
        per_warp=min(rows_a_warp(f.format, f.n, f.k, f.m) for f in forms),
    )


def _products(op: tg.FusedOp, scope: Scope) -> Sequence[GemvForm]:
    forms: list[GemvForm] = []
    for part in op.parts:
        form = gemv(part, scope.of(Scope(part).leaves))
        if form is None:
            raise Refusal(f"{describe(part)} is no product")
        forms.append(form)
    return forms


def link_glu(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = glu(op, scope)
    if form is None:
        raise Refusal("its parts are no gate and up product and the gating of one by the other")
    gate, up, gating = form.gate, form.up, form.gating
    judge.inside_only(scope, form.inside)
    if gate.values or up.values:
        raise Refusal("the kernel of a gated pair takes weights in rows of a format, not plain f32 values")
    if (gate.x, gate.n) != (up.x, up.n):
        raise Refusal(f"its products differ in activation or width ({gate.n} and {up.n})")
    if gating.landing.quantized:
        share_quantized(judge, scope)
    return launch.GemvGluOp(
        judge.buffer(gate.x),
        judge.buffer(gate.w),
        judge.buffer(up.w),
        judge.landing(gating.landing).buffer,
        formats=(gate.format, up.format),
        biases=(judge.optional_buffer(gate.bias), judge.optional_buffer(up.bias)),
        act=None if gating.activation is Activation.SILU else gating.activation,
        f32=gating.landing.plain,
        quant=gating.landing.quantized,
        k=gate.k,
        n=gate.n,
        m=gate.m,
    )


def link_head_gemv(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.HeadMatmulOp)
    rows, (heads, b, a) = tg.shape_of(op.x)[0], tg.shape_of(op.w)
    return launch.HeadGemvOp(
        judge.buffer(op.x),
        judge.buffer(op.w),
        Target(judge.buffer(op.result)),
        format=tg.format_of_weight(op.w),
        m=rows,
        heads=heads,
        a=a,
        b=b,
        shared=op.shared is not None,
    )
