"""A step's arguments and target."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, Builtin, FunctionType, MemRefType, ModuleOp, StringAttr, f32, i32
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.dialects.test import Test
from xdsl.ir import Block, Region
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from lane_mlir.dialects import tg

TOKEN = "%token: memref<1xi32> {tg.arg = #tg.arg<token, 0>}"
POSITION = "%pos: memref<1xi32> {tg.arg = #tg.arg<position, 0>}"
SECOND = "%p: memref<1xi32> {tg.arg = #tg.arg<position, 1>}"


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Test, tg.TG):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def step(*arguments: str, body: str = "") -> FuncOp:
    func = parse(f"func.func @step({', '.join(arguments)}) {{\n{body}\nfunc.return\n}}").body.block.first_op
    assert isinstance(func, FuncOp)
    func.verify()
    return func


def test_arguments_in_order() -> None:
    func = step(
        TOKEN,
        POSITION,
        "%x: tensor<1x32xf32>",
        '%k: memref<64x32xf32> {tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">}',
        "%pos1: memref<1xi32> {tg.arg = #tg.arg<position, 1>}",
        '%ring: memref<4x96xf32> {tg.arg = #tg.arg<conv_ring, 1, "ring">}',
        '%state: memref<64x16xf32> {tg.arg = #tg.arg<delta_state, 1, "state">}',
    )
    found = tg.arguments(func)
    assert [(a.kind, a.sequence, a.name, a.is_state) for a in found] == [
        (tg.ArgumentKind.TOKEN, 0, "", False),
        (tg.ArgumentKind.POSITION, 0, "", False),
        (tg.ArgumentKind.KV_CACHE, 0, "blk.0.k", True),
        (tg.ArgumentKind.POSITION, 1, "", False),
        (tg.ArgumentKind.CONV_RING, 1, "ring", True),
        (tg.ArgumentKind.DELTA_STATE, 1, "state", True),
    ]
    assert [a.value.index for a in found] == [0, 1, 3, 4, 5, 6]
    tg.verify_step(func)


def test_a_step_built_in_python() -> None:
    types = [MemRefType(i32, (3,)), MemRefType(i32, (1,)), MemRefType(f32, (8, 4))]
    kinds = [tg.ArgumentKind.TOKEN, tg.ArgumentKind.POSITION, tg.ArgumentKind.KV_CACHE]
    func = FuncOp(
        "step",
        FunctionType.from_lists(types, []),
        Region(Block([ReturnOp()], arg_types=types)),
        arg_attrs=ArrayAttr([tg.argument_attributes(kind, 0, f"the {kind}") for kind in kinds]),
    )
    tg.verify_step(func)
    assert [(a.kind, a.name) for a in tg.arguments(func)] == [(kind, f"the {kind}") for kind in kinds]


def test_functions_that_are_no_steps_have_no_arguments() -> None:
    assert tg.arguments(step("%x: memref<1xi32>")) == []
    declaration = parse("func.func private @step(memref<1xi32>)").body.block.first_op
    assert isinstance(declaration, FuncOp)
    assert tg.arguments(declaration) == []


@pytest.mark.parametrize(
    "kind, type_, expected",
    [
        ("token", "memref<1xi64>", "memref<Rxi32>"),
        ("token", "memref<1x1xi32>", "memref<Rxi32>"),
        ("token", "memref<?xi32>", "memref<Rxi32>"),
        ("token", "tensor<1xi32>", "memref<Rxi32>"),
        ("position", "memref<2xi32>", "memref<1xi32>"),
        ("position", "memref<i32>", "memref<1xi32>"),
        ("position", "memref<1xf32>", "memref<1xi32>"),
        ("kv_cache", "memref<64xf32>", "memref<LxWxf32>"),
        ("kv_cache", "memref<64x32xf16>", "memref<LxWxf32>"),
        ("kv_cache", "memref<0x32xf32>", "memref<LxWxf32>"),
        ("kv_cache", "tensor<64x32xf32>", "memref<LxWxf32>"),
        ("conv_ring", "memref<4x32x1xf32>", "memref<LxWxf32>"),
        ("delta_state", "memref<*xf32>", "memref<LxWxf32>"),
    ],
)
def test_arguments_of_another_type(kind: str, type_: str, expected: str) -> None:
    func = step(f"%x: {type_} {{tg.arg = #tg.arg<{kind}, 0>}}")
    with pytest.raises(VerifyException) as error:
        tg.arguments(func)
    assert str(error.value) == f'step "step" argument 0 is a {kind} of type {type_}, expected {expected}'


def test_an_argument_attribute_of_another_kind() -> None:
    with pytest.raises(VerifyException, match=r'argument 0 has tg\.arg = "token", expected #tg\.arg'):
        tg.arguments(step('%x: memref<1xi32> {tg.arg = "token"}'))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "has 0 positions of sequence 0, expected 1"),
        ((TOKEN,), "has 0 positions of sequence 0, expected 1"),
        ((POSITION,), "has 0 tokens of sequence 0, expected 1"),
        ((TOKEN, POSITION, POSITION.replace("%pos", "%p")), "has 2 positions of sequence 0, expected 1"),
        ((TOKEN, POSITION, TOKEN.replace("%token", "%t")), "has 2 tokens of sequence 0, expected 1"),
        (
            (TOKEN, POSITION, *(f"%{p}: memref<1xi32> {{tg.arg = #tg.arg<{kind}, 1>}}" for p, kind in (("a", "token"), ("b", "token"), ("c", "position")))),
            "has 2 tokens of sequence 1, expected 1 or none",
        ),
        (
            (TOKEN, POSITION, "%k: memref<64x32xf32> {tg.arg = #tg.arg<kv_cache, 1>}"),
            "has 0 positions of sequence 1, expected 1",
        ),
        (
            (TOKEN, POSITION, "%p: memref<1xi32> {tg.arg = #tg.arg<position, 2>}"),
            "has arguments of sequences [0, 2], expected to count from 0",
        ),
        ((TOKEN, POSITION, "%k: memref<64x32xf32>"), "argument 2 of type memref<64x32xf32> has no attribute tg.arg"),
        (
            (TOKEN, POSITION, *(f'%{k}: memref<64x32xf32> {{tg.arg = #tg.arg<kv_cache, 0, "k">}}' for k in "ab")),
            'has two arguments named "k"',
        ),
        (
            (TOKEN, POSITION, SECOND, *(f'%{k}: memref<64x32xf32> {{tg.arg = #tg.arg<kv_cache, 1, "k">}}' for k in "ab")),
            'has two arguments named "k" of sequence 1',
        ),
        (
            (
                *(TOKEN, POSITION, SECOND, '%a: memref<64x32xf32> {tg.arg = #tg.arg<kv_cache, 0, "k">}'),
                '%b: memref<32x32xf32> {tg.arg = #tg.arg<kv_cache, 1, "k">}',
            ),
            'has "k" of sequence 0 as a kv_cache of type memref<64x32xf32>, and of sequence 1 as a kv_cache of type '
            "memref<32x32xf32>: expected alike",
        ),
    ],
)  # fmt: skip
def test_steps_that_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(VerifyException) as error:
        tg.verify_step(step(*arguments))
    assert str(error.value) == f'step "step" {message}'


def test_values_are_defined_before_they_are_used() -> None:
    scale = "%{} = tg.scale %{} by 2.0 : (tensor<1x32xf32>) -> tensor<1x32xf32>"
    rows = "%x: tensor<1x32xf32>"
    tg.verify_step(step(TOKEN, POSITION, rows, body=f"{scale.format('a', 'x')}\n{scale.format('b', 'a')}"))
    with pytest.raises(VerifyException, match=r"has an op 'tg\.scale' that uses a value before it is defined"):
        tg.verify_step(step(TOKEN, POSITION, rows, body=f"{scale.format('a', 'b')}\n{scale.format('b', 'x')}"))


def test_a_step_is_one_block() -> None:
    declaration = parse("func.func private @step(memref<1xi32>)").body.block.first_op
    assert isinstance(declaration, FuncOp)
    with pytest.raises(VerifyException, match="has 0 blocks, expected 1"):
        tg.verify_step(declaration)


@pytest.mark.parametrize(
    "text, message",
    [
        ("#tg.arg<cache, 0>", "Expected `token`, `position`, `kv_cache`, `conv_ring`, or `delta_state`"),
        ("#tg.arg<token>", "Expected ','"),
        ("#tg.arg<token, 0, k>", "string literal expected"),
        ("#tg.rows<q4_9>", "Expected `f32`"),
        ("#tg.quantized<int4>", "Expected `dequant`, `int8`, or `two_pass_int8`"),
        ("#tg.target<h200, int8, cache = f8, state = f32>", "Expected `f32`, `f16`, or `bf16`"),
    ],
)
def test_attributes_that_cannot_be_parsed(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(f'"test.op"() {{a = {text}}} : () -> ()')
    assert message in str(error.value)


@pytest.mark.parametrize("sequence", [-1, 16, 10**11])
def test_sequences_are_at_most_sixteen(sequence: int) -> None:
    with pytest.raises(VerifyException, match=f"sequence is {sequence}, expected 0 to 15"):
        tg.ArgAttr(tg.ArgumentKind.TOKEN, sequence)


def test_step_functions_are_those_with_lifted_ops() -> None:
    values, scale = "tensor<1x32xf32>", "%y = tg.scale %x by 2.0 : (tensor<1x32xf32>) -> tensor<1x32xf32>"
    module = parse(
        f"""
        func.func private @declared(memref<1xi32>)
        func.func @other() {{ func.return }}
        func.func @step(%x: {values}) {{ {scale} func.return }}
        func.func @fused(%x: {values}) {{ tg.fused "x" {{ {scale} tg.yield }} func.return }}
        """
    )
    assert [func.sym_name.data for func in tg.step_functions(module)] == ["step", "fused"]


# --- target ---


def test_the_default_target() -> None:
    assert tg.target_of(ModuleOp([])) == tg.TargetAttr("h200", tg.Numerics.DEQUANT, tg.Precision.F32, tg.Precision.F32)


def test_the_target_of_an_op_is_that_of_its_module() -> None:
    target = "#tg.target<b200, int8, cache = f16, state = bf16>"
    module = parse(
        f'builtin.module attributes {{tg.target = {target}}} {{\nfunc.func @f() {{\n"test.op"() : () -> ()\nfunc.return\n}}\n}}'
    )
    expected = tg.TargetAttr("b200", tg.Numerics.INT8, tg.Precision.F16, tg.Precision.BF16)
    assert [tg.target_of(op) for op in module.walk()] == [expected] * 4


def test_setting_some_of_a_target_leaves_the_rest() -> None:
    module = ModuleOp([])
    assert tg.set_target(module, "b200", state=tg.Precision.BF16) == tg.target_of(module)
    tg.set_target(module, numerics=tg.Numerics.TWO_PASS_INT8)
    tg.set_target(module, cache=tg.Precision.F16)
    assert tg.target_of(module) == tg.TargetAttr("b200", tg.Numerics.TWO_PASS_INT8, tg.Precision.F16, tg.Precision.BF16)


def test_targets_that_are_refused() -> None:
    module = ModuleOp([])
    with pytest.raises(VerifyException, match="unknown chip 'h2000'; did you mean 'h200'"):
        tg.set_target(module, "h2000")
    with pytest.raises(VerifyException, match="cache is bf16, expected f32 or f16"):
        tg.set_target(module, cache=tg.Precision.BF16)
    with pytest.raises(VerifyException, match="state is f16, expected f32 or bf16"):
        tg.set_target(module, state=tg.Precision.F16)
    assert not module.attributes
    module.attributes["tg.target"] = StringAttr("h200")
    with pytest.raises(VerifyException, match=r'tg\.target is "h200", expected #tg\.target'):
        tg.target_of(module)
