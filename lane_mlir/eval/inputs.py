"""Random inputs for a step: valid ones, of which whatever must not be read is NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerType, MemRefType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation

from lane_mlir.dialects.tg import (
    ArgumentKind,
    AttentionOp,
    ConvOp,
    DecayOp,
    DeltaOp,
    GatherOp,
    QuantizedAttr,
    RopeOp,
    SetRowOp,
    TargetAttr,
    arguments,
    encoding_of,
    shape_of,
)
from lane_mlir.dialects.tg.operation import is_shaped
from lane_mlir.eval.arrays import Array
from lane_mlir.eval.numerics import quantize
from lane_mlir.eval.step import dtype_of
from lane_mlir.locations import OpFailedException

_NO_LIMIT = 16
"""Positions of a step that nothing bounds."""


@dataclass(frozen=True)
class Argument:
    """An argument of a step: its type, and what is known of it. A tensor has no kind."""

    type: Attribute
    shape: tuple[int, ...]
    kind: ArgumentKind | None
    sequence: int
    name: str
    negative: bool
    """Whether it is the rate of a decay."""


@dataclass(frozen=True)
class StepInputs:
    """
    What random inputs of a step must respect: its arguments, how many rows enter at once, how many positions there are,
    and how many tokens.
    """

    step: str
    arguments: Sequence[Argument]
    rows: int
    length: int
    vocabulary: int

    @staticmethod
    def of(func: FuncOp) -> StepInputs:
        """
        Read them off the function. What an argument without the attribute `tg.arg` is, its uses say.

        Raises: VerifyException if an argument's type is not that of its kind; OpFailedException if one has no values
        of a known number.
        """
        known = {argument.value: argument for argument in arguments(func)}
        found: list[Argument] = []
        for i, value in enumerate(func.args):
            if not is_shaped(value.type):
                cause = f"argument {i} is {value.type}, expected a tensor or memref of static shape"
                raise OpFailedException(func, f'step "{func.sym_name.data}" cannot be evaluated: {cause}')
            stated = known.get(value)
            kind = _kind_by_use(value) if stated is None else stated.kind
            negative = any(isinstance(use.operation, DecayOp) and use.index == 2 for use in value.uses)
            sequence, name = (0, "") if stated is None else (stated.sequence, stated.name)
            found.append(Argument(value.type, shape_of(value), kind, sequence, name or value.name_hint or "", negative))
        extents = [extent for op in func.walk() for extent in _extents(op)]
        rows = max((rows for rows, _ in extents), default=1)
        length = min((length for _, length in extents), default=rows + _NO_LIMIT)
        tables = [shape_of(op.table)[0] for op in func.walk() if isinstance(op, GatherOp)]
        return StepInputs(func.sym_name.data, found, rows, length, min(tables, default=1))

    @property
    def positions(self) -> Sequence[int]:
        """The first position, one in the middle, and the last."""
        last = max(0, self.length - self.rows)
        return tuple(dict.fromkeys((0, last // 2, last)))

    def at(self, position: int, target: TargetAttr, seed: int = 0) -> list[NDArray[Any]]:
        """
        The arguments of a step at a position, the same for the same seed: caches are random before it and NaN from it
        on, recurrent state is zero at position 0. Further sequences stand further on, as far as there is room.
        """
        generator = np.random.default_rng((seed, position))
        return [self._array(argument, position, target, generator) for argument in self.arguments]

    def _array(
        self, argument: Argument, position: int, target: TargetAttr, generator: np.random.Generator
    ) -> NDArray[Any]:
        dtype = dtype_of(argument.kind, argument.type, target)
        position = min(position + argument.sequence, max(position, self.length - self.rows))
        match argument.kind:
            case ArgumentKind.POSITION:
                return np.full(argument.shape, position, dtype)
            case ArgumentKind.KV_CACHE:
                cache = generator.standard_normal(argument.shape, np.float32)
                cache[position:] = np.nan
                return cache.astype(dtype)
            case ArgumentKind.CONV_RING | ArgumentKind.DELTA_STATE:
                state = generator.standard_normal(argument.shape, np.float32)
                state *= np.float32(1 / math.sqrt(argument.shape[-1]) if position else 0)
                return state.astype(dtype)
            case _ if dtype is np.int32:
                return generator.integers(self.vocabulary, size=argument.shape, dtype=np.int32)
            case _:
                return _tensor(argument, generator)


def _tensor(argument: Argument, generator: np.random.Generator) -> Array:
    normal = generator.standard_normal(argument.shape, np.float32)
    if len(argument.shape) == 1:
        return np.float32(-1 if argument.negative else 1) + np.float32(0.1) * normal
    # Of different sizes, some small enough for the epsilon of a norm to show.
    values = normal * np.float32(10 ** generator.uniform(-2, 0))
    encoding = encoding_of(argument.type)
    return quantize(values, encoding.data) if isinstance(encoding, QuantizedAttr) else values


def _kind_by_use(value: BlockArgument) -> ArgumentKind | None:
    type_ = value.type
    if not isinstance(type_, MemRefType):
        return None
    users = [use.operation for use in value.uses]
    if isinstance(type_.get_element_type(), IntegerType):
        is_token = any(isinstance(op, GatherOp) for op in users)
        return ArgumentKind.TOKEN if is_token else ArgumentKind.POSITION
    if any(isinstance(op, ConvOp) for op in users):
        return ArgumentKind.CONV_RING
    if any(isinstance(op, DeltaOp) for op in users):
        return ArgumentKind.DELTA_STATE
    return ArgumentKind.KV_CACHE


def _extents(op: Operation) -> Iterator[tuple[int, int]]:
    """How many rows an op takes from the position on, of how many there are."""
    if isinstance(op, SetRowOp):
        yield shape_of(op.src)[0], shape_of(op.table)[0]
    elif isinstance(op, AttentionOp):
        yield shape_of(op.q)[0], op.length
    elif isinstance(op, RopeOp):
        yield shape_of(op.x)[0] // op.per_row.value.data, shape_of(op.cos)[0]
