"""Constants, gathers, row sets, slices, joins, views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import (
    ConstantOp,
    EmptyOp,
    GatherOp,
    InsertOp,
    JoinOp,
    SetRowOp,
    SliceOp,
    ViewOp,
    shape_of,
)
from lane_mlir.eval.arrays import Array, Indices, StateArray, read, scalar
from lane_mlir.eval.functions import EvaluationFunctions


def gather(table: Array, index: Indices) -> Array:
    """
    The rows table[index], [rows, k].

    Raises: LaneError for an index that is not a row of the table.
    """
    wrong = np.flatnonzero((index < 0) | (index >= len(table)))
    if wrong.size:
        raise LaneError(f"index {index[wrong[0]]} of row {wrong[0]} is not one of the table's {len(table)} rows")
    return table[index]


def set_rows(src: Array, table: StateArray, position: int) -> None:
    """
    table[position + i] = src[i], rounded to what the table stores.

    Raises: LaneError for rows that the table does not have.
    """
    if position < 0 or position + len(src) > len(table):
        raise LaneError(f"rows {position} to {position + len(src)} are not within the table's {len(table)} rows")
    table[position : position + len(src)] = src


def insert(src: Array, dst: Array, every: int, start: int) -> Array:
    """A copy of dst with `src` in columns `start` and on of each of its units of `every` elements, both read flat."""
    y = dst.copy()
    units = y.reshape(-1, every)
    part = src.reshape(len(units), -1)
    units[:, start : start + part.shape[1]] = part
    return y


def slice_units(x: Array, every: int, start: int, width: int, shape: Sequence[int]) -> Array:
    """Columns `start` to `start + width` of each unit of `every` elements of x read flat, in a shape."""
    return x.reshape(-1, every)[:, start : start + width].reshape(shape)


def join(a: Array, b: Array, heads: int) -> Array:
    """Row r, head h: a's, then b's."""
    rows = len(a)
    return np.concatenate([a.reshape(rows, heads, -1), b.reshape(rows, heads, -1)], axis=2).reshape(rows, -1)


def view(x: Array, offset: int, shape: Sequence[int]) -> Array:
    """The elements of x read flat from `offset` on, in a shape."""
    return x.reshape(-1)[offset : offset + int(np.prod(shape))].reshape(shape)


class StorageFunctions(EvaluationFunctions):
    @impl(ConstantOp)
    def run_constant(self, interpreter: Interpreter, op: ConstantOp, args: PythonValues) -> PythonValues:
        name, shape = op.tensor.data, shape_of(op.result)
        values = self.weights.values(name, op.result.type)
        if values.shape != shape:
            raise LaneError(f'tensor "{name}" is {values.shape}, expected {shape}')
        return (values,)

    @impl(EmptyOp)
    def run_empty(self, interpreter: Interpreter, op: EmptyOp, args: PythonValues) -> PythonValues:
        # Nobody may read these: NaN shows who does.
        return (np.full(shape_of(op.result), np.nan, np.float32),)

    @impl(GatherOp)
    def run_gather(self, interpreter: Interpreter, op: GatherOp, args: PythonValues) -> PythonValues:
        return (gather(*args),)

    @impl(SetRowOp)
    def run_set_row(self, interpreter: Interpreter, op: SetRowOp, args: PythonValues) -> PythonValues:
        src, table, position = args
        set_rows(src, table, scalar(position))
        return ()

    @impl(InsertOp)
    def run_insert(self, interpreter: Interpreter, op: InsertOp, args: PythonValues) -> PythonValues:
        src, dst = args
        return (insert(src, dst, op.every.value.data, op.start.value.data),)

    @impl(SliceOp)
    def run_slice(self, interpreter: Interpreter, op: SliceOp, args: PythonValues) -> PythonValues:
        every, start, width = op.every.value.data, op.start.value.data, op.width.value.data
        return (slice_units(read(args[0]), every, start, width, shape_of(op.result)),)

    @impl(JoinOp)
    def run_join(self, interpreter: Interpreter, op: JoinOp, args: PythonValues) -> PythonValues:
        a, b = args
        return (join(a, b, op.heads.value.data),)

    @impl(ViewOp)
    def run_view(self, interpreter: Interpreter, op: ViewOp, args: PythonValues) -> PythonValues:
        return (view(args[0], op.offset.value.data, shape_of(op.result)),)
