"""Tables of rotary positions (Su et al., RoFormer, 2021), with YaRN's scaling (Peng et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lane_mlir.formats import StoredTensor


@dataclass(frozen=True)
class RopeScaling:
    """The frequencies of a rotation; the fields are those of `tg.rope_table`."""

    base: float
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_context: int = 0

    def ramp(self, half: int) -> NDArray[np.float64]:
        """YaRN's ramp over the pairs: 0 where they turn beta_fast times or more, 1 where beta_slow times or less."""
        low = max(0, math.floor(self._pair_that_turns(self.beta_fast, half)))
        high = min(2 * half - 1, math.ceil(self._pair_that_turns(self.beta_slow, half)))
        return np.clip((np.arange(half) - low) / max(0.001, high - low), 0, 1)

    def _pair_that_turns(self, times: float, half: int) -> float:
        """The pair that turns so many times over the original context."""
        return half * math.log(self.original_context / (times * 2 * math.pi)) / math.log(self.base)


@dataclass(frozen=True)
class RopeTable:
    """One of the two tables of a rotation, `cos` or `sin`; `factors`: the tensor that divides its frequencies."""

    which: str
    scaling: RopeScaling
    factors: StoredTensor | None = None


def rope_tables(
    scaling: RopeScaling, positions: int, half: int, factors: tuple[float, ...] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The cosines and sines of `tg.rope_table`, each [positions, half], read-only; angles are computed in float64."""
    return _rope_tables(scaling, positions, half, factors)


# A model has one or two tables, and every step reads them.
@lru_cache(maxsize=4)
def _rope_tables(
    scaling: RopeScaling, positions: int, half: int, factors: tuple[float, ...] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    extrapolated = scaling.base ** (-np.arange(half) / half) / np.array(factors or 1.0, np.float64)
    interpolated = scaling.freq_scale * extrapolated
    magnitude, mix = scaling.attn_factor, np.zeros(half)
    if scaling.ext_factor:
        mix = scaling.ext_factor * (1 - scaling.ramp(half))
        magnitude *= 1 + 0.1 * math.log(1 / scaling.freq_scale)
    angles = np.outer(np.arange(positions), interpolated * (1 - mix) + extrapolated * mix)
    cos, sin = ((magnitude * f(angles)).astype(np.float32) for f in (np.cos, np.sin))
    cos.flags.writeable = sin.flags.writeable = False
    return cos, sin
