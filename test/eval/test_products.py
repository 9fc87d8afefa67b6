"""Products by weights, mixtures, and where activations are quantized."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lane_mlir.dialects.tg import ExpertActivation, Numerics, Scoring
from lane_mlir.eval import quantize
from lane_mlir.eval.products import Experts, Routing, expert_activation, moe

Run = Callable[..., Any]
Floats = NDArray[np.float32]

QUANTIZING = (Numerics.INT8, Numerics.TWO_PASS_INT8)

# Sums of some hundred f32 products.
TOLERANCE = 1e-5


def assert_close(actual: NDArray[Any], expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def random(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape).astype(np.float32)


# Matrix products.

MATMUL = "%y = tg.matmul %x, %w : (tensor<3x64xf32>, tensor<5x64xf32>) -> tensor<3x5xf32>"


def test_matmul(run: Run, rng: np.random.Generator):
    x, w = random(rng, 3, 64), random(rng, 5, 64)
    y = run(MATMUL, "%y : tensor<3x5xf32>", x=x, w=w)
    expected = [[math.fsum(float(a) * float(b) for a, b in zip(r, n, strict=True)) for n in w] for r in x]
    assert_close(y, expected)


@pytest.mark.parametrize("numerics", QUANTIZING)
@pytest.mark.parametrize("form", ["q8_0", "f16", None])
def test_a_plain_activation_is_quantized_for_block_formats_alone(
    run: Run, rng: np.random.Generator, numerics: Numerics, form: str | None
):
    x, w = random(rng, 3, 64), random(rng, 5, 64)
    w_type = f"tensor<5x64xf32{f', #tg.rows<{form}>' if form else ''}>"
    y = run(
        f"%y = tg.matmul %x, %w : (tensor<3x64xf32>, {w_type}) -> tensor<3x5xf32>",
        "%y : tensor<3x5xf32>",
        types={"w": w_type},
        numerics=numerics,
        x=x,
        w=w,
    )
    taken = quantize(x, numerics) if form == "q8_0" else x
    assert_close(y, taken.astype(np.float64) @ w.T.astype(np.float64))


@pytest.mark.parametrize("numerics", QUANTIZING)
def test_an_explicit_quantize_changes_nothing(run: Run, rng: np.random.Generator, numerics: Numerics):
    """Bit for bit: quantizing twice would round twice."""
    x, w = random(rng, 3, 64), random(rng, 5, 64)
    w_type = "tensor<5x64xf32, #tg.rows<q4_0>>"
    q_type = f"tensor<3x64xf32, #tg.quantized<{numerics}>>"
    bodies = (
        f"%y = tg.matmul %x, %w : (tensor<3x64xf32>, {w_type}) -> tensor<3x5xf32>",
        f"%q = tg.quantize %x : tensor<3x64xf32> -> {q_type}\n"
        f"%y = tg.matmul %q, %w : ({q_type}, {w_type}) -> tensor<3x5xf32>",
    )
    implicit, explicit = (
        run(body, "%y : tensor<3x5xf32>", types={"w": w_type}, numerics=numerics, x=x, w=w) for body in bodies
    )
    np.testing.assert_array_equal(implicit, explicit)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_head_matmul(run: Run, rng: np.random.Generator, shared: bool, transposed: bool):
    """Takes its activation as it is, whatever the numerics and the format."""
    heads, a, b = 3, 32, 4
    x, w = random(rng, 2, a if shared else heads * a), random(rng, heads, b, a)
    w_type = "tensor<3x32x4xf32>" if transposed else "tensor<3x4x32xf32, #tg.rows<q8_0>>"
    flags = " ".join(name for name, is_set in (("shared", shared), ("transposed", transposed)) if is_set)
    y = run(
        f"%y = tg.head_matmul %x, %w {flags} : (tensor<2x{x.shape[1]}xf32>, {w_type}) -> tensor<2x12xf32>",
        "%y : tensor<2x12xf32>",
        types={"w": w_type},
        numerics=Numerics.INT8,
        x=x,
        w=w.transpose(0, 2, 1).copy() if transposed else w,
    )
    for r, h, j in itertools.product(range(2), range(heads), range(b)):
        head = x[r] if shared else x[r, h * a : (h + 1) * a]
        expected = math.fsum(float(v) * float(u) for v, u in zip(head, w[h, j], strict=True))
        assert y[r, h * b + j] == pytest.approx(expected, abs=1e-5)


def test_head_matmul_of_a_cache_leaves_rows_past_the_position_to_themselves(run: Run, rng: np.random.Generator):
    x, w = random(rng, 4, 32).astype(np.float16), random(rng, 2, 3, 32)
    x[2:] = np.nan
    y = run(
        "%y = tg.head_matmul %x, %w upto %pos shared : (memref<4x32xf32>, tensor<2x3x32xf32>, memref<1xi32>)"
        " -> tensor<4x6xf32>",
        "%y : tensor<4x6xf32>",
        state=("x",),
        x=x,
        w=w,
        pos=np.array([1], np.int32),
    )
    expected = [
        [math.fsum(float(v) * float(u) for v, u in zip(x[r], n, strict=True)) for n in w.reshape(6, 32)] for r in (0, 1)
    ]
    assert_close(y[:2], expected)


# Routing.


def routed(routing: Routing, logits: list[float], bias: list[float] | None = None) -> dict[int, float]:
    """The chosen experts of one row and their weights, by the formulas in Python."""
    experts = range(len(logits))
    match routing.scoring:
        case Scoring.SOFTMAX:
            total = sum(math.exp(v) for v in logits)
            scores = [math.exp(v) / total for v in logits]
        case Scoring.SIGMOID:
            scores = [1 / (1 + math.exp(-v)) for v in logits]
        case Scoring.SOFTMAX_CHOSEN:
            scores = list(logits)
    selection = [s + (bias[e] if bias else 0) for e, s in enumerate(scores)]
    size = len(logits) // routing.groups
    groups = [[e for e in experts if e // size == g] for g in range(routing.groups)]
    group_scores = [sum(sorted((selection[e] for e in group), reverse=True)[:2]) for group in groups]
    best_groups = sorted(range(routing.groups), key=lambda g: (-group_scores[g], g))[: routing.groups_used]
    candidates = [e for g in best_groups for e in groups[g]]
    chosen = sorted(candidates, key=lambda e: (-selection[e], e))[: routing.used]
    weights = {e: scores[e] for e in chosen}
    if routing.scoring is Scoring.SOFTMAX_CHOSEN:
        total = sum(math.exp(logits[e]) for e in chosen)
        weights = {e: math.exp(logits[e]) / total for e in chosen}
    if routing.renormalize:
        total = max(sum(weights.values()), 2**-14)
        weights = {e: w / total for e, w in weights.items()}
    return {e: w * routing.scale for e, w in weights.items()}


def choose(routing: Routing, logits: list[float], bias: list[float] | None = None) -> dict[int, float]:
    selection_bias = None if bias is None else np.array(bias, np.float32)
    chosen, weights = routing.choose(np.array([logits], np.float32), selection_bias)
    return dict(zip(chosen[0].tolist(), weights[0].tolist(), strict=True))


LOGITS = [0.3, -1.2, 2.5, 0.31, -0.4, 1.9, 0.0, -2.2]
BELOW = [-1.5, -3.0, -1.1, -7.0, -2.0, -1.2, -4.0, -9.0]


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("scoring", list(Scoring))
@pytest.mark.parametrize("used", [1, 2, 3])
@pytest.mark.parametrize("logits", [LOGITS, BELOW], ids=["mixed", "all below -1"])
def test_router_grid(logits: list[float], used: int, scoring: Scoring, renormalize: bool, scale: float):
    routing = Routing(used, scoring, renormalize, scale)
    assert choose(routing, logits) == pytest.approx(routed(routing, logits), rel=1e-5)


def test_router_worked_by_hand():
    # Softmax over all: e² / (e² + e + 2); the chosen weights are not renormalized, then scaled.
    routing = Routing(1, Scoring.SOFTMAX, scale=3.0)
    assert choose(routing, [1.0, 0.0, 2.0, 0.0]) == pytest.approx({2: 3 * math.e**2 / (math.e**2 + math.e + 2)})
    # Softmax over the chosen: the others do not count.
    routing = Routing(2, Scoring.SOFTMAX_CHOSEN)
    assert choose(routing, [1.0, 0.0, 2.0, 0.0]) == pytest.approx({2: math.e / (math.e + 1), 0: 1 / (math.e + 1)})


def test_ties_go_to_the_lower_expert():
    assert list(choose(Routing(3, Scoring.SIGMOID), [0.5] * 6)) == [0, 1, 2]
    routing = Routing(2, Scoring.SIGMOID, groups=3, groups_used=1)
    assert list(choose(routing, [0.5] * 6)) == [0, 1]


def test_a_selection_bias_chooses_and_does_not_weigh():
    bias = [0, 0, 0, 0, 0, 0, 5.0, 0]
    routing = Routing(2, Scoring.SIGMOID, renormalize=True)
    chosen = choose(routing, LOGITS, bias)
    assert chosen == pytest.approx(routed(routing, LOGITS, bias), rel=1e-5)
    assert list(chosen) == [6, 2]
    assert chosen[6] < chosen[2]


def test_scores_that_vanish_are_not_blown_up():
    """The sum is at least 2⁻¹⁴."""
    chosen = choose(Routing(2, Scoring.SIGMOID, renormalize=True), [-20.0, -21.0, -30.0])
    assert chosen == pytest.approx({0: 2**14 / (1 + math.e**20), 1: 2**14 / (1 + math.e**21)}, rel=1e-5)


@given(
    logits=st.lists(st.integers(-60, 60), min_size=12, max_size=12),
    bias=st.lists(st.integers(-10, 10), min_size=12, max_size=12),
    groups=st.sampled_from([(1, 1), (3, 1), (3, 2), (4, 2), (6, 3), (6, 5)]),
    used=st.integers(1, 2),
    scoring=st.sampled_from([Scoring.SIGMOID, Scoring.SOFTMAX_CHOSEN]),
)
def test_groups(logits: list[int], bias: list[int], groups: tuple[int, int], used: int, scoring: Scoring):
    """Logits far enough apart that f32 orders them as Python does, or equal."""
    routing = Routing(used, scoring, groups=groups[0], groups_used=groups[1])
    if scoring is Scoring.SOFTMAX_CHOSEN:
        values, shift = [v / 8 for v in logits], [v / 4 for v in bias]
    else:
        # Without a bias, sums of sigmoids of distinct multisets may be closer than f32 tells apart: make them exact.
        values, shift = [math.copysign(100, v) for v in logits], [v / 4 for v in bias]
    expected = routed(routing, values, shift)
    assert choose(routing, values, shift) == pytest.approx(expected, rel=1e-5, abs=1e-30)


# Mixtures.


def expert_by_loops(experts: Experts, e: int, x: Floats) -> Floats:
    g, u = experts.gate[e] @ x, experts.up[e] @ x
    if experts.gate_bias is not None:
        g = g + experts.gate_bias[e]
    if experts.up_bias is not None:
        u = u + experts.up_bias[e]
    y = experts.down[e] @ expert_activation(experts.activation, g, u, experts.alpha, experts.limit)
    return y if experts.down_bias is None else y + experts.down_bias[e]


@pytest.mark.parametrize("rows", [1, 2, 8, 17])
@pytest.mark.parametrize("biased", [False, True])
def test_mixture_row_by_row(rng: np.random.Generator, rows: int, biased: bool):
    d, ff, count = 16, 24, 6
    experts = Experts(random(rng, count, ff, d), random(rng, count, ff, d), random(rng, count, d, ff))
    if biased:
        gate_bias, up_bias, down_bias = random(rng, count, ff), random(rng, count, ff), random(rng, count, d)
        experts = replace(experts, gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias)
    x, router, bias = random(rng, rows, d), random(rng, count, d), random(rng, count)
    routing = Routing(2, Scoring.SOFTMAX, renormalize=True, scale=1.5)
    y = moe(x, router, experts, routing, bias)
    for r in range(rows):
        weights = routed(routing, [float(v) for v in router @ x[r] + bias])
        expected = sum(w * expert_by_loops(experts, e, x[r]) for e, w in weights.items())
        np.testing.assert_allclose(y[r], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gate, up", [(0.5, -2.0), (9.0, 9.0), (-9.0, -9.0), (7.0, 7.0)])
def test_clamped_swiglu(gate: float, up: float):
    y = expert_activation(
        ExpertActivation.CLAMPED_SWIGLU, np.array([gate], np.float32), np.array([up], np.float32), 1.702, 7.0
    )
    g, u = min(gate, 7.0), max(-7.0, min(up, 7.0))
    assert y[0] == pytest.approx(g / (1 + math.exp(-1.702 * g)) * (u + 1), rel=1e-6)


MOE = (
    "%y = tg.moe %x router %router gate %gate up %up down %down used 2 of groups 1 / 1 by softmax renormalize"
    " scale 1.0 {activation} : tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x64x32xf32{gate}>, tensor<4x64x32xf32{up}>,"
    " tensor<4x32x64xf32{down}> -> tensor<4x32xf32>"
)


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("forms", [("q8_0", "q8_0", "q4_0"), ("q8_0", "f16", "f32"), ("f32", "f32", "mxfp4")], ids=str)
def test_each_product_of_a_mixture_takes_its_activation_as_its_format_wants(
    run: Run, rng: np.random.Generator, numerics: Numerics, forms: tuple[str, str, str]
):
    x, router = random(rng, 4, 32), random(rng, 4, 32)
    gate, up, down = random(rng, 4, 64, 32), random(rng, 4, 64, 32), random(rng, 4, 32, 64)
    encodings = dict(zip(("gate", "up", "down"), (f", #tg.rows<{form}>" for form in forms), strict=True))
    shapes = {"gate": "4x64x32", "up": "4x64x32", "down": "4x32x64"}
    y = run(
        MOE.format(activation="gelu_tanh", **encodings),
        "%y : tensor<4x32xf32>",
        types={name: f"tensor<{shapes[name]}xf32{encoding}>" for name, encoding in encodings.items()},
        numerics=numerics,
        x=x,
        router=router,
        gate=gate,
        up=up,
        down=down,
    )
    taken = [quantize(x, numerics) if form in ("q8_0", "q4_0", "mxfp4") else x for form in forms[:2]]
    for r in range(4):
        # The router sees the plain activation.
        weights = routed(Routing(2, renormalize=True), [float(v) for v in router @ x[r]])
        total = np.zeros(32, np.float32)
        for e, w in weights.items():
            hidden = expert_activation(ExpertActivation.GELU_TANH, gate[e] @ taken[0][r], up[e] @ taken[1][r])[None]
            if forms[2] != "f32":
                hidden = quantize(hidden, numerics)
            total += np.float32(w) * (down[e] @ hidden[0])
        # One integer of a hidden activation may round the other way after a sum in another order: 1/127 of a value.
        tolerance = 1e-5 if numerics is Numerics.DEQUANT else 2e-3
        assert np.linalg.norm(y[r] - total) < tolerance * np.linalg.norm(total)


@pytest.mark.parametrize("numerics", QUANTIZING)
def test_a_mixture_of_a_quantized_activation_is_that_of_the_plain_one(
    run: Run, rng: np.random.Generator, numerics: Numerics
):
    """Bit for bit, and the router is not changed by it."""
    tensors = {"x": random(rng, 4, 32), "router": random(rng, 4, 32)}
    tensors |= {name: random(rng, *shape) for name, shape in (("gate", (4, 64, 32)), ("up", (4, 64, 32)))}
    tensors["down"] = random(rng, 4, 32, 64)
    rows = ", #tg.rows<q8_0>"
    plain = MOE.format(activation="silu", gate=rows, up=rows, down=rows)
    q_type = f"tensor<4x32xf32, #tg.quantized<{numerics}>>"
    quantized = f"%q = tg.quantize %x : tensor<4x32xf32> -> {q_type}\n" + plain.replace(
        "%x router", f"%x quantized %q : {q_type} router"
    )
    types = {
        "gate": f"tensor<4x64x32xf32{rows}>",
        "up": f"tensor<4x64x32xf32{rows}>",
        "down": f"tensor<4x32x64xf32{rows}>",
    }
    first, second = (
        run(body, "%y : tensor<4x32xf32>", types=types, numerics=numerics, **tensors) for body in (plain, quantized)
    )
    np.testing.assert_array_equal(first, second)
