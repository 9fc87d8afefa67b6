"""
The optimizer: one table of fusion rules over the tensor graph, decided once for every chip.

Each rule is legal by dataflow alone and commits only when `link` runs the result whole. Rules run in a fixed order,
each to a fixed point over the ops in turn; any can be held back. Every decision is recorded with its reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.diagnostics import unknown
from lane_mlir.dialects.tg.step import step_functions
from lane_mlir.passes.forms import ADVANCE, leaves, realizes
from lane_mlir.passes.fuse.report import Decision, Fired, Outcome, Report
from lane_mlir.passes.fuse.table import (
    LATE,
    ON_LAUNCHES,
    OWN,
    RULES,
    Optimized,
    classes_built,
    optimize,
    reported_rules,
    rule_names,
    steps,
)
from lane_mlir.passes.link import check_chip
from lane_mlir.passes.prepare import set_target_of


@dataclass(frozen=True)
class FusePass(ModulePass):
    """
    Applies the table of rules to every step of the module, if it has any; a module without is left as it is.

    `held`: rules not to apply (they are still reported, as held); those that act on launches are held in `plan`, and
    named here they do nothing but give a warning on the standard error. `limit`: stop after that many firings, for
    bisecting.
    `numerics`, `chip`: override what the module says it is compiled for. `remarks`: print every decision and its reason
    on the standard error. Raises PassFailedException for an unknown rule or chip, or a negative limit.
    """

    name = "fuse"

    held: tuple[str, ...] = ()
    limit: int | None = None
    numerics: Literal["dequant", "int8", "two_pass_int8"] | None = None
    chip: str | None = None
    remarks: bool = False

    def __post_init__(self) -> None:
        check_rules(self.held)
        check_chip(self.chip)
        if self.limit is not None and self.limit < 0:
            raise PassFailedException(f"limit is {self.limit}, expected 0 or more")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self._warn()
        self.run(op)

    def apply_observed(self, ctx: Context, op: ModuleOp, after_rule: Callable[[str], None]) -> None:
        """Apply the rules, and call back with the name of each, step by step, when it is done with the step."""
        self._warn()
        self.run(op, after_rule)

    def _warn(self) -> None:
        """Say which rules are not held by this pass."""
        if elsewhere := [rule for rule in self.held if rule in ON_LAUNCHES]:
            names = ",".join(elsewhere)
            print(f"warning: fuse: {names} is held in plan, where it acts: plan{{held={names}}}", file=sys.stderr)

    def run(self, module: ModuleOp, after_rule: Callable[[str], None] | None = None) -> list[Optimized]:
        """Apply the rules; what was decided, step by step."""
        target = set_target_of(module, self.chip, self.numerics)
        made: list[Optimized] = []
        for func in step_functions(module):
            made.append(optimize(func, target, self.held, limit=self.limit, after_step=after_rule))
            if self.remarks:
                made[-1].report.print_remarks(func.sym_name.data)
        return made


def check_rules(held: Iterable[str]) -> None:
    """Refuse a rule to hold that the table has not. Raises PassFailedException with the nearest names."""
    for rule in held:
        if rule not in rule_names():
            raise PassFailedException(unknown("rule", rule, rule_names()))


def rule_pass(rule: str) -> type[ModulePass]:
    """The pass that applies one rule of the table and no other: `fuse-add-norm` for add_norm."""

    class RulePass(ModulePass):
        name = f"fuse-{rule.replace('_', '-')}"

        remarks: bool = False

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            target = set_target_of(op)
            for func in step_functions(op):
                report = optimize(func, target, only=(rule,)).report
                if self.remarks:
                    report.print_remarks(func.sym_name.data)

    RulePass.__name__ = f"Fuse{''.join(word.capitalize() for word in rule.split('_'))}Pass"
    RulePass.__doc__ = (
        f"Applies the rule {rule} of the table, and no other, to every step, as fuse does. `remarks`: likewise."
    )
    return dataclass(frozen=True)(RulePass)


__all__ = [
    "ADVANCE",
    "LATE",
    "ON_LAUNCHES",
    "OWN",
    "RULES",
    "Decision",
    "Fired",
    "FusePass",
    "Optimized",
    "Outcome",
    "Report",
    "check_rules",
    "classes_built",
    "leaves",
    "optimize",
    "realizes",
    "reported_rules",
    "rule_names",
    "rule_pass",
    "steps",
]
