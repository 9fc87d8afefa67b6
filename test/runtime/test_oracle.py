"""The tiny models on the CPU against what a reference engine computes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lane_mlir
from lane_mlir import Sampler, Step

NAMES = ("llama-f32", "llama-Q4_K_M", "qwen3-Q8_0")

# f32 against f32: orders of summation differ by a few 1e-7, the reference's own two runs by up to 2e-6.
TOLERANCE = 1e-5
# Another token is right only where the reference's best two logits are as close as this.
NEAR_TIE = 0.05


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def oracle(name: str, models: Path) -> dict[str, NDArray[Any]]:
    return dict(np.load(models / f"{name}.npz"))


@pytest.fixture(scope="module")
def step(name: str, models: Path) -> Step:
    return lane_mlir.load(models / f"{name}.gguf", context=128)


def worst_row(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    """The largest relative L2 error of a row."""
    assert got.shape == want.shape
    return float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())


def reference(oracle: dict[str, NDArray[Any]], suffix: str = "") -> NDArray[np.float32]:
    exact = f"logits_dequant{suffix}"
    return oracle[exact if exact in oracle else f"logits_step{suffix}"]


def expect_greedy(got: list[int], oracle: dict[str, NDArray[Any]]) -> None:
    want, margin = oracle["greedy_ids"].tolist(), oracle["greedy_margin"]
    assert len(got) == len(want)
    differing = next((i for i in range(len(want)) if got[i] != want[i]), None)
    assert differing is None or margin[differing] < NEAR_TIE


def test_greedy_tokens(step: Step, oracle: dict[str, NDArray[Any]]):
    prompt = oracle["greedy_prompt"].tolist()
    for _ in range(2):
        expect_greedy(list(step.generate_ids(prompt, 24)), oracle)


def test_greedy_tokens_chosen_by_the_host(step: Step, oracle: dict[str, NDArray[Any]]):
    prompt = oracle["greedy_prompt"].tolist()
    expect_greedy(list(step.generate_ids(prompt, 24, sampler=Sampler())), oracle)


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 64])
def test_logits(name: str, models: Path, oracle: dict[str, NDArray[Any]], chunk: int):
    step = lane_mlir.load(models / f"{name}.gguf", context=128, chunk=chunk)
    for suffix in ("", "_long"):
        got = step.logits(oracle[f"tokens{suffix}"].tolist())
        assert worst_row(got, reference(oracle, suffix)) < TOLERANCE


def test_a_chunk_then_decoding_is_one_sequence(step: Step, oracle: dict[str, NDArray[Any]]):
    """Prompt and continuation read as one chunk give the logits by which the continuation was chosen."""
    prompt = oracle["greedy_prompt"].tolist()
    made = list(step.generate_ids(prompt, 12))
    assert step.logits([*prompt, *made])[len(prompt) - 1 : -1].argmax(1).tolist() == made


def test_cache_of_16_bits(name: str, models: Path, oracle: dict[str, NDArray[Any]]):
    step = lane_mlir.load(models / f"{name}.gguf", context=128, cache="f16")
    error = worst_row(step.logits(oracle["tokens"].tolist()), reference(oracle))
    # Half precision rounds keys and values by up to 2^-11 of each.
    assert TOLERANCE < error < 5e-3


@pytest.mark.parametrize(("numerics", "least", "most"), [("int8", 1e-3, 1e-1), ("two_pass_int8", 0.0, 1e-3)])
def test_numerics(models: Path, numerics: str, least: float, most: float):
    """Activations of 8 bits are off by some percent, as the reference's own are; of two words, by hardly anything."""
    oracle = dict(np.load(models / "llama-Q4_K_M.npz"))
    step = lane_mlir.load(models / "llama-Q4_K_M.gguf", context=128, numerics=numerics)
    assert least <= worst_row(step.logits(oracle["tokens"].tolist()), reference(oracle)) < most


def test_held_rules_change_no_value(name: str, models: Path, oracle: dict[str, NDArray[Any]]):
    held = lane_mlir.load(models / f"{name}.gguf", context=128, held=["add_norm", "row_write", "rope_parts"])
    tokens = oracle["tokens"].tolist()
    assert worst_row(held.logits(tokens), reference(oracle)) < TOLERANCE


def test_sampling_by_seed(step: Step):
    def ids(seed: int) -> list[int]:
        sampler = Sampler(temperature=1.5, top_k=20, seed=seed)
        return list(step.generate_ids([3, 1, 4], 12, sampler=sampler))

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)
