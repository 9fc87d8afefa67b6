"""Launches of elementwise ops."""

from __future__ import annotations

from xdsl.ir import Operation

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.dialects.tg import Activation, BinaryOperator
from lane_mlir.passes.forms import Scope, gated, glu
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import share_quantized
from lane_mlir.passes.link.products import link_glu


def link_binary(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    binary = scope.leaves[0]
    assert isinstance(binary, tg.BinaryOp)
    columns = tg.shape_of(binary.a)[1]
    # One value for all is a row for all of rows of one element.
    row = 1 if binary.single else columns if binary.row_broadcast else None
    quantized = len(scope.leaves) > 1
    if quantized:
        share_quantized(judge, scope)
    result = scope.canonical(binary.result)
    return launch.BinaryOp(
        binary.operator.data,
        judge.buffer(binary.a),
        judge.buffer(binary.b),
        judge.buffer(result),
        n=tg.size_of(binary.a),
        row=row,
        column=columns if binary.column_broadcast else None,
        f32=not quantized or scope.escapes(result),
        quant=quantized,
    )


def link_unary(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.UnaryOp)
    return launch.UnaryOp(op.activation.data, judge.buffer(op.x), judge.buffer(op.result), n=tg.size_of(op.x))


def link_scale(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.ScaleOp)
    x, y = judge.buffer(op.x), judge.buffer(op.result)
    return launch.ScaleOp(x, y, n=tg.size_of(op.x), factor=op.factor.value.data)


def link_gated(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = gated(scope.leaves, scope)
    if form is None:
        raise Refusal("its parts are no activation and the product by it")
    judge.inside_only(scope, form.inside)
    if form.landing.quantized:
        share_quantized(judge, scope)
    gate, up, out = judge.buffer(form.gate), judge.buffer(form.up), judge.landing(form.landing).buffer
    n, f32, quant = tg.size_of(form.gate), form.landing.plain, form.landing.quantized
    if form.activation is Activation.SILU:
        return launch.SwiGluOp(gate, up, out, n=n, f32=f32, quant=quant)
    return launch.BinaryOp(BinaryOperator.MUL, gate, up, out, n=n, gate=form.activation, f32=f32, quant=quant)


def link_gating_quantized(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A gating and its quantize, the products that it gates folded in or not."""
    return link_glu(judge, op, scope) if glu(op, scope) is not None else link_gated(judge, op, scope)


def link_elementwise_quantized(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    match scope.leaves:
        case [tg.BinaryOp() as binary, tg.QuantizeOp() as quantize] if scope.same(quantize.x, binary.result):
            return link_binary(judge, op, scope)
        case _:
            raise Refusal(f"the kernel of {scope.leaves[0].name.removeprefix('tg.')} does not quantize its result")
