"""Pieces of the launches' syntax that a declarative format cannot express: where results land, and lists of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    OperandVariable,
    OptionalOperandVariable,
    ParsingState,
    PrintingState,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.hints import isa

from lane_mlir.dialects.launch.attributes import (
    ConvPart,
    ConvPartAttr,
    Dst,
    DstAttr,
    GemmPart,
    GemmPartAttr,
    RopeSide,
    RopeSideAttr,
    Row,
    parse_named_number,
    parse_number,
    parse_optional_unit,
    print_optional_unit,
    print_real,
)

T = TypeVar("T")


def parse_place(parser: Parser) -> tuple[Dst, UnresolvedOperand | None]:
    """What follows a buffer that a result lands in: `at row %pos pitch 64`, `every 64 from 32`, both or nothing."""
    row, param = None, None
    if parser.parse_optional_keyword("at"):
        parser.parse_keyword("row")
        param = parser.parse_optional_unresolved_operand()
        index = parse_number(parser) if param is None else None
        parser.parse_keyword("pitch")
        row = Row(parse_number(parser), index)
    return Dst(row, parse_optional_unit(parser)), param


def print_place(printer: Printer, dst: Dst, param: SSAValue | None) -> None:
    if dst.row is not None:
        printer.print_string(" at row ")
        if param is not None:
            printer.print_ssa_value(param)
        else:
            printer.print_string(str(dst.row.index))
        printer.print_string(f" pitch {dst.row.pitch}")
    print_optional_unit(printer, dst.unit)


@irdl_custom_directive
class Into(CustomDirective):
    """Where a result lands: `%y at row %pos pitch 64`."""

    y: OperandVariable
    param: OptionalOperandVariable
    dst: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.y.set(state, parser.parse_unresolved_operand())
        dst, param = parse_place(parser)
        self.param.set(state, param)
        self.dst.set(state, DstAttr(dst))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_ssa_value(self.y.get(op))
        dst = self.dst.get(op)
        assert isinstance(dst, DstAttr)
        print_place(printer, dst.data, self.param.get(op))


@irdl_custom_directive
class OptionalInto(CustomDirective):
    """Where a result lands, if anywhere but in its own buffer: `into %y every 192 from 128`."""

    y: OptionalOperandVariable
    param: OptionalOperandVariable
    dst: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.y.set(state, None)
        self.param.set(state, None)
        if parser.parse_optional_keyword("into") is None:
            return
        self.y.set(state, parser.parse_unresolved_operand())
        dst, param = parse_place(parser)
        self.param.set(state, param)
        self.dst.set(state, DstAttr(dst))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        y, dst = self.y.get(op), self.dst.get(op)
        if y is None or not isinstance(dst, DstAttr):
            return
        state.print_whitespace(printer)
        printer.print_string("into ")
        printer.print_ssa_value(y)
        print_place(printer, dst.data, self.param.get(op))


def parse_lines(parser: Parser, parse_one: Callable[[], T]) -> list[T]:
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_one)


def print_lines(printer: Printer, state: PrintingState, parts: Iterable[Callable[[], None]]) -> None:
    state.print_whitespace(printer)
    with printer.in_square_brackets():
        printer.print_list(parts, lambda print_one: print_one())


def keep(operands: list[UnresolvedOperand], operand: UnresolvedOperand | None) -> bool:
    """Append an operand if it is there, and say whether it is."""
    if operand is not None:
        operands.append(operand)
    return operand is not None


def keyword_operand(parser: Parser, keyword: str) -> UnresolvedOperand | None:
    return parser.parse_unresolved_operand() if parser.parse_optional_keyword(keyword) else None


def print_keyword_operand(printer: Printer, keyword: str, operand: SSAValue | None) -> None:
    if operand is not None:
        printer.print_string(f" {keyword} ")
        printer.print_ssa_value(operand)


def take(operands: Iterator[SSAValue], wanted: bool) -> SSAValue | None:
    """The next operand, if the part has one."""
    return next(operands, None) if wanted else None


@irdl_custom_directive
class GemmParts(CustomDirective):
    """Products side by side: `[%wq scale %s bias %bq into %q n = 64, %wk into %cache at row %pos pitch 32 n = 32]`."""

    w: VariadicOperandVariable
    scale: VariadicOperandVariable
    bias: VariadicOperandVariable
    y: VariadicOperandVariable
    param: VariadicOperandVariable
    products: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        weights: list[UnresolvedOperand] = []
        scales: list[UnresolvedOperand] = []
        biases: list[UnresolvedOperand] = []
        results: list[UnresolvedOperand] = []
        params: list[UnresolvedOperand] = []

        def parse_one() -> GemmPartAttr:
            weights.append(parser.parse_unresolved_operand())
            scale = keep(scales, keyword_operand(parser, "scale"))
            bias = keep(biases, keyword_operand(parser, "bias"))
            scaled_bias = parser.parse_optional_keyword("scaled_bias") is not None
            parser.parse_keyword("into")
            results.append(parser.parse_unresolved_operand())
            dst, param = parse_place(parser)
            keep(params, param)
            return GemmPartAttr(GemmPart(parse_named_number(parser, "n"), scale, bias, scaled_bias, dst))

        self.products.set(state, ArrayAttr(parse_lines(parser, parse_one)))
        variables = (self.w, self.scale, self.bias, self.y, self.param)
        for variable, operands in zip(variables, (weights, scales, biases, results, params), strict=True):
            variable.set(state, operands)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        scales, biases, params = iter(self.scale.get(op)), iter(self.bias.get(op)), iter(self.param.get(op))

        def print_one(w: SSAValue, y: SSAValue, part: GemmPart) -> None:
            printer.print_ssa_value(w)
            print_keyword_operand(printer, "scale", take(scales, part.scale))
            print_keyword_operand(printer, "bias", take(biases, part.bias))
            printer.print_string(" scaled_bias" if part.scaled_bias else "")
            print_keyword_operand(printer, "into", y)
            print_place(printer, part.dst, take(params, part.dst.takes_param))
            printer.print_string(f" n = {part.n}")

        self._print_all(printer, state, op, print_one)

    def _print_all(
        self,
        printer: Printer,
        state: PrintingState,
        op: IRDLOperation,
        print_one: Callable[[SSAValue, SSAValue, GemmPart], None],
    ) -> None:
        parts = parts_of(self.products.get(op), GemmPartAttr)
        rows = zip(self.w.get(op), self.y.get(op), parts, strict=True)
        print_lines(printer, state, [lambda row=row: print_one(row[0], row[1], row[2].data) for row in rows])


@irdl_custom_directive
class RopeSides(CustomDirective):
    """Rotations at one position: `[%q norm %w eps 1.0e-06 into %qr heads = 4 per_row = 4, …]`."""

    x: VariadicOperandVariable
    norm: VariadicOperandVariable
    y: VariadicOperandVariable
    param: VariadicOperandVariable
    sides: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        inputs: list[UnresolvedOperand] = []
        norms: list[UnresolvedOperand] = []
        results: list[UnresolvedOperand] = []
        params: list[UnresolvedOperand] = []

        def parse_one() -> RopeSideAttr:
            inputs.append(parser.parse_unresolved_operand())
            part = parse_optional_unit(parser)
            eps = None
            if keep(norms, keyword_operand(parser, "norm")):
                parser.parse_keyword("eps")
                eps = float(parser.parse_number())
            parser.parse_keyword("into")
            results.append(parser.parse_unresolved_operand())
            dst, param = parse_place(parser)
            keep(params, param)
            heads = parse_named_number(parser, "heads")
            per_row = parse_named_number(parser, "per_row")
            apart = parser.parse_optional_keyword("apart") is not None
            return RopeSideAttr(RopeSide(heads, per_row, part, eps, dst, parse_number(parser) if apart else 0))

        self.sides.set(state, ArrayAttr(parse_lines(parser, parse_one)))
        for variable, operands in ((self.x, inputs), (self.norm, norms), (self.y, results), (self.param, params)):
            variable.set(state, operands)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        norms, params = iter(self.norm.get(op)), iter(self.param.get(op))

        def print_one(x: SSAValue, y: SSAValue, side: RopeSide) -> None:
            printer.print_ssa_value(x)
            print_optional_unit(printer, side.part)
            print_keyword_operand(printer, "norm", take(norms, side.eps is not None))
            if side.eps is not None:
                printer.print_string(" eps ")
                print_real(printer, side.eps)
            print_keyword_operand(printer, "into", y)
            print_place(printer, side.dst, take(params, side.dst.takes_param))
            printer.print_string(f" heads = {side.heads} per_row = {side.per_row}")
            if side.yz:
                printer.print_string(f" apart {side.yz}")

        rows = zip(self.x.get(op), self.y.get(op), parts_of(self.sides.get(op), RopeSideAttr), strict=True)
        print_lines(printer, state, [lambda row=row: print_one(row[0], row[1], row[2].data) for row in rows])


@irdl_custom_directive
class ConvParts(CustomDirective):
    """Convolutions side by side: `[%x by %w ring %r into %y chan = 64 l2, …]`."""

    x: VariadicOperandVariable
    w: VariadicOperandVariable
    ring: VariadicOperandVariable
    y: VariadicOperandVariable
    convolutions: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        columns: tuple[list[UnresolvedOperand], ...] = ([], [], [], [])

        def parse_one() -> ConvPartAttr:
            for column, keyword in zip(columns, ("", "by", "ring", "into"), strict=True):
                if keyword:
                    parser.parse_keyword(keyword)
                column.append(parser.parse_unresolved_operand())
            chan = parse_named_number(parser, "chan")
            return ConvPartAttr(ConvPart(chan, parser.parse_optional_keyword("l2") is not None))

        self.convolutions.set(state, ArrayAttr(parse_lines(parser, parse_one)))
        for variable, operands in zip((self.x, self.w, self.ring, self.y), columns, strict=True):
            variable.set(state, operands)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        def print_one(x: SSAValue, w: SSAValue, ring: SSAValue, y: SSAValue, part: ConvPart) -> None:
            printer.print_ssa_value(x)
            for keyword, operand in (("by", w), ("ring", ring), ("into", y)):
                print_keyword_operand(printer, keyword, operand)
            printer.print_string(f" chan = {part.chan}{' l2' if part.l2 else ''}")

        parts = parts_of(self.convolutions.get(op), ConvPartAttr)
        rows = zip(self.x.get(op), self.w.get(op), self.ring.get(op), self.y.get(op), parts, strict=True)
        print_lines(printer, state, [lambda row=row: print_one(*row[:4], row[4].data) for row in rows])


PartT = TypeVar("PartT", GemmPartAttr, RopeSideAttr, ConvPartAttr)


def parts_of(value: object, kind: type[PartT]) -> Sequence[PartT]:
    """The parts of a list, checked to be of a kind."""
    assert isa(value, ArrayAttr)
    return [part for part in value.data if isinstance(part, kind)]
