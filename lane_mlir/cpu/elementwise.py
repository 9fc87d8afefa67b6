"""Launches that work element by element."""

from __future__ import annotations

from functools import partial

import numpy as np

from lane_mlir.cpu.buffers import Buffers, Run
from lane_mlir.cpu.landing import store_forms
from lane_mlir.dialects.launch import BinaryOp, ScaleOp, SwiGluOp, UnaryOp
from lane_mlir.eval.elementwise import ACTIVATIONS, OPERATORS, silu


def bind_binary(op: BinaryOp, buffers: Buffers) -> Run:
    a, b, store = buffers.values(op.a), buffers.values(op.b), store_forms(buffers, op.out, op.f32, op.quant)
    if op.row is not None:
        a = a.reshape(-1, op.row.data)
    elif op.column is not None:
        a, b = a.reshape(-1, op.column.data), b[:, None]
    operator = OPERATORS[op.op.data]
    if op.gate is None:
        return lambda: store(operator(a, b))
    act = ACTIVATIONS[op.gate.data]
    return lambda: store(operator(act(a), b))


def bind_swiglu(op: SwiGluOp, buffers: Buffers) -> Run:
    g, u, store = buffers.values(op.g), buffers.values(op.u), store_forms(buffers, op.out, op.f32, op.quant)
    return lambda: store(silu(g) * u)


def bind_scale(op: ScaleOp, buffers: Buffers) -> Run:
    return partial(np.multiply, buffers.values(op.x), np.float32(op.factor.data), buffers.values(op.y))


def bind_unary(op: UnaryOp, buffers: Buffers) -> Run:
    x, y, act = buffers.values(op.x), buffers.values(op.y), ACTIVATIONS[op.act.data]

    def run() -> None:
        y[...] = act(x)

    return run
