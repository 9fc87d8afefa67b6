"""From a checkpoint or a lifted step to launches: the passes in their order, and the IR and decisions of each stage."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.universe import Universe
from xdsl.utils.exceptions import DiagnosticException

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError, SourceError, UsageError, one_line, unknown
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.dialects.tg.step import step_functions
from lane_mlir.importers.step import LogitRows
from lane_mlir.locations import OpFailedException, op_cause, place_of
from lane_mlir.passes.fuse import ON_LAUNCHES, FusePass, Report, rule_names
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass
from lane_mlir.runtime.recipe import Recipe

STAGES = ("lifted", "fused", "linked", "planned")
"""The stages of a step, in order."""


def check_rules(rules: Sequence[str]) -> tuple[str, ...]:
    """The rules, if all can be held back. Raises UsageError with the nearest names for one that there is not."""
    for rule in rules:
        if rule not in rule_names():
            raise UsageError(unknown("rule", rule, rule_names()))
    return tuple(rules)


def lower(
    module: ModuleOp, held: Sequence[str] = (), after_stage: Callable[[str, ModuleOp], None] | None = None
) -> Mapping[str, Report]:
    """
    Take a module from wherever it is to planned, in place, without the rules that are held; what the rules decided on
    each step, by its name: of one that is linked already, those that act on launches.

    `after_stage` is called with the name of each stage and the module as it stands then. Raises LaneError for whatever
    a pass refuses.
    """
    context = Context()
    with as_lane_error():
        names = [func.sym_name.data for func in step_functions(module)]
        reports = {name: each.report for name, each in zip(names, FusePass(tuple(held)).run(module), strict=True)}
        _stage_done("fused", module, after_stage)
        LinkPass().apply(context, module)
        _stage_done("linked", module, after_stage)
        on_launches = PlanPass(tuple(rule for rule in held if rule in ON_LAUNCHES)).run(module)
        _stage_done("planned", module, after_stage)
    for name, report in on_launches.items():
        reports.setdefault(name, Report()).extend(report)
    return reports


def _stage_done(stage: str, module: ModuleOp, after_stage: Callable[[str, ModuleOp], None] | None) -> None:
    if after_stage is not None:
        after_stage(stage, module)


@contextmanager
def as_lane_error() -> Generator[None]:
    """What a pass or a verifier refuses, as the LaneError of one line that users get."""
    try:
        yield
    except LaneError:
        raise
    except OpFailedException as error:
        if (place := place_of(error.op)) is not None:
            raise SourceError(place, op_cause(error.op, str(error))) from error
        raise LaneError(one_line(str(error))) from error
    except DiagnosticException as error:
        raise LaneError(one_line(str(error))) from error


def module_context() -> Context:
    """A context that knows our dialects and all others that are installed, each loaded when text names it."""
    context = Context()
    for name, dialect in Universe.get_multiverse().all_dialects.items():
        context.register_dialect(name, dialect)
    return context


def schedules(module: ModuleOp) -> list[ScheduleOp]:
    """The schedules of a linked or planned module, in order."""
    return [op for op in module.body.block.ops if isinstance(op, ScheduleOp)]


@dataclass(frozen=True)
class Planned:
    """A planned step of a checkpoint, and the decisions that made it."""

    schedule: ScheduleOp
    report: Report


def plan(recipe: Recipe, checkpoint: Checkpoint, rows: int, logits: LogitRows, sequences: int) -> Planned:
    """Compile a step of a checkpoint."""
    module = recipe.lift(checkpoint, rows, logits, sequences)
    (report,) = recipe.lower(module).values()
    (schedule,) = schedules(module)
    return Planned(schedule, report)


def stages(recipe: Recipe, lifted: ModuleOp) -> Mapping[str, ModuleOp]:
    """The IR of every stage of a step, by name (`STAGES`), each a module of its own."""
    found = {"lifted": lifted.clone()}

    def keep(stage: str, module: ModuleOp) -> None:
        found[stage] = module.clone()

    recipe.lower(lifted, keep)
    return found
