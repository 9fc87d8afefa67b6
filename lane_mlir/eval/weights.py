"""Where the values of a step's constants come from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from xdsl.ir import Operation

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError, unknown
from lane_mlir.dialects.tg import ConstantOp, DecayOp, Values
from lane_mlir.dialects.tg.operation import dimensions
from lane_mlir.eval.arrays import Array


class Weights(Protocol):
    """The values of tensors, by their names."""

    def values(self, name: str, type: Values) -> Array:
        """
        The values of a tensor, in the shape of its type; nobody writes to them.

        Raises: LaneError if there is no such tensor, or it has another shape.
        """
        ...


def _in_shape(name: str, values: Array, type: Values) -> Array:
    shape = type.get_shape()
    # A file does not tell leading dimensions of 1 from none.
    if values.size == math.prod(shape) and values.shape[-1:] == shape[-1:]:
        return values.reshape(shape)
    if values.shape != shape:
        found, expected = dimensions(values.shape), dimensions(type.get_shape())
        raise LaneError(f'tensor "{name}" is {found}, expected {expected}')
    return values


@dataclass(frozen=True)
class GivenWeights:
    """Values that the caller has."""

    arrays: Mapping[str, Array]

    def values(self, name: str, type: Values) -> Array:
        if name not in self.arrays:
            raise LaneError(unknown("tensor", name, self.arrays))
        return _in_shape(name, np.asarray(self.arrays[name], np.float32), type)


@dataclass(frozen=True)
class CheckpointWeights:
    """The values of a checkpoint's tensors: each is dequantized when it is first asked for, and kept."""

    checkpoint: Checkpoint
    _kept: dict[str, Array] = field(default_factory=dict[str, Array], repr=False)

    def values(self, name: str, type: Values) -> Array:
        if name not in self._kept:
            self._kept[name] = self.checkpoint.tensor(name).values()
        return _in_shape(name, self._kept[name], type)


# A prime, so that rows of no usual length repeat.
_POOL = 4_194_301


@dataclass(frozen=True)
class RandomWeights:
    """
    Random values that depend on the seed and the tensor's name and shape alone, for comparing two forms of a step of
    any size: all tensors are cut from one pool of standard normal values, and none is kept.

    Rows of a matrix are scaled by 1/√k, so that products keep the size of their activation. Vectors lie around 1, as
    those of norms do; those named in `negative` around -1 (rates of decay, which must not grow).
    """

    seed: int = 0
    negative: frozenset[str] = frozenset()

    @staticmethod
    def of(module: Operation, seed: int = 0) -> RandomWeights:
        """Values that suit the ops of a module: its rates of decay are negative."""
        rates = (op.al.owner for op in module.walk() if isinstance(op, DecayOp))
        return RandomWeights(seed, frozenset(rate.tensor.data for rate in rates if isinstance(rate, ConstantOp)))

    def values(self, name: str, type: Values) -> Array:
        shape = type.get_shape()
        digest = hashlib.blake2b(f"{name} {shape}".encode(), digest_size=8).digest()
        start = int.from_bytes(digest) % _POOL
        size = math.prod(shape)
        pool, missing = _pool(self.seed), start + size - _POOL
        parts = [pool[start : start + size]]
        while missing > 0:
            parts.append(pool[:missing])
            missing -= _POOL
        values = np.concatenate(parts).reshape(shape)
        if len(shape) == 1:
            return np.float32(-1 if name in self.negative else 1) + np.float32(0.1) * values
        return values * np.float32(1 / math.sqrt(shape[-1]))


@lru_cache(maxsize=1)
def _pool(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(_POOL, np.float32)
