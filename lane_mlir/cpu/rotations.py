"""Rotations of heads by their positions."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, Run, in_order
from lane_mlir.cpu.landing import Store, store_apart, store_at
from lane_mlir.cpu.norms import f32_units
from lane_mlir.dialects.launch import RopeOp, RopePartsOp, Rotation
from lane_mlir.dialects.tg import Pairing
from lane_mlir.eval import Array
from lane_mlir.eval.attention import rope
from lane_mlir.eval.norms import rms_norm


class _Tables:
    """The tables of a launch, how it pairs columns, and where its rows stand."""

    def __init__(self, buffers: Buffers, op: RopeOp | RopePartsOp):
        half = op.half.data
        self.cos, self.sin = buffers.matrix(op.cos, half), buffers.matrix(op.sin, half)
        self.position: SSAValue | None = op.pos
        self.pairing: Pairing = op.pairing.data


def _bind_rotation(buffers: Buffers, tables: _Tables, r: Rotation, hd: int, store: Store, seqs: bool = False) -> Run:
    """One rotation: its heads normed if they are, rotated, and stored."""
    x = f32_units(buffers, r.x, r.heads, hd, r.part)
    weight, eps = (None, 0.0) if r.norm is None else (buffers.values(r.norm[0]), r.norm[1])
    rows, cos, sin, pairing, per_row = r.heads // r.per_row, tables.cos, tables.sin, tables.pairing, r.per_row
    if not seqs:
        position = buffers.position(tables.position)
        buffers.limit(tables.position, rows, len(cos))
        if weight is None:
            return lambda: store(rope(x, cos, sin, position(), per_row, pairing))
        return lambda: store(rope(rms_norm(x, weight, eps), cos, sin, position(), per_row, pairing))
    positions = [buffers.position(tables.position, row) for row in range(rows)]
    for row in range(rows):
        buffers.limit(tables.position, 1, len(cos), row)

    def run() -> None:
        heads: Array = x if weight is None else rms_norm(x, weight, eps)
        each = heads.reshape(rows, per_row, hd)
        rotated = [rope(each[row], cos, sin, positions[row](), per_row, pairing) for row in range(rows)]
        store(np.concatenate(rotated))

    return run


def bind_rope(op: RopeOp, buffers: Buffers) -> Run:
    heads, hd = op.heads.data, op.hd.data
    norm = (op.norm, op.eps.data) if op.norm is not None and op.eps is not None else None
    part = op.part.data if op.part is not None else None
    rotation = Rotation(op.x, op.target, heads, op.per_row.data, part, norm)
    store = store_at(buffers, op.target, heads, hd)
    return _bind_rotation(buffers, _Tables(buffers, op), rotation, hd, store)


def bind_rope_parts(op: RopePartsOp, buffers: Buffers) -> Run:
    tables, hd, seqs = _Tables(buffers, op), op.hd.data, op.seqs is not None
    runs = [_bind_rotation(buffers, tables, r, hd, _store(buffers, r, hd), seqs) for r in op.each()]
    return in_order(*runs)


def _store(buffers: Buffers, r: Rotation, hd: int) -> Store:
    if not r.yz:
        return store_at(buffers, r.y, r.heads, hd)
    rows, row = r.heads // r.per_row, r.y.dst.row
    pitch = row.pitch if row is not None else r.yz
    return store_apart(buffers, r.y.buffer, r.y.param, rows, r.per_row * hd, r.yz, pitch)
