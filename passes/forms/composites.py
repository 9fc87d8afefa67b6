"""What an op realizes: its classes, and the composites that they and their placements make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.dialects.tg import DeltaOp, FusedOp, MoeOp, UnaryOp, shape_of
from lane_mlir.passes.forms.products import gated, glu
from lane_mlir.passes.forms.rotations import rope
from lane_mlir.passes.forms.scope import Scope, leaves

COMPOSITES: Sequence[str] = (
    "rope_kv_append",
    "qk_norm_rope_kv_append",
    "gated_norm",
    "merged_gate_up",
    "merged_projections",
    "moe_gather_in_operand",
    "router_shared_gate_merge",
)
"""
The composites: a rotation that lands in a cache's rows, with its per-head norm folded in or not; a gated delta rule,
which norms its output gated by the SiLU of its gate; a gate and an up product of one activation as one product (a gated
pair, or two side by side of which one is gated by the other); products of one activation as one; a token-sorted
mixture, which gathers each expert's rows inside its product; a mixture that computes the router and the shared expert's
gate in one.
"""


def realizes(op: Operation) -> Sequence[str]:
    """
    Every class that an op realizes, its own and each member's, and the composites they make; each once. None for an op
    that is no launch.
    """
    if not leaves(op):
        return ()
    return tuple(dict.fromkeys(_realized(op, Scope(op))))


def _realized(op: Operation, scope: Scope) -> Iterator[str]:
    if isinstance(op, FusedOp):
        yield op.fusion_class.data
        for part in op.parts:
            yield from _realized(part, scope.of(leaves(part)))
    rotation = rope(op, scope)
    if rotation is not None and rotation.landing.dst.row is not None:
        yield "rope_kv_append" if rotation.norm is None else "qk_norm_rope_kv_append"
    if isinstance(op, DeltaOp):
        yield "gated_norm"
    if isinstance(op, MoeOp) and shape_of(op.x)[0] > GEMV_ROWS:
        yield "moe_gather_in_operand"
    if isinstance(op, FusedOp):
        yield from _merged(op, scope)


def _merged(op: FusedOp, scope: Scope) -> Iterator[str]:
    if op.fusion_class.data == "gemv_parts":
        yield "merged_projections"
        if len(op.parts) == 2 and _gates_its_own(op):
            yield "merged_gate_up"
    if op.fusion_class.data == "glu_pair" and glu(op, scope) is not None:
        yield "merged_gate_up"
    if op.fusion_class.data == "shared_expert" and any(isinstance(part, UnaryOp) for part in op.parts):
        yield "router_shared_gate_merge"


def _gates_its_own(op: FusedOp) -> bool:
    """Whether another op multiplies one of two results by an activation of the other."""
    if len(op.results) != 2:
        return False
    first, second = ({_beside(use.operation, op) for use in result.uses} for result in op.results)
    return any(gated(leaves(reader), Scope(reader)) is not None for reader in first & second)


def _beside(reader: Operation, op: Operation) -> Operation:
    """The op in the block of another that a reader of its results is, or is inside of."""
    while reader.parent is not op.parent and (parent := reader.parent_op()) is not None:
        reader = parent
    return reader


def composites(func: FuncOp) -> Counter[str]:
    """How many ops of a step realize each composite."""
    counts: Counter[str] = Counter()
    for op in func.body.block.ops:
        counts.update(name for name in realizes(op) if name in COMPOSITES)
    return counts
