"""lane-report: what a step becomes: its launches, and what each rule did and did not do, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from lane_mlir.diagnostics import LaneError, UsageError, one_line, run_tool, unknown
from lane_mlir.tools.arguments import ArgumentParser, names
from lane_mlir.tools.progress import ProgressLine

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from xdsl.dialects.builtin import ModuleOp

    from lane_mlir.dialects.launch import ScheduleOp
    from lane_mlir.dialects.tg import TargetAttr
    from lane_mlir.passes.fuse import Decision
    from lane_mlir.runtime.report import LayersCensus, StepReport

_EPILOG = """
A module may be lifted, fused, linked or planned. What a rule refused is known only if it is yet to be applied: of a
planned module, nothing but the launches and the rules that fired.
The JSON form is {schema, source, steps}; lane_mlir.runtime.report.StepReport.json says what a step has.
"""

_OF_A_CHECKPOINT = ("rows", "sequences", "context", "logits", "cache", "state")


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lane-report",
        description="Compile a step and report on its launches and on every decision of the fusion rules.",
        epilog=_EPILOG,
        usage="%(prog)s MODEL.gguf|step.mlir [options]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "input",
        metavar="MODEL.gguf|step.mlir",
        help="a checkpoint, or a module of the tensor graph or of launches ('-': the standard input)",
    )
    add("--decisions", action="store_true", help="print every decision with its reason")
    add("--why", metavar="RULE", help="print each place where a rule did not fire, and why")
    add("--json", action="store_true", help="print everything as JSON")
    add("--held", default="", metavar="RULES", help="rules not to apply: add_norm,act_gate")
    add("--numerics", help="arithmetic of products by weights: dequant, int8, two_pass_int8")
    add("--chip", help="the chip that launches are planned for")
    add("--rows", type=int, metavar="N", help="of a checkpoint: tokens that enter at once (default: 1)")
    add("--sequences", type=int, metavar="N", help="of a checkpoint: sequences, a token of each (default: 1)")
    add("--context", type=int, metavar="N", help="of a checkpoint: positions")
    add("--logits", choices=("last", "all"), help="of a checkpoint: rows of a chunk whose logits are computed")
    add("--cache", help="of a checkpoint: how keys and values are stored: f32, f16")
    add("--state", help="of a checkpoint: how recurrent state is stored: f32, bf16")
    add("--version", action="version", version=f"lane-report {version('lane-mlir')}")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """What the command line asks for."""
    if arguments.why is not None and (arguments.json or arguments.decisions):
        raise UsageError(f"--why and {'--json' if arguments.json else '--decisions'} exclude each other")
    with ProgressLine() as progress:
        progress(f"compiling {arguments.input}")
        reports = _reports(arguments)
    if arguments.json:
        from lane_mlir.runtime.report import SCHEMA

        steps = [report.json() for report in reports]
        print(json.dumps({"schema": SCHEMA, "source": arguments.input, "steps": steps}, indent=2))
        return
    console = _console()
    for report in reports:
        if arguments.why is not None:
            _print_places(console, report, arguments.why)
        else:
            _print_report(console, report, arguments.decisions)


def _reports(arguments: argparse.Namespace) -> list[StepReport]:
    from lane_mlir.passes.fuse import reported_rules
    from lane_mlir.runtime.compilation import check_rules
    from lane_mlir.runtime.report import report_steps

    held = check_rules(names(arguments.held))
    if arguments.why is not None and arguments.why not in reported_rules():
        raise UsageError(unknown("rule", arguments.why, reported_rules()))
    module = _read(arguments) if _is_module(arguments.input) else _lift(arguments)
    reports = report_steps(module, held)
    for report in reports:
        if arguments.why is not None and report.counts(arguments.why).refused is None:
            stage = "planned" if report.decisions is None else "linked"
            raise LaneError(
                f"{arguments.input} is {stage} already: why {arguments.why} did not fire is not known any more"
            )
    return reports


def _is_module(name: str) -> bool:
    """Whether the input is text, by its name or else by its first bytes."""
    path = Path(name)
    if name == "-" or path.suffix in (".mlir", ".gguf"):
        return path.suffix != ".gguf"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) != b"GGUF"


def _lift(arguments: argparse.Namespace) -> ModuleOp:
    """The lifted step of a checkpoint."""
    from lane_mlir.checkpoint import Checkpoint
    from lane_mlir.importers import import_step

    return import_step(
        Checkpoint.open(arguments.input),
        rows=1 if arguments.rows is None else arguments.rows,
        context=arguments.context,
        sequences=1 if arguments.sequences is None else arguments.sequences,
        logits=arguments.logits or "last",
        target=_target(arguments, None),
    )


def _read(arguments: argparse.Namespace) -> ModuleOp:
    """The module of a file, compiled for what the options say."""
    from lane_mlir.dialects.tg.step import TARGET
    from lane_mlir.locations import read_module
    from lane_mlir.passes.prepare import set_target_of
    from lane_mlir.runtime.compilation import as_lane_error, module_context, schedules

    for option in _OF_A_CHECKPOINT:
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} is for a checkpoint: a module has its own")
    module = read_module(module_context(), arguments.input)
    _refuse_too_late(arguments, schedules(module))
    with as_lane_error():
        known = set_target_of(module)
    module.attributes[TARGET] = _target(arguments, known)
    return module


def _refuse_too_late(arguments: argparse.Namespace, schedules: Sequence[ScheduleOp]) -> None:
    """Refuse options that the launches of a module come too late for."""
    from lane_mlir.passes.fuse import ON_LAUNCHES

    if not schedules:
        return
    for option in ("numerics", "chip"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} comes too late: {arguments.input} is linked already")
    planned = any(schedule.arena is not None for schedule in schedules)
    for rule in names(arguments.held):
        if planned or rule not in ON_LAUNCHES:
            stage = "planned" if planned else "linked"
            raise UsageError(f"--held {rule} comes too late: {arguments.input} is {stage} already")


def _target(arguments: argparse.Namespace, known: TargetAttr | None) -> TargetAttr:
    """What the options say that the step is compiled for, else what is known, else the default."""
    from lane_mlir.dialects.tg import TargetAttr
    from lane_mlir.target import make_target

    known = TargetAttr() if known is None else known
    target = make_target(
        arguments.numerics or str(known.numerics.data),
        arguments.chip or known.chip.data,
        arguments.cache or str(known.cache.data),
        arguments.state or str(known.state.data),
    )
    return TargetAttr.of(target)


# --- tables ---


def _console() -> Console:
    from rich.console import Console

    # What is read by a program or kept in a file is not wrapped.
    width = None if sys.stdout.isatty() else 10_000
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def _show(console: Console, what: Table | str) -> None:
    """Print something without the spaces that rich fills lines with."""
    with console.capture() as captured:
        console.print(what)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _table(*columns: str, title: str = "") -> Table:
    """A table whose columns named with a leading '#' hold numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(
            column.removeprefix("#"), justify="right" if column.startswith("#") else "left", overflow="fold"
        )
    return table


def _print_report(console: Console, report: StepReport, decisions: bool) -> None:
    target = report.target
    _show(
        console,
        f"step {report.name}: {report.launches} launches, for {target.chip.data}, {target.numerics.data}, "
        f"cache {target.cache.data}, state {target.state.data}"
        + ("" if report.arena is None else f"; arena of {report.arena:,} bytes"),
    )
    table = _table("#launches", "kind")
    for kind, count in sorted(report.census.items(), key=lambda entry: (-entry[1], entry[0])):
        table.add_row(str(count), kind)
    _show(console, table)
    if report.layers is not None:
        table = _table("layers", "#launches each", "kinds")
        for layers in report.layers:
            table.add_row(_layer_names(layers), str(sum(layers.census.values())), _kinds(layers.census))
        _show(console, table)
    _print_rules(console, report)
    _print_composites(console, report)
    if decisions:
        _print_decisions(console, report)


def _print_rules(console: Console, report: StepReport) -> None:
    if report.decisions is None:
        table = _table("rule", "#fired")
        for counts in report.rules:
            table.add_row(counts.rule, _count(counts.fired))
    else:
        table = _table("rule", "#fired", "#refused", "#held")
        for counts in report.rules:
            table.add_row(counts.rule, *map(_count, (counts.fired, counts.refused, counts.held)))
    _show(console, table)


def _print_composites(console: Console, report: StepReport) -> None:
    """The composites that ops of the step realize; no table if there are none."""
    realized = [(name, count) for name, count in (report.composites or {}).items() if count]
    if not realized:
        return
    table = _table("composite", "#ops")
    for name, count in realized:
        table.add_row(name, str(count))
    _show(console, table)


def _print_decisions(console: Console, report: StepReport) -> None:
    if report.decisions is None:
        _show(console, "The step came planned: its decisions are not known.")
        return
    table = _table("rule", "class", "ops", "where", "outcome", "reason")
    for decision in report.decisions:
        table.add_row(
            decision.rule,
            decision.fusion_class,
            _numbers(decision),
            one_line(decision.where),
            str(decision.outcome),
            one_line(decision.reason),
        )
    _show(console, table)


def _print_places(console: Console, report: StepReport, rule: str) -> None:
    counts = report.counts(rule)
    places = report.places(rule)
    _show(
        console,
        f"step {report.name}: {rule} fired {counts.fired} times, was refused {counts.refused} times and held "
        f"{counts.held} times",
    )
    if not places:
        return
    table = _table("class", "ops", "where", "outcome", "why")
    for place in places:
        why = one_line(place.reason) or "the rule is held"
        table.add_row(place.fusion_class, _numbers(place), one_line(place.where), str(place.outcome), why)
    _show(console, table)


def _numbers(decision: Decision) -> str:
    return " ".join(map(str, decision.covers))


def _count(count: int | None) -> str:
    return "?" if count is None else str(count or "-")


def _kinds(census: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in census.items())


def _layer_names(layers: LayersCensus) -> str:
    if layers.first is None:
        return "none"
    return str(layers.first) if layers.first == layers.last else f"{layers.first} to {layers.last}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lane-report`."""
    return run_tool("lane-report", lambda: run(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
