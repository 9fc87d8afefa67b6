"""Every tiny model computes what the reference engine does, token by token and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.eval import CheckpointWeights, make_arguments, run_step
from lane_mlir.eval.step import the_step
from lane_mlir.importers import ARCHITECTURES, import_step

MODELS = Path(__file__).parent.parent / "data" / "models"
NAMES = [path.stem for path in sorted(MODELS.glob("*.gguf"))]
CONTEXT = 80
# Float against float, in other orders of summation: the reference's own two orders differ by up to 5e-6 in the worst
# row (3e-5 where the activation is a tanh-GELU).
TOLERANCE = 1e-4


def test_every_architecture_has_a_model() -> None:
    found = {Checkpoint.open(MODELS / f"{name}.gguf").architecture for name in NAMES}
    assert found == ARCHITECTURES.keys()


def worst_row(got: NDArray[Any], want: NDArray[Any]) -> float:
    assert got.shape == want.shape
    return (np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 17])
def test_logits_are_those_of_the_reference(
    name: str, chunk: int, model: Callable[..., Path], logits: Callable[..., Any], reference: Callable[..., Any]
) -> None:
    tokens, want = reference(name, "" if chunk == 1 else "_long")
    assert worst_row(logits(model(name), tokens, chunk), want) < TOLERANCE


@pytest.mark.parametrize("name", ["llama-Q4_K_M", "lfm2-Q4_K_M", "qwen3next-moe-Q4_K_M", "deepseek2-moe-Q4_K_M"])
def test_a_chunk_can_keep_only_its_last_row(name: str) -> None:
    checkpoint = Checkpoint.open(MODELS / f"{name}.gguf")
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
    assert worst_row(last, every[-1:]) < TOLERANCE
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
