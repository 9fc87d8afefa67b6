"""The choice of the next token from its logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError


@dataclass(frozen=True)
class Sampler:
    """
    Chooses a token: the likeliest one at temperature 0, otherwise a random one.

    The candidates are narrowed in this order, each step on what the one before left, with probabilities
    p = softmax(logits) at temperature 1:

    - `top_k`: the k likeliest; 0 for all.
    - `top_p`: the fewest likeliest ones whose probabilities reach this sum; 1 for all (Holtzman et al., 2020).
    - `min_p`: those at least this fraction as likely as the likeliest; 0 for all (Nguyen et al., 2024).

    One of the rest is then drawn from softmax(logits / temperature). Equal logits are in order of their ids. The same
    seed gives the same choices; without a seed they differ from run to run.

    Raises LaneError for a parameter outside its range, and for logits with a NaN or no finite maximum.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0 <= self.temperature < math.inf, "a number of at least 0")
        _check("top_k", self.top_k, self.top_k >= 0, "an integer of at least 0")
        _check("top_p", self.top_p, 0.0 <= self.top_p <= 1.0, "a number from 0 to 1")
        _check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "a number from 0 to 1")
        _check("seed", self.seed, self.seed is None or self.seed >= 0, "an integer of at least 0")

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """The token chosen for logits [vocabulary]."""
        best = int(np.argmax(logits))
        # argmax gives the first NaN if there is one.
        if not math.isfinite(logits[best]):
            raise LaneError(f"sampling: the logit of token {best} is {logits[best]}, expected a finite number")
        if self.temperature == 0:
            return best
        candidates = self._candidates(logits)
        chances = _softmax(logits[candidates].astype(np.float64), self.temperature)
        sums = np.cumsum(chances)
        drawn = int(np.searchsorted(sums, self._random.random() * float(sums[-1]), side="right"))
        return int(candidates[min(drawn, len(candidates) - 1)])

    def _candidates(self, logits: NDArray[np.float32]) -> NDArray[np.intp]:
        """The tokens left to draw from, likeliest first."""
        candidates = _likeliest(logits, self.top_k or len(logits))
        if self.top_p < 1:
            sums = np.cumsum(_softmax(logits[candidates].astype(np.float64)))
            candidates = candidates[: int(np.searchsorted(sums, self.top_p)) + 1]
        if self.min_p > 0:
            floor = float(logits[candidates[0]]) + math.log(self.min_p)
            candidates = candidates[logits[candidates] >= floor]
        return candidates


def _likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The tokens with the `count` largest logits, largest first, equal ones by their ids."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    least = np.partition(logits, -count)[-count]
    kept = np.flatnonzero(logits >= least)
    return kept[np.argsort(-logits[kept], kind="stable")][:count]


def _softmax(logits: NDArray[np.float64], temperature: float = 1.0) -> NDArray[np.float64]:
    """Chances proportional to exp(logits / temperature); the largest logit comes first."""
    # A tiny temperature sends all but the largest to minus infinity, whose chance is 0.
    with np.errstate(over="ignore"):
        weights = np.exp((logits - logits[0]) / temperature)
    return weights / weights.sum()


def _check(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise LaneError(f"sampling: {name} is {value}, expected {expected}")
