"""Launches of attention."""

from __future__ import annotations

from xdsl.ir import Operation

from lane_mlir.cuda.kernels.attention import (
    attended_span,
    attention_per_block,
    attention_splits,
    chunks_apart,
)
from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp, Part, SplitKeys, Tails
from lane_mlir.passes.forms import Scope
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import share_quantized


def link_attention(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    attention = scope.leaves[0]
    assert isinstance(attention, tg.AttentionOp)
    quantized = len(scope.leaves) > 1
    if quantized and not isinstance(scope.leaves[1], tg.QuantizeOp):
        raise Refusal("its parts are no attention and the quantize of its result")
    if quantized:
        share_quantized(judge, scope)
    result = scope.canonical(attention.result)
    rows, heads, kv_heads = tg.shape_of(attention.q)[0], attention.heads.value.data, attention.kv_heads.value.data
    group, window = heads // kv_heads, attention.window.value.data if attention.window is not None else None
    tails = _tails(judge, attention)
    per_block, multiprocessors = attention_per_block(group), judge.chip.multiprocessors
    splits = attention_splits(attended_span(attention.length, window), rows, heads // per_block, multiprocessors)
    return launch.AttentionOp(
        judge.buffer(attention.q),
        judge.buffer(attention.k),
        judge.buffer(attention.v),
        judge.buffer(attention.pos),
        judge.buffer(result),
        heads=heads,
        group=group,
        hd=attention.width + (0 if attention.k_tail is None else tg.shape_of(attention.k_tail)[1]),
        vd=attention.value_width,
        len=attention.length,
        rows=rows,
        vstride=tg.shape_of(attention.v)[1],
        voff=0,
        scale=attention.scale.value.data,
        per_block=per_block,
        splits=splits,
        parallel=chunks_apart(splits, rows, heads // per_block, multiprocessors),
        window=window,
        softcap=attention.softcap.value.data if attention.softcap is not None else None,
        sinks=judge.optional_buffer(attention.sinks),
        tails=tails,
        f32=not quantized or scope.escapes(result),
        quant=quantized,
    )


def _tails(judge: Judge, op: tg.AttentionOp) -> Tails | None:
    """Keys and queries in two arrays: every head's own part, and the rotated tail that all heads share."""
    if op.q_tail is None or op.k_tail is None:
        return None
    width = tg.shape_of(op.k_tail)[1]
    split = SplitKeys(op.width, op.width, Part(width, 0), Part(width, 0))
    return Tails(judge.buffer(op.q_tail), judge.buffer(op.k_tail), split)
