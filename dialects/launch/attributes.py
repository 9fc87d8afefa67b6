"""
Attributes of the launch dialect. Each holds a plain Python value, `attribute.data`, and prints bare inside an op:
`(rows = 1, cols = 576)`, `every 192 from 128`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Data, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from lane_mlir.dialects.tg.attributes import Precision
from lane_mlir.formats import Format, StoredTensor


class DType(StrEnum):
    """The type of a buffer's elements in its plain form."""

    F32 = "f32"
    I32 = "i32"
    BF16 = "bf16"
    F16 = "f16"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 2 if self in (DType.BF16, DType.F16) else 4

    @property
    def c_type(self) -> str:
        """Name of the type in CUDA C."""
        return {DType.F32: "float", DType.I32: "int", DType.BF16: "__nv_bfloat16", DType.F16: "__half"}[self]

    @staticmethod
    def of(precision: Precision) -> DType:
        """The type of a state array of a precision."""
        return DType(str(precision))


class Fill(StrEnum):
    """What a buffer holds before the step runs."""

    PARAM = "param"
    """A token or a position, written by the host or by the last step."""
    ZERO = "zero"
    """State: zero at first, then what the steps before left."""
    CONSTANT = "constant"
    """A tensor of the checkpoint or a table computed at load."""
    COMPUTED = "computed"
    """Nothing: a launch writes it."""
    ALIAS = "alias"
    """The elements of another buffer from an offset on."""


@dataclass(frozen=True)
class Part:
    """
    A part of every unit of a wider array, read or written in place: unit u has its elements from u·pitch + offset on.
    """

    pitch: int
    offset: int


@dataclass(frozen=True)
class Row:
    """
    A row of a table, in rows of `pitch` elements: row `index`, or if that is None the row that a parameter names. The
    result's values, flat, land from the row's first element on, in as many rows as they fill.
    """

    pitch: int
    index: int | None = None


@dataclass(frozen=True)
class Dst:
    """
    Where in its buffer a result lands: in rows of a table, in a part of every unit of a wider array (from that row
    on, if both), or, if neither, over the whole buffer, which is then the result's own.
    """

    row: Row | None = None
    unit: Part | None = None

    @property
    def own(self) -> bool:
        return self.row is None and self.unit is None

    @property
    def takes_param(self) -> bool:
        """Whether the row is named by a parameter, an operand of the launch."""
        return self.row is not None and self.row.index is None


OWN = Dst()


@dataclass(frozen=True)
class Tail:
    """The rows of a chunk that a product computes: its input has `rows` rows, and it begins at row `first` of them."""

    first: int
    rows: int


@dataclass(frozen=True)
class GemmPart:
    """
    One product of several with the same activation: its output columns, whether it has a scale and a bias and the bias
    is scaled too, where it lands.
    """

    n: int
    scale: bool = False
    bias: bool = False
    scaled_bias: bool = False
    dst: Dst = OWN


@dataclass(frozen=True)
class RopeSide:
    """
    One rotation of several at the same position. `heads` units, `per_row` a row; `part`: read in place; `eps`: its
    heads are normed first, with a weight; `yz`: elements between the tables of two sequences, 0 if there is one.
    """

    heads: int
    per_row: int
    part: Part | None = None
    eps: float | None = None
    dst: Dst = OWN
    yz: int = 0


@dataclass(frozen=True)
class ConvPart:
    """One convolution of several: its channels, and whether an L2 norm of every block of them follows."""

    chan: int
    l2: bool = False


@dataclass(frozen=True)
class SplitKeys:
    """
    Keys and queries in two arrays: the first `own` columns of a head in its own array (a query every `q_pitch`), the
    rest, the rotated tail, in another, of which `q_tail` and `k_tail` say where: the query's in every head, the key's,
    shared by all heads, in every row.
    """

    own: int
    q_pitch: int
    q_tail: Part
    k_tail: Part


def parse_part(parser: AttrParser) -> Part:
    pitch = parser.parse_integer(allow_boolean=False, allow_negative=False)
    parser.parse_keyword("from")
    return Part(pitch, parser.parse_integer(allow_boolean=False, allow_negative=False))


def print_part(printer: Printer, part: Part) -> None:
    printer.print_string(f"{part.pitch} from {part.offset}")


def parse_optional_unit(parser: AttrParser) -> Part | None:
    return parse_part(parser) if parser.parse_optional_keyword("every") else None


def print_optional_unit(printer: Printer, part: Part | None) -> None:
    if part is not None:
        printer.print_string(" every ")
        print_part(printer, part)


def print_real(printer: Printer, value: float) -> None:
    """The shortest decimal that reads back as the value, with the point that the syntax of floats asks for."""
    text = repr(value)
    printer.print_string(text if "." in text else text.replace("e", ".0e"))


def parse_number(parser: AttrParser) -> int:
    return parser.parse_integer(allow_boolean=False, allow_negative=False)


def parse_named_number(parser: AttrParser, name: str) -> int:
    parser.parse_keyword(name)
    parser.parse_punctuation("=")
    return parse_number(parser)


def parse_dst(parser: AttrParser) -> Dst:
    """`own`, `row param pitch 64`, `row 3 pitch 64`, `every 64 from 32`, or a row and then a part."""
    if parser.parse_optional_keyword("own"):
        return OWN
    row = None
    if parser.parse_optional_keyword("row"):
        index = None if parser.parse_optional_keyword("param") else parse_number(parser)
        parser.parse_keyword("pitch")
        row = Row(parse_number(parser), index)
    return Dst(row, parse_optional_unit(parser))


def print_dst(printer: Printer, dst: Dst) -> None:
    words: list[str] = []
    if dst.row is not None:
        words.append(f"row {'param' if dst.row.index is None else dst.row.index} pitch {dst.row.pitch}")
    if dst.unit is not None:
        words.append(f"every {dst.unit.pitch} from {dst.unit.offset}")
    printer.print_string(" ".join(words) or "own")


@irdl_attr_definition
class NumberAttr(Data[int], SpacedOpaqueSyntaxAttribute):
    """A count, a length or an offset: 0 or more."""

    name = "launch.number"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> int:
        return parse_number(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(str(self.data))

    def verify(self) -> None:
        if self.data < 0:
            raise VerifyException(f"a number is {self.data}, expected 0 or more")


@irdl_attr_definition
class RealAttr(Data[float], SpacedOpaqueSyntaxAttribute):
    """A finite real number, in double precision."""

    name = "launch.real"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> float:
        return float(parser.parse_number())

    def print_parameter(self, printer: Printer) -> None:
        print_real(printer, self.data)

    def verify(self) -> None:
        if not math.isfinite(self.data):
            raise VerifyException(f"a real is {self.data}, expected a finite number")


@irdl_attr_definition
class NumbersAttr(Data[tuple[int, ...]], SpacedOpaqueSyntaxAttribute):
    """Numbers in brackets: `[3, 4]`."""

    name = "launch.numbers"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_number(parser)))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"[{', '.join(map(str, self.data))}]")


@irdl_attr_definition
class NamesAttr(Data[tuple[str, ...]], SpacedOpaqueSyntaxAttribute):
    """Names in brackets: `[add_norm, rows_a_warp]`."""

    name = "launch.names"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[str, ...]:
        return tuple(
            parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_identifier_or_str_literal())
        )

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_square_brackets():
            printer.print_list(self.data, printer.print_identifier_or_string_literal)


@irdl_attr_definition
class ShapeAttr(Data[tuple[int, ...]], SpacedOpaqueSyntaxAttribute):
    """A shape: `1x576`."""

    name = "launch.shape"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int, ...]:
        return tuple(parser.parse_dimension_list())

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("x".join(map(str, self.data)))


@irdl_attr_definition
class PartAttr(Data[Part], SpacedOpaqueSyntaxAttribute):
    name = "launch.part"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Part:
        return parse_part(parser)

    def print_parameter(self, printer: Printer) -> None:
        print_part(printer, self.data)


@irdl_attr_definition
class DstAttr(Data[Dst], SpacedOpaqueSyntaxAttribute):
    name = "launch.dst"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Dst:
        return parse_dst(parser)

    def print_parameter(self, printer: Printer) -> None:
        print_dst(printer, self.data)


@irdl_attr_definition
class TailAttr(Data[Tail], SpacedOpaqueSyntaxAttribute):
    name = "launch.tail"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Tail:
        first = parse_number(parser)
        parser.parse_keyword("of")
        return Tail(first, parse_number(parser))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"{self.data.first} of {self.data.rows}")


@irdl_attr_definition
class GemmPartAttr(Data[GemmPart], SpacedOpaqueSyntaxAttribute):
    name = "launch.gemm_part"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> GemmPart:
        n = parse_named_number(parser, "n")
        scale, bias, scaled_bias = (
            parser.parse_optional_keyword(name) is not None for name in ("scale", "bias", "scaled_bias")
        )
        parser.parse_keyword("into")
        return GemmPart(n, scale, bias, scaled_bias, parse_dst(parser))

    def print_parameter(self, printer: Printer) -> None:
        part = self.data
        has = {"scale": part.scale, "bias": part.bias, "scaled_bias": part.scaled_bias}
        printer.print_string(" ".join((f"n = {part.n}", *(name for name, there in has.items() if there), "into ")))
        print_dst(printer, self.data.dst)


@irdl_attr_definition
class RopeSideAttr(Data[RopeSide], SpacedOpaqueSyntaxAttribute):
    name = "launch.rope_side"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> RopeSide:
        heads = parse_named_number(parser, "heads")
        per_row = parse_named_number(parser, "per_row")
        yz = parse_named_number(parser, "yz")
        part = parse_optional_unit(parser)
        eps = float(parser.parse_number()) if parser.parse_optional_keyword("eps") else None
        parser.parse_keyword("into")
        return RopeSide(heads, per_row, part, eps, parse_dst(parser), yz)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"heads = {self.data.heads} per_row = {self.data.per_row} yz = {self.data.yz}")
        print_optional_unit(printer, self.data.part)
        if self.data.eps is not None:
            printer.print_string(" eps ")
            print_real(printer, self.data.eps)
        printer.print_string(" into ")
        print_dst(printer, self.data.dst)


@irdl_attr_definition
class ConvPartAttr(Data[ConvPart], SpacedOpaqueSyntaxAttribute):
    name = "launch.conv_part"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ConvPart:
        chan = parse_named_number(parser, "chan")
        return ConvPart(chan, parser.parse_optional_keyword("l2") is not None)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"chan = {self.data.chan}{' l2' if self.data.l2 else ''}")


@irdl_attr_definition
class SplitKeysAttr(Data[SplitKeys], SpacedOpaqueSyntaxAttribute):
    name = "launch.split_keys"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> SplitKeys:
        own = parse_named_number(parser, "own")
        q_pitch = parse_named_number(parser, "q_pitch")
        parser.parse_keyword("q_tail")
        q_tail = parse_part(parser)
        parser.parse_keyword("k_tail")
        return SplitKeys(own, q_pitch, q_tail, parse_part(parser))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"own = {self.data.own} q_pitch = {self.data.q_pitch} q_tail ")
        print_part(printer, self.data.q_tail)
        printer.print_string(" k_tail ")
        print_part(printer, self.data.k_tail)


@irdl_attr_definition
class DTypeAttr(EnumAttribute[DType], SpacedOpaqueSyntaxAttribute):
    name = "launch.dtype"


@irdl_attr_definition
class FillAttr(EnumAttribute[Fill], SpacedOpaqueSyntaxAttribute):
    name = "launch.fill"


@irdl_attr_definition
class TensorAttr(Data[StoredTensor]):
    """The values of a tensor of the checkpoint: `#launch.tensor<"blk.0.attn_q.weight", q4_k>`."""

    name = "launch.tensor"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> StoredTensor:
        with parser.in_angle_brackets():
            name = parser.parse_str_literal()
            parser.parse_punctuation(",")
            return StoredTensor(name, parser.parse_str_enum(Format))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.data.name)
            printer.print_string(f", {self.data.format}")


@irdl_attr_definition
class FormatsAttr(Data[tuple[Format, ...]], SpacedOpaqueSyntaxAttribute):
    """The formats of several weights: `[q4_k, q4_k, q6_k]`."""

    name = "launch.formats"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Format, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parser.parse_str_enum(Format)))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"[{', '.join(map(str, self.data))}]")
