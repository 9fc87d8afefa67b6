"""What a step became: its launches by kind and by layer, and what each rule decided; as data, and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from xdsl.dialects.builtin import ModuleOp, NameLoc

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import LaunchOp, ScheduleOp, ViewOp, buffer_of
from lane_mlir.dialects.tg import TargetAttr
from lane_mlir.dialects.tg.step import step_functions, target_of
from lane_mlir.passes.forms import COMPOSITES, composites, locations
from lane_mlir.passes.fuse import ON_LAUNCHES, Decision, Outcome, Report, reported_rules
from lane_mlir.runtime.compilation import lower, schedules

SCHEMA = 1
"""Version of the JSON form; it grows when a field changes its meaning or goes."""

_LAYER = re.compile(r"\bblk\.(\d+)\.")


@dataclass(frozen=True)
class RuleCounts:
    """
    How often a rule fired, and at how many more places it could have but was refused or held; None where that is not
    known, since the step came after the rule.
    """

    rule: str
    fired: int
    refused: int | None
    held: int | None


@dataclass(frozen=True)
class LayersCensus:
    """Launches by kind of each of the layers `first` to `last`, which are alike; of no layer if these are None."""

    first: int | None
    last: int | None
    census: Mapping[str, int]


@dataclass(frozen=True)
class StepReport:
    """
    A planned step: what it is compiled for, how many launches of each kind run, in all and by layer (in their order;
    None where nothing tells layers), bytes of its arena, and what the rules did.

    `decisions` is None for a step that came planned, and has those of the rules on launches for one that came linked:
    what others refused is not known then. `composites`, how many ops realize each, is None for both: that is known by
    the graph.
    """

    name: str
    target: TargetAttr
    census: Mapping[str, int]
    layers: Sequence[LayersCensus] | None
    arena: int | None
    rules: Sequence[RuleCounts]
    composites: Mapping[str, int] | None
    decisions: Sequence[Decision] | None

    @property
    def launches(self) -> int:
        """Launches that run in a step."""
        return sum(self.census.values())

    def counts(self, rule: str) -> RuleCounts:
        """What a rule did."""
        return next(counts for counts in self.rules if counts.rule == rule)

    def places(self, rule: str) -> Sequence[Decision]:
        """The places where a rule did not fire."""
        return [d for d in self.decisions or () if d.rule == rule and d.outcome is not Outcome.FIRED]

    def json(self) -> dict[str, object]:
        """
        The report as plain data:

        - `name`; `target`: `chip`, `numerics`, `cache`, `state`;
        - `launches`: how many; `census`: how many of each kind; `arena_bytes`, or null;
        - `layers`: null, or a list of `{first, last, launches, census}`, counted in each of the layers first to last;
          these two are null for what belongs to no layer;
        - `rules`: a list of `{rule, fired, refused, held}`; the last two are null where they are not known;
        - `composites`: null, or how many ops realize each composite, by its name;
        - `decisions`: null, or a list of `{rule, class, covers, outcome, reason, where}`: outcome is fired, refused or
          held, covers the numbers of the lifted ops; of a rule on launches, class is the launch's kind.
        """
        target = self.target
        return {
            "name": self.name,
            "target": {
                "chip": target.chip.data,
                "numerics": str(target.numerics.data),
                "cache": str(target.cache.data),
                "state": str(target.state.data),
            },
            "launches": self.launches,
            "census": dict(self.census),
            "arena_bytes": self.arena,
            "layers": None if self.layers is None else [_layers_json(layers) for layers in self.layers],
            "rules": [
                {"rule": counts.rule, "fired": counts.fired, "refused": counts.refused, "held": counts.held}
                for counts in self.rules
            ],
            "composites": None if self.composites is None else dict(self.composites),
            "decisions": None if self.decisions is None else [decision.json() for decision in self.decisions],
        }


def _layers_json(layers: LayersCensus) -> dict[str, object]:
    launches = sum(layers.census.values())
    return {"first": layers.first, "last": layers.last, "launches": launches, "census": dict(layers.census)}


def report_steps(module: ModuleOp, held: Sequence[str] = ()) -> list[StepReport]:
    """
    Take the steps of a module to planned, in place, and report on each; a module that is planned already is left alone.

    Raises LaneError if the module has no step, or for whatever a pass refuses.
    """
    reports: Mapping[str, Report] = {}
    realized: dict[str, Mapping[str, int]] = {}

    def count(stage: str, module: ModuleOp) -> None:
        if stage == "fused":
            realized.update({func.sym_name.data: composites(func) for func in step_functions(module)})

    if not any(schedule.arena is not None for schedule in schedules(module)):
        reports = lower(module, held, count)
    found = schedules(module)
    if not found:
        raise LaneError("the module has no step: neither a function of the tensor graph nor a schedule")
    names = [schedule.sym_name.data for schedule in found]
    return [_report(step, reports.get(name), realized.get(name)) for name, step in zip(names, found, strict=True)]


def _report(schedule: ScheduleOp, decided: Report | None, realized: Mapping[str, int] | None) -> StepReport:
    return StepReport(
        schedule.sym_name.data,
        schedule.target if schedule.target is not None else target_of(schedule),
        schedule.census(),
        layers_of(schedule),
        schedule.arena.data if schedule.arena is not None else None,
        list(_rules(schedule, decided, came_linked=realized is None)),
        None if realized is None else {name: realized.get(name, 0) for name in COMPOSITES},
        None if decided is None else list(decided),
    )


def _rules(schedule: ScheduleOp, decided: Report | None, came_linked: bool) -> Iterator[RuleCounts]:
    """Every rule in the order of the table, then the one that closes a step."""
    counts = decided.counts() if decided is not None else {}
    in_launches = Counter(rule for launch in schedule.launches() for rule in launch.rules.data)
    for rule in dict.fromkeys([*reported_rules(), *counts, *in_launches]):
        outcomes = counts.get(rule, {})
        if decided is None or (came_linked and rule not in ON_LAUNCHES):
            yield RuleCounts(rule, in_launches[rule], None, None)
        else:
            yield RuleCounts(rule, *(outcomes.get(outcome, 0) for outcome in Outcome))


def layers_of(schedule: ScheduleOp) -> Sequence[LayersCensus] | None:
    """Launches by layer, neighbours that are alike as one; what stands between layers belongs to none."""
    kinds: dict[int | None, Counter[str]] = {}
    for launch in schedule.launches():
        if not isinstance(launch, ViewOp):
            kinds.setdefault(_layer(launch), Counter())[launch.kind()] += 1
    if not any(layer is not None for layer in kinds):
        return None
    numbered = sorted((layer, census) for layer, census in kinds.items() if layer is not None)
    found: list[LayersCensus] = []
    for census, alike in groupby(numbered, key=lambda entry: entry[1]):
        layers = [layer for layer, _ in alike]
        found.append(LayersCensus(layers[0], layers[-1], dict(sorted(census.items()))))
    if None in kinds:
        found.append(LayersCensus(None, None, dict(sorted(kinds[None].items()))))
    return found


def _layer(launch: LaunchOp) -> int | None:
    """
    The layer that a launch belongs to: that of the last tensor it came from, since what ends one layer may begin the
    next. Where the module does not say what it came from, the last layer that a buffer of it is named for.
    """
    names = [place.desc.data for place in locations(launch) if isinstance(place, NameLoc)]
    if names:
        return _layer_of(names[-1])
    layers = [_layer_of(buffer_of(value).label.data) for value in (*launch.reads(), *launch.writes())]
    return max((layer for layer in layers if layer is not None), default=None)


def _layer_of(name: str) -> int | None:
    match = _LAYER.search(name)
    return int(match[1]) if match is not None else None
