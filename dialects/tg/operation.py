"""What every op of the dialect shares: its number, its memory effects, and the checks its verifier is made of."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import I32 as IntegerType32
from xdsl.dialects.builtin import I64 as IntegerType64
from xdsl.dialects.builtin import (
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    TensorType,
    f64,
    i64,
)
from xdsl.ir import Attribute, AttributeCovT, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    MessageConstraint,
    VerificationContext,
    irdl_to_attr_constraint,
    opt_prop_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, OpTrait
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

Ids: TypeAlias = TensorType[IntegerType32]
"""Tokens chosen, one a row."""


@dataclass(frozen=True, init=False)
class Described(MessageConstraint[AttributeCovT]):
    """A constraint on a type that says in words what it takes, and what it found."""

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        try:
            self.constr.verify(attr, constraint_context)
        except VerifyException as error:
            raise VerifyException(f"found {attr}, expected {self.message}") from error


VALUES = Described(irdl_to_attr_constraint(Values), "a tensor of f32")
STATE = Described(irdl_to_attr_constraint(State), "a memref of f32")
VALUES_OR_STATE = Described(irdl_to_attr_constraint(Values | State), "a tensor or a memref of f32")
INTEGERS = Described(irdl_to_attr_constraint(Integers), "a memref of i32")
IDS = Described(irdl_to_attr_constraint(Ids), "a tensor of i32")


def integer(value: int | I64) -> I64:
    return IntegerAttr(value, i64) if isinstance(value, int) else value


def real(value: float | F64) -> F64:
    return FloatAttr(value, f64) if isinstance(value, int | float) else value


@irdl_custom_directive
class Real(CustomDirective):
    """
    A real number in an assembly format, `custom<Real>($eps)`.

    It is written as xDSL does where that can be read back. A whole number of more than six digits, as the base of a
    rotation may be, cannot: xDSL writes its bits.
    """

    number: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.number.parse(parser, state)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        attribute = self.number.get(op)
        assert isa(attribute, F64)
        state.print_whitespace(printer)
        value = attribute.value.data
        if value.is_integer() and float(f"{value:.5e}") != value:
            printer.print_string(repr(value))
        else:
            attribute.print_without_type(printer)

    def is_present(self, op: IRDLOperation) -> bool:
        return self.number.is_present(op)

    def is_anchorable(self) -> bool:
        return self.number.is_anchorable()


class OperandEffects(MemoryEffect):
    """An op reads and writes exactly the memrefs that it says it does."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        assert isinstance(op, TensorGraphOperation)
        reads = {EffectInstance(MemoryEffectKind.READ, memref) for memref in op.memory_reads()}
        return reads | {EffectInstance(MemoryEffectKind.WRITE, memref) for memref in op.memory_writes()}


class WellFormed(OpTrait):
    """Every operand, result and property of the op has the form that any formula needs."""

    def verify(self, op: Operation) -> None:
        assert isinstance(op, TensorGraphOperation)
        op.verify_types()
        op.verify_properties()


class TensorGraphOperation(IRDLOperation, ABC):
    """
    Base of the ops of `tg`: what they do to memory, and the checks of their verifiers.

    Before the verifier of an op runs, its operands and results are known to have static shapes without a dimension of
    0, and to be stored as plain values, or as the op says in `STORED_AS`.
    """

    STORED_AS: ClassVar[Mapping[str, tuple[type[RowsAttr | QuantizedAttr], ...]]] = {}
    """The encodings that operands and results may have, by name. Those without an entry are plain f32 values."""

    custom_directives = (Real,)
    traits = traits_def(WellFormed())

    def memory_writes(self) -> Sequence[SSAValue]:
        """The memrefs that the op writes."""
        return ()

    def memory_reads(self) -> Sequence[SSAValue]:
        """The memrefs that the op reads: all that it takes, unless it says otherwise."""
        return tuple(operand for operand in self.operands if isinstance(operand.type, MemRefType))

    def refuse(self, message: str) -> VerifyException:
        return VerifyException(f"'{self.name}' op {message}")

    def verify_types(self) -> None:
        definition = self.get_irdl_definition()
        for name, _ in (*definition.operands, *definition.results):
            found: SSAValue | Sequence[SSAValue] | None = getattr(self, name)
            values = (found,) if isinstance(found, SSAValue) else found or ()
            for value in values:
                self._verify_type(name, value.type)

    def _verify_type(self, name: str, type_: Attribute) -> None:
        if not isinstance(type_, TensorType | MemRefType):
            return
        shape = type_.get_shape()
        if not shape:
            raise self.refuse(f"{name} is a scalar, expected at least one dimension")
        if min(shape) < 1:
            raise self.refuse(f"{name} is {dimensions(shape)}, expected a static shape without a dimension of 0")
        if isinstance(type_, MemRefType):
            if not isinstance(type_.layout, NoneAttr) or not isinstance(type_.memory_space, NoneAttr):
                raise self.refuse(f"{name} is {type_}, expected a memref without a layout or a memory space")
            return
        encoding = type_.encoding
        if isinstance(encoding, NoneAttr):
            return
        allowed = self.STORED_AS.get(name, ())
        if not isinstance(encoding, RowsAttr | QuantizedAttr) or not isinstance(encoding, allowed):
            expected = " or ".join(("plain f32 values", *(f"#{kind.name}" for kind in allowed)))
            raise self.refuse(f"{name} is stored as {encoding}, expected {expected}")
        if shape[-1] % encoding.block:
            raise self.refuse(
                f"{name} has rows of {shape[-1]} values, no whole number of {encoding.data} blocks of {encoding.block}"
            )

    def verify_properties(self) -> None:
        for name, value in self.properties.items():
            if isinstance(value, FloatAttr) and not isfinite(value.value.data):
                raise self.refuse(f"{name} is {value.value.data}, expected a finite number")

    def expect_shape(self, name: str, value: SSAValue, shape: Sequence[int], because: str = "") -> None:
        """Refuse an operand or result of another shape, naming both."""
        actual = shape_of(value)
        if actual != tuple(shape):
            why = f" ({because})" if because else ""
            raise self.refuse(f"{name} is {dimensions(actual)}, expected {dimensions(shape)}{why}")

    def expect_rank(self, rank: int, **values: SSAValue) -> None:
        for name, value in values.items():
            if len(shape_of(value)) != rank:
                plural = "" if rank == 1 else "s"
                raise self.refuse(f"{name} is {dimensions(shape_of(value))}, expected {rank} dimension{plural}")

    def expect_positive(self, **numbers: float) -> None:
        for name, number in numbers.items():
            if not number > 0:
                raise self.refuse(f"{name} is {number}, expected more than 0")

    def expect_not_negative(self, **numbers: float) -> None:
        for name, number in numbers.items():
            if number < 0:
                raise self.refuse(f"{name} is {number}, expected 0 or more")

    def expect_multiple(self, name: str, number: int, of_name: str, of: int) -> None:
        if of <= 0 or number % of:
            raise self.refuse(f"{name} ({number}) is no multiple of {of_name} ({of})")

    def disagree(self, a: str, value: SSAValue, b: str, other: SSAValue, how: str) -> VerifyException:
        """The refusal of two operands whose shapes do not go together."""
        return self.refuse(f"{a} is {dimensions(shape_of(value))}, but {b} is {dimensions(shape_of(other))}: {how}")

    def expect_position(self, pos: SSAValue, name: str = "pos") -> None:
        self.expect_shape(name, pos, (1,))


class LiftedOperation(TensorGraphOperation, ABC):
    """
    An op that computes one thing of the step, and becomes a launch alone or fused.

    Its number is given when the first pass needs it, and stays with it when it is fused: what a launch covers is a list
    of these. Compare it with None: the attribute of number 0 is false.
    """

    number = opt_prop_def(I64)

    def verify_properties(self) -> None:
        super().verify_properties()
        if self.number is not None:
            self.expect_not_negative(number=self.number.value.data)


NUMBER = "(`` `[` $number^ `]`)?"
"""How the number of a lifted op is written: `tg.matmul[12]`."""


def is_shaped(type_: Attribute) -> bool:
    """Whether it is a tensor or memref whose shape is known."""
    return isinstance(type_, TensorType | MemRefType) and type_.has_static_shape()


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


def encoding_of(value: SSAValue | Attribute) -> RowsAttr | QuantizedAttr | None:
    """How the values of a tensor are stored; None for plain values, and for memrefs."""
    type_ = value.type if isinstance(value, SSAValue) else value
    if not isinstance(type_, TensorType):
        return None
    encoding: Attribute = type_.encoding
    return encoding if isinstance(encoding, RowsAttr | QuantizedAttr) else None


def format_of_weight(value: SSAValue | Attribute) -> Format:
    """The format of a weight's rows; f32 for plain values."""
    encoding = encoding_of(value)
    return encoding.data if isinstance(encoding, RowsAttr) else Format.F32


def dimensions(shape: Sequence[int]) -> str:
    """The shape as text: `4x?x32`."""
    return "x".join("?" if d < 0 else str(d) for d in shape) if shape else "a scalar"
