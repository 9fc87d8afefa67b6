"""
document_rules: docs/rules.md, written from the code: each rule's pattern, what it makes of a place and the launch that
this ends in, and how often it fires in the tiny model of each family.

`python -m lane_mlir.tools.document_rules test/data/models -o docs/rules.md`, which is `make docs`.
"""

from __future__ import annotations

import inspect
import io
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.printer import Printer

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import atomic_write, run_tool
from lane_mlir.dialects.launch import FoldOp, LaunchOp, ScheduleOp
from lane_mlir.dialects.tg import FusedOp, LiftedOperation, Numerics, TargetAttr
from lane_mlir.dialects.tg.step import step_functions
from lane_mlir.importers import import_step
from lane_mlir.passes.forms import COMPOSITES, classes_of, composites, covers
from lane_mlir.passes.fuse import ON_LAUNCHES, RULES, Fired, optimize, steps
from lane_mlir.passes.fuse.table import LATE, rule_class
from lane_mlir.passes.link import link
from lane_mlir.passes.plan import DESCRIPTIONS, plan
from lane_mlir.runtime.report import LayersCensus, layers_of
from lane_mlir.tools.arguments import ArgumentParser
from lane_mlir.tools.derive_models import VARIANTS, derive

CONTEXT = 64
TARGET = TargetAttr(numerics=Numerics.INT8)
SEQUENCES = 4
"""Sequences of the steps that are batches."""
ROWS = 20
"""Rows of the steps that are chunks: more than the kernels of matrix-vector products take."""
IN_BATCHES: Sequence[str] = ("qwen3-Q8_0", "qwen3moe-moe-Q4_K_M", "qwen35moe-moe-Q4_K_M", "deepseek2-moe-Q4_K_M")
"""The models whose batches and chunks are counted too: attention and mixtures, the delta rule, latent attention."""


@dataclass(frozen=True)
class Kind:
    """A kind of step: of one row, of several sequences, of several rows."""

    title: str
    rows: int = 1
    sequences: int = 1


DECODE = Kind("A decode step of one sequence")
BATCH = Kind(f"A decode step of {SEQUENCES} sequences", sequences=SEQUENCES)
CHUNK = Kind(f"A chunk of {ROWS} rows", rows=ROWS)


@dataclass(frozen=True)
class Compiled:
    """A step of a model, lifted and planned, and what became of it between."""

    kind: Kind
    model: str
    architecture: str
    lifted: FuncOp
    fired: Sequence[Fired]
    """The firings on the graph, in order."""
    schedule: ScheduleOp
    realized: Mapping[str, int]
    """How many ops realize each composite."""
    counts: Mapping[str, int] = field(init=False)
    """How often each rule fired."""
    layers: Sequence[LayersCensus] = field(init=False)

    def __post_init__(self) -> None:
        counts = Counter(firing.rule for firing in self.fired)
        counts.update({rule: self.schedule.fired(rule) for rule in ON_LAUNCHES})
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "layers", layers_of(self.schedule) or ())

    @property
    def label(self) -> str:
        """The model as the head of a column: the family, and what tells this file from others of it."""
        rest = "-".join(filter(None, self.model.replace(self.architecture, "").split("-")))
        return f"{self.architecture}<br>{rest}"

    def planned(self, *held: str) -> ScheduleOp:
        """The launches with rules that act on launches held."""
        func = self.lifted.clone()
        optimize(func, TARGET)
        schedule = link(func, TARGET)
        plan(schedule, held)
        return schedule

    def around(self, rule: str) -> tuple[FuncOp, FuncOp]:
        """The step as it is before a rule of the graph is applied, and after."""
        at = steps().index(rule)
        func = self.lifted.clone()
        optimize(func, TARGET, only=steps()[:at])
        after = func.clone()
        optimize(after, TARGET, only=(rule,))
        return func, after


def compiled(path: Path, kind: Kind) -> Compiled:
    """A step of a model."""
    checkpoint = Checkpoint.open(path)
    module = import_step(checkpoint, rows=kind.rows, context=CONTEXT, sequences=kind.sequences, target=TARGET)
    lifted = step_functions(module)[0]
    func = lifted.clone()
    fired = optimize(func, TARGET).fired
    schedule = link(func, TARGET)
    plan(schedule)
    return Compiled(kind, path.stem, checkpoint.architecture, lifted, fired, schedule, composites(func))


def compile_all(models: Path) -> list[Compiled]:
    """Every step that the page counts: of the models in a folder, and of the variants that are made of them."""
    paths = sorted(models.glob("*.gguf"))
    with tempfile.TemporaryDirectory() as folder:
        paths += [derive(variant, models, Path(folder)) for variant in VARIANTS]
        found = [compiled(path, DECODE) for path in paths]
        of_batches = [path for path in paths if path.stem in IN_BATCHES]
        return found + [compiled(path, kind) for kind in (BATCH, CHUNK) for path in of_batches]


_INTRODUCTION = f"""
Written by `make docs`; do not edit. Every figure is of a step under int8 numerics for the default chip, context
{CONTEXT}, of the tiny models in `test/data/models` (two layers each, unless the table of launches says more) and of
variants of three of them (`tools/derive_models.py`): products before the gates of the delta rule in f32, and all
weights in q8_0.

First come the rules of the table, in its order; then the others. These act on launches, in `plan`, all others on the
graph: {", ".join(ON_LAUNCHES)}. After the other rules of the table and fused_quant apply {" and ".join(LATE)}.
""".strip().splitlines()

_COMPOSITES = """
What fused ops amount to, by what they are made of and where their results land; how many ops of a step realize each:

- rope_kv_append: a rotation that lands in a cache's rows; qk_norm_rope_kv_append: with its per-head norm folded in;
- gated_norm: a gated delta rule, which norms its output gated by the SiLU of its gate;
- merged_projections: products of one activation as one; merged_gate_up: a gate and an up product as one;
- moe_gather_in_operand: a token-sorted mixture, which gathers each expert's rows inside its product;
- router_shared_gate_merge: a mixture that computes the router and the shared expert's gate in one.
""".strip().splitlines()

_LAUNCHES = """
How many a decode step of one sequence runs in each layer, and how many in none: the last product with the last norm,
head, arg-max. What ends one layer and begins the next, a product and the norm after it, counts in the next, and the
embedding with the first norm in the first.
""".strip().splitlines()


def rules() -> Sequence[str]:
    """Every rule: those of the table in its order, then the others that a compilation runs, in theirs."""
    return tuple(dict.fromkeys((*RULES, *steps(), *ON_LAUNCHES)))


def document(found: Sequence[Compiled]) -> str:
    """The page."""
    lines = ["# The rules", "", *_INTRODUCTION, "", "## How often each fires"]
    for kind in (DECODE, BATCH, CHUNK):
        lines += ["", *_counts(kind, found)]
    lines += ["", *_composites(found), "", *_launches(found)]
    for number, rule in enumerate(rules(), 1):
        lines += ["", *_section(number, rule, found)]
    return "\n".join(lines) + "\n"


# --- tables ---


def _grid(corner: str, heads: Sequence[str], rows: Iterable[tuple[str, Sequence[int]]]) -> list[str]:
    """A table of numbers; nothing is printed for 0."""
    return [
        f"| {' | '.join((corner, *heads))} |",
        f"|---|{'--:|' * len(heads)}",
        *(f"| {' | '.join((name, *(str(n or '') for n in numbers)))} |" for name, numbers in rows),
    ]


def _counts(kind: Kind, found: Sequence[Compiled]) -> list[str]:
    """How often each rule fired in the steps of a kind, by model."""
    of_kind = [one for one in found if one.kind is kind]
    rows = ((rule, [one.counts[rule] for one in of_kind]) for rule in rules())
    return [f"### {kind.title}", "", *_grid("rule", [one.label for one in of_kind], rows)]


def _composites(found: Sequence[Compiled]) -> list[str]:
    lines = ["## Composites", "", *_COMPOSITES, ""]
    for kind in (DECODE, BATCH, CHUNK):
        of_kind = [one for one in found if one.kind is kind]
        rows = ((name, [one.realized.get(name, 0) for one in of_kind]) for name in COMPOSITES)
        lines += [f"### {kind.title}", "", *_grid("composite", [one.label for one in of_kind], rows), ""]
    return lines[:-1]


def _launches(found: Sequence[Compiled]) -> list[str]:
    lines = [
        "## Launches",
        "",
        *_LAUNCHES,
        "",
        "| model | architecture | launches of the step | in each layer | in none |",
        "|---|---|--:|---|--:|",
    ]
    for one in found:
        if one.kind is DECODE:
            in_none = sum(sum(layers.census.values()) for layers in one.layers if layers.first is None)
            counts = ", ".join(map(str, launches_of_layers(one)))
            total = sum(one.schedule.census().values())
            lines.append(f"| {one.model} | {one.architecture} | {total} | {counts} | {in_none} |")
    return lines


def launches_of_layers(one: Compiled) -> Sequence[int]:
    """How many launches run in each layer of a step, in order."""
    counts: list[int] = []
    for layers in one.layers:
        if layers.first is not None and layers.last is not None:
            counts += [sum(layers.census.values())] * (layers.last - layers.first + 1)
    return counts


# --- one rule ---


def _section(number: int, rule: str, found: Sequence[Compiled]) -> list[str]:
    about = DESCRIPTIONS[rule] if rule in ON_LAUNCHES else inspect.getdoc(rule_class(rule)) or ""
    lines = [f"## {number}. {rule}", "", about]
    if rule not in ON_LAUNCHES:
        lines += ["", f"Builds {_listed(classes_of(rule))}."]
    launches = Counter(
        _form(launch) for one in found for launch in one.schedule.launches() if rule in launch.rules.data
    )
    if launches:
        each = [f"{form} {count}" for form, count in launches.most_common()]
        lines += ["", f"Ends in, over all steps: {', '.join(each)}."]
    return [*lines, *(_on_launches(rule, found) if rule in ON_LAUNCHES else _on_graph(rule, found))]


def _on_graph(rule: str, found: Sequence[Compiled]) -> list[str]:
    """The smallest place where a rule fired: before, after, and the launch that it ended in."""
    firings = [(len(firing.covers), i, firing) for i, one in enumerate(found) for firing in one.fired]
    _, i, firing = min((entry for entry in firings if entry[2].rule == rule), default=(0, -1, None), key=_size)
    if firing is None:
        return ["", "It fires in none of these steps."]
    one, numbers = found[i], set(firing.covers)
    before, after = (_slots(func, numbers) for func in one.around(rule))
    launches = [op for op in one.schedule.launches() if numbers & set(op.covers.data)]
    return [
        "",
        f"In {one.model} ({_lower_first(one.kind.title)}),",
        *_code(before, types=False),
        "",
        "becomes",
        *_code(after, types=False),
        "",
        "and ends in",
        *_code(launches),
    ]


def _on_launches(rule: str, found: Sequence[Compiled]) -> list[str]:
    """The smallest launch that a rule made: what runs without the rule, and with it."""
    made = [
        (len(launch.covers.data), i, launch)
        for i, one in enumerate(found)
        for launch in one.schedule.launches()
        if rule in launch.rules.data
    ]
    _, i, launch = min(made, default=(0, -1, None), key=_size)
    if launch is None:
        return ["", "It fires in none of these steps."]
    one, numbers = found[i], set(launch.covers.data)
    held = [op for op in one.planned(rule).launches() if numbers & set(op.covers.data)]
    return [
        "",
        f"In {one.model} ({_lower_first(one.kind.title)}),",
        *_code(held),
        "",
        "becomes",
        *_code([launch]),
    ]


def _size(entry: tuple[int, int, object]) -> tuple[int, int]:
    return entry[:2]


def _slots(func: FuncOp, numbers: set[int]) -> list[Operation]:
    """The ops of a step that compute lifted ops of some numbers."""
    ops = func.body.block.ops
    return [op for op in ops if isinstance(op, LiftedOperation | FusedOp) and numbers & set(covers(op))]


def _form(launch: LaunchOp) -> str:
    """A launch by its kind, and of a fold its parts': `Fold{Gemv, Norm}`."""
    name = type(launch).__name__.removesuffix("Op")
    if isinstance(launch, FoldOp):
        return f"{name}{{{_form(launch.first)}, {_form(launch.then)}}}"
    return name


def _listed(classes: Sequence[str]) -> str:
    return f"the class{'es' if len(classes) > 1 else ''} {', '.join(f'`{name}`' for name in classes)}"


def _lower_first(title: str) -> str:
    return title[0].lower() + title[1:]


def _code(ops: Sequence[Operation], *, types: bool = True) -> list[str]:
    """Ops as text; without their types if the page has no room for them."""
    output = io.StringIO()
    # One printer for all, so that no two values have one name.
    printer = Printer(output)
    for op in ops:
        printer.print_op(op)
        output.write("\n")
    lines = output.getvalue().splitlines()
    if not types:
        lines = [line.split(" : ")[0].split(" -> ")[0] for line in lines]
    return ["", "```mlir", *lines, "```"]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page for the models of a folder."""
    parser = ArgumentParser(prog="document_rules", description="Write docs/rules.md.", allow_abbrev=False)
    parser.add_argument("models", metavar="MODELS", help="the folder of the tiny models")
    parser.add_argument("-o", "--output", metavar="FILE", default="/dev/stdout", help="where to write the page")

    def run(arguments: Namespace) -> None:
        page = document(compile_all(Path(arguments.models)))
        with atomic_write(arguments.output) as file:
            file.write(page)

    return run_tool("document_rules", lambda: run(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
