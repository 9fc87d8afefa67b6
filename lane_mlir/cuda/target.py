"""The target `cuda` of lane-opt: the kernels of a planned schedule as CUDA C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from lane_mlir.chips import chip
from lane_mlir.cuda.printer import print_unit
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import ScheduleOp


@dataclass(frozen=True)
class CudaTarget(Target):
    """
    Prints one translation unit for each `launch.schedule` of the module; `-t 'cuda{chip=b200}'` for another chip than
    the one that the schedule was planned for.

    Raises: LaneError if there is no schedule, or a launch has no kernel.
    """

    name: ClassVar[str] = "cuda"

    chip: str | None = None

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        wanted = chip(self.chip) if self.chip is not None else None
        schedules = [op for op in module.ops if isinstance(op, ScheduleOp)]
        if not schedules:
            raise LaneError("the target cuda prints planned schedules, and the module has none: run link,plan before")
        output.write("\n".join(print_unit(schedule, wanted).text for schedule in schedules))
