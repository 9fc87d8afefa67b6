"""What the programs of one model share: the values of weights, rotation tables, and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, StringAttr, TensorType, f32
from xdsl.ir import Attribute

from lane_mlir.checkpoint import Checkpoint, Tensor
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import DType, TensorAttr
from lane_mlir.dialects.tg import ArgAttr, ArgumentKind
from lane_mlir.eval import Array, CheckpointWeights, GivenWeights, Indices, StateArray, Weights
from lane_mlir.eval.storage import gather
from lane_mlir.rope import RopeScaling, RopeTable, rope_tables

DTYPES: Mapping[DType, DTypeLike] = MappingProxyType(
    {DType.F32: np.float32, DType.I32: np.int32, DType.F16: np.float16, DType.BF16: ml_dtypes.bfloat16}
)
"""The numpy dtype of each type of a buffer's elements."""

RowReader: TypeAlias = Callable[[Indices], Array]
"""The rows of a table, by index; raises LaneError for an index that is none of them."""


@dataclass(frozen=True)
class StateKey:
    """
    What tells arrays of state apart: what an array is to the step, of which sequence, its name, and how it is stored.
    Programs of different numbers of rows agree in it for state and position, and differ in it for their tokens.
    """

    kind: ArgumentKind | None
    sequence: int
    name: str
    shape: tuple[int, ...]
    dtype: DType

    @staticmethod
    def of(role: ArgAttr | None, label: str, shape: tuple[int, ...], dtype: DType) -> StateKey:
        """The key of a parameter or a state buffer: by what it is to the step, or else by its own name."""
        if role is None:
            return StateKey(None, 0, label, shape, dtype)
        kind, name = role.kind.data, role.label.data
        if not name and kind not in (ArgumentKind.TOKEN, ArgumentKind.POSITION):
            name = label
        return StateKey(kind, role.sequence.data, name, shape, dtype)


class Memory:
    """
    The constants and the state of one model, for all programs that run it.

    `weights`: a checkpoint, or arrays by the names of tensors, or any `Weights`. A constant is dequantized to f32 when
    the first program that reads it is made, and kept; state begins as zeros.

    Of each array of state, those of all sequences lie one after the other, so that a step of one sequence and one of
    several find the same.
    """

    def __init__(self, weights: Weights | Checkpoint | Mapping[str, Array]):
        match weights:
            case Checkpoint():
                self._weights: Weights = CheckpointWeights(weights)
            case Mapping():
                self._weights = GivenWeights(weights)
            case _:
                self._weights = weights
        self._constants: dict[tuple[Attribute, tuple[int, ...]], Array] = {}
        self._state: dict[StateKey, StateArray] = {}
        self.sequences: int = 1
        """Sequences that there is room for. As it grows, all state moves."""

    def reserve(self, sequences: int) -> None:
        """Make room for the state of so many sequences; what there is stays."""
        if sequences <= self.sequences:
            return
        self.sequences = sequences
        for key, old in self._state.items():
            self._state[key] = np.zeros((sequences, *key.shape), DTYPES[key.dtype])
            self._state[key][: len(old)] = old

    def reset(self) -> None:
        """Set all state to zero, tokens and positions too: nothing has been read yet."""
        for array in self._state.values():
            array.fill(0)

    def constant(self, constant: Attribute, shape: tuple[int, ...]) -> Array:
        """
        The values of a constant buffer, in its shape, C-contiguous; nobody writes to them.

        Raises: LaneError for a tensor that there is not, or one of another shape, and for a constant of a kind that is
        not known.
        """
        key = (constant, shape)
        if key not in self._constants:
            self._constants[key] = np.require(self._values(constant, shape), np.float32, ["C", "ALIGNED"])
        return self._constants[key]

    def rows(self, constant: Attribute, shape: tuple[int, ...]) -> RowReader:
        """
        A reader of rows of a table [rows, cols] that is read by rows alone: of a checkpoint's tensor, the rows that are
        asked for are dequantized, and nothing is kept.

        Raises: as `constant`.
        """
        tensor = self._stored(constant, shape)
        if tensor is None or (constant, shape) in self._constants:
            table = self.constant(constant, shape)
            return lambda index: gather(table, index)

        def read(index: Indices) -> Array:
            for row, at in enumerate(index):
                if not 0 <= at < shape[0]:
                    raise LaneError(f"index {at} of row {row} is not one of the table's {shape[0]} rows")
            return np.concatenate([tensor.rows(int(at), int(at) + 1) for at in index])

        return read

    def _stored(self, constant: Attribute, shape: tuple[int, ...]) -> Tensor | None:
        """The tensor of a checkpoint that is a constant, if it is stored in the shape of it."""
        if not isinstance(constant, TensorAttr) or not isinstance(self._weights, CheckpointWeights):
            return None
        tensor = self._weights.checkpoint.tensor(constant.data.name)
        return tensor if tensor.shape == shape else None

    def state(self, role: ArgAttr | None, label: str, shape: tuple[int, ...], dtype: DType) -> StateArray:
        """
        The arrays of a parameter or a state buffer, those of all sequences, [sequences, *shape]: the same for every
        program that names it alike.
        """
        key = replace(StateKey.of(role, label, shape, dtype), sequence=0)
        if key not in self._state:
            self._state[key] = np.zeros((self.sequences, *shape), DTYPES[dtype])
        return self._state[key]

    def _values(self, constant: Attribute, shape: tuple[int, ...]) -> Array:
        if isinstance(constant, TensorAttr):
            return self._weights.values(constant.data.name, TensorType(f32, shape))
        if isinstance(constant, DictionaryAttr) and "rope_table" in constant.data:
            return self._rope_table(constant, shape)
        raise LaneError(f"cannot make the constant {constant}: it is neither a tensor nor a rotation table")

    def _rope_table(self, constant: DictionaryAttr, shape: tuple[int, ...]) -> Array:
        table, (positions, half) = rope_table_of(constant), shape
        divisors = None
        if table.factors is not None:
            divisors = tuple(map(float, self.constant(TensorAttr(table.factors), (half,))))
        cos, sin = rope_tables(table.scaling, positions, half, divisors)
        return cos if table.which == "cos" else sin


def rope_table_of(constant: DictionaryAttr) -> RopeTable:
    """
    The table of cosines or sines that a constant buffer holds; its fields are those of `tg.rope_table`.

    Raises: LaneError for what is neither.
    """
    which, factors = constant.data["rope_table"], constant.data.get("factors")
    if not isinstance(which, StringAttr) or which.data not in ("cos", "sin"):
        raise LaneError(f"rope_table is {which}, expected cos or sin")
    if factors is not None and not isinstance(factors, TensorAttr):
        raise LaneError(f"the factors of a rope_table are {factors}, expected a tensor")
    numbers = {name: value for name, attr in constant.data.items() if (value := _number(attr)) is not None}
    context = int(numbers.pop("original_context", 0))
    scaling = RopeScaling(**numbers, original_context=context)
    return RopeTable(which.data, scaling, None if factors is None else factors.data)


def _number(attribute: Attribute) -> float | None:
    if isinstance(attribute, FloatAttr | IntegerAttr):
        return float(attribute.value.data)
    return None
