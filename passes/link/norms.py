"""Launches of norms, gathers and quantizes."""

from __future__ import annotations

from xdsl.ir import Operation

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.passes.forms import NormForm, Scope, gather, norm
from lane_mlir.passes.link.judge import Judge, Refusal


def link_norm(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = norm(op, scope)
    if form is None:
        raise Refusal("its parts are no norm of a sum or of one tensor")
    return norm_launch(judge, form, scope)


def norm_launch(judge: Judge, form: NormForm, scope: Scope) -> launch.NormOp:
    """The launch of a norm."""
    judge.inside_only(scope, form.inside)
    place, own = judge.landing(form.landing), form.landing.dst.own
    if form.landing.quantized:
        share_quantized(judge, scope)
    return launch.NormOp(
        judge.buffer(form.x),
        place.buffer if own else None,
        rows=form.rows,
        cols=form.columns,
        eps=form.eps,
        w=judge.optional_buffer(form.weight),
        add=judge.optional_buffer(form.add),
        sum=judge.buffer(form.sum) if form.sum is not None and form.writes_sum else None,
        into=None if own else place,
        f32=form.landing.plain,
        quant=form.landing.quantized,
    )


def share_quantized(judge: Judge, scope: Scope) -> None:
    """The quantized form of a result is in the buffer of the result."""
    last = scope.leaves[-1]
    assert isinstance(last, tg.QuantizeOp)
    judge.share(scope.canonical(last.result), scope.canonical(last.x))


def link_layer_norm(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.LayerNormOp)
    rows, columns = tg.shape_of(op.x)
    return launch.NormOp(
        judge.buffer(op.x),
        judge.buffer(op.result),
        rows=rows,
        cols=columns,
        eps=op.eps.value.data,
        w=judge.buffer(op.w),
        b=judge.optional_buffer(op.b),
        center=True,
    )


def link_l2_norm(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.L2NormOp)
    rows, columns = tg.shape_of(op.x)
    return launch.L2NormOp(judge.buffer(op.x), judge.buffer(op.result), rows=rows, cols=columns, eps=op.eps.value.data)


def link_quantize(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.QuantizeOp)
    judge.share(op.result, op.x)
    return launch.QuantOp(judge.buffer(op.x), n=tg.size_of(op.x))


def link_gather(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = gather(op, scope)
    if form is None:
        raise Refusal("its parts are no gather and its scale")
    judge.inside_only(scope, form.inside)
    encoded = tg.encoding_of(form.table) is not None
    return launch.GatherOp(
        judge.buffer(form.table),
        judge.buffer(form.index),
        judge.buffer(form.result),
        rows=form.rows,
        cols=form.columns,
        format=tg.format_of_weight(form.table) if encoded else None,
        scale=form.scale,
    )


def link_embed_norm(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    at = next((i for i, leaf in enumerate(scope.leaves) if isinstance(leaf, tg.RmsNormOp)), 0)
    rows, rest = scope.of(scope.leaves[:at]), scope.of(scope.leaves[at:])
    form = norm(op, rest)
    if form is None:
        raise Refusal("its parts are no gather and a norm of it")
    first = link_gather(judge, op, rows)
    return launch.FoldOp(first, norm_launch(judge, form, rest))
