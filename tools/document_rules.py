"""
Writes docs/rules.md from the code: each rule with its pattern, before and after, its launch, and how often it fires in
each family's model.

    python -m lane_mlir.tools.document_rules MODEL.gguf … > docs/rules.md
"""

from __future__ import annotations

import inspect
import io
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.printer import Printer

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects.launch import FoldOp, LaunchOp, ScheduleOp
from lane_mlir.dialects.tg import FusedOp, LiftedOperation, Numerics, TargetAttr
from lane_mlir.importers import import_step
from lane_mlir.passes.forms import ADVANCE, FUSED_QUANT, covers
from lane_mlir.passes.fuse import RULES, Fired, optimize, step_functions
from lane_mlir.passes.fuse.table import rule_class
from lane_mlir.passes.link import link
from lane_mlir.passes.plan import plan
from lane_mlir.passes.prepare import number_ops

CONTEXT = 64
TARGET = TargetAttr(numerics=Numerics.INT8)

ON_LAUNCHES: Mapping[str, str] = {
    "rows_a_warp": "Several output rows a warp in a product that gains by it, chosen by format and shape, in `plan`.",
    "sequences": "The same launch of every sequence of a batch as one, in `plan`.",
}


@dataclass(frozen=True)
class Compiled:
    """A step of a model, at each stage, and what fired."""

    name: str
    architecture: str
    layers: int
    lifted: ModuleOp
    fused: ModuleOp
    schedule: ScheduleOp
    fired: Sequence[Fired]

    def counts(self) -> Mapping[str, int]:
        """How often each rule fired."""
        on_graph = Counter(firing.rule for firing in self.fired)
        return {rule: on_graph[rule] or self.schedule.fired(rule) for rule in (*RULES, FUSED_QUANT, ADVANCE)}

    def launches_a_layer(self) -> float:
        """Launches of the step, less those before the first layer and after the last, for each layer."""
        return sum(self.schedule.census().values()) / self.layers


def compiled(path: Path, sequences: int = 1) -> Compiled:
    """The decode step of a model, of one sequence or several, under int8."""
    checkpoint = Checkpoint.open(path)
    lifted = import_step(checkpoint, rows=1, context=CONTEXT, sequences=sequences, target=TARGET)
    func = step_functions(lifted)[0]
    number_ops(func)
    fused = lifted.clone()
    step = step_functions(fused)[0]
    fired = optimize(step, TARGET).fired
    schedule = link(step_functions(fused.clone())[0], TARGET)
    plan(schedule)
    layers = checkpoint.metadata.required(f"{checkpoint.architecture}.block_count", int)
    name = path.stem if sequences == 1 else f"{path.stem}, {sequences} sequences"
    return Compiled(name, checkpoint.architecture, layers, lifted, fused, schedule, fired)


def document(models: Sequence[Compiled]) -> str:
    """The page."""
    lines = [
        "# The rules",
        "",
        "Written by `python -m lane_mlir.tools.document_rules`; do not edit. Every figure is of a decode step under",
        f"int8 numerics, context {CONTEXT}, of the tiny models in `test/data/models`.",
        "",
        *_table(models),
        "",
        *_launches(models),
    ]
    for number, rule in enumerate((*RULES, FUSED_QUANT, ADVANCE), 1):
        lines += ["", *_section(number, rule, models)]
    return "\n".join(lines) + "\n"


def _table(models: Sequence[Compiled]) -> list[str]:
    """How often each rule fired, by model."""
    lines = ["## How often each fires", "", "| rule | models |", "|---|---|"]
    for rule in (*RULES, FUSED_QUANT, ADVANCE):
        counts = [f"{model.name} {count}" for model in models if (count := model.counts()[rule])]
        lines.append(f"| {rule} | {', '.join(counts)} |")
    return lines


def _launches(models: Sequence[Compiled]) -> list[str]:
    lines = [
        "## Launches",
        "",
        "| model | architecture | layers | launches of the step | a layer |",
        "|---|---|---|---|---|",
    ]
    for model in models:
        total = sum(model.schedule.census().values())
        lines.append(f"| {model.name} | {model.architecture} | {model.layers} | {total} | {total / model.layers:.1f} |")
    return lines


def _section(number: int, rule: str, models: Sequence[Compiled]) -> list[str]:
    about = ON_LAUNCHES[rule] if rule in ON_LAUNCHES else inspect.getdoc(rule_class(rule)) or ""
    lines = [f"## {number}. {rule}", "", about]
    for model in models:
        firing = next((f for f in model.fired if f.rule == rule), None)
        if firing is not None:
            return [*lines, "", f"As it first fires in {model.name}:", "", *_example(model, firing)]
    return lines


def _example(model: Compiled, firing: Fired) -> list[str]:
    """The lifted ops of a firing, the fused op that it made, and the launch that this ended in."""
    wanted = set(firing.covers)
    before = [op for op in model.lifted.walk() if isinstance(op, LiftedOperation) and set(covers(op)) & wanted]
    after = [
        op
        for op in model.fused.walk()
        if isinstance(op, FusedOp) and op.fusion_class.data == firing.fusion_class and set(covers(op)) <= wanted
    ]
    launches = [op for op in model.schedule.launches() if wanted & set(op.covers.data)]
    return [
        *_code([_text(op) for op in before]),
        "becomes",
        "",
        *_code([_text(op) for op in after]),
        "and ends in",
        "",
        *_code([_text(op) for op in launches]),
    ]


def _code(texts: Sequence[str]) -> list[str]:
    return ["```mlir", *texts, "```", ""]


def _text(op: Operation) -> str:
    """An op without its types, which the page has no room for."""
    if isinstance(op, FoldOp | LaunchOp):
        return _printed(op)
    return "\n".join(line.split(" : ")[0].split(" -> ")[0] for line in _printed(op).splitlines())


def _printed(op: Operation) -> str:
    output = io.StringIO()
    Printer(output).print_op(op)
    return output.getvalue()


def main() -> None:
    """Print the page for the models named on the command line."""
    print(document([compiled(Path(name)) for name in sys.argv[1:]]), end="")


if __name__ == "__main__":
    main()
