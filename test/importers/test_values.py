"""Every tiny model computes what the reference engine does, token by token and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.eval import CheckpointWeights, make_arguments, run_step
from lane_mlir.eval.step import the_step
from lane_mlir.importers import import_step

MODELS = Path(__file__).parent.parent / "data" / "models"
REFERENCES = ("logits_dequant_gelu32", "logits_step_gelu32", "logits_dequant", "logits_step")
CONTEXT = 80
# Float against float, in other orders of summation: the reference's own two orders differ by up to 5e-6 in the worst
# row (3e-5 where the activation is a tanh-GELU).
TOLERANCE = 1e-4


NAMES = [path.stem for path in sorted(MODELS.glob("*.npz"))]


def logits(path: Path, tokens: Sequence[int], chunk: int) -> NDArray[Any]:
    """Logits after each token, entered `chunk` at a time; the steps share their state."""
    checkpoint = Checkpoint.open(path)
    weights = CheckpointWeights(checkpoint)
    rows: list[NDArray[Any]] = []
    state: list[NDArray[Any]] | None = None
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        step = the_step(import_step(checkpoint, rows=len(part), context=CONTEXT, logits="all"))
        arguments = make_arguments(step)
        arguments[0][:], arguments[1][:] = part, start
        state = arguments[2:] if state is None else state
        arguments[2:] = state
        rows.append(run_step(step, weights, arguments)[0])
    return np.concatenate(rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 7, 72])
def test_logits_are_those_of_the_reference(name: str, chunk: int) -> None:
    expected = np.load(MODELS / f"{name}.npz")
    suffix = "" if chunk == 1 else "_long"
    reference = next(array for array in REFERENCES if array + suffix in expected)
    want = expected[reference + suffix]
    got = logits(MODELS / f"{name}.gguf", expected["tokens" + suffix].tolist(), chunk)
    error = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    assert error.max() < TOLERANCE


def test_a_chunk_can_keep_only_its_last_row() -> None:
    checkpoint = Checkpoint.open(MODELS / "llama-Q4_K_M.gguf")
    results: list[list[NDArray[Any]]] = []
    for rows in ("last", "all"):
        step = the_step(import_step(checkpoint, rows=7, context=CONTEXT, logits=rows))
        arguments = make_arguments(step)
        arguments[0][:] = range(7)
        results.append(run_step(step, CheckpointWeights(checkpoint), arguments))
    (last, last_id), (every, every_id) = results
    assert last.shape == (1, 128)
    assert every.shape == (7, 128)
    # The same products of the same row, in a matrix of another height.
    np.testing.assert_allclose(last[0], every[-1], rtol=1e-4, atol=1e-5)
    assert last_id == every_id == [every[-1].argmax()]


def test_a_decode_step_advances() -> None:
    checkpoint = Checkpoint.open(MODELS / "llama-Q4_K_M.gguf")
    step = the_step(import_step(checkpoint, context=CONTEXT))
    arguments = make_arguments(step)
    token, position = arguments[:2]
    token[:], position[:] = 5, 3
    values, chosen = run_step(step, CheckpointWeights(checkpoint), arguments)
    assert chosen == token == [values.argmax()]
    assert position == [4]
