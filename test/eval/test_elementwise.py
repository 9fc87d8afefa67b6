"""Elementwise ops, against Python's own mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lane_mlir.dialects.tg import Activation
from lane_mlir.eval.elementwise import ACTIVATIONS, softplus

Run = Callable[..., Any]

FORMULAS: dict[Activation, Callable[[float], float]] = {
    Activation.SILU: lambda x: x / (1 + math.exp(-x)),
    Activation.GELU: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    Activation.GELU_TANH: lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    Activation.SOFTPLUS: lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0),
    Activation.TANH: math.tanh,
    Activation.RELU: lambda x: max(x, 0),
    Activation.EXP: math.exp,
}


@pytest.mark.parametrize("activation", list(Activation))
def test_unary(run: Run, activation: Activation):
    x = np.linspace(-12, 12, 97, dtype=np.float32)[None]
    y = run(f"%y = tg.unary {activation} %x : (tensor<1x97xf32>) -> tensor<1x97xf32>", "%y : tensor<1x97xf32>", x=x)
    # tanh in f32 leaves 6e-8 of gelu_tanh's x where the two parts cancel.
    atol = 1e-6 if activation is Activation.GELU_TANH else 1e-12
    np.testing.assert_allclose(y[0], [FORMULAS[activation](float(v)) for v in x[0]], rtol=3e-6, atol=atol)
    assert y.dtype == np.float32


LIMITS = {
    Activation.SILU: (0, 1e4),
    Activation.GELU: (0, 1e4),
    Activation.GELU_TANH: (0, 1e4),
    Activation.SIGMOID: (0, 1),
    Activation.SOFTPLUS: (0, 1e4),
    Activation.TANH: (-1, 1),
    Activation.RELU: (0, 1e4),
}


@pytest.mark.parametrize("activation", list(LIMITS))
def test_far_from_zero(activation: Activation):
    y = ACTIVATIONS[activation](np.array([-1e4, 1e4], np.float32))
    np.testing.assert_array_equal(y, np.array(LIMITS[activation], np.float32))


@given(st.floats(17, 2.0**127, width=32))
def test_softplus_is_the_identity_for_large_x(x: float):
    # log(1 + e⁻¹⁷) is 4e-8, less than half a unit in the last place of 17.
    assert softplus(np.array([x], np.float32))[0] == np.float32(x)


def test_softplus_of_25():
    assert softplus(np.array([25], np.float32))[0] == 25


OPERATORS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("shape", [(3, 4), (4,), (1, 4), (3, 1)], ids=str)
def test_binary(
    run: Run,
    rng: np.random.Generator,
    name: str,
    shape: tuple[int, ...],
):
    a = rng.standard_normal((3, 4)).astype(np.float32)
    b = rng.uniform(0.5, 2, shape).astype(np.float32)
    b_type = f"tensor<{'x'.join(map(str, shape))}xf32>"
    y = run(
        f"%y = tg.binary {name} %a, %b : (tensor<3x4xf32>, {b_type}) -> tensor<3x4xf32>",
        "%y : tensor<3x4xf32>",
        a=a,
        b=b,
    )
    for r in range(3):
        for c in range(4):
            other = b[c] if shape == (4,) else b[r % shape[0], c % shape[1]]
            assert y[r, c] == pytest.approx(OPERATORS[name](float(a[r, c]), float(other)), rel=1e-6)


def test_a_large_residual_stays_f32(run: Run):
    y = run(
        "%y = tg.binary add %a, %b : (tensor<1x1xf32>, tensor<1x1xf32>) -> tensor<1x1xf32>",
        "%y : tensor<1x1xf32>",
        a=np.array([[1e4]], np.float32),
        b=np.array([[1 / 1024]], np.float32),
    )
    assert y[0, 0] == 1e4 + 1 / 1024


def test_scale(run: Run):
    y = run(
        "%y = tg.scale %x by 2.4e+01 : (tensor<1x3xf32>) -> tensor<1x3xf32>",
        "%y : tensor<1x3xf32>",
        x=np.array([[1, -2, 0.5]], np.float32),
    )
    assert y.tolist() == [[24, -48, 12]]
