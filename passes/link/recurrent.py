"""Launches with recurrent state."""

from __future__ import annotations

from xdsl.ir import Operation

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.passes.forms import Scope
from lane_mlir.passes.link.judge import Judge
from lane_mlir.passes.link.norms import share_quantized


def link_conv(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.ConvOp)
    rows, channels = tg.shape_of(op.x)
    return launch.ConvOp(
        judge.buffer(op.x),
        judge.buffer(op.w),
        judge.buffer(op.ring),
        judge.buffer(op.result),
        chan=channels,
        taps=tg.shape_of(op.w)[1],
        rows=rows,
    )


def link_decay(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.DecayOp)
    a, dt, al, y = (judge.buffer(value) for value in (op.a, op.dt, op.al, op.result))
    return launch.DecayOp(a, dt, al, y, n=tg.size_of(op.a), heads=tg.shape_of(op.a)[1])


def link_delta(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    delta = scope.leaves[0]
    assert isinstance(delta, tg.DeltaOp)
    quantized = len(scope.leaves) > 1
    if quantized:
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
        f32=not quantized or scope.escapes(result),
        quant=quantized,
    )
