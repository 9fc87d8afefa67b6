"""Launches of mixtures of experts."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp, Router, Target
from lane_mlir.dialects.tg import Activation, ExpertActivation, Numerics
from lane_mlir.passes.forms import Scope, gemv, glu, is_quantization, leaves
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.products import check_activation


def link_moe(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.MoeOp)
    return moe_launch(judge, op, Target(judge.buffer(op.result)))


def moe_launch(judge: Judge, op: tg.MoeOp, y: Target, shared: launch.SharedExpert | None = None) -> LaunchOp:
    """The launch of a mixture whose result lands somewhere, with a shared expert or without."""
    (rows, d), (experts, _), dff = tg.shape_of(op.x), tg.shape_of(op.router), tg.shape_of(op.gate)[1]
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
    _check_quantized(judge, op)
    return launch.MoeOp(
        judge.buffer(op.x),
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
    assert isinstance(op, tg.FusedOp)
    moe = next((part for part in op.parts if isinstance(part, tg.MoeOp)), None)
    pair = next(((part, form) for part in op.parts if (form := glu(part, scope.of(leaves(part))))), None)
    if moe is None or pair is None:
        raise Refusal("its parts are no mixture and a gated pair of products")
    glu_op, form = pair
    down = next(
        (
            product
            for part in op.parts
            if part is not glu_op and (product := gemv(part, scope.of(leaves(part)))) and _reads(product.x, glu_op, op)
        ),
        None,
    )
    if down is None:
        raise Refusal("its parts have no product of the gated pair")
    total = op.parts[-1]
    judge.inside_only(scope, [result for part in op.parts[:-1] for result in part.results])
    if moe.activation.data is not ExpertActivation.SILU or form.gating.activation is not Activation.SILU:
        raise Refusal("the kernel of a mixture with a shared expert gates both by SiLU")
    if form.gate.bias is not None or form.up.bias is not None or down.bias is not None:
        raise Refusal("the kernel of a shared expert adds no bias")
    if form.gate.x not in (scope.canonical(moe.x), None if moe.quantized is None else scope.canonical(moe.quantized)):
        raise Refusal("the shared expert is of another activation than the mixture")
    check_activation(judge, form.gate.x, form.gate.format, form.up.format)
    gate = _shared_gate(op, moe, scope)
    expert = launch.SharedExpert(
        judge.buffer(form.gate.w),
        judge.buffer(form.up.w),
        judge.buffer(down.w),
        (form.gate.format, form.up.format, down.format),
        form.gate.n,
        None if gate is None else judge.buffer(gate),
    )
    return moe_launch(judge, moe, Target(judge.buffer(total.results[0])), expert)


def _reads(value: SSAValue, producer: Operation, op: tg.FusedOp) -> bool:
    """Whether a value inside an op is a result of one of its parts, quantized or not."""
    owner = value.owner
    if isinstance(owner, tg.QuantizeOp):
        owner = owner.x.owner
    return owner is producer


def _shared_gate(op: tg.FusedOp, moe: tg.MoeOp, scope: Scope) -> SSAValue | None:
    """The weight of the shared expert's gate, if it has one."""
    sigmoid = next((part for part in op.parts if isinstance(part, tg.UnaryOp)), None)
    if sigmoid is None:
        return None
    product = sigmoid.x.owner
    if sigmoid.activation.data is not Activation.SIGMOID or not isinstance(product, tg.MatmulOp):
        raise Refusal("the gate of the shared expert is no sigmoid of a product")
    if not scope.same(product.x, moe.x):
        raise Refusal("the gate of the shared expert is of another activation than the mixture")
    if tg.format_of_weight(product.w) is not tg.format_of_weight(moe.router):
        raise Refusal(
            f"the gate of the shared expert is stored as {tg.format_of_weight(product.w)}, "
            f"the router as {tg.format_of_weight(moe.router)}"
        )
    return product.w
