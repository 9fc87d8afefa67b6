"""A launch and what its last block to finish does with the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import irdl_op_definition, region_def, traits_def
from xdsl.traits import NoTerminator

from lane_mlir.dialects.launch.attention import AttentionOp
from lane_mlir.dialects.launch.attributes import Fill
from lane_mlir.dialects.launch.buffers import holder
from lane_mlir.dialects.launch.elementwise import BinaryOp
from lane_mlir.dialects.launch.mixture import MoeOp
from lane_mlir.dialects.launch.movement import GatherOp
from lane_mlir.dialects.launch.norms import NormOp
from lane_mlir.dialects.launch.operation import ORIGIN, LaunchEffects, LaunchOp, Touch, Touched, origin
from lane_mlir.dialects.launch.rotated_attention import why_apart
from lane_mlir.dialects.launch.rotations import RopeOp, RopePartsOp
from lane_mlir.dialects.tg.attributes import Numerics


@irdl_op_definition
class FoldOp(LaunchOp):
    """
    Two launches as one: the second is done by the blocks of the first, the last of them to finish or all, once what it
    reads of the first is there. The first may be a fold in turn: of a mixture and a sum, before a norm of it.

    Example:
        launch.fold {
          launch.gather %e rows<q8_0> at %token into %h (rows = 1, cols = 576)
          launch.norm %h weight %w out %n (rows = 1, cols = 576) eps = 1.0e-05 quant
        } covers [0, 1] by [embed_norm]
    """

    name = "launch.fold"
    KIND: ClassVar[str] = "gemv_norm"

    body = region_def("single_block")

    assembly_format = "$body" + ORIGIN
    traits = traits_def(LaunchEffects(), NoTerminator())

    def __init__(self, first: LaunchOp, then: LaunchOp, *, covers: Sequence[int] = (), rules: Sequence[str] = ()):
        super().__init__(regions=[Region(Block([first, then]))], properties=origin(covers, rules))

    @property
    def first(self) -> LaunchOp:
        return self._launches()[0]

    @property
    def then(self) -> LaunchOp:
        return self._launches()[1]

    def _launches(self) -> tuple[LaunchOp, LaunchOp]:
        first, then = self.body.block.first_op, self.body.block.last_op
        assert isinstance(first, LaunchOp)
        assert isinstance(then, LaunchOp)
        return first, then

    def reads(self) -> Sequence[SSAValue]:
        first, then = self._launches()
        made = {holder(value) for value in first.writes() if not _is_state(value)}
        outside = (value for value in then.reads() if holder(value) not in made)
        return tuple(dict.fromkeys([*first.reads(), *outside]))

    def writes(self) -> Sequence[SSAValue]:
        first, then = self._launches()
        return (*first.writes(), *then.writes())

    def updates(self) -> Sequence[SSAValue]:
        first, then = self._launches()
        # Rows that the first sets in a state that the second reads.
        handed = {value for value in first.writes() if _is_state(value)}.intersection(then.reads())
        return (*first.updates(), *then.updates(), *handed)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        first, then = self._launches()
        return (*first.typed(numerics), *then.typed(numerics))

    def touches(self, numerics: Numerics) -> tuple[Touched, Touched]:
        first, then = self._launches()
        (first_reads, first_writes), (then_reads, then_writes) = first.touches(numerics), then.touches(numerics)
        made = {(holder(value, form), form) for value, form in first_writes if not _is_state(value)}
        outside = ((value, form) for value, form in then_reads if (holder(value, form), form) not in made)
        return [*first_reads, *outside], [*first_writes, *then_writes]

    def writes_whole(self, t: SSAValue, touch: Touch, length: int) -> bool:
        return any(part.writes_whole(t, touch, length) for part in self._launches())

    def projected_input(self) -> SSAValue | None:
        return self.first.projected_input()

    def reads_f32_input(self) -> bool:
        return self.first.reads_f32_input()

    def result(self) -> SSAValue | None:
        return self.then.result()

    def parts(self) -> Sequence[LaunchOp]:
        first, then = self._launches()
        return (*first.parts(), *then.parts())

    def kind(self) -> str:
        if isinstance(self.first, GatherOp):
            return "gather_norm"
        if isinstance(self.then, RopePartsOp):
            return "gemv_rope"
        if isinstance(self.then, AttentionOp):
            return "rope_attention"
        return "moe_norm" if self.finished_mixture() is not None else self.KIND

    def mixture(self) -> LaunchOp | None:
        finished = self.finished_mixture()
        return finished[0] if finished is not None else None

    def finished_mixture(self) -> tuple[LaunchOp, LaunchOp, tuple[SSAValue, SSAValue] | None] | None:
        first, then = self._launches()
        if not isinstance(then, NormOp):
            return None
        if isinstance(first, MoeOp):
            return first, then, None
        if not isinstance(first, FoldOp):
            return None
        moe, sum = first._launches()
        if not isinstance(moe, MoeOp) or not isinstance(sum, BinaryOp):
            return None
        return moe, then, (sum.b if sum.a is moe.y else sum.a, sum.out)

    def verify_(self) -> None:
        launches = list(self.body.block.ops)
        if len(launches) != 2 or not all(isinstance(op, LaunchOp) for op in launches):
            raise self.refuse(f"holds {', '.join(op.name for op in launches) or 'nothing'}, expected two launches")
        if self.body.block.args:
            raise self.refuse("has block arguments, expected none")
        first, then = self._launches()
        is_nested = isinstance(first, FoldOp) or isinstance(then, FoldOp)
        if is_nested and self.finished_mixture() is None:
            raise self.refuse("holds a fold, expected none but that of a mixture and a sum, before a norm")
        if (
            isinstance(first, RopeOp | RopePartsOp)
            and isinstance(then, AttentionOp)
            and (why := why_apart(first, then))
        ):
            raise self.refuse(f"leaves rotations to attention, but {why}")


def _is_state(buffer: SSAValue) -> bool:
    """Whether a buffer has elements that were there before the launch."""
    return holder(buffer).fill.data is not Fill.COMPUTED
