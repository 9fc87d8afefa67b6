"""Attention over the rows of a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, Run, units
from lane_mlir.cpu.landing import store_forms
from lane_mlir.dialects.launch import AttentionOp, Part, Tails
from lane_mlir.eval import Array, StateArray
from lane_mlir.eval.attention import Attention
from lane_mlir.eval.elementwise import ACTIVATIONS


def bind_attention(op: AttentionOp, buffers: Buffers) -> Run:
    attend, store = _bind_rows(op, buffers), store_forms(buffers, op.out, op.f32, op.quant)
    if op.gate is None or op.gate_act is None:
        return lambda: store(attend())
    start, size = op.goff.data, op.rows.data * op.heads.data * op.vd.data
    gate, act = buffers.values(op.gate)[start : start + size], ACTIVATIONS[op.gate_act.data]
    return lambda: store(attend().reshape(-1) * act(gate))


def _bind_rows(op: AttentionOp, buffers: Buffers) -> Callable[[], Array]:
    """The attention of all rows, [rows, heads·vd]: of one sequence at once, of several one after the other."""
    heads, rows = op.heads.data, op.rows.data
    attention = Attention(
        heads=heads,
        kv_heads=heads // op.group.data,
        scale=op.scale.data,
        window=op.window.data if op.window is not None else None,
        softcap=op.softcap.data if op.softcap is not None else None,
    )
    sinks = buffers.optional(op.sinks)
    q, q_tail = _queries(op, buffers)
    if op.seq is None:
        k, v, k_tail = _cache(op, buffers, 0)
        position = buffers.position(op.pos)
        buffers.limit(op.pos, rows, op.len.data)
        return lambda: attention(q, k, v, position(), sinks, q_tail, k_tail)
    sequences = [(_cache(op, buffers, r * op.seq.data), buffers.position(op.pos, r)) for r in range(rows)]
    for r in range(rows):
        buffers.limit(op.pos, 1, op.len.data, r)

    def attend_each() -> Array:
        return np.concatenate(
            [
                attention(q[r : r + 1], k, v, position(), sinks, None if q_tail is None else q_tail[r : r + 1], k_tail)
                for r, ((k, v, k_tail), position) in enumerate(sequences)
            ]
        )

    return attend_each


def _queries(op: AttentionOp, buffers: Buffers) -> tuple[Array, Array | None]:
    """The queries, [rows, heads, own part], and their tails, [rows, heads, tail]."""
    rows, heads, hd = op.rows.data, op.heads.data, op.hd.data
    tails = op.tails
    if tails is None:
        return buffers.values(op.q).reshape(rows, heads, hd), None
    how, count = tails.how, rows * heads
    own = units(buffers.values(op.q), count, how.own, Part(how.q_pitch, 0))
    tail = units(buffers.values(tails.q), count, hd - how.own, how.q_tail)
    return own.reshape(rows, heads, -1), tail.reshape(rows, heads, -1)


def _cache(op: AttentionOp, buffers: Buffers, start: int) -> tuple[StateArray, StateArray, StateArray | None]:
    """Keys, values and tails of keys of all positions, a row each, in the arrays that begin at an element."""
    length, values = op.len.data, op.heads.data // op.group.data * op.vd.data
    k = _rows(buffers, op.kc, start, length, op.key_width, Part(op.key_width, 0))
    v = _rows(buffers, op.vc, start, length, values, Part(op.vstride.data, op.voff.data))
    return k, v, None if op.tails is None else _key_tails(buffers, op.tails, start, length, op.hd.data)


def _key_tails(buffers: Buffers, tails: Tails, start: int, length: int, hd: int) -> StateArray:
    return _rows(buffers, tails.k, start, length, hd - tails.how.own, tails.how.k_tail)


def _rows(buffers: Buffers, value: SSAValue, start: int, length: int, width: int, part: Part) -> StateArray:
    return units(buffers.plain(value)[start:], length, width, part)
