"""Launches of mixtures of experts."""

from __future__ import annotations

from xdsl.ir import Operation

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp, Router, Target
from lane_mlir.passes.forms import Scope
from lane_mlir.passes.link.judge import Judge


def link_moe(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.MoeOp)
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
    return launch.MoeOp(
        judge.buffer(op.x),
        router,
        (judge.buffer(gate), judge.buffer(up), judge.buffer(down)),
        Target(judge.buffer(op.result)),
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
    )
