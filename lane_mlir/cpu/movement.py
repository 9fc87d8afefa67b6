"""Launches that move values: gathers, row sets, slices, joins; and the choice of the next token."""

from __future__ import annotations

from functools import partial

import numpy as np

from lane_mlir.cpu.buffers import Buffers, Run, in_order, refuse
from lane_mlir.cpu.landing import store_apart, store_at
from lane_mlir.cpu.memory import RowReader
from lane_mlir.dialects.launch import (
    ArgMaxOp,
    GatherOp,
    JoinOp,
    SetRowOp,
    SliceOp,
    Touch,
    ViewOp,
    buffer_of,
)
from lane_mlir.eval.sampling import argmax
from lane_mlir.eval.storage import gather, join


def bind_gather(op: GatherOp, buffers: Buffers) -> Run:
    cols, index, out = op.cols.data, buffers.indices(op.index), buffers.matrix(op.out, op.cols.data)
    rows = _row_reader(op, buffers, cols)
    holder, _, _ = buffer_of(op.index).holder(Touch.PLAIN)
    table_rows = buffer_of(op.table).length // cols
    buffers.vocabulary[holder] = min(table_rows, buffers.vocabulary.get(holder, table_rows))
    if op.scale is None:

        def run() -> None:
            out[...] = rows(index)

        return run
    scale = np.float32(op.scale.data)
    return lambda: np.multiply(rows(index), scale, out)


def _row_reader(op: GatherOp, buffers: Buffers, cols: int) -> RowReader:
    """Reads rows of the table, from the checkpoint alone if no other launch needs its values."""
    table = buffer_of(op.table)
    if table.constant is not None and all(isinstance(use.operation, GatherOp) for use in op.table.uses):
        return buffers.memory.rows(table.constant, (table.length // cols, cols))
    values = buffers.matrix(op.table, cols)
    return partial(gather, values)


def bind_view(op: ViewOp, buffers: Buffers) -> Run | None:
    """Nothing runs: the buffer is an alias."""
    return None


def bind_set_row(op: SetRowOp, buffers: Buffers) -> Run:
    count, cols = op.count.data, op.cols.data
    runs: list[Run] = []
    if op.seq is not None:
        if op.quant is not None:
            refuse(op, "cannot set quantized rows of several sequences (seq, with quant)")
        src = buffers.matrix(op.src, cols)
        return partial(store_apart(buffers, op.table, op.param, count, cols, op.seq.data, cols), src)
    if op.f32 is not None:
        runs.append(partial(store_at(buffers, op.target, count, cols), buffers.matrix(op.src, cols)))
    if op.quant is not None:
        runs.append(_bind_quantized_rows(op, buffers))
    return in_order(*runs)


def _bind_quantized_rows(op: SetRowOp, buffers: Buffers) -> Run:
    """Copies the words of rows, which are whole blocks."""
    src, table = buffers.quantized(op.src), buffers.quantized(op.table)
    row, cols, size = op.dst.data.row, op.cols.data, op.count.data * op.cols.data
    assert row is not None
    if row.index is not None:
        fixed = table.part(row.index * cols, row.index * cols + size)
        return lambda: fixed.copy(src)
    position = buffers.position(op.param)
    buffers.limit(op.param, op.count.data, buffer_of(op.table).length // cols)

    def run() -> None:
        start = position() * cols
        table.part(start, start + size).copy(src)

    return run


def bind_slice(op: SliceOp, buffers: Buffers) -> Run:
    start, width = op.start.data, op.width.data
    x = buffers.plain(op.x).reshape(op.groups.data, op.every.data)[:, start : start + width]
    return partial(np.copyto, buffers.matrix(op.y, width), x)


def bind_join(op: JoinOp, buffers: Buffers) -> Run:
    rows, heads, ha, hb, yz = (f.data for f in (op.rows, op.heads, op.ha, op.hb, op.yz))
    a, b, width = buffers.matrix(op.a, heads * ha), buffers.matrix(op.b, heads * hb), heads * (ha + hb)
    if yz:
        row = op.dst.data.row
        if row is None or op.dst.data.unit is not None or row.index is not None:
            refuse(op, "of several sequences lands in rows that a parameter names (yz, without a row parameter)")
        store = store_apart(buffers, op.y, op.param, rows, width, yz, row.pitch)
    else:
        store = store_at(buffers, op.target, rows, width)
    return lambda: store(join(a, b, heads))


def bind_argmax(op: ArgMaxOp, buffers: Buffers) -> Run:
    rows, x, out = op.rows.data, buffers.matrix(op.x, op.n.data), buffers.indices(op.out)

    def choose() -> None:
        out[:] = argmax(x)

    if op.advance is None:
        return choose
    token, position, item = op.advance
    tokens, positions = buffers.indices(token)[item : item + rows], buffers.indices(position)[:rows]

    def move_on() -> None:
        tokens[:] = out
        positions[:] += 1

    return in_order(choose, move_on)
