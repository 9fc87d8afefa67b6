"""From a checkpoint to the module of its step."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from lane_mlir.checkpoint import Checkpoint, TensorError
from lane_mlir.chips import GIB, chip
from lane_mlir.diagnostics import LaneError, UsageError
from lane_mlir.dialects.tg import TargetAttr
from lane_mlir.importers.model import DEFAULT_CONTEXT, Model
from lane_mlir.importers.registry import importer_of
from lane_mlir.importers.step import LogitRows, Step
from lane_mlir.locations import verify
from lane_mlir.target import MAX_SEQUENCES


def import_step(
    checkpoint: Checkpoint,
    *,
    rows: int = 1,
    context: int | None = None,
    sequences: int = 1,
    logits: LogitRows = "last",
    target: TargetAttr | None = None,
) -> ModuleOp:
    """
    The lifted step of a checkpoint: a module with the function `step`, compiled for `target`.

    `rows` tokens enter at once (1: decode; more: a chunk of a prompt), `context` is the number of positions of the
    caches (2048, or what the model was trained for if that is less). A decode step returns the logits and the next
    token, and advances to it; of several `sequences`, one token of each enters, and it returns a row of logits for
    each, and as many next tokens. A chunk returns the logits of its last row, or of `all` rows, and the arg-max of the
    last; the caller sets token and position.

    Raises LaneError for whatever the checkpoint lacks, misshapes or asks for that its family does not have, and for a
    context that the chip's memory does not hold; UsageError for rows, sequences and contexts that no model has.
    """
    model = Model(checkpoint)
    build = importer_of(model)
    context = _context(model, context)
    if rows < 1:
        raise UsageError(f"rows is {rows}, expected at least 1")
    if rows > context:
        raise UsageError(f"a step of {rows} rows does not fit a context of {context} positions")
    if not 1 <= sequences <= MAX_SEQUENCES:
        raise UsageError(f"sequences is {sequences}, expected 1 to {MAX_SEQUENCES}")
    if sequences > 1 and rows > 1:
        raise UsageError(f"a step of {sequences} sequences takes one token of each, not {rows} rows")
    step = Step(model, rows=rows, context=context, logits=logits, target=target or TargetAttr(), sequences=sequences)
    try:
        module = step.close(build(step))
    except TensorError as error:
        raise LaneError(f"{error}{model.remark()}") from error
    model.refuse_unknown()
    _refuse_oversized(step)
    verify(module, name=str(checkpoint.path))
    return module


def _context(model: Model, context: int | None) -> int:
    if context is None:
        return min(DEFAULT_CONTEXT, model.count("context_length") or DEFAULT_CONTEXT)
    if context < 1:
        raise UsageError(f"context is {context}, expected at least 1")
    return context


def _refuse_oversized(step: Step) -> None:
    """Refuse state that the chip could not hold even with nothing else in its memory."""
    memory = chip(step.target.chip.data).memory_bytes
    needed = step.state_bytes
    if needed > memory:
        raise LaneError(
            f"a context of {step.context} positions takes {needed / GIB:.1f} GiB of state, more than the "
            f"{memory / GIB:.0f} GiB of chip {step.target.chip.data}"
        )
