"""Rotation and attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import AttentionOp, Pairing, RopeOp, RopeTableOp, shape_of
from lane_mlir.eval.arrays import Array, StateArray, scalar
from lane_mlir.eval.functions import EvaluationFunctions
from lane_mlir.rope import RopeScaling, rope_tables

_ROWS_AT_ONCE = 64
"""Rows of a step whose scores are held at once."""


def rope(x: Array, cos: Array, sin: Array, position: int, per_row: int, pairing: Pairing) -> Array:
    """
    x [rows·per_row, head width] with the leading 2·half columns of each head rotated by the row's position.

    Raises: LaneError for a position that the tables do not have.
    """
    heads, width = x.shape
    rows, half = heads // per_row, cos.shape[1]
    if position < 0 or position + rows > len(cos):
        raise LaneError(f"positions {position} to {position + rows} are not within the {len(cos)} of the rotary table")
    c, s = (table[position : position + rows, None] for table in (cos, sin))
    y = x.reshape(rows, per_row, width).copy()
    if pairing is Pairing.HALF:
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first] = a * c - b * s
    y[..., second] = a * s + b * c
    return y.reshape(x.shape)


@dataclass(frozen=True)
class Attention:
    """Attention's shape and scores; the fields are those of `tg.attention`."""

    heads: int
    kv_heads: int
    scale: float
    window: int | None = None
    softcap: float | None = None

    def __call__(
        self,
        q: Array,
        k: StateArray,
        v: StateArray,
        position: int,
        sinks: Array | None = None,
        q_tail: Array | None = None,
        k_tail: StateArray | None = None,
    ) -> Array:
        """
        The attention of q's rows, the first at `position`, y [rows, heads·value width].

        No row reads keys and values past its own position or before its window, whatever is there.

        Raises: LaneError for a position that the key and value arrays do not have.
        """
        rows = len(q)
        if position < 0 or position + rows > len(k):
            raise LaneError(f"positions {position} to {position + rows} are not within the cache's {len(k)} rows")

        def attend(start: int, stop: int) -> Array:
            tail = None if q_tail is None else q_tail[start:stop]
            with np.errstate(invalid="ignore"):
                y = self._attend(q[start:stop], k, v, position + start, sinks, tail, k_tail)
            # A weight of 0 times a NaN is a NaN: rows alone read nothing that they give no weight.
            if stop - start > 1 and not np.isfinite(y).all():
                return np.concatenate([attend(row, row + 1) for row in range(start, stop)])
            return y

        return np.concatenate([attend(r, min(r + _ROWS_AT_ONCE, rows)) for r in range(0, rows, _ROWS_AT_ONCE)])

    def _attend(
        self,
        q: Array,
        k: StateArray,
        v: StateArray,
        position: int,
        sinks: Array | None,
        q_tail: Array | None,
        k_tail: StateArray | None,
    ) -> Array:
        rows, group = len(q), self.heads // self.kv_heads
        first, last = self._first(position), position + rows
        scores = np.matmul(self._queries(q), self._per_head(k, first, last).transpose(0, 2, 1))
        if q_tail is not None and k_tail is not None:
            scores += np.matmul(self._queries(q_tail), np.asarray(k_tail[first:last], np.float32).T)
        scores *= np.float32(self.scale)
        if self.softcap is not None:
            scores = np.float32(self.softcap) * np.tanh(scores / np.float32(self.softcap))
        scores = scores.reshape(self.kv_heads, group, rows, last - first)
        if rows > 1:
            distance = np.arange(position, last)[:, None] - np.arange(first, last)
            visible = (distance >= 0) & (distance < (self.window or last + 1))
            scores = np.where(visible, scores, np.float32(-np.inf))
        weights = _softmax_with_sinks(scores, None if sinks is None else sinks.reshape(self.kv_heads, group, 1, 1))
        y = np.matmul(weights.reshape(self.kv_heads, group * rows, -1), self._per_head(v, first, last))
        return y.reshape(self.kv_heads, group, rows, -1).transpose(2, 0, 1, 3).reshape(rows, -1)

    def _first(self, position: int) -> int:
        """The first position that a row reads."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def _queries(self, q: Array) -> Array:
        """[kv_heads, group·rows, width]: the queries that read each kv head."""
        rows, group = len(q), self.heads // self.kv_heads
        return q.reshape(rows, self.kv_heads, group, -1).transpose(1, 2, 0, 3).reshape(self.kv_heads, group * rows, -1)

    def _per_head(self, array: StateArray, first: int, last: int) -> Array:
        """Rows of the key or value array, [kv_heads, last - first, width]."""
        rows = np.asarray(array[first:last], np.float32)
        return rows.reshape(last - first, self.kv_heads, -1).transpose(1, 0, 2)


def _softmax_with_sinks(scores: Array, sinks: Array | None) -> Array:
    """The softmax over the last axis, of which a sink takes its part."""
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    e = np.exp(scores - largest)
    total = e.sum(axis=-1, keepdims=True)
    return e / (total if sinks is None else total + np.exp(sinks - largest))


def attention_of(op: AttentionOp) -> Attention:
    """The attention that an op states."""
    return Attention(
        heads=op.heads.value.data,
        kv_heads=op.kv_heads.value.data,
        scale=op.scale.value.data,
        window=None if op.window is None else op.window.value.data,
        softcap=None if op.softcap is None else op.softcap.value.data,
    )


def scaling_of(op: RopeTableOp) -> RopeScaling:
    """The frequencies that an op states."""
    return RopeScaling(
        base=op.base.value.data,
        freq_scale=op.freq_scale.value.data,
        ext_factor=op.ext_factor.value.data,
        attn_factor=op.attn_factor.value.data,
        beta_fast=op.beta_fast.value.data,
        beta_slow=op.beta_slow.value.data,
        original_context=op.original_context.value.data,
    )


class AttentionFunctions(EvaluationFunctions):
    @impl(RopeTableOp)
    def run_rope_table(self, interpreter: Interpreter, op: RopeTableOp, args: PythonValues) -> PythonValues:
        factors = tuple(map(float, args[0])) if args else None
        positions, half = shape_of(op.cos)
        return rope_tables(scaling_of(op), positions, half, factors)

    @impl(RopeOp)
    def run_rope(self, interpreter: Interpreter, op: RopeOp, args: PythonValues) -> PythonValues:
        x, cos, sin, position = args
        return (rope(x, cos, sin, scalar(position), op.per_row.value.data, op.pairing.data),)

    @impl(AttentionOp)
    def run_attention(self, interpreter: Interpreter, op: AttentionOp, args: PythonValues) -> PythonValues:
        q, k, v, position = args[:4]
        value_of = dict(zip(op.operands, args, strict=True))
        sinks, q_tail, k_tail = (
            None if operand is None else value_of[operand] for operand in (op.sinks, op.q_tail, op.k_tail)
        )
        return (attention_of(op)(q, k, v, scalar(position), sinks, q_tail, k_tail),)
