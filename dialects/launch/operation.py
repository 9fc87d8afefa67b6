"""
What every launch shares: what it covers, what it reads and writes, and the kernel that runs it.

A launch has no results: its operands are buffers, those that it reads and those that it writes. Its other fields are
properties whose attributes hold plain Python values, `op.rows.data`; a flag is a unit attribute or None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, cast

from xdsl.dialects.builtin import DenseArrayBase, IntegerType, UnitAttr, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, opt_prop_def
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from lane_mlir.cuda.kernels.gemm import GEMM_BLK_TILE_M, GEMM_TILE_N
from lane_mlir.dialects.launch.attributes import (
    OWN,
    Dst,
    DstAttr,
    FormatsAttr,
    NamesAttr,
    NumberAttr,
    NumbersAttr,
    Part,
    PartAttr,
    RealAttr,
    Tail,
    TailAttr,
)
from lane_mlir.dialects.launch.buffers import Touch, buffer_of
from lane_mlir.dialects.tg.attributes import (
    Activation,
    ActivationAttr,
    BinaryOperator,
    BinaryOperatorAttr,
    ExpertActivation,
    ExpertActivationAttr,
    KeyHeadOrder,
    KeyHeadOrderAttr,
    Numerics,
    Pairing,
    PairingAttr,
    RowsAttr,
    Scoring,
    ScoringAttr,
)
from lane_mlir.formats import Format

Touched: TypeAlias = list[tuple[SSAValue, Touch]]
"""Buffers, and the form in which a launch touches each."""


@dataclass(frozen=True)
class Target:
    """Where a result lands: the buffer, the parameter that names its first row (if one does), and the place."""

    buffer: SSAValue
    param: SSAValue | None = None
    dst: Dst = OWN

    @property
    def own(self) -> SSAValue | None:
        """The buffer, if the result is all of it."""
        return self.buffer if self.dst.own else None


Field: TypeAlias = (
    int | float | Dst | Part | Tail | Format | tuple[Format, ...] | Activation | BinaryOperator | ExpertActivation
    | KeyHeadOrder | Pairing | Scoring | Attribute | None
)  # fmt: skip
"""A field of a launch as a Python value; None leaves it out, and so does False."""


def attribute(value: Field) -> Attribute | None:
    """The attribute of a field's value."""
    match value:
        case None | Attribute():
            return value
        case bool():
            return UnitAttr() if value else None
        case int():
            return NumberAttr(value)
        case float():
            return RealAttr(value)
        case Dst():
            return DstAttr(value)
        case Part():
            return PartAttr(value)
        case Tail():
            return TailAttr(value)
        case Format():
            return RowsAttr(value)
        case tuple():
            return FormatsAttr(value)
        case Activation():
            return ActivationAttr(value)
        case BinaryOperator():
            return BinaryOperatorAttr(value)
        case ExpertActivation():
            return ExpertActivationAttr(value)
        case KeyHeadOrder():
            return KeyHeadOrderAttr(value)
        case Pairing():
            return PairingAttr(value)
        case Scoring():
            return ScoringAttr(value)


def fields(**values: Field) -> dict[str, Attribute | None]:
    """The properties of a launch, by name, from Python values."""
    return {name: attribute(value) for name, value in values.items()}


def origin(covers: Iterable[int], rules: Iterable[str]) -> dict[str, Attribute | None]:
    """The properties that say where a launch comes from."""
    return {"covers": NumbersAttr(tuple(covers)), "rules": NamesAttr(tuple(rules))}


def present(*values: SSAValue | None) -> tuple[SSAValue, ...]:
    """The values that are there, each once, in order."""
    return tuple(dict.fromkeys(v for v in values if v is not None))


class LaunchEffects(MemoryEffect):
    """A launch reads and writes exactly the buffers that it says it does."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        assert isinstance(op, LaunchOp)
        reads = {EffectInstance(MemoryEffectKind.READ, buffer) for buffer in op.reads()}
        return reads | {EffectInstance(MemoryEffectKind.WRITE, buffer) for buffer in op.writes()}


class LaunchOp(IRDLOperation, ABC):
    """
    Base of the launches.

    `covers`: the numbers of the lifted ops that the launch computes. `rules`: the rules that made it, one name for each
    firing. Of a fold and the launches in it, the fold says both; a rotation in it says which of the ops are its.
    """

    covers = opt_prop_def(NumbersAttr, default_value=NumbersAttr(()))
    rules = opt_prop_def(NamesAttr, default_value=NamesAttr(()))

    KIND: ClassVar[str]
    """The kind under which profiles and the census count the launch."""

    # What it touches.

    @abstractmethod
    def reads(self) -> Sequence[SSAValue]:
        """The buffers that the launch reads, weights and row parameters too, each once."""

    @abstractmethod
    def writes(self) -> Sequence[SSAValue]:
        """The buffers that the launch writes, state too."""

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        """The buffers whose kernel takes elements of the type that they are stored as: 16 bits too."""
        return ()

    def updates(self) -> Sequence[SSAValue]:
        """The buffers that the launch may read and write at once: what it writes of them, it has read or never does."""
        return ()

    def touches(self, numerics: Numerics) -> tuple[Touched, Touched]:
        """
        What the launch reads and what it writes, and each in which form. Under any numerics but `dequant`, a product
        by weights in a block format reads its activation quantized.
        """
        reads = plain(self.reads())
        x = self.projected_input()
        if x is not None and numerics is not Numerics.DEQUANT:
            if not self.reads_f32_input():
                reads = [(value, form) for value, form in reads if value is not x]
            reads.append((x, Touch.QUANT))
        return reads, self.touched_writes()

    def touched_writes(self) -> Touched:
        """What the launch writes, in which form."""
        return plain(self.writes())

    def writes_whole(self, t: SSAValue, touch: Touch, length: int) -> bool:
        """Whether the launch, writing a buffer of a length in a form, writes all of it."""
        return self.written(t, touch) == length

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        """The elements that the launch writes of a buffer that is its result's own; None if it is not."""
        return None

    def writes_part(self, t: SSAValue, length: int) -> tuple[int, int, int] | None:
        """The part of every unit of a buffer that the launch writes: pitch, offset and width. None if it is no part."""
        target, units = self.unit_target(), self.unit_output()
        if target is None or units is None:
            return None
        part, (count, width) = target.dst.unit, units
        if target.dst.row is not None or part is None or target.buffer is not t:
            return None
        fits = count * part.pitch == length and part.offset + width <= part.pitch
        return (part.pitch, part.offset, width) if fits else None

    def unit_target(self) -> Target | None:
        """Where the launch's result lands, if it can land in a part of every unit of a wider array."""
        return None

    def projected_input(self) -> SSAValue | None:
        """The activation that a product by weights in a block format multiplies, read quantized."""
        return None

    def reads_f32_input(self) -> bool:
        """Whether the activation is read as f32 too: by plain weights, or by a router of plain values."""
        return False

    def result(self) -> SSAValue | None:
        """The buffer that is the launch's result and nothing else; None for a result in part of a buffer."""
        writes = self.writes()
        return writes[0] if writes else None

    def unit_output(self) -> tuple[int, int] | None:
        """The units of the result and the width of each, if it can land in a part of every unit of a wider array."""
        return None

    def take(self, name: str, value: SSAValue) -> None:
        """Give the launch an optional operand that it has not."""
        names = [operand for operand, _ in self.get_irdl_definition().operands]
        sizes = list(cast("DenseArrayBase[IntegerType]", self.properties["operandSegmentSizes"]).get_values())
        at = names.index(name)
        assert sizes[at] == 0, f"{self.name} has {name} already"
        operands = list(self.operands)
        operands.insert(sum(sizes[:at]), value)
        sizes[at] = 1
        self.operands = operands
        self.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, sizes)

    # What it is.

    def kind(self) -> str:
        """The kind under which profiles and the census count the launch."""
        return self.KIND

    def parts(self) -> Sequence[LaunchOp]:
        """The launches that a fold is made of, in order; a launch that is no fold is its own."""
        return (self,)

    def mixture(self) -> LaunchOp | None:
        """The mixture that the launch is, alone or finished by a norm."""
        return None

    def finished_mixture(self) -> tuple[LaunchOp, LaunchOp, tuple[SSAValue, SSAValue] | None] | None:
        """
        The mixture and the norm of a fold of them, and, where a sum is between, what is added and the sum's buffer.
        """
        return None

    def is_batch(self) -> bool:
        """Whether the rows are sequences, not positions."""
        return False

    # The kernel that runs it.

    def on_tensor_cores(self, numerics: Numerics) -> bool:
        """Whether a chunk's int8 product runs in tiles on tensor cores."""
        return False

    def batch_on_tensor_cores(self, numerics: Numerics) -> bool:
        """Whether the int8 product of a batch of sequences runs on tensor cores."""
        return False

    def gemm_cols(self) -> int:
        """Output columns of a product or of several side by side; 0 for anything else."""
        return 0

    def gemm_rows(self, numerics: Numerics) -> int:
        """Rows of a tile of the product on tensor cores."""
        return GEMM_BLK_TILE_M

    def gemm_tiles_wide(self) -> int:
        """Tiles over the output columns."""
        return ceil_div(self.gemm_cols(), GEMM_TILE_N)

    def multiplies_in_tiles(self, numerics: Numerics) -> bool:
        """Whether a chunk's product by f32 weights runs in tiles."""
        return False

    def pairs_gate_and_up(self, numerics: Numerics) -> bool:
        """Whether a mixture's gate and up products on tensor cores run as one, side by side."""
        return False

    def delta_in_chunks(self, numerics: Numerics) -> bool:
        """Whether the gated delta rule runs chunk by chunk, not row by row."""
        return False

    def attends_in_tiles(self, numerics: Numerics) -> bool:
        """Whether a chunk's attention runs over tiles of rows and keys."""
        return False

    def attends_on_tensor_cores(self, numerics: Numerics) -> bool:
        """Whether attention in tiles multiplies in int8 on tensor cores."""
        return False

    def attends_in_two_words(self, numerics: Numerics) -> bool:
        """Whether attention in tiles multiplies on tensor cores, each value as two int8 words."""
        return False

    def attends_flash(self, numerics: Numerics) -> bool:
        """Whether attention in tiles multiplies in f32, its scores never leaving the chip."""
        return False

    def heads_in_tiles(self, numerics: Numerics) -> bool:
        """Whether a chunk's products by each head's own weight run in tiles."""
        return False

    # What its verifier is made of.

    def refuse(self, message: str) -> VerifyException:
        return VerifyException(f"'{self.name}' op {message}")

    def named(self, field: str, value: SSAValue) -> str:
        """An operand as messages call it: `x ("h.3")`."""
        return f'{field} ("{buffer_of(value).label.data}")'

    def expect_length(self, field: str, value: SSAValue | None, length: int, because: str) -> None:
        """Refuse a buffer that has not the elements that the fields say."""
        if value is not None and (actual := buffer_of(value).length) != length:
            raise self.refuse(f"{self.named(field, value)} has {actual} elements, expected {length} ({because})")

    def expect_at_least(self, field: str, value: SSAValue, length: int, because: str) -> None:
        if (actual := buffer_of(value).length) < length:
            raise self.refuse(
                f"{self.named(field, value)} has {actual} elements, expected at least {length} ({because})"
            )

    def expect_units(self, field: str, value: SSAValue, units: int, width: int, part: Part | None, what: str) -> None:
        """Refuse a buffer that has not all units of a width: side by side, or each in a part of a wider one."""
        if part is None:
            self.expect_length(field, value, units * width, what)
            return
        self.expect_part(field, part, width)
        reach = (units - 1) * part.pitch + part.offset + width
        self.expect_at_least(field, value, reach, f"{what}, every {part.pitch} from {part.offset}")

    def expect_part(self, field: str, part: Part, width: int) -> None:
        if part.offset + width > part.pitch:
            raise self.refuse(f"{field} has units of {width} from {part.offset} on, beyond its pitch {part.pitch}")

    def expect_target(self, field: str, target: Target, units: int, width: int) -> None:
        """Refuse a place that a result of some units of a width does not fit."""
        what = f"{units} by {width} values"
        if target.dst.takes_param != (target.param is not None):
            raise self.refuse(f"{field} has a row parameter if and only if its place names one")
        row, part = target.dst.row, target.dst.unit
        if row is None:
            self.expect_units(field, target.buffer, units, width, part, what)
            return
        start = (row.index or 0) * row.pitch
        if part is None:
            if row.pitch == 0 or units * width % row.pitch:
                raise self.refuse(f"{field} gets {what}, no whole number of rows of {row.pitch}")
            reach = units * width
        else:
            self.expect_part(field, part, width)
            reach = (units - 1) * part.pitch + part.offset + width
        self.expect_at_least(field, target.buffer, start + reach, f"{what} in rows of {row.pitch}")

    def expect_positive(self, *names: str) -> None:
        """Refuse a field of 0."""
        for name in names:
            value = self.properties.get(name)
            if isinstance(value, NumberAttr) and value.data == 0:
                raise self.refuse(f"{name} is 0, expected more")

    def expect_form(self, f32: UnitAttr | None, quant: UnitAttr | None) -> None:
        if f32 is None and quant is None:
            raise self.refuse("writes its result neither as f32 nor quantized")


def plain(values: Iterable[SSAValue]) -> Touched:
    return [(value, Touch.PLAIN) for value in values]


def produced(out: SSAValue, f32: UnitAttr | None, quant: UnitAttr | None) -> Touched:
    """A result in the forms that its launch writes."""
    return [(out, form) for form, on in ((Touch.PLAIN, f32), (Touch.QUANT, quant)) if on is not None]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def target_of(y: SSAValue, param: SSAValue | None, dst: DstAttr) -> Target:
    return Target(y, param, dst.data)


# Pieces of assembly formats.


def sizes(*names: str) -> str:
    """Numbers in parentheses, by name: `(rows = 1, cols = 576)`."""
    return " ` ` `(` " + " `,` ".join(f"`{name}` `=` ${name}" for name in names) + " `)` "


def optional(*names: str) -> str:
    """Fields that are printed, after their names, only if they are there."""
    return "".join(f" (`{name}` `=` ${name}^)?" for name in names)


def flags(*names: str) -> str:
    return "".join(f" (`{name}` ${name}^)?" for name in names)


FORMS = flags("f32", "quant")
"""The forms in which a result is written."""

ORIGIN = " (`covers` $covers^)? (`by` $rules^)? attr-dict"
"""Which lifted ops a launch covers and which rules made it."""
