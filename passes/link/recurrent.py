"""Launches with recurrent state."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.dialects.tg import Activation
from lane_mlir.passes.forms import ConvForm, Scope, convolution, landing, leaves
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import share_quantized


def link_conv(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = _convolution(judge, op, scope)
    return launch.ConvOp(
        judge.buffer(form.x),
        judge.buffer(form.w),
        judge.buffer(form.ring),
        judge.buffer(form.result),
        chan=form.channels,
        taps=form.taps,
        rows=form.rows,
        silu=form.silu,
        l2=form.l2,
    )


def _convolution(judge: Judge, op: Operation, scope: Scope) -> ConvForm:
    form = convolution(op, scope)
    if form is None:
        raise Refusal(
            "its parts are no convolutions, each with a SiLU, or that and an L2 norm of heads, or nothing more"
        )
    judge.inside_only(scope, form.inside)
    return form


def link_conv_parts(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.FusedOp)
    judge.side_by_side(op)
    forms = [_convolution(judge, part, scope.of(leaves(part))) for part in op.parts]
    if forms[0].rows != 1:
        raise Refusal(f"the kernel of several convolutions takes one row, not {forms[0].rows}")
    if not all(form.silu for form in forms):
        raise Refusal("the kernel of several convolutions takes the SiLU of each, and one has none")
    norms = {form.l2 for form in forms if form.l2 is not None}
    if len(norms) > 1:
        raise Refusal("its L2 norms differ in width or epsilon")
    block, eps = next(iter(norms)) if norms else (forms[0].channels, None)
    buffer = judge.buffer
    return launch.ConvPartsOp(
        [
            launch.Convolution(buffer(f.x), buffer(f.w), buffer(f.ring), buffer(f.result), f.channels, f.l2 is not None)
            for f in forms
        ],
        taps=forms[0].taps,
        block=block,
        eps=eps,
    )


def link_gates(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    beta, decay = _gates(scope)
    if len(scope.leaves) > 2:
        raise Refusal("its parts are more than a sigmoid and a decay")
    inputs = (beta.x, decay.a, decay.dt, decay.al, beta.result, decay.result)
    br, ar, dt, al, beta_out, decay_out = (judge.buffer(value) for value in inputs)
    heads = tg.shape_of(decay.a)[1]
    return launch.GatesOp(br, ar, dt, al, beta_out, decay_out, n=tg.size_of(decay.a), heads=heads)


def _gates(scope: Scope) -> tuple[tg.UnaryOp, tg.DecayOp]:
    match [leaf for leaf in scope.leaves if not isinstance(leaf, tg.MatmulOp)]:
        case [tg.UnaryOp() as beta, tg.DecayOp() as decay] | [tg.DecayOp() as decay, tg.UnaryOp() as beta]:
            sigmoid = beta.activation.data is Activation.SIGMOID
            if sigmoid and tg.shape_of(beta.x) == tg.shape_of(decay.a):
                return beta, decay
        case _:
            pass
    raise Refusal("its parts are no sigmoid and decay of the same heads")


def link_gate_projections(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    beta, decay = _gates(scope)
    products: dict[SSAValue, tg.MatmulOp] = {
        leaf.result: leaf for leaf in scope.leaves if isinstance(leaf, tg.MatmulOp)
    }
    judge.inside_only(scope, products)
    wb, wa = (products.get(scope.canonical(value)) for value in (beta.x, decay.a))
    if wb is None or wa is None or not scope.same(wb.x, wa.x) or set(products.values()) != {wb, wa}:
        raise Refusal("the products before the gates are not of one activation")
    (rows, k), heads = tg.shape_of(wb.x), tg.shape_of(wb.w)[0]
    if rows != 1:
        raise Refusal(f"the kernel of the gates and their products takes one row, not {rows}")
    for product in (wb, wa):
        if tg.encoding_of(product.w) is not None:
            stored = tg.format_of_weight(product.w)
            raise Refusal(f"the kernel of the gates' products takes plain f32 weights, and one is stored as {stored}")
    inputs = (wb.x, wb.w, wa.w, decay.dt, decay.al, beta.result, decay.result)
    x, wb_, wa_, dt, al, beta_out, decay_out = (judge.buffer(value) for value in inputs)
    return launch.GateProjOp(x, wb_, wa_, dt, al, beta_out, decay_out, k=k, heads=heads)


def link_decay(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.DecayOp)
    a, dt, al, y = (judge.buffer(value) for value in (op.a, op.dt, op.al, op.result))
    return launch.DecayOp(a, dt, al, y, n=tg.size_of(op.a), heads=tg.shape_of(op.a)[1])


def link_delta(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    delta = scope.leaves[0]
    place = landing(delta.result, scope.leaves[1:], scope) if isinstance(delta, tg.DeltaOp) else None
    if not isinstance(delta, tg.DeltaOp) or place is None or not place.dst.own:
        raise Refusal("its parts are no delta rule and the quantize of its result")
    if place.quantized:
        share_quantized(judge, scope)
    result = scope.canonical(delta.result)
    inputs = (delta.q, delta.k, delta.v, delta.z, delta.beta, delta.decay, delta.state, delta.norm, result)
    q, k, v, z, beta, decay, state, norm, out = (judge.buffer(value) for value in inputs)
    return launch.DeltaOp(
        *(q, k, v, z, beta, decay, state, norm, out),
        hv=delta.value_heads.value.data,
        hk=delta.key_heads.value.data,
        d=tg.shape_of(delta.norm)[0],
        rows=tg.shape_of(delta.q)[0],
        eps=delta.eps.value.data,
        order=delta.order.data,
        f32=place.plain,
        quant=place.quantized,
    )
