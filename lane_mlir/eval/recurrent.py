"""Causal convolution and the gated delta rule."""

from __future__ import annotations

import math

import numpy as np
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.dialects.tg import ConvOp, DecayOp, DeltaOp, KeyHeadOrder
from lane_mlir.eval.arrays import Array, StateArray, read
from lane_mlir.eval.elementwise import silu, softplus
from lane_mlir.eval.functions import EvaluationFunctions
from lane_mlir.eval.norms import rms_norm


def conv(x: Array, w: Array, ring: StateArray) -> Array:
    """
    The causal convolution of each channel, x, y [rows, channels], w [channels, taps]; afterwards the ring
    [taps, channels] holds the last inputs, oldest first.
    """
    taps = w.shape[1]
    inputs = np.concatenate([read(ring[1:]), x])
    ring[:] = inputs[-taps:]
    y = np.zeros_like(x)
    for tap in range(taps):
        y += w[:, tap] * inputs[tap : tap + len(x)]
    return y


def decay(a: Array, dt: Array, al: Array) -> Array:
    """exp(al·softplus(a + dt)), a [rows, heads], dt and al [heads]."""
    return np.exp(al * softplus(a + dt))


def delta(
    q: Array,
    k: Array,
    v: Array,
    z: Array,
    beta: Array,
    decay: Array,
    norm: Array,
    state: StateArray,
    *,
    key_heads: int,
    value_heads: int,
    order: KeyHeadOrder,
    eps: float,
) -> Array:
    """
    The gated delta rule of `tg.delta` over the rows, y [rows, value_heads·d]. The state [value_heads·d, d] is f32 from
    row to row, and rounded to what its array stores once, after the last.
    """
    rows, d = len(q), len(norm)
    key_head = key_head_of(key_heads, value_heads, order)
    queries = q.reshape(rows, key_heads, d)[:, key_head] / np.float32(math.sqrt(d))
    keys = k.reshape(rows, key_heads, d)[:, key_head]
    values = v.reshape(rows, value_heads, d)
    s = read(state).reshape(value_heads, d, d)
    read_out = np.empty((rows, value_heads, d), np.float32)
    for row in range(rows):
        s *= decay[row, :, None, None]
        error = values[row] - np.matmul(keys[row, :, None], s)[:, 0]
        s += keys[row, :, :, None] * (beta[row, :, None] * error)[:, None]
        read_out[row] = np.matmul(queries[row, :, None], s)[:, 0]
    state[:] = s.reshape(state.shape)
    return rms_norm(read_out, norm, eps).reshape(rows, -1) * silu(z)


def key_head_of(key_heads: int, value_heads: int, order: KeyHeadOrder) -> list[int]:
    """The key head of each value head."""
    if order is KeyHeadOrder.BLOCKED:
        return [head // (value_heads // key_heads) for head in range(value_heads)]
    return [head % key_heads for head in range(value_heads)]


class RecurrentFunctions(EvaluationFunctions):
    @impl(ConvOp)
    def run_conv(self, interpreter: Interpreter, op: ConvOp, args: PythonValues) -> PythonValues:
        return (conv(*args),)

    @impl(DecayOp)
    def run_decay(self, interpreter: Interpreter, op: DecayOp, args: PythonValues) -> PythonValues:
        return (decay(*args),)

    @impl(DeltaOp)
    def run_delta(self, interpreter: Interpreter, op: DeltaOp, args: PythonValues) -> PythonValues:
        y = delta(
            *args,
            key_heads=op.key_heads.value.data,
            value_heads=op.value_heads.value.data,
            order=op.order.data,
            eps=op.eps.value.data,
        )
        return (y,)
