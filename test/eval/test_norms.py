"""Norms, against float64 loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Run = Callable[..., Any]

# Sums of some tens of f32 products.
CLOSE = 1e-6


def row_loop(x: np.ndarray, f: Callable[[list[float]], list[float]]) -> np.ndarray:
    return np.array([f([float(v) for v in row]) for row in x])


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.0])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_rms_norm(run: Run, rng: np.random.Generator, eps: float, size: float):
    x = (size * rng.standard_normal((3, 40))).astype(np.float32)
    w = rng.standard_normal(40).astype(np.float32)
    y = run(
        f"%y = tg.rms_norm %x weight %w eps {eps:e} : (tensor<3x40xf32>, tensor<40xf32>) -> tensor<3x40xf32>",
        "%y : tensor<3x40xf32>",
        x=x,
        w=w,
    )

    def norm(row: list[float]) -> list[float]:
        root = math.sqrt(math.fsum(v * v for v in row) / len(row) + eps)
        return [v / root * float(g) for v, g in zip(row, w, strict=True)]

    np.testing.assert_allclose(y, row_loop(x, norm), rtol=CLOSE)
    assert y.dtype == np.float32


def test_rms_norm_without_a_weight(run: Run, rng: np.random.Generator):
    x = rng.standard_normal((2, 8)).astype(np.float32)
    y = run("%y = tg.rms_norm %x eps 0.0 : (tensor<2x8xf32>) -> tensor<2x8xf32>", "%y : tensor<2x8xf32>", x=x)
    np.testing.assert_allclose(np.mean(y.astype(np.float64) ** 2, axis=1), 1, rtol=CLOSE)


def test_two_norms_each_with_its_own_epsilon(run: Run):
    x = np.full((1, 4), 1e-2, np.float32)
    y = run(
        "%a = tg.rms_norm %x eps 1.0e-4 : (tensor<1x4xf32>) -> tensor<1x4xf32>\n"
        "%y = tg.rms_norm %a eps 3.0 : (tensor<1x4xf32>) -> tensor<1x4xf32>",
        "%y : tensor<1x4xf32>",
        x=x,
    )
    # 0.01/√(1e-4 + 1e-4) = √½, then √½/√(½ + 3) = 1/√7.
    np.testing.assert_allclose(y, 1 / math.sqrt(7), rtol=CLOSE)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(run: Run, rng: np.random.Generator, bias: bool):
    x = (5 + rng.standard_normal((3, 24))).astype(np.float32)
    w, b = (rng.standard_normal(24).astype(np.float32) for _ in range(2))
    operands, types = ("bias %b ", ", tensor<24xf32>") if bias else ("", "")
    y = run(
        f"%y = tg.layer_norm %x weight %w {operands}eps 1.0e-5 :"
        f" (tensor<3x24xf32>, tensor<24xf32>{types}) -> tensor<3x24xf32>",
        "%y : tensor<3x24xf32>",
        x=x,
        w=w,
        b=b,
    )

    def norm(row: list[float]) -> list[float]:
        mean = math.fsum(row) / 24
        root = math.sqrt(math.fsum((v - mean) ** 2 for v in row) / 24 + 1e-5)
        return [(v - mean) / root * float(w[i]) + (float(b[i]) if bias else 0) for i, v in enumerate(row)]

    # The mean of values around 5 is known to about 5e-7.
    np.testing.assert_allclose(y, row_loop(x, norm), rtol=1e-5, atol=3e-6)


def test_l2_norm_divides_by_the_larger_of_norm_and_epsilon(run: Run):
    x = np.array([[3, 4], [3e-4, 4e-4], [0, 0]], np.float32)
    y = run("%y = tg.l2_norm %x eps 1.0e-2 : (tensor<3x2xf32>) -> tensor<3x2xf32>", "%y : tensor<3x2xf32>", x=x)
    np.testing.assert_allclose(y, [[0.6, 0.8], [0.03, 0.04], [0, 0]], rtol=CLOSE)
