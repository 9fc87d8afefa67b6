"""Where ops come from, and errors that say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, FileLineColLoc, FusedLoc, IntAttr, ModuleOp, NameLoc, NoneAttr, StringAttr
from xdsl.dialects.func import Func
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer

from lane_mlir.diagnostics import LaneError, SourceError
from lane_mlir.locations import (
    LocatedParser,
    QuickLexer,
    innermost_invalid,
    place_of,
    read_module,
    source_error,
    verify,
)

TEXT = """// a comment
func.func @f(%a: i32) -> i32 {
  %0 = arith.addi %a, %a : i32 loc("blk.0.ffn_up.weight")
  func.return %0 : i32
}
"""


def context() -> Context:
    ctx = Context()
    for dialect in (Builtin, Func, Arith):
        ctx.load_dialect(dialect)
    return ctx


def file_loc(line: int, column: int) -> FileLineColLoc:
    return FileLineColLoc(StringAttr("a.mlir"), IntAttr(line), IntAttr(column))


def test_ops_are_stamped():
    parser = LocatedParser(context(), TEXT, "a.mlir")
    module = parser.parse_module()
    located = {op.name: (op.location, parser.positions.get(op)) for op in module.walk()}
    name = NameLoc(StringAttr("blk.0.ffn_up.weight"), NoneAttr())
    assert located["func.func"] == (file_loc(2, 1), file_loc(2, 1))
    assert located["arith.addi"] == (name, file_loc(3, 3))
    assert located["func.return"] == (file_loc(4, 3), file_loc(4, 3))


def test_lines_before_the_text_count():
    parser = LocatedParser(context(), TEXT, "a.mlir", line_offset=10)
    module = parser.parse_module()
    assert place_of(module.ops.first or module) == "a.mlir:12:1"
    with pytest.raises(ParseError) as caught:
        LocatedParser(context(), "\n  %0 = x.y", "a.mlir", line_offset=10).parse_module()
    assert str(source_error(caught.value)) == "a.mlir:12:8: error: Operation x.y is not registered"


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (file_loc(3, 4), "a.mlir:3:4"),
        (NameLoc(StringAttr("output.weight"), NoneAttr()), "output.weight"),
        (FusedLoc((file_loc(3, 4), file_loc(5, 6), file_loc(3, 4)), NoneAttr()), "a.mlir:3:4, a.mlir:5:6"),
    ],
)
def test_place(location: Attribute, place: str):
    op = AnyOp()
    assert place_of(op) is None
    op.location = location  # pyright: ignore[reportAttributeAccessIssue]
    assert place_of(op) == place


def test_place_of_the_op_around():
    inner = AnyOp()
    outer = ModuleOp([inner])
    outer.location = file_loc(7, 1)
    assert place_of(inner) == "a.mlir:7:1"
    assert place_of(inner, {inner: file_loc(8, 3)}) == "a.mlir:8:3"


def test_innermost_invalid():
    text = TEXT.replace("arith.addi %a, %a : i32", '"arith.addi"(%a) : (i32) -> i32')
    module = LocatedParser(context(), text).parse_module()
    assert innermost_invalid(module).name == "arith.addi"


def test_verify_without_any_place():
    module = ModuleOp([AnyOp(regions=[])])
    verify(module)
    module = LocatedParser(context(), TEXT.replace("-> i32", "-> i64")).parse_module()
    for op in module.walk():
        op.location = AnyOp().location
    with pytest.raises(SourceError, match=r"^step: error: 'func\.return' op Expected .* \(after pass fuse\)$"):
        verify(module, name="step", when=" (after pass fuse)")


def test_read_module(tmp_path: Path):
    path = tmp_path / "a.mlir"
    path.write_text(TEXT)
    assert [op.name for op in read_module(context(), path).ops] == ["func.func"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"^cannot read .*a\.mlir: No such file or directory$"),
        (b"\xff", r"a\.mlir:1:1: error: not a text file"),
        (b"func.func", r"a\.mlir:1:10: error: "),
        (TEXT.replace("-> i32", "-> i64").encode(), r"a\.mlir:4:3: error: 'func\.return' op"),
    ],
)
def test_read_module_refuses(content: bytes | None, message: str, tmp_path: Path):
    path = tmp_path / "a.mlir"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LaneError, match=message):
        read_module(context(), path)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*'%a0_$.-><(){}[]=,:+"/\\n@#!^ \n', "//", "%0", "f32", "->", "é", "1x", '"s"']), max_size=9
    )
)
def test_quick_lexer_finds_the_same_tokens(pieces: list[str]):
    def tokens(lexer: MLIRLexer) -> list[str]:
        found: list[str] = []
        try:
            while not found or not found[-1].startswith("EOF"):
                token = lexer.lex()
                found.append(f"{token.kind.name} {token.span.start} {token.span.end}")
        except ParseError as error:
            found.append(error.msg)
        return found

    text = Input("".join(pieces), "a.mlir")
    assert tokens(QuickLexer(text)) == tokens(MLIRLexer(text))


@pytest.mark.parametrize(
    "written",
    [
        "tensor<4xi32>",
        "tensor<4x?xi32>",
        "tensor<4xi32, #a>",
        "memref<4xi32, strided<[1], offset: 2>>",
        "memref<2x3xf32, affine_map<(d0, d1) -> (d1, d0)>>",
        "tensor<4xcomplex<f32>>",
        "tensor<4xtensor<2xi32>>",
    ],
)
def test_types_are_parsed_once_to_the_same(written: str):
    def text(count: int) -> str:
        arguments = ", ".join(f"%{i}: {written}" for i in range(count))
        return f"#a = 3 : i32\nfunc.func private @f({arguments}) -> {written} // > comment"

    module = LocatedParser(context(), text(3)).parse_module()
    expected = Parser(context(), text(3)).parse_module()
    assert str(module) == str(expected)
    assert module.is_structurally_equivalent(expected)
