"""The choice of a token: greedy, the narrowing steps one by one, and drawn with the right chances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.text import Sampler

# Of five tokens, in no order: 0.4, 0.3, 0.15, 0.1, 0.05.
CHANCES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
LOGITS = (np.log(CHANCES) + 3).astype(np.float32)
DRAWS = 5000


def counts(sampler: Sampler, logits: NDArray[np.float32] = LOGITS) -> NDArray[np.int64]:
    return np.bincount([sampler(logits) for _ in range(DRAWS)], minlength=len(logits))


def check(sampler: Sampler, expected: NDArray[np.float64]) -> None:
    """Counts within five standard deviations of the binomial ones: missed by chance once in a million, and seeded."""
    for count, chance in zip(counts(sampler), expected, strict=True):
        assert abs(count - DRAWS * chance) <= 5 * math.sqrt(DRAWS * chance * (1 - chance))


def only(*tokens: int) -> NDArray[np.float64]:
    """The chances of some tokens, renormalized."""
    kept = np.zeros_like(CHANCES)
    kept[list(tokens)] = CHANCES[list(tokens)]
    return kept / kept.sum()


def test_greedy_by_default_and_the_lowest_of_equals() -> None:
    assert Sampler()(LOGITS) == 1
    assert Sampler()(np.array([0, 2, 1, 2], np.float32)) == 1
    assert Sampler()(np.array([-np.inf, -3], np.float32)) == 1


def test_softmax() -> None:
    check(Sampler(1.0, seed=1), CHANCES)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_raises_chances_to_its_inverse(temperature: float) -> None:
    powers = CHANCES ** (1 / temperature)
    check(Sampler(temperature, seed=2), powers / powers.sum())


def test_top_k() -> None:
    check(Sampler(1.0, top_k=2, seed=3), only(1, 3))
    check(Sampler(1.0, top_k=99, seed=3), CHANCES)
    assert counts(Sampler(5.0, top_k=1, seed=3))[1] == DRAWS


def test_top_k_takes_the_lowest_of_equals() -> None:
    drawn = counts(Sampler(1.0, top_k=2, seed=4), np.array([0, 1, 1, 1, 0], np.float32))
    assert set(np.flatnonzero(drawn)) == {1, 2}


def test_top_p_reaches_the_sum() -> None:
    check(Sampler(1.0, top_p=0.69, seed=5), only(1, 3))
    check(Sampler(1.0, top_p=0.71, seed=5), only(1, 3, 4))
    check(Sampler(1.0, top_p=1.0, seed=5), CHANCES)
    assert counts(Sampler(1.0, top_p=0.0, seed=5))[1] == DRAWS


def test_min_p_is_a_fraction_of_the_likeliest() -> None:
    check(Sampler(1.0, min_p=0.24, seed=6), only(0, 1, 3, 4))
    check(Sampler(1.0, min_p=0.26, seed=6), only(1, 3, 4))
    assert counts(Sampler(1.0, min_p=1.0, seed=6))[1] == DRAWS


def test_the_order_of_the_steps() -> None:
    # Of the best two, 0.4 and 0.3, the first alone has 0.57: top_p is of what top_k left.
    assert counts(Sampler(1.0, top_k=2, top_p=0.5, seed=7))[1] == DRAWS
    # The steps see temperature 1, however flat the temperature makes the rest.
    flat = CHANCES[[1, 3]] ** (1 / 100)
    expected = np.zeros(5)
    expected[[1, 3]] = flat / flat.sum()
    check(Sampler(100.0, top_p=0.69, seed=8), expected)


def test_a_seed_repeats_and_seeds_differ() -> None:
    draws = [[sampler(LOGITS) for _ in range(50)] for sampler in (Sampler(1.0, seed=1), Sampler(1.0, seed=1), Sampler(1.0, seed=2))]  # fmt: skip
    assert draws[0] == draws[1] != draws[2]


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.array([0, -np.inf, 0, -np.inf], np.float32)
    drawn = counts(Sampler(10.0, seed=9), logits)
    assert drawn[1] == drawn[3] == 0


def test_extreme_logits() -> None:
    for scale in (1e30, 1e-30):
        logits = (np.array([1, 2, 3]) * scale).astype(np.float32)
        assert Sampler(1e-6, seed=1)(logits) in (0, 1, 2)
    for temperature in (1e-6, 1e-320):
        assert Sampler(temperature, seed=1)(np.array([1, 2, 3], np.float32)) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(bad: float, temperature: float) -> None:
    with pytest.raises(LaneError, match=r"the logit of token 1 is (nan|inf)"):
        Sampler(temperature)(np.array([1, bad, 2], np.float32))
    with pytest.raises(LaneError, match="the logit of token 0 is -inf"):
        Sampler(temperature)(np.full(3, -np.inf, np.float32))


@pytest.mark.parametrize(
    "parameters, name",
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"min_p": -0.5}, "min_p is -0.5"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_parameters_out_of_range(parameters: dict[str, Any], name: str) -> None:
    with pytest.raises(LaneError, match=f"sampling: {name}, expected"):
        Sampler(**parameters)
