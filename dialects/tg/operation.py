"""What every op of the dialect shares: its number, its memory effects, and the checks its verifier is made of."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from xdsl.dialects.builtin import I32 as IntegerType32
from xdsl.dialects.builtin import I64 as IntegerType64
from xdsl.dialects.builtin import (
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    MemRefType,
    TensorType,
    f64,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, opt_prop_def
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from lane_mlir.dialects.tg.attributes import QuantizedAttr, RowsAttr
from lane_mlir.formats import Format

Values: TypeAlias = TensorType[Float32Type]
"""f32 values of a static shape; the encoding says how they are stored."""

State: TypeAlias = MemRefType[Float32Type]
"""An array of the step's state."""

Integers: TypeAlias = MemRefType[IntegerType32]
"""A token or a position."""

F64: TypeAlias = FloatAttr[Float64Type]
I64: TypeAlias = IntegerAttr[IntegerType64]


def integer(value: int | I64) -> I64:
    return IntegerAttr(value, i64) if isinstance(value, int) else value


def real(value: float | F64) -> F64:
    return FloatAttr(value, f64) if isinstance(value, int | float) else value


class OperandEffects(MemoryEffect):
    """An op reads and writes exactly the memrefs that it says it does."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        assert isinstance(op, TensorGraphOperation)
        reads = {EffectInstance(MemoryEffectKind.READ, memref) for memref in op.memory_reads()}
        return reads | {EffectInstance(MemoryEffectKind.WRITE, memref) for memref in op.memory_writes()}


class TensorGraphOperation(IRDLOperation, ABC):
    """Base of the ops of `tg`: what they do to memory, and the checks of their verifiers."""

    def memory_writes(self) -> Sequence[SSAValue]:
        """The memrefs that the op writes."""
        return ()

    def memory_reads(self) -> Sequence[SSAValue]:
        """The memrefs that the op reads: all that it takes, unless it says otherwise."""
        return tuple(operand for operand in self.operands if isinstance(operand.type, MemRefType))

    def refuse(self, message: str) -> VerifyException:
        return VerifyException(f"'{self.name}' op {message}")

    def expect_shape(self, name: str, value: SSAValue, shape: Sequence[int], because: str = "") -> None:
        """Refuse an operand or result of another shape, naming both."""
        actual = shape_of(value)
        if actual != tuple(shape):
            why = f" ({because})" if because else ""
            raise self.refuse(f"{name} is {dimensions(actual)}, expected {dimensions(shape)}{why}")

    def expect_plain(self, **values: SSAValue | None) -> None:
        """Refuse an operand or result that is not stored as plain f32 values."""
        for name, value in values.items():
            if value is not None and encoding_of(value) is not None:
                raise self.refuse(f"{name} is stored as {encoding_of(value)}, expected plain f32 values")

    def expect_rank(self, rank: int, **values: SSAValue) -> None:
        for name, value in values.items():
            if len(shape_of(value)) != rank:
                raise self.refuse(f"{name} is {dimensions(shape_of(value))}, expected {rank} dimensions")

    def expect_positive(self, **numbers: float) -> None:
        for name, number in numbers.items():
            if not number > 0:
                raise self.refuse(f"{name} is {number}, expected more than 0")

    def expect_multiple(self, name: str, number: int, of_name: str, of: int) -> None:
        if of <= 0 or number % of:
            raise self.refuse(f"{name} ({number}) is no multiple of {of_name} ({of})")

    def expect_position(self, pos: SSAValue, name: str = "pos") -> None:
        self.expect_shape(name, pos, (1,))


class LiftedOperation(TensorGraphOperation, ABC):
    """
    An op that computes one thing of the step, and becomes a launch alone or fused.

    Its number is given when the first pass needs it, and stays with it when it is fused: what a launch covers is a list
    of these.
    """

    number = opt_prop_def(I64)


NUMBER = "(`` `[` $number^ `]`)?"
"""How the number of a lifted op is written: `tg.matmul[12]`."""


def shape_of(value: SSAValue | Attribute) -> tuple[int, ...]:
    """The static shape of a tensor or memref."""
    type_ = value.type if isinstance(value, SSAValue) else value
    assert isinstance(type_, TensorType | MemRefType)
    return type_.get_shape()


def size_of(value: SSAValue | Attribute) -> int:
    """The number of elements of a tensor or memref."""
    total = 1
    for dimension in shape_of(value):
        total *= dimension
    return total


def encoding_of(value: SSAValue | Attribute) -> Attribute | None:
    """How the values of a tensor are stored; None for plain values, and for memrefs."""
    type_ = value.type if isinstance(value, SSAValue) else value
    if not isinstance(type_, TensorType):
        return None
    encoding = type_.encoding  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return encoding if isa(encoding, RowsAttr | QuantizedAttr) else None


def format_of_weight(value: SSAValue | Attribute) -> Format:
    """The format of a weight's rows; f32 for plain values."""
    encoding = encoding_of(value)
    return encoding.data if isinstance(encoding, RowsAttr) else Format.F32


def dimensions(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if shape else "a scalar"
