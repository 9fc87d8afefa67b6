"""A rule of the table: finds places, and fuses where it is legal and the chip runs the result whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Operation
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from lane_mlir.dialects.tg import ViewOp
from lane_mlir.passes.forms import covers, describe, is_reshape, place_name
from lane_mlir.passes.fuse.graph import Candidate, Illegal, StepGraph
from lane_mlir.passes.fuse.report import Decision, Report
from lane_mlir.passes.link.judge import Judge, Refusal


@dataclass(frozen=True)
class Place:
    """
    A place where a rule could fire: the class it would build over ops of the step.

    `refusal`, if there is one, says why it may not fire, whatever the chip; `at_first` that the fused op takes the
    place of the first part, not of the last.
    """

    fusion_class: str
    parts: Sequence[Operation]
    at_first: bool = False
    refusal: str = ""


@dataclass
class Rewriting:
    """One step being rewritten: its graph, the chip's judge, the decisions made, and how many firings are left."""

    graph: StepGraph
    judge: Judge
    report: Report
    limit: int | None = None
    """Firings after which no more are made; None for all."""
    held: bool = False
    """Whether what fires is reported as held: the step is then a copy."""

    def exhausted(self) -> bool:
        return self.limit is not None and self.limit <= 0


class FusionRule(RewritePattern, ABC):
    """
    One rule: where it could fire, by dataflow alone, as the places of an op.

    A place fires if its parts may run as one where the fused op stands (`StepGraph`), and if the chip runs the result
    whole: `link`, the one judge, links the candidate or says why not. Every decision is recorded.
    """

    name: ClassVar[str]
    """Its name in the table, which is also that of the class it builds unless it says otherwise."""
    anchors: ClassVar[tuple[type[Operation], ...]]
    """The ops that the rule looks at: lifted ones, and `FusedOp` if it looks at fused ones."""
    always: ClassVar[bool] = False
    """Whether the rule fires whatever the limit: what it leaves out cannot run."""

    def __init__(self, rewriting: Rewriting):
        super().__init__()
        self.rewriting = rewriting

    @property
    def graph(self) -> StepGraph:
        return self.rewriting.graph

    @abstractmethod
    def places(self, op: Operation) -> Iterator[Place]:
        """The places where the rule could fire that are anchored at an op. One that fires ends the search."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if op.parent_block() is not self.graph.block:
            return
        for place in self.places(op):
            if not self.always and self.rewriting.exhausted():
                return
            if self.decide(place, place.refusal or self.fuse(place)):
                rewriter.has_done_action = True
                return

    def decide(self, place: Place, reason: str, numbers: tuple[int, ...] | None = None) -> bool:
        """Record what became of a place: why it was refused, or that it fired. Whether it fired."""
        if numbers is None:
            numbers = tuple(number for part in place.parts for number in covers(part))
        where, held = place_name(place.parts[-1]), self.rewriting.held
        self.rewriting.report.record(
            Decision.of(self.name, place.fusion_class, numbers, where, refusal=reason, held=held)
        )
        if reason:
            return False
        if self.rewriting.limit is not None:
            self.rewriting.limit -= 1
        return True

    def refusal(self, place: Place) -> str:
        """Why a place may not fire: what is not legal, or what the chip does not run. Empty if it may."""
        candidate, reason = self._candidate(place)
        if candidate is not None:
            self.graph.drop(candidate)
        return reason

    def fuse(self, place: Place) -> str:
        """Fuse if it is legal and the chip takes it; why not, otherwise."""
        candidate, reason = self._candidate(place)
        if candidate is None:
            return reason
        self.graph.commit(candidate)
        return ""

    def _candidate(self, place: Place) -> tuple[Candidate | None, str]:
        try:
            candidate = self.graph.candidate(place.fusion_class, place.parts, at_first=place.at_first)
        except Illegal as illegal:
            return None, str(illegal)
        try:
            self.rewriting.judge.check(candidate.op)
        except Refusal as refusal:
            self.graph.drop(candidate)
            return None, str(refusal)
        return candidate, ""


def takes_part(views: Iterable[Operation]) -> str:
    """Why ops are not one with what they read through views: one of them takes part of a result. Empty if none does."""
    for view in views:
        if isinstance(view, ViewOp) and not is_reshape(view):
            return f"{describe(view)} takes some rows of a result that is computed as a whole"
    return ""


def sweep(rule: FusionRule) -> None:
    """Apply a rule over the ops of a step in order, to a fixed point."""
    changed = True
    while changed:
        changed = False
        for op in list(rule.graph.block.ops):
            if type(op) not in rule.anchors or op.parent is None:
                continue
            rewriter = PatternRewriter(op)
            rule.match_and_rewrite(op, rewriter)
            changed |= rewriter.has_done_action
