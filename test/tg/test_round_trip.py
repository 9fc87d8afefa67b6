"""Parse, print and parse again: the identity, in the custom form and in the generic one."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, FloatAttr, ModuleOp, f64
from xdsl.dialects.func import Func
from xdsl.dialects.test import Test
from xdsl.irdl import IRDLOperation, OptOperandDef, OptPropertyDef
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError
from xdsl.utils.str_enum import StrEnum

from lane_mlir.dialects import tg
from lane_mlir.formats import Format

FOLDER = Path(__file__).resolve().parent.parent / "lit" / "tg"
FILES = [pytest.param(path, id=path.name) for path in sorted(FOLDER.glob("*.mlir")) if "invalid" not in path.name]


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Test, tg.TG):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def text_of(module: ModuleOp, *, generic: bool = False, places: bool = False) -> str:
    stream = StringIO()
    Printer(stream, print_generic_format=generic, print_debuginfo=places).print_op(module)
    return stream.getvalue()


def chunks(path: Path) -> list[ModuleOp]:
    modules = [parse(chunk) for chunk in path.read_text().split("// -----\n")]
    for module in modules:
        module.verify()
    return modules


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_print_then_parse_is_the_identity(path: Path, generic: bool) -> None:
    for module in chunks(path):
        printed = text_of(module, generic=generic, places=True)
        again = parse(printed)
        again.verify()
        assert module.is_structurally_equivalent(again)
        assert text_of(again, generic=generic, places=True) == printed
        assert [op.location for op in again.walk()] == [op.location for op in module.walk()]


def test_the_custom_form_is_what_people_write() -> None:
    """The file of all ops is printed as it is written."""
    lines = [
        line for line in (FOLDER / "ops.mlir").read_text().splitlines() if line and not line.lstrip().startswith("//")
    ]
    assert text_of(chunks(FOLDER / "ops.mlir")[0]).splitlines() == [
        "builtin.module {",
        *(f"  {line}" for line in lines),
        "}",
    ]


def ops_of(name: str) -> list[IRDLOperation]:
    return [op for module in chunks(FOLDER / name) for op in module.walk() if isinstance(op, IRDLOperation)]


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in tg.TG.operations])
def test_every_clause_of_every_op_is_tried(kind: type[IRDLOperation]) -> None:
    """Each optional operand and property there and not there, the number among them, and so further attributes."""
    ops = [op for op in ops_of("ops.mlir") if isinstance(op, kind)]
    assert {bool(op.attributes) for op in ops} == {False, True}
    definition = kind.get_irdl_definition()
    optional = [name for name, operand in definition.operands if isinstance(operand, OptOperandDef)]
    optional += [name for name, p in definition.properties.items() if isinstance(p, OptPropertyDef)]
    for name in optional:
        assert {getattr(op, name) is None for op in ops} == {False, True}, name
    if issubclass(kind, tg.LiftedOperation):
        assert "number" in optional


def test_every_format_is_tried() -> None:
    constants = [op for op in ops_of("formats.mlir") if isinstance(op, tg.ConstantOp)]
    assert [tg.format_of_weight(op.result) for op in constants] == list(Format)


@pytest.mark.parametrize(
    "enum",
    [
        tg.Activation,
        tg.ArgumentKind,
        tg.BinaryOperator,
        tg.ExpertActivation,
        tg.KeyHeadOrder,
        tg.Numerics,
        tg.Pairing,
        tg.Precision,
        tg.Scoring,
    ],
)
def test_every_member_of_an_enumeration_is_tried(enum: type[StrEnum]) -> None:
    text = "".join((FOLDER / name).read_text() for name in ("ops.mlir", "attributes.mlir"))
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())
    assert {str(member) for member in enum} <= words


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize(
    "factor",
    [1 / 3, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 1e-5, -16777217.0, 3580165449.0, 2.0**55 + 8, 1e22],
)
def test_numbers_are_printed_exactly(factor: float, generic: bool) -> None:
    """Those included that xDSL prints as bits: whole ones of many digits, such as the base of a long rotation."""
    line = "%y = tg.scale %x by 0.5 : (tensor<1x32xf32>) -> tensor<1x32xf32>"
    module = parse(f"func.func @f(%x: tensor<1x32xf32>) {{\n{line}\nfunc.return\n}}")
    for op in module.walk():
        if isinstance(op, tg.ScaleOp):
            op.factor = FloatAttr(factor, f64)
    again = [op for op in parse(text_of(module, generic=generic)).walk() if isinstance(op, tg.ScaleOp)]
    assert [op.factor.value.data.hex() for op in again] == [factor.hex()]


@pytest.mark.parametrize(
    "line, message",
    [
        ("tg.binary pow %x, %x : (tensor<1x32xf32>, tensor<1x32xf32>) -> tensor<1x32xf32>", "Expected `add`"),
        ("tg.unary swish %x : (tensor<1x32xf32>) -> tensor<1x32xf32>", "Expected `silu`"),
        ("tg.scale %x : (tensor<1x32xf32>) -> tensor<1x32xf32>", "Expected 'by'"),
        ("tg.scale[] %x by 1.0 : (tensor<1x32xf32>) -> tensor<1x32xf32>", "expected"),
        ("tg.scale %x by two : (tensor<1x32xf32>) -> tensor<1x32xf32>", "expected float literal"),
        ("tg.constant weight : tensor<32xf32>", "attribute expected"),
        ("tg.constant", "attribute expected"),
        ("tg.fused {\ntg.yield\n}", "string literal expected"),
        ("tg.fused", "string literal expected"),
    ],
)
def test_what_cannot_be_parsed(line: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(f"func.func @f(%x: tensor<1x32xf32>) {{\n%y = {line}\nfunc.return\n}}")
    assert message.lower() in str(error.value).lower()
