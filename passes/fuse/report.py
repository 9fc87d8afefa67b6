"""What became of every place where a rule could fire."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.utils.str_enum import StrEnum


class Outcome(StrEnum):
    """What became of a place where a rule could fire."""

    FIRED = "fired"
    REFUSED = "refused"
    HELD = "held"


@dataclass(frozen=True)
class Decision:
    """One place where a rule could fire: the class that it builds over the lifted ops it would compute."""

    rule: str
    fusion_class: str
    covers: tuple[int, ...]
    outcome: Outcome
    reason: str = ""
    """Why it did not fire: one sentence. Empty if it fired."""
    where: str = ""
    """The tensor or place in the step that the ops come from."""

    def remark(self, step: str) -> str:
        """The line that a pass prints of it: `remark: @step: act_gate refused on [2, 3] (blk.0.ffn_gate): …`."""
        numbers, where = ", ".join(map(str, self.covers)), f" ({self.where})" if self.where else ""
        reason = f": {self.reason}" if self.outcome is Outcome.REFUSED else ""
        return f"remark: @{step}: {self.rule} {self.outcome} on [{numbers}]{where}{reason}"

    def json(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "class": self.fusion_class,
            "covers": list(self.covers),
            "outcome": str(self.outcome),
            "reason": self.reason,
            "where": self.where,
        }

    @staticmethod
    def of(
        rule: str, fusion_class: str, covers: tuple[int, ...], where: str, *, refusal: str = "", held: bool = False
    ) -> Decision:
        """What becomes of a place: refused for a reason, else held where the rule is, else fired."""
        if refusal:
            return Decision(rule, fusion_class, covers, Outcome.REFUSED, refusal, where)
        if held:
            return Decision(rule, fusion_class, covers, Outcome.HELD, f"{rule} is held", where)
        return Decision(rule, fusion_class, covers, Outcome.FIRED, where=where)


@dataclass(frozen=True)
class Fired:
    """A rule that fired: its name, the class it built, and the lifted ops that the result computes."""

    rule: str
    fusion_class: str
    covers: tuple[int, ...]


@dataclass
class Report:
    """
    Every decision of a compilation, in the order that the rules made them.

    A place that a later sweep of the same rule judges again has one decision, the last.
    """

    _decisions: dict[tuple[str, str, tuple[int, ...], int], Decision] = field(
        default_factory=dict[tuple[str, str, tuple[int, ...], int], Decision]
    )

    def record(self, decision: Decision, nth: int = 0) -> None:
        """Keep a decision; `nth` tells those apart that a rule makes on one place, such as on each of its products."""
        self._decisions[decision.rule, decision.fusion_class, decision.covers, nth] = decision

    def add(self, decision: Decision) -> None:
        """Keep a decision of a rule on launches, which judges each place once: those that cover nothing stay apart."""
        self.record(decision, nth=len(self))

    def extend(self, other: Report) -> None:
        """Keep all decisions of another report after these."""
        self._decisions.update(other._decisions)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions.values())

    def __len__(self) -> int:
        return len(self._decisions)

    def of(self, rule: str) -> Sequence[Decision]:
        """The decisions of a rule."""
        return [decision for decision in self if decision.rule == rule]

    def fired(self) -> Sequence[Fired]:
        """Every firing, in order."""
        return [Fired(d.rule, d.fusion_class, d.covers) for d in self if d.outcome is Outcome.FIRED]

    def counts(self) -> dict[str, dict[Outcome, int]]:
        """For each rule that had a place to decide on, how many of each outcome."""
        counts: dict[str, dict[Outcome, int]] = {}
        for decision in self:
            outcomes = counts.setdefault(decision.rule, dict.fromkeys(Outcome, 0))
            outcomes[decision.outcome] += 1
        return counts

    def print_remarks(self, step: str) -> None:
        """Print every decision on the standard error, as compilers do remarks."""
        for decision in self:
            print(decision.remark(step), file=sys.stderr)

    def json(self) -> list[dict[str, object]]:
        return [decision.json() for decision in self]
