"""
The planner: a schedule as `link` leaves it becomes one that a target runs as it is.

In order: rows a warp and split counts, chosen for the chip; whole blocks of what is read quantized; the forms and types
of the buffers; launches of several sequences as one; norms and rotations that are left to what reads them; the buffers'
places in one arena; and at the end a check of the whole that knows nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.chips import chip
from lane_mlir.diagnostics import unknown
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.dialects.tg import Numerics, TargetAttr
from lane_mlir.dialects.tg.step import step_functions
from lane_mlir.locations import OpFailedException
from lane_mlir.passes.fuse.report import Report
from lane_mlir.passes.fuse.table import ON_LAUNCHES
from lane_mlir.passes.plan.arena import place
from lane_mlir.passes.plan.buffers import (
    check_bound,
    check_whole_blocks,
    drop_unused,
    mark_forms,
    refuse_untyped,
    set_types,
    transpose_weights,
)
from lane_mlir.passes.plan.check import CheckPlanPass, check
from lane_mlir.passes.plan.counts import ROWS_A_WARP, choose_rows_a_warp, choose_splits, share_key_rows
from lane_mlir.passes.plan.errors import NoKernel, PlanFailed, Shape, Unbound
from lane_mlir.passes.plan.norms import DEFERRED_NORM, defer_norms
from lane_mlir.passes.plan.rotations import DEFERRED_ROPE, defer_rotations
from lane_mlir.passes.plan.sequences import SEQUENCES, merge_sequences

RULES = ON_LAUNCHES
"""The rules that act on launches, in their order."""

DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        ROWS_A_WARP: "Several output rows a warp in a matrix-vector product that gains by it, by the format of its "
        "weight and its shape; it fires once for each product of a launch.",
        SEQUENCES: "What a step runs once for each of its sequences, in one launch for all: delta rule, gates, "
        "convolutions, attention, joins, row sets, rotations, arg-max.",
        DEFERRED_NORM: "A norm that follows a product in its launch leaves the division by the root mean square to "
        "the products that read it: each block norms the columns that it computes, and none waits for a row.",
        DEFERRED_ROPE: "The rotations of a token's queries and key are left to the attention that reads them.",
    }
)
"""What each does."""


@dataclass(frozen=True)
class PlanPass(ModulePass):
    """
    Plans every schedule of a module, for the target that it names; a module without schedules is left as it is.

    `held`: the rules not to apply. `remarks`: print every decision and its reason on the standard error. Raises
    NoKernel, Shape or Unbound, each a PlanFailed, and OpFailedException at a step that is not linked.
    """

    name = "plan"

    held: tuple[str, ...] = ()
    remarks: bool = False

    def __post_init__(self) -> None:
        for rule in self.held:
            if rule not in RULES:
                raise PassFailedException(unknown("rule", rule, RULES))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.run(op)

    def run(self, module: ModuleOp) -> dict[str, Report]:
        """Plan the schedules; what the rules decided on each, by its name."""
        for func in step_functions(module):
            raise OpFailedException(func, f'step "{func.sym_name.data}" is not linked: run link before plan')
        reports: dict[str, Report] = {}
        for schedule in [op for op in module.ops if isinstance(op, ScheduleOp)]:
            name = schedule.sym_name.data
            reports[name] = plan(schedule, self.held)
            if self.remarks:
                reports[name].print_remarks(name)
        return reports


def plan(schedule: ScheduleOp, held: Collection[str] = ()) -> Report:
    """Plan one schedule in place; what the rules on launches decided. A rule held is reported as held."""
    report = Report()
    target = schedule.target if schedule.target is not None else TargetAttr()
    schedule.target = target
    check_bound(schedule)
    numerics, on = target.numerics.data, chip(target.chip.data)
    launches = schedule.launches()
    choose_rows_a_warp(launches, report, held=ROWS_A_WARP in held)
    share_key_rows(launches, numerics, on)
    choose_splits(launches, numerics, on)
    if numerics is not Numerics.DEQUANT:
        check_whole_blocks(launches)
    transpose_weights(schedule)
    touches = [launch.touches(numerics) for launch in launches]
    mark_forms(schedule, touches)
    set_types(schedule, target)
    merged = False
    if SEQUENCES in held:
        merge_sequences(schedule.clone(), on, report, held=True)
    else:
        merged = merge_sequences(schedule, on, report)
    deferred = defer_norms(schedule, numerics, report, held=DEFERRED_NORM in held)
    moved = defer_rotations(schedule, report, held=DEFERRED_ROPE in held)
    if merged or deferred or moved:
        launches = schedule.launches()
        touches = [launch.touches(numerics) for launch in launches]
        mark_forms(schedule, touches)
    refuse_untyped(schedule, launches, numerics)
    drop_unused(schedule)
    place(schedule, touches, numerics)
    check(schedule)
    return report


__all__ = [
    "DESCRIPTIONS",
    "RULES",
    "CheckPlanPass",
    "NoKernel",
    "PlanFailed",
    "PlanPass",
    "Shape",
    "Unbound",
    "check",
    "plan",
]
