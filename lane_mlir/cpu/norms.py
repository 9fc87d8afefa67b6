"""Norms of rows, and the quantization of a buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, Run, units
from lane_mlir.cpu.landing import Store, store_at, store_forms
from lane_mlir.dialects.launch import L2NormOp, NormOp, Part, QuantOp
from lane_mlir.dialects.tg import QUANTIZED_BLOCK
from lane_mlir.eval import Array
from lane_mlir.eval.norms import l2_norm, layer_norm, rms_norm


def bind_norm(op: NormOp, buffers: Buffers) -> Run:
    cols, eps = op.cols.data, op.eps.data
    source = _summed(op, buffers)
    w, b = buffers.optional(op.w), buffers.optional(op.b)
    if op.squares is not None:
        return _bind_undivided(op, buffers, source, w)
    store = _result(op, buffers)
    if op.center is None:
        return lambda: store(rms_norm(source(), w, eps))
    weight = np.ones(cols, np.float32) if w is None else w
    return lambda: store(layer_norm(source(), weight, b, eps))


def _bind_undivided(op: NormOp, buffers: Buffers, source: Callable[[], Array], w: Array | None) -> Run:
    """
    s·w and the squares of s, summed. The words are those of the row divided, with scales that its root is in, so that
    they are rounded as those of a norm that divides.
    """
    assert op.squares is not None
    assert op.out is not None
    rows, cols, eps = op.rows.data, op.cols.data, np.float32(op.eps.data)
    squares = buffers.matrix(op.squares, cols // QUANTIZED_BLOCK)
    values = buffers.matrix(op.out, cols) if op.f32 is not None else None
    form = buffers.quantized(op.out) if op.quant is not None else None

    def run() -> None:
        s = source()
        blocks = s.reshape(rows, -1, QUANTIZED_BLOCK)
        np.einsum("rbi,rbi->rb", blocks, blocks, out=squares)
        if values is not None:
            np.multiply(s, np.float32(1) if w is None else w, values)
        if form is not None:
            root = root_mean_square(squares, cols, eps)
            form.set(rms_norm(s, w, float(eps)))
            for word in form.words:
                word.d.reshape(rows, -1)[...] *= root

    return run


def root_mean_square(squares: Array, cols: int, eps: np.float32) -> Array:
    """√(mean of squares + eps) of rows whose squares are summed in blocks, [rows, 1]."""
    return np.sqrt(squares.sum(axis=1, keepdims=True) / np.float32(cols) + eps)


def _summed(op: NormOp, buffers: Buffers) -> Callable[[], Array]:
    """What is normed: x, or x plus `add`, x normed beforehand where the launch says so; kept in `sum`."""
    rows, cols = op.rows.data, op.cols.data
    x = f32_units(buffers, op.x, rows, cols, op.part.data if op.part is not None else None)
    if op.add is None:
        if op.sum is None:
            return lambda: x
        copied = buffers.matrix(op.sum, cols)

        def copy() -> Array:
            copied[...] = x
            return copied

        return copy
    add, sum_ = buffers.matrix(op.add, cols), np.empty((rows, cols), np.float32)
    if op.sum is not None:
        sum_ = buffers.matrix(op.sum, cols)
    if op.pre_eps is None:
        return lambda: np.add(x, add, sum_)
    pre_w, pre_eps = buffers.optional(op.pre_w), op.pre_eps.data
    return lambda: np.add(rms_norm(x, pre_w, pre_eps), add, sum_)


def f32_units(buffers: Buffers, value: SSAValue, count: int, width: int, part: Part | None) -> Array:
    """Units of an f32 buffer, [count, width]."""
    return units(buffers.values(value), count, width, part)


def _result(op: NormOp, buffers: Buffers) -> Store:
    """Stores the f32 result in `y` if there is one, else in `out`, and the quantized one in `out`."""
    if op.into is None:
        assert op.out is not None
        return store_forms(buffers, op.out, op.f32, op.quant)
    stores: list[Store] = []
    if op.f32 is not None:
        stores.append(store_at(buffers, op.into, op.rows.data, op.cols.data))
    if op.quant is not None:
        assert op.out is not None
        stores.append(buffers.quantized(op.out).set)

    def store(values: Array) -> None:
        for store_one in stores:
            store_one(values)

    return store


def bind_quant(op: QuantOp, buffers: Buffers) -> Run:
    x, form = buffers.values(op.x), buffers.quantized(op.x)
    return lambda: form.set(x)


def bind_l2_norm(op: L2NormOp, buffers: Buffers) -> Run:
    x, y, eps = buffers.matrix(op.x, op.cols.data), buffers.matrix(op.y, op.cols.data), op.eps.data

    def run() -> None:
        y[...] = l2_norm(x, eps)

    return run
