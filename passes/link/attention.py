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
from lane_mlir.passes.forms import Scope, attention
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.norms import share_quantized


def link_attention(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = attention(op, scope)
    if form is None:
        raise Refusal("its parts are no attention, where it reads its values, and what gates it")
    judge.inside_only(scope, form.inside)
    if form.landing.quantized:
        share_quantized(judge, scope)
    op_ = form.op
    rows, heads = tg.shape_of(op_.q)[0], op_.heads.value.data
    group = heads // op_.kv_heads.value.data
    window = op_.window.value.data if op_.window is not None else None
    per_block, multiprocessors = attention_per_block(group), judge.chip.multiprocessors
    splits = attention_splits(attended_span(op_.length, window), rows, heads // per_block, multiprocessors)
    return launch.AttentionOp(
        judge.buffer(op_.q),
        judge.buffer(op_.k),
        judge.buffer(form.values),
        judge.buffer(op_.pos),
        judge.buffer(form.landing.value),
        heads=heads,
        group=group,
        hd=op_.width + (0 if op_.k_tail is None else tg.shape_of(op_.k_tail)[1]),
        vd=op_.value_width,
        len=op_.length,
        rows=rows,
        vstride=form.value_stride,
        voff=form.value_offset,
        scale=op_.scale.value.data,
        per_block=per_block,
        splits=splits,
        parallel=chunks_apart(splits, rows, heads // per_block, multiprocessors),
        window=window,
        softcap=op_.softcap.value.data if op_.softcap is not None else None,
        sinks=judge.optional_buffer(op_.sinks),
        tails=_tails(judge, op_),
        gate=None if form.gate is None else (judge.buffer(form.gate[0]), form.gate[1]),
        f32=form.landing.plain,
        quant=form.landing.quantized,
    )


def _tails(judge: Judge, op: tg.AttentionOp) -> Tails | None:
    """Keys and queries in two arrays: every head's own part, and the rotated tail that all heads share."""
    if op.q_tail is None or op.k_tail is None:
        return None
    width = tg.shape_of(op.k_tail)[1]
    split = SplitKeys(op.width, op.width, Part(width, 0), Part(width, 0))
    return Tails(judge.buffer(op.q_tail), judge.buffer(op.k_tail), split)
