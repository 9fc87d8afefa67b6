"""Launches of mixtures of experts."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import PLAIN, LaunchOp, Router, Target
from lane_mlir.dialects.tg import Activation, ExpertActivation, Numerics
from lane_mlir.passes.forms import Scope, SharedExpertForm, is_quantization, mixture_rows, shared_expert
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import check_numerics
from lane_mlir.passes.link.products import check_activation, check_units


def link_moe(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.MoeOp)
    return moe_launch(judge, op, Target(judge.buffer(op.result)))


def moe_launch(
    judge: Judge, op: tg.MoeOp, y: Target, shared: launch.SharedExpert | None = None, x: SSAValue | None = None
) -> LaunchOp:
    """
    The launch of a mixture whose result lands somewhere, with a shared expert or without: of its activation, or of all
    rows of x.
    """
    x = op.x if x is None else x
    (rows, d), (experts, _), dff = tg.shape_of(x), tg.shape_of(op.router), tg.shape_of(op.gate)[1]
    router = Router(
        judge.buffer(op.router),
        None if tg.encoding_of(op.router) is None else tg.format_of_weight(op.router),
        judge.optional_buffer(op.router_bias),
        judge.optional_buffer(op.selection_bias),
        op.scoring.data,
        op.renormalize is not None,
        op.scale.value.data,
        op.groups.value.data,
        op.groups_used.value.data,
    )
    gate, up, down = op.gate, op.up, op.down
    check_units((tg.format_of_weight(gate), tg.format_of_weight(up)), "its gate and up weights")
    _check_quantized(judge, op)
    return launch.MoeOp(
        judge.buffer(x),
        router,
        (judge.buffer(gate), judge.buffer(up), judge.buffer(down)),
        y,
        formats=(tg.format_of_weight(gate), tg.format_of_weight(up), tg.format_of_weight(down)),
        biases=(
            judge.optional_buffer(op.gate_bias),
            judge.optional_buffer(op.up_bias),
            judge.optional_buffer(op.down_bias),
        ),
        d=d,
        dff=dff,
        experts=experts,
        k=op.used.value.data,
        rows=rows,
        act=op.activation.data,
        alpha=None if op.alpha is None else op.alpha.value.data,
        limit=None if op.limit is None else op.limit.value.data,
        shared=shared,
        batch=judge.is_batch(rows),
    )


def _check_quantized(judge: Judge, op: tg.MoeOp) -> None:
    """Refuse a mixture whose products take a quantized activation that is not its own, quantized."""
    takes_blocks = any(tg.format_of_weight(weight).is_block for weight in (op.gate, op.up))
    if not takes_blocks or judge.numerics is Numerics.DEQUANT:
        return
    if op.quantized is None or not is_quantization(op.quantized, op.x):
        raise Refusal("the quantized activation of its products is not its activation, quantized")


def link_shared_expert(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A mixture and the expert that every row takes."""
    form = shared_expert(op, scope)
    if form is None:
        raise Refusal("its parts are no mixture, a shared expert and their sum")
    judge.inside_only(scope, form.inside)
    return moe_launch(judge, form.moe, Target(judge.buffer(form.result)), _expert(judge, form, scope))


def _expert(judge: Judge, form: SharedExpertForm, scope: Scope) -> launch.SharedExpert:
    moe, pair, down = form.moe, form.pair, form.down
    if moe.activation.data is not ExpertActivation.SILU or pair.gating.activation is not Activation.SILU:
        raise Refusal("the kernel of a mixture with a shared expert gates both by SiLU")
    if any(product.affine != PLAIN for product in (pair.gate, pair.up, down)):
        raise Refusal("the kernel of a shared expert neither scales its products nor adds a bias")
    own = {scope.canonical(x) for x in (moe.x, moe.quantized) if x is not None}
    if pair.gate.x not in own or pair.up.x != pair.gate.x:
        raise Refusal("the shared expert is of another activation than the mixture")
    check_activation(judge, pair.gate.x, pair.gate.format, pair.up.format)
    check_units((pair.gate.format, pair.up.format), "the shared expert's gate and up weights")
    if form.quantize is not None:
        check_numerics(judge, form.quantize)
        check_activation(judge, form.quantize.result, down.format)
    gate = _shared_gate(form, scope)
    return launch.SharedExpert(
        judge.buffer(pair.gate.w),
        judge.buffer(pair.up.w),
        judge.buffer(down.w),
        (pair.gate.format, pair.up.format, down.format),
        pair.gate.n,
        None if gate is None else judge.buffer(gate),
    )


def link_moe_rows(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """The mixtures of all rows of an activation."""
    form = mixture_rows(op, scope)
    if form is None:
        raise Refusal("its parts are no mixtures of the rows of one activation by the same experts, put together again")
    judge.inside_only(scope, form.inside)
    shared = None if form.shared is None else _expert(judge, form.shared, scope)
    return moe_launch(judge, form.moe, Target(judge.buffer(form.result)), shared, form.x)


def _shared_gate(form: SharedExpertForm, scope: Scope) -> SSAValue | None:
    """The weight of the shared expert's gate, if it has one."""
    product, router = form.gate, form.moe.router
    if product is None:
        return None
    if not scope.same(product.x, form.moe.x):
        raise Refusal("the gate of the shared expert is of another activation than the mixture")
    if tg.format_of_weight(product.w) is not tg.format_of_weight(router):
        raise Refusal(
            f"the gate of the shared expert is stored as {tg.format_of_weight(product.w)}, "
            f"the router as {tg.format_of_weight(router)}"
        )
    return product.w
