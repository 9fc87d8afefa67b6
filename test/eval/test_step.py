"""Whole steps: every op has a meaning, fused ops that of their parts, and arguments are checked."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import TG, Numerics
from lane_mlir.eval import GivenWeights, RandomWeights, TensorGraphFunctions, make_arguments, quantize, run_step
from lane_mlir.eval.step import the_step

Parse = Callable[[str], ModuleOp]

STEP = """
builtin.module attributes {{"tg.target" = #tg.target<h200, {numerics}, cache = f16, state = bf16>}} {{
  func.func @step(%token: memref<1xi32> {{tg.arg = #tg.arg<token, 0>}},
                  %pos: memref<1xi32> {{tg.arg = #tg.arg<position, 0>}},
                  %keys: memref<8x64xf32> {{tg.arg = #tg.arg<kv_cache, 0>}},
                  %ring: memref<2x64xf32> {{tg.arg = #tg.arg<conv_ring, 0>}},
                  %state: memref<64x64xf32> {{tg.arg = #tg.arg<delta_state, 0>}}) -> tensor<1x96xf32> {{
    %table = tg.constant "table" : tensor<50x64xf32, #tg.rows<q8_0>>
    %w = tg.constant "w" : tensor<96x64xf32, #tg.rows<q8_0>>
    %x = tg.gather %table[%token] : (tensor<50x64xf32, #tg.rows<q8_0>>, memref<1xi32>) -> tensor<1x64xf32>
    {body}
    func.return %y : tensor<1x96xf32>
  }}
}}
"""
SET_AND_SCALE = """
    tg.set_row %x into %keys[%pos] : tensor<1x64xf32>, memref<8x64xf32>, memref<1xi32>
    %s = tg.scale %x by 2.0 : (tensor<1x64xf32>) -> tensor<1x64xf32>"""
LIFTED = f"""{SET_AND_SCALE}
    %y = tg.matmul %s, %w : (tensor<1x64xf32>, tensor<96x64xf32, #tg.rows<q8_0>>) -> tensor<1x96xf32>
"""
FUSED = f"""%y = tg.fused "outer" {{
      %inner = tg.fused "inner" {{{SET_AND_SCALE}
        tg.yield %s : tensor<1x64xf32>
      }}
      %z = tg.matmul %inner, %w : (tensor<1x64xf32>, tensor<96x64xf32, #tg.rows<q8_0>>) -> tensor<1x96xf32>
      tg.yield %z : tensor<1x96xf32>
    }}
"""


@pytest.fixture
def weights(rng: np.random.Generator) -> GivenWeights:
    return GivenWeights(
        {name: rng.standard_normal((n, 64)).astype(np.float32) for name, n in (("table", 50), ("w", 96))}
    )


def test_every_op_has_a_meaning():
    interpreter = Interpreter(ModuleOp([]))
    interpreter.register_implementations(TensorGraphFunctions(RandomWeights(), Numerics.DEQUANT))
    implemented = interpreter._impls._impl_dict  # pyright: ignore[reportPrivateUsage]
    assert [op.name for op in TG.operations if op not in implemented] == []


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("body", [LIFTED, FUSED], ids=["lifted", "fused"])
def test_a_step(parse: Parse, weights: GivenWeights, numerics: Numerics, body: str):
    """The module says which numerics; the fused form writes state, too."""
    module = parse(STEP.format(numerics=numerics, body=body))
    arguments = make_arguments(the_step(module))
    arguments[0][0], arguments[1][0] = 49, 7
    (y,) = run_step(module, weights, arguments)
    x = weights.arrays["table"][49:]
    np.testing.assert_allclose(y, quantize(2 * x, numerics) @ weights.arrays["w"].T, rtol=1e-6)
    np.testing.assert_array_equal(arguments[2][7:], x.astype(np.float16))
    assert not arguments[2][:7].any()


def test_numerics_can_be_overridden(parse: Parse, weights: GivenWeights):
    results: list[np.ndarray] = []
    for stated, override in ((Numerics.INT8, Numerics.DEQUANT), (Numerics.DEQUANT, None), (Numerics.INT8, None)):
        module = parse(STEP.format(numerics=stated, body=LIFTED))
        results += run_step(module, weights, make_arguments(the_step(module)), override)
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_arguments_are_stored_as_the_target_says(parse: Parse):
    arguments = make_arguments(the_step(parse(STEP.format(numerics="int8", body=LIFTED))))
    assert [a.dtype for a in arguments] == [np.int32, np.int32, np.float16, np.float32, ml_dtypes.bfloat16]
    assert [a.shape for a in arguments] == [(1,), (1,), (8, 64), (2, 64), (64, 64)]
    assert not any(a.any() for a in arguments)


def test_what_an_op_refuses_names_it(parse: Parse, weights: GivenWeights):
    module = parse(STEP.format(numerics="int8", body=LIFTED))
    arguments = make_arguments(the_step(module))
    arguments[1][0] = 8
    with pytest.raises(LaneError, match=r"^tg.set_row: rows 8 to 9 are not within the table's 8 rows$"):
        run_step(module, weights, arguments)


def test_a_message_carries_number_and_tensor(parse: Parse):
    module = parse('func.func @f() { %w = tg.constant "w" : tensor<2x2xf32> loc("blk.0.w") func.return }')
    with pytest.raises(LaneError, match=r"^tg.constant \(blk.0.w\): unknown tensor 'w'"):
        run_step(module, GivenWeights({}), [])


def test_wrong_arguments_are_refused(parse: Parse, weights: GivenWeights):
    module = parse(STEP.format(numerics="int8", body=LIFTED))
    arguments = make_arguments(the_step(module))
    with pytest.raises(LaneError, match='step "step" takes 5 arguments, not 4'):
        run_step(module, weights, arguments[:4])
    arguments[2] = arguments[2][:7]
    with pytest.raises(LaneError, match='argument 2 of step "step" is 7x64, expected 8x64'):
        run_step(module, weights, arguments)


@pytest.mark.parametrize("count", [0, 2])
def test_a_module_has_one_step(parse: Parse, count: int):
    functions = "\n".join(f"func.func @f{i}() {{ func.return }}" for i in range(count))
    with pytest.raises(LaneError, match=f"the module has {count} functions with a body, expected 1"):
        run_step(parse(f"builtin.module {{ {functions} }}"), GivenWeights({}), [])


def test_infinities_and_nan_pass_without_a_warning(parse: Parse):
    module = parse("""func.func @f(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
        %y = tg.binary div %x, %x : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<1x2xf32>
        func.return %y : tensor<1x2xf32> }""")
    (y,) = run_step(module, GivenWeights({}), [np.array([[0, np.inf]], np.float32)])
    assert np.isnan(y).all()
