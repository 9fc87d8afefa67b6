"""Passes of xDSL do the right thing around our ops: what they merge, remove and keep."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.traits import MemoryEffect
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination

from lane_mlir.dialects import tg

PASSES = [
    pytest.param(CanonicalizePass(), id="canonicalize"),
    pytest.param(CommonSubexpressionElimination(), id="cse"),
    pytest.param(DeadCodeElimination(), id="dce"),
]

ROWS = "tensor<1x32xf32>"
CACHE = "memref<64x32xf32>"
SLICE = f"every 2048 from 0 width 32 : ({CACHE}) -> {ROWS}"
SET_ROW = f"tg.set_row %x into %cache[%pos] : {ROWS}, {CACHE}, memref<1xi32>"
SCALE = f"tg.scale %x by 2.0 : ({ROWS}) -> {ROWS}"
GATHER = "tg.gather %table[%token] : (tensor<9x32xf32>, memref<1xi32>) -> tensor<1x32xf32>"
ATTENTION = (
    f"tg.attention %x, %cache, %cache at %pos heads 1 / 1 scale 1.0 : {ROWS}, {CACHE}, {CACHE}, memref<1xi32> -> {ROWS}"
)
ROPE = f"tg.rope %x by %angles, %angles at %pos heads 1 half : ({ROWS}, tensor<64x8xf32>, tensor<64x8xf32>, memref<1xi32>) -> {ROWS}"
CONV = f"tg.conv %x, %taps ring %ring : ({ROWS}, tensor<32x4xf32>, memref<4x32xf32>) -> {ROWS}"
DELTA = (
    "tg.delta %x, %x, %x gate %x beta %beta decay %beta norm %norm state %state heads 2 / 2 blocked eps 0.1 :"
    f" ({ROWS}, {ROWS}, {ROWS}, {ROWS}, tensor<1x2xf32>, tensor<1x2xf32>, tensor<16xf32>, memref<32x16xf32>) -> {ROWS}"
)
UPTO = "tg.head_matmul %cache, %heads upto %pos : (memref<64x32xf32>, tensor<2x4x16xf32>, memref<1xi32>) -> tensor<64x8xf32>"
ADVANCE = "tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, memref<1xi32>"
ADD = f"tg.binary add %a, %b : ({ROWS}, {ROWS}) -> {ROWS}"


def step(*lines: str, returns: str = "") -> ModuleOp:
    values = [v.strip() for v in returns.split(",") if v]
    types = ", ".join([ROWS] * len(values))
    context = Context()
    for dialect in (Builtin, Func, tg.TG):
        context.load_dialect(dialect)
    module = Parser(
        context,
        f"""
        func.func @step(
          %x: {ROWS}, %cache: {CACHE}, %other: {CACHE}, %pos: memref<1xi32>, %token: memref<1xi32>, %ring: memref<4x32xf32>,
          %taps: tensor<32x4xf32>, %beta: tensor<1x2xf32>, %norm: tensor<16xf32>, %state: memref<32x16xf32>,
          %table: tensor<9x32xf32>, %angles: tensor<64x8xf32>, %heads: tensor<2x4x16xf32>, %id: tensor<1xi32>
        ) -> ({types}) {{
          {chr(10).join(lines)}
          func.return {returns} {":" if values else ""} {types}
        }}""",
    ).parse_module()
    module.verify()
    return module


def names_after(pass_: ModulePass, module: ModuleOp) -> list[str]:
    """The ops of tg that a pass leaves, in order, those inside fused ops included."""
    context = Context()
    for dialect in (Builtin, Func, tg.TG):
        context.load_dialect(dialect)
    pass_.apply(context, module)
    module.verify()
    return [op.name.removeprefix("tg.") for op in module.walk() if op.name.startswith("tg.")]


def test_equal_reads_are_merged() -> None:
    module = step(f"%a = tg.slice %cache {SLICE}", f"%b = tg.slice %cache {SLICE}", f"%y = {ADD}", returns="%y")
    assert names_after(CommonSubexpressionElimination(), module) == ["slice", "binary"]


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("write", [SET_ROW, f"%w = {CONV}", f"%w = {DELTA}", ADVANCE])
def test_equal_reads_with_a_write_between_are_not_merged(pass_: ModulePass, write: str) -> None:
    module = step(f"%a = tg.slice %cache {SLICE}", write, f"%b = tg.slice %cache {SLICE}", f"%y = {ADD}", returns="%y")
    assert names_after(pass_, module)[::2] == ["slice", "slice"]


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("op", [ROPE, GATHER])
def test_reads_of_token_and_position_do_not_cross_an_advance(pass_: ModulePass, op: str) -> None:
    module = step(f"%a = {op}", ADVANCE, f"%b = {op}", f"%y = {ADD}", returns="%y")
    assert len(names_after(pass_, module)) == 4


def test_a_product_up_to_a_position_does_not_cross_an_advance() -> None:
    view = "tg.view {} from 0 : (tensor<64x8xf32>) -> tensor<1x32xf32>"
    lines = [
        f"%p = {UPTO}",
        f"%a = {view.format('%p')}",
        ADVANCE,
        f"%q = {UPTO}",
        f"%b = {view.format('%q')}",
        f"%y = {ADD}",
    ]
    assert names_after(CommonSubexpressionElimination(), step(*lines, returns="%y")).count("head_matmul") == 2


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    "op", [GATHER, ROPE, ATTENTION, UPTO, SCALE, f"tg.slice %cache {SLICE}", 'tg.constant "w" : tensor<32xf32>']
)
def test_unused_reads_and_pure_ops_are_removed(pass_: ModulePass, op: str) -> None:
    assert names_after(pass_, step(f"%unused = {op}")) == []


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("op", [SET_ROW, ADVANCE, f"%y = {CONV}", f"%y = {DELTA}"])
def test_writes_are_never_removed_or_merged(pass_: ModulePass, op: str) -> None:
    assert len(names_after(pass_, step(op, op.replace("%y", "%z")))) == 2


@pytest.mark.parametrize("pass_", PASSES)
def test_a_fused_op_that_writes_is_kept(pass_: ModulePass) -> None:
    write = f'tg.fused "row_write" {{\n%s = {SCALE}\n{SET_ROW.replace("%x", "%s")}\ntg.yield\n}}'
    expected = ["fused", "scale", "set_row", "yield"]
    assert names_after(pass_, step(write)) == expected
    nested = f'%y = tg.fused "outer" {{\n{write}\n%t = {SCALE}\ntg.yield %t : {ROWS}\n}}'
    assert names_after(pass_, step(nested, returns="%y")) == ["fused", *expected, "scale", "yield"]


@pytest.mark.parametrize("pass_", PASSES)
def test_an_unused_fused_op_that_does_not_write_is_removed(pass_: ModulePass) -> None:
    pure = f'tg.fused "x" {{\n%s = {SCALE}\ntg.yield %s : {ROWS}\n}}'
    reads = f'tg.fused "x" {{\n%s = tg.slice %cache {SLICE}\ntg.yield %s : {ROWS}\n}}'
    nested = f'tg.fused "x" {{\n%n = {reads}\ntg.yield %n : {ROWS}\n}}'
    assert names_after(pass_, step(f"%a = {pure}", f"%b = {reads}", f"%c = {nested}")) == []


def test_fused_ops_that_read_are_merged_only_without_a_write_between() -> None:
    reads = f'tg.fused "x" {{\n%s = tg.slice %cache {SLICE}\ntg.yield %s : {ROWS}\n}}'
    together = step(f"%a = {reads}", f"%b = {reads}", f"%y = {ADD}", returns="%y")
    assert names_after(CommonSubexpressionElimination(), together).count("fused") == 1
    apart = step(f"%a = {reads}", SET_ROW, f"%b = {reads}", f"%y = {ADD}", returns="%y")
    assert names_after(CommonSubexpressionElimination(), apart).count("fused") == 2


def test_ops_with_different_numbers_are_not_merged() -> None:
    module = step(
        f"%a = {SCALE.replace('scale', 'scale[0]', 1)}",
        f"%b = {SCALE.replace('scale', 'scale[1]', 1)}",
        f"%y = {ADD}",
        returns="%y",
    )
    assert names_after(CommonSubexpressionElimination(), module) == ["scale", "scale", "binary"]


def test_a_part_is_not_taken_for_an_equal_op_outside() -> None:
    fused = f'%b = tg.fused "x" {{\n%s = {SCALE.replace("scale", "scale[1]", 1)}\ntg.yield %s : {ROWS}\n}}'
    module = step(f"%a = {SCALE.replace('scale', 'scale[0]', 1)}", fused, f"%y = {ADD}", returns="%y")
    assert names_after(CommonSubexpressionElimination(), module) == ["scale", "fused", "scale", "yield", "binary"]


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in tg.TG.operations])
def test_every_op_states_its_effects(kind: type[Operation]) -> None:
    """An op without known effects would be kept by every pass, and hold up those around it."""
    assert len(kind.get_traits_of_type(MemoryEffect)) == 1
