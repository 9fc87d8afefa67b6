"""Rules about rotations: head_norm_rope, rope_parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation
from xdsl.traits import is_side_effect_free

from lane_mlir.dialects.tg import FusedOp, RmsNormOp, RopeOp, TensorGraphOperation, ViewOp
from lane_mlir.passes.forms import RopeForm, describe, rope
from lane_mlir.passes.fuse.rule import FusionRule, Place


class HeadNormRope(FusionRule):
    """A norm of every head, then its rotation."""

    name = "head_norm_rope"
    anchors = (RopeOp,)

    def places(self, op: Operation) -> Iterator[Place]:
        assert isinstance(op, RopeOp)
        source = self.graph.slot_of(op.x)
        if isinstance(source, RmsNormOp):
            yield Place("head_norm_rope", (source, op))
        elif isinstance(source, ViewOp) and isinstance(norm := self.graph.slot_of(source.x), RmsNormOp):
            refusal = f"{describe(source)} stands between {describe(norm)} and the rotation: the norm is not of heads"
            yield Place("head_norm_rope", (norm, source, op), refusal=refusal)


class RopeParts(FusionRule):
    """The rotations at one position by the same tables, in one launch."""

    name = "rope_parts"
    anchors = (RopeOp, FusedOp)

    def places(self, op: Operation) -> Iterator[Place]:
        form = rope(op)
        if form is None:
            return
        run = self._run(op, form)
        if len(run) > 1:
            yield Place("rope_parts", run)

    def _run(self, first: Operation, form: RopeForm) -> Sequence[Operation]:
        """A rotation and the like ones after it, up to the first op that needs what one of them computes."""
        run, op = [first], first.next_op
        results, tables = set(first.results), _written(first)
        while op is not None:
            touches_tables = not is_side_effect_free(op) and not tables.isdisjoint(_touched(op))
            reads_results = any(operand in results for inner in op.walk() for operand in inner.operands)
            if touches_tables or (reads_results and not isinstance(op, ViewOp)):
                break
            if reads_results:
                results.update(op.results)
            other = rope(op) if isinstance(op, RopeOp | FusedOp) else None
            if other is not None and _alike(form, other):
                run.append(op)
                results.update(op.results)
                tables |= _written(op)
            op = op.next_op
        return run


def _alike(a: RopeForm, b: RopeForm) -> bool:
    """Whether two rotations can share a launch: same tables, position, head width and pairing."""
    return (a.cos, a.sin, a.pos, a.width, a.pairing) == (b.cos, b.sin, b.pos, b.width, b.pairing)


def _written(op: Operation) -> set[object]:
    return set(op.memory_writes()) if isinstance(op, TensorGraphOperation) else set()


def _touched(op: Operation) -> set[object]:
    return {*op.memory_reads(), *op.memory_writes()} if isinstance(op, TensorGraphOperation) else set()
