"""A tiny model through the Python API on an emulated card: the tokens of the CPU target, alone and together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lane_mlir
from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cuda.runtime import CudaDevice, Options
from lane_mlir.runtime import Step

PROMPTS = ([9, 1, 100, 3], [50, 2, 77, 2])


def load(models: Path, device: Any) -> Step:
    return lane_mlir.load(models / "llama-Q4_K_M.gguf", device=device, numerics="int8", chunk=4, context=32)


@pytest.fixture(scope="module")
def cuda(models: Path, new_gpu: Callable[..., Any]) -> Step:
    def emulated(checkpoint: Checkpoint) -> CudaDevice:
        return CudaDevice(checkpoint, new_gpu(), options=Options(steps=2, ahead=2))

    return load(models, emulated)


@pytest.fixture(scope="module")
def cpu(models: Path) -> Step:
    return load(models, "cpu")


def test_a_step_that_was_kept(models: Path, new_gpu: Callable[..., Any], cuda: Step, monkeypatch: pytest.MonkeyPatch):
    """It runs without being compiled; its schedule and the decisions are compiled when they are asked for."""
    programs, want = dict[bytes, bytes](), list(cuda.generate_ids(PROMPTS[0], 7))

    def emulated(checkpoint: Checkpoint) -> CudaDevice:
        return CudaDevice(checkpoint, new_gpu(kept=programs))

    assert list(load(models, emulated).generate_ids(PROMPTS[0], 7)) == want
    assert len(programs) == 2

    def refuse(*what: object) -> None:
        raise AssertionError("a step is compiled again")

    with monkeypatch.context() as patch:
        patch.setattr("lane_mlir.runtime.compilation.plan", refuse)
        step = load(models, emulated)
        assert list(step.generate_ids(PROMPTS[0], 7)) == want
    assert step.report.counts() == cuda.report.counts()
    assert str(step.schedule) == str(cuda.schedule)


def test_greedy_tokens(cuda: Step, cpu: Step):
    for prompt in PROMPTS:
        assert list(cuda.generate_ids(prompt, 7)) == list(cpu.generate_ids(prompt, 7))
    assert cuda.timing.decode_tokens == 6


def test_logits_of_chunks_and_what_is_left(cuda: Step, cpu: Step):
    """Of a number of rows that no other test compiles nothing is compiled: what is left is read token by token."""
    tokens = [*PROMPTS[0], *PROMPTS[1], 17, 4]
    got, want = cuda.logits(tokens), cpu.logits(tokens)
    # Of the int8 of an activation a few are rounded to the other side.
    assert np.linalg.norm(got - want) < 1e-2 * np.linalg.norm(want)
    assert {rows for rows, _, _ in cuda._compiled} <= {1, 4}  # pyright: ignore[reportPrivateUsage]


def test_prompts_together(cuda: Step, cpu: Step):
    alone = [list(cpu.generate_ids(prompt, 9)) for prompt in PROMPTS]
    for _ in range(2):
        assert [list(made) for made in cuda.generate_ids_batch(PROMPTS, 9)] == alone
    # And alone again, in the state that has room for two.
    assert list(cuda.generate_ids(PROMPTS[1], 9)) == alone[1]
