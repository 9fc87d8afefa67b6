"""
The linker: every op of a step as the launch that runs it, in the order of the step.

What a kernel can do is judged here and nowhere else: `fuse` asks the same judge before it commits a fusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.chips import CHIPS
from lane_mlir.diagnostics import unknown
from lane_mlir.dialects.launch import LaunchOp, ScheduleOp, YieldOp
from lane_mlir.dialects.tg import FusedOp, LiftedOperation, TargetAttr, TensorGraphOperation
from lane_mlir.dialects.tg.step import step_functions
from lane_mlir.locations import OpFailedException
from lane_mlir.passes.forms import describe, op_name
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.prepare import prepare, set_target_of


@dataclass(frozen=True)
class LinkPass(ModulePass):
    """
    Replaces every step of the module by the schedule of its launches; a module without steps is left as it is.

    `numerics`, `chip`: override what the module says it is compiled for. Fails where no kernel runs an op, naming it.
    """

    name = "link"

    numerics: Literal["dequant", "int8", "two_pass_int8"] | None = None
    chip: str | None = None

    def __post_init__(self) -> None:
        check_chip(self.chip)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = set_target_of(op, self.chip, self.numerics)
        for func in step_functions(op):
            Rewriter.replace_op(func, link(func, target), ())


def check_chip(name: str | None) -> None:
    """Refuse a chip that is not known. Raises PassFailedException with the nearest names."""
    if name is not None and name not in CHIPS:
        raise PassFailedException(unknown("chip", name, CHIPS))


def link(func: FuncOp, target: TargetAttr) -> ScheduleOp:
    """
    The schedule of a step. Raises OpFailedException, naming op, tensor and reason, where no kernel runs an op.
    """
    prepare(func, target.numerics.data)
    name = f"step @{func.sym_name.data}"
    try:
        judge, block = Judge(func, target), func.body.block
        for argument in block.args:
            judge.buffer(argument)
        launches: list[Operation] = []
        for op in block.ops:
            if isinstance(op, LiftedOperation | FusedOp):
                launches.append(_link_op(judge, op, name))
            elif not isinstance(op, TensorGraphOperation | ReturnOp):
                raise OpFailedException(op, f"{name}: '{op_name(op)}' is no op of tg, and link lowers no others")
        returned = block.last_op
        outputs = [judge.buffer(value) for value in returned.operands] if isinstance(returned, ReturnOp) else []
    except Refusal as refusal:
        raise OpFailedException(func, f"{name}: {refusal}") from refusal
    schedule = ScheduleOp(func.sym_name.data, [*judge.buffers, *launches, YieldOp(*outputs)], target=target)
    schedule.location = func.location
    return schedule


def _link_op(judge: Judge, op: Operation, step: str) -> LaunchOp:
    try:
        return judge.link(op)
    except Refusal as refusal:
        results = ", ".join(f"%{result.name_hint or '?'}" for result in op.results) or "nothing"
        raise OpFailedException(
            op, f"{step}: no kernel for {describe(op)}, which computes {results}: {refusal}"
        ) from refusal


__all__ = ["Judge", "LinkPass", "Refusal", "check_chip", "link"]
