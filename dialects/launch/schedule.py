"""A schedule: the buffers and launches of one step, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from lane_mlir.dialects.launch.attributes import NumberAttr
from lane_mlir.dialects.launch.buffers import BufferOp
from lane_mlir.dialects.launch.movement import ViewOp
from lane_mlir.dialects.launch.operation import LaunchOp
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import TargetAttr


@irdl_op_definition
class YieldOp(IRDLOperation):
    """
    Ends a schedule: the buffers that are its outputs, whose values outlive the step.

    Example: `launch.yield %logits, %id`
    """

    name = "launch.yield"

    outputs = var_operand_def(BUFFER)

    assembly_format = "($outputs^)? attr-dict"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(ScheduleOp)))

    def __init__(self, *outputs: SSAValue):
        super().__init__(operands=[outputs])


@irdl_op_definition
class ScheduleOp(IRDLOperation):
    """
    One step as launches that run one after the other, with the buffers they touch. Once planned, it has an arena: that
    many bytes in which every computed buffer has its place.

    Example:
        launch.schedule @step target<h200, int8, cache = f16, state = f32> arena 8192 {
          %x = launch.buffer "x" f32[1x576] computed plain at 0
          …
          launch.yield %logits, %id
        }
    """

    name = "launch.schedule"

    sym_name = prop_def(SymbolNameConstraint())
    target = opt_prop_def(TargetAttr)
    """What the step is compiled for."""
    arena = opt_prop_def(NumberAttr)
    body = region_def("single_block")

    assembly_format = "$sym_name (`target` `` $target^)? (`arena` $arena^)? $body attr-dict-with-keyword"
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(self, name: str, ops: Sequence[Operation], *, target: TargetAttr | None = None):
        super().__init__(
            properties={"sym_name": StringAttr(name), "target": target},
            regions=[Region(Block(ops))],
        )

    def buffers(self) -> list[BufferOp]:
        """The buffers, in order."""
        return [op for op in self.body.block.ops if isinstance(op, BufferOp)]

    def launches(self) -> list[LaunchOp]:
        """The launches, in the order they run, views too."""
        return [op for op in self.body.block.ops if isinstance(op, LaunchOp)]

    def outputs(self) -> Sequence[SSAValue]:
        """The buffers whose values outlive the step."""
        last = self.body.block.last_op
        return tuple(last.outputs) if isinstance(last, YieldOp) else ()

    def census(self) -> dict[str, int]:
        """How many launches of each kind run, by kind; a view runs nothing."""
        counts = Counter(launch.kind() for launch in self.launches() if not isinstance(launch, ViewOp))
        return dict(sorted(counts.items()))

    def fired(self, rule: str) -> int:
        """How many times a rule fired in the making of the launches."""
        return sum(launch.rules.data.count(rule) for launch in self.launches())

    def verify_(self) -> None:
        names: set[str] = set()
        for op in self.body.block.ops:
            if not isinstance(op, BufferOp | LaunchOp | YieldOp):
                raise self._refuse(f"holds {op.name}, expected buffers, launches and a yield")
            if isinstance(op, BufferOp):
                if op.label.data in names:
                    raise self._refuse(f'has two buffers named "{op.label.data}"')
                names.add(op.label.data)

    def _refuse(self, message: str) -> VerifyException:
        return VerifyException(f"'{self.name}' op @{self.sym_name.data} {message}")
