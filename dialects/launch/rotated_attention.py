"""What a fold of rotations and the attention that reads them can be."""

from __future__ import annotations

from lane_mlir.dialects.launch.attention import AttentionOp
from lane_mlir.dialects.launch.buffers import elements, holder
from lane_mlir.dialects.launch.rotations import RopeOp, RopePartsOp, Rotation


def why_apart(rope: RopeOp | RopePartsOp, attention: AttentionOp) -> str:
    """
    Why attention cannot rotate the heads that it reads, in a sentence; empty if it can: the queries, and the key row at
    the position of each sequence, or the queries alone.
    """
    rows, heads = attention.rows.data, attention.heads.data
    if rows > 1 and attention.seq is None:
        return f"each of its {rows} rows attends keys that other rows rotate"
    if attention.split is not None or attention.shared is not None:
        return "its keys are not rotated whole"
    if rope.pos is not attention.pos or rope.hd.data != attention.hd.data:
        return "the rotation is at another position, or of heads of another width"
    queries = [side for side in rope.each() if side.y.own is not None and elements(side.y.own) == elements(attention.q)]
    keys = [side for side in rope.each() if side not in queries]
    if len(queries) != 1 or (queries[0].heads, queries[0].per_row) != (rows * heads, heads):
        return "the rotation is not of the queries as attention reads them"
    if not all(_sets_key_row(key, rope, attention) for key in keys) or len(keys) > 1:
        return "what else the launch rotates is not the key row that attention reads"
    if keys and holder(attention.vc) is holder(attention.kc):
        return "its values lie where its keys do, and are read before the key row is set"
    read = {holder(value) for value in attention.reads()} - {holder(attention.q), holder(attention.kc)}
    read |= {holder(value) for value in rope.reads()}
    if read & {holder(value) for value in rope.writes()} or read & {holder(value) for value in attention.writes()}:
        return "one of the two reads what the other, or it itself, writes, and blocks do both at once"
    return ""


def _sets_key_row(key: Rotation, rope: RopeOp | RopePartsOp, attention: AttentionOp) -> bool:
    """Whether a rotation's heads are the key heads of the row, or rows, that attention stands at."""
    kv, dst = attention.heads.data // attention.group.data, key.y.dst
    heads = (key.heads, key.per_row) == (attention.rows.data * kv, kv)
    at_row = dst.row is not None and dst.row.pitch == attention.key_width and dst.unit is None
    seq = attention.seq.data if attention.seq is not None else 0
    return key.y.buffer is attention.kc and heads and at_row and key.y.param is rope.pos and key.yz == seq
