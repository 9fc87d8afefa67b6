"""Fused ops: what they are made of, what their verifier refuses."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp, TensorType, f32
from xdsl.dialects.func import Func, FuncOp
from xdsl.dialects.test import Test
from xdsl.ir import Block, Region
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.test_value import create_ssa_value

from lane_mlir.dialects import tg

VALUES = "tensor<1x32xf32>"
SCALE = f": ({VALUES}) -> {VALUES}"


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Test, tg.TG):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def step(body: str) -> ModuleOp:
    return parse(
        f"func.func @f(%a: {VALUES}, %w: tensor<32xf32>, %cache: memref<64x32xf32>, %pos: memref<1xi32>) {{\n"
        f"{body}\nfunc.return\n}}"
    )


def test_parts_leaves_and_memory() -> None:
    module = step(
        f"""
        %y = tg.fused "outer" {{
          %n = tg.fused "inner" {{
            %s = tg.scale[0] %a by 2.0 {SCALE}
            tg.set_row[1] %s into %cache[%pos] : {VALUES}, memref<64x32xf32>, memref<1xi32>
            tg.yield %s : {VALUES}
          }}
          %t = tg.slice[2] %cache every 2048 from 0 width 32 : (memref<64x32xf32>) -> {VALUES}
          %u = tg.binary[3] add %n, %t : ({VALUES}, {VALUES}) -> {VALUES}
          tg.yield %u : {VALUES}
        }}
        """
    )
    module.verify()
    func = module.body.block.first_op
    assert isinstance(func, FuncOp)
    _, _, cache, pos = func.args
    outer = func.body.block.first_op
    assert isinstance(outer, tg.FusedOp)
    assert [part.name for part in outer.parts] == ["tg.fused", "tg.slice", "tg.binary"]
    assert [leaf.number.value.data for leaf in outer.leaves() if leaf.number is not None] == [0, 1, 2, 3]
    assert list(outer.memory_writes()) == [cache]
    assert list(outer.memory_reads()) == [pos, cache]
    assert [value.type for value in outer.yielded] == [outer.outputs[0].type]


def test_results_are_those_of_the_yield() -> None:
    values = create_ssa_value(TensorType(f32, (1, 32)))
    scale = tg.ScaleOp(values, 2.0)
    op = tg.FusedOp("gather_scale", Region(Block([scale, tg.YieldOp(scale.result)])))
    assert [output.type for output in op.outputs] == [TensorType(f32, (1, 32))]
    op.verify()


@pytest.mark.parametrize(
    "body, message",
    [
        pytest.param(f'tg.fused "" {{\n%s = tg.scale %a by 2.0 {SCALE}\ntg.yield\n}}', "names no class", id="class"),
        pytest.param('tg.fused "x" {\ntg.yield\n}', "has no parts", id="parts"),
        pytest.param(
            f'tg.fused "x" {{\n%e = tg.empty : {VALUES}\ntg.yield\n}}',
            "has a part 'tg.empty', expected ops of tg that become launches",
            id="part",
        ),
        pytest.param(
            'tg.fused "x" {\n"test.op"() : () -> ()\ntg.yield\n}',
            "has a part 'test.op', expected ops of tg that become launches",
            id="foreign",
        ),
        pytest.param(
            f"""%y = "tg.fused"() <{{fusion_class = "x"}}> ({{
              %s = tg.scale %a by 2.0 {SCALE}
              tg.yield %s, %s : {VALUES}, {VALUES}
            }}) : () -> {VALUES}""",
            r"yields \(tensor<1x32xf32>, tensor<1x32xf32>\), but its results are \(tensor<1x32xf32>\)",
            id="results",
        ),
        pytest.param(
            f""""tg.fused"() <{{fusion_class = "x"}}> ({{
            ^bb0(%b: {VALUES}):
              %s = tg.scale %b by 2.0 {SCALE}
              tg.yield
            }}) : () -> ()""",
            "has 1 block arguments, expected none",
            id="arguments",
        ),
        pytest.param(
            f"""tg.fused "x" {{
              %s = tg.scale %t by 2.0 {SCALE}
              %t = tg.scale %a by 2.0 {SCALE}
              tg.yield
            }}""",
            "has a part 'tg.scale' that uses a value before it is defined",
            id="order",
        ),
        pytest.param(
            f"""tg.fused "x" {{
              tg.fused "y" {{
                %s = tg.scale %t by 2.0 {SCALE}
                tg.yield
              }}
              %t = tg.scale %a by 2.0 {SCALE}
              tg.yield
            }}""",
            "has a part 'tg.scale' that uses a value before it is defined",
            id="order-nested",
        ),
        pytest.param(
            '"tg.fused"() <{fusion_class = "x"}> ({}) : () -> ()',
            "expected a single block, but got 0 blocks",
            id="no-block",
        ),
        pytest.param(
            '"tg.fused"() <{fusion_class = "x"}> ({\ntg.yield\n^bb1:\ntg.yield\n}) : () -> ()',
            "expected a single block, but got 2 blocks",
            id="two-blocks",
        ),
        pytest.param(
            f"""%y = "tg.fused"() <{{fusion_class = "x"}}> ({{
              %s = tg.scale %a by 2.0 {SCALE}
              "test.termop"() : () -> ()
            }}) : () -> {VALUES}""",
            "does not end in tg.yield",
            id="terminator",
        ),
        pytest.param("tg.yield", "'tg.yield' expects parent op 'tg.fused'", id="yield"),
    ],
)
def test_refusals(body: str, message: str) -> None:
    if body == "tg.yield":
        module = parse("func.func @f() {\ntg.yield\n}")
    else:
        module = step(body)
    with pytest.raises(VerifyException, match=message):
        module.verify()


@pytest.mark.parametrize(
    "body",
    [
        'tg.fused "x" {\n}',
        f'tg.fused "x" {{\n%s = tg.scale %a by 2.0 {SCALE}\n}}',
        'tg.fused "x" {\ntg.yield\n^bb1:\ntg.yield\n}',
    ],
)
def test_what_cannot_be_parsed(body: str) -> None:
    with pytest.raises(ParseError, match=r"a fused op is one block that ends in tg\.yield"):
        step(body)
