"""Launches of norms, gathers and quantizes."""

from __future__ import annotations

from xdsl.ir import Operation

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.passes.forms import NormForm, Scope, gather, gemv, leaves, norm
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
        part=form.part,
        pre=None if form.pre is None else (judge.optional_buffer(form.pre[0]), form.pre[1]),
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
    check_numerics(judge, last)
    judge.share(last.result, last.x)


def check_numerics(judge: Judge, op: tg.QuantizeOp) -> None:
    """Refuse a quantize to other numerics than the step's."""
    if op.numerics is not judge.numerics:
        raise Refusal(f"it quantizes to {op.numerics}, and the step is compiled for {judge.numerics}")


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
    check_numerics(judge, op)
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


def link_normed(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A norm, or a launch and the norm that it does of its result; quantized or not."""
    assert isinstance(op, tg.FusedOp)
    fold, last = op, scope.leaves[-1]
    after = [last] if isinstance(last, tg.QuantizeOp) else []
    if after and isinstance(op.parts[0], tg.FusedOp):
        fold = op.parts[0]
    if fold.fusion_class.data not in FOLDS:
        return link_norm(judge, op, scope)
    producer, normed = fold.parts[0], fold.parts[-1]
    form = norm(op, scope.of([*leaves(normed), *after])) if len(fold.parts) == 2 else None
    if form is None:
        raise Refusal("its parts are no launch and a norm of its result")
    if form.part is not None:
        raise Refusal("the last block of a launch norms whole rows of its result, not part of each")
    _has_epilogue(producer, form.rows)
    return launch.FoldOp(judge.link_part(producer, scope), norm_launch(judge, form, scope))


FOLDS = ("embed_norm", "gemv_norm_epilogue", "moe_deferred_finalize")
"""The classes of a producer and the norm of its result."""


def _has_epilogue(producer: Operation, rows: int) -> None:
    """Refuse a product whose kernel has no last block that could norm its rows."""
    product = gemv(producer)
    if product is not None and product.values:
        raise Refusal("the kernel of a product by plain f32 values has no epilogue")
    if not isinstance(leaves(producer)[0], tg.GatherOp) and rows > GEMV_ROWS:
        raise Refusal(f"the product of {rows} rows runs in tiles, which have no epilogue (up to {GEMV_ROWS} rows do)")
