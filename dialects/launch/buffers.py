"""Buffers: the arrays that the launches of a schedule read and write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import Enum

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    OptionalOperandVariable,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from lane_mlir.cuda.kernels.gemv import QBLOCK, quantizes_in_place
from lane_mlir.dialects.launch.attributes import DType, DTypeAttr, Fill, FillAttr, NumberAttr, ShapeAttr, parse_number
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import ArgAttr, Numerics


class Touch(Enum):
    """A form of a buffer: its plain elements, or blocks of 32 int8 with a scale."""

    PLAIN = "plain"
    QUANT = "quantized"


class BufferEffect(MemoryEffect):
    """A buffer is its own memory: two are never one, and one that nothing uses may go."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC, op.results[0])}


@irdl_custom_directive
class FillOf(CustomDirective):
    """What a buffer holds, with what: `zero #tg.arg<kv_cache, 0>`, `constant #launch.tensor<…>`, `alias %of + 64`."""

    fill: AttributeVariable
    role: AttributeVariable
    constant: AttributeVariable
    of: OptionalOperandVariable
    offset: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        fill = parser.parse_str_enum(Fill)
        self.fill.set(state, FillAttr(fill))
        self.of.set(state, None)
        if fill in (Fill.PARAM, Fill.ZERO, Fill.ALIAS) and (role := parser.parse_optional_attribute()) is not None:
            self.role.set(state, role)
        if fill is Fill.ALIAS:
            self.of.set(state, parser.parse_unresolved_operand())
            parser.parse_punctuation("+")
            self.offset.set(state, NumberAttr(parse_number(parser)))
        elif fill is Fill.CONSTANT:
            self.constant.set(state, parser.parse_attribute())

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        assert isinstance(op, BufferOp)
        state.print_whitespace(printer)
        printer.print_string(str(op.fill.data))
        for attribute in (op.role, op.constant):
            if attribute is not None:
                printer.print_string(" ")
                printer.print_attribute(attribute)
        if op.of is not None:
            printer.print_string(" ")
            printer.print_ssa_value(op.of)
        if op.offset is not None:
            printer.print_string(f" + {op.offset.data}")


@irdl_op_definition
class BufferOp(IRDLOperation):
    """
    One buffer of a schedule: its name (unique there), the type and shape of its elements, what it holds before the
    step, and the forms in which launches touch it: `plain`, elements of its type; `quantized`, blocks of 32 int8 with
    an f32 scale (two such words a block under two_pass_int8). The two are stored apart. After planning, a computed
    buffer has for each form its first byte in the schedule's arena.

    An alias has its elements in what it is an alias of, and its quantized form too if it begins at a whole block there;
    otherwise that form is its own, and it has a place for it.

    `transposed`: the values of a [rows, cols] constant are best stored column by column; they mean the same.

    Example: `%h = launch.buffer "h.3" f32[1x576] computed plain at 0 quantized at 4096`
    """

    name = "launch.buffer"

    of = opt_operand_def(BUFFER)
    """What an alias is an alias of."""
    label = prop_def(StringAttr, prop_name="name")
    dtype = prop_def(DTypeAttr)
    shape = prop_def(ShapeAttr)
    fill = prop_def(FillAttr)
    role = opt_prop_def(ArgAttr)
    """What a parameter or state array is to the step, or a part of one that holds those of several sequences."""
    constant = opt_prop_def(AnyAttr())
    """What a constant holds: `#launch.tensor<…>`, or whatever its maker and the target agree on."""
    offset = opt_prop_def(NumberAttr)
    """The first element of an alias."""
    transposed = opt_prop_def(UnitAttr)
    plain = opt_prop_def(UnitAttr)
    quantized = opt_prop_def(UnitAttr)
    at = opt_prop_def(NumberAttr)
    """First byte of the plain form in the arena."""
    quantized_at = opt_prop_def(NumberAttr)
    """First byte of the quantized form in the arena."""
    buffer = result_def(BUFFER)

    custom_directives = (FillOf,)
    assembly_format = (
        "$name $dtype `` `[` $shape `]` custom<FillOf>($fill, $role, $constant, $of, $offset)"
        " (`transposed` $transposed^)? (`plain` $plain^)? (`at` $at^)? (`quantized` $quantized^)?"
        " (`quantized_at` $quantized_at^)? attr-dict"
    )
    traits = traits_def(BufferEffect())

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        fill: Fill,
        *,
        dtype: DType = DType.F32,
        role: ArgAttr | None = None,
        constant: Attribute | None = None,
        of: SSAValue | None = None,
        offset: int | None = None,
        transposed: bool = False,
        plain: bool = False,
        quantized: bool = False,
    ):
        super().__init__(
            operands=[of],
            properties={
                "name": StringAttr(name),
                "dtype": DTypeAttr(dtype),
                "shape": ShapeAttr(tuple(shape)),
                "fill": FillAttr(fill),
                "role": role,
                "constant": constant,
                "offset": None if offset is None else NumberAttr(offset),
                "transposed": UnitAttr() if transposed else None,
                "plain": UnitAttr() if plain else None,
                "quantized": UnitAttr() if quantized else None,
            },
            result_types=[BUFFER],
        )
        self.name_result()

    def name_result(self) -> None:
        """Let the result have the buffer's name in text, if that can be one there: a tensor may be called anything."""
        label = self.label.data
        self.buffer.name_hint = label if SSAValue.is_valid_name(label) else None

    @property
    def length(self) -> int:
        """Elements."""
        return math.prod(self.shape.data)

    def holder(self, form: Touch) -> tuple[BufferOp, int, int]:
        """The elements that the buffer is in a form: in the storage of which buffer, from which on and up to which."""
        held, start = self, 0
        while (of := held.of) is not None and (offset := held.offset) is not None:
            if form is Touch.QUANT and not quantizes_in_place(offset.data):
                break
            start += offset.data
            held = buffer_of(of)
        return held, start, start + self.length

    @property
    def is_argument(self) -> bool:
        """Whether it is one of the step's arguments, which the buffers hold in order; what holds several is none."""
        if self.fill.data is Fill.ALIAS:
            return self.role is not None
        return self.fill.data in (Fill.PARAM, Fill.ZERO) and not self.parts()

    def parts(self) -> Sequence[BufferOp]:
        """The arguments of several sequences that the buffer holds, one after the other."""
        users = (use.operation for use in self.buffer.uses)
        held = [user for user in users if isinstance(user, BufferOp) and user.role is not None]
        return sorted(held, key=lambda part: part.offset.data if part.offset is not None else 0)

    def has(self, form: Touch) -> bool:
        """Whether launches touch the buffer in a form."""
        return (self.plain if form is Touch.PLAIN else self.quantized) is not None

    def place(self, form: Touch) -> int | None:
        """The first byte in the arena of a form that has a place of its own there."""
        at = self.at if form is Touch.PLAIN else self.quantized_at
        return at.data if at is not None else None

    def bytes(self, form: Touch, numerics: Numerics) -> int:
        """
        Bytes that a form takes. Quantized: for every block of 32 values, 32 bytes and a scale of 4, twice under
        two_pass_int8.
        """
        if form is Touch.PLAIN:
            return self.length * self.dtype.data.bytes
        words = max(numerics.words, 1)
        return -(-self.length // QBLOCK) * (QBLOCK + 4) * words

    def refuse(self, message: str) -> VerifyException:
        return VerifyException(f"'{self.name}' op \"{self.label.data}\" {message}")

    def verify_(self) -> None:
        fill = self.fill.data
        if 0 in self.shape.data or not self.shape.data:
            raise self.refuse(f"has the shape {'x'.join(map(str, self.shape.data)) or '()'}, expected sizes above 0")
        if (fill is Fill.ALIAS) != (self.of is not None) or (fill is Fill.ALIAS) != (self.offset is not None):
            raise self.refuse(f"is {fill}: an alias, and nothing else, names a buffer and an offset in it")
        if (fill is Fill.CONSTANT) != (self.constant is not None):
            raise self.refuse(f"is {fill}: a constant, and nothing else, says what it holds")
        if self.role is not None and fill not in (Fill.PARAM, Fill.ZERO, Fill.ALIAS):
            raise self.refuse(f"is {fill}: only a param, a zero or part of one has a role in the step")
        placed = self.at is not None or self.quantized_at is not None
        own_blocks = fill is Fill.ALIAS and self.at is None and self.holder(Touch.QUANT)[0] is self
        if placed and fill is not Fill.COMPUTED and not own_blocks:
            raise self.refuse(f"is {fill}: only a computed buffer lies in the arena")
        places = ((self.at, self.plain), (self.quantized_at, self.quantized))
        if any(place is not None and form is None for place, form in places):
            raise self.refuse("has a place in the arena for a form that it does not have")
        if self.transposed is not None and (fill is not Fill.CONSTANT or len(self.shape.data) != 2):
            raise self.refuse("is transposed: only a constant of two dimensions can be")
        self._verify_alias()

    def _verify_alias(self) -> None:
        if self.of is None:
            return
        of, offset = buffer_of(self.of), self.offset.data if self.offset is not None else 0
        if offset + self.length > of.length:
            raise self.refuse(
                f'is {self.length} elements from {offset} on of "{of.label.data}", which has {of.length} elements'
            )


def buffer_of(value: SSAValue) -> BufferOp:
    """The op that defines a buffer. Raises VerifyException if it is none."""
    owner = value.owner
    if not isinstance(owner, BufferOp):
        raise VerifyException(
            f"an operand is defined by {owner.name if isinstance(owner, Operation) else 'a block'}"
            ", expected launch.buffer"
        )
    return owner


def length_of(value: SSAValue) -> int:
    """The number of elements of a buffer."""
    return buffer_of(value).length


def elements(value: SSAValue) -> tuple[BufferOp, int, int]:
    """Which elements a buffer has: what holds them, the first and the one after the last."""
    return buffer_of(value).holder(Touch.PLAIN)


def holder(value: SSAValue, form: Touch = Touch.PLAIN) -> BufferOp:
    """What has the elements of a form of a buffer: itself, or what it is an alias of."""
    return buffer_of(value).holder(form)[0]
