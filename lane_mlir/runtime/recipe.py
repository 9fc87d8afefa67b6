"""What decides what a step becomes, as plain data: it takes no compiler to say it, nor to find a step that was kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.target import Target

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from lane_mlir.importers.step import LogitRows
    from lane_mlir.passes.fuse import Report


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a step becomes, but its rows and which logits it returns."""

    target: Target = field(default_factory=Target)
    held: tuple[str, ...] = ()
    context: int | None = None

    def lift(self, checkpoint: Checkpoint, rows: int, logits: LogitRows, sequences: int = 1) -> ModuleOp:
        """The lifted step of a checkpoint: of rows of one sequence, or of a row of each of several."""
        from lane_mlir.dialects.tg import TargetAttr
        from lane_mlir.importers import import_step

        target = TargetAttr.of(self.target)
        return import_step(
            checkpoint, rows=rows, context=self.context, sequences=sequences, logits=logits, target=target
        )

    def lower(
        self, module: ModuleOp, after_stage: Callable[[str, ModuleOp], None] | None = None
    ) -> Mapping[str, Report]:
        """`lane_mlir.runtime.compilation.lower`, with the rules that are held."""
        from lane_mlir.runtime.compilation import lower

        return lower(module, self.held, after_stage)


@dataclass(frozen=True)
class StepIdentity:
    """What tells the steps of all checkpoints apart; `checkpoint` is the digest of its header."""

    checkpoint: str
    recipe: Recipe
    rows: int
    logits: LogitRows
    sequences: int
