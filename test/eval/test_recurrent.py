"""Causal convolution and the gated delta rule, by loops and in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.dialects.tg import KeyHeadOrder
from lane_mlir.eval.recurrent import conv, delta

Run = Callable[..., Any]
Floats = NDArray[np.float32]

CHUNKS = [[1], [63, 2], [64, 1], [65], [1, 64], [512], [511, 1], [7, 58, 1, 64]]


def random(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape).astype(np.float32)


# Convolution.


def test_conv_by_loops(run: Run, rng: np.random.Generator):
    x, w, ring = random(rng, 5, 3), random(rng, 3, 4), random(rng, 4, 3)
    inputs = [*ring[1:].tolist(), *x.tolist()]
    y = run(
        "%y = tg.conv %x, %w ring %ring : (tensor<5x3xf32>, tensor<3x4xf32>, memref<4x3xf32>) -> tensor<5x3xf32>",
        "%y : tensor<5x3xf32>",
        state=("ring",),
        x=x,
        w=w,
        ring=ring,
    )
    for r in range(5):
        for c in range(3):
            assert y[r, c] == pytest.approx(sum(float(w[c, t]) * inputs[r + t][c] for t in range(4)), abs=1e-6)
    assert ring.tolist() == inputs[-4:]


def test_conv_starts_with_zeros(rng: np.random.Generator):
    x, w = random(rng, 1, 3), random(rng, 3, 4)
    np.testing.assert_array_equal(conv(x, w, np.zeros((4, 3), np.float32)), x * w[:, 3])


@pytest.mark.parametrize("taps", [1, 2, 3, 4])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_conv_in_chunks_is_token_by_token(rng: np.random.Generator, chunks: list[int], taps: int):
    x, w, start = random(rng, sum(chunks), 6), random(rng, 6, taps), random(rng, taps, 6)
    ring, ring_by_token = start.copy(), start.copy()
    by_token = np.concatenate([conv(x[r : r + 1], w, ring_by_token) for r in range(len(x))])
    ends = np.cumsum(chunks).tolist()
    in_chunks = np.concatenate([conv(x[end - n : end], w, ring) for n, end in zip(chunks, ends, strict=True)])
    np.testing.assert_array_equal(in_chunks, by_token)
    np.testing.assert_array_equal(ring, ring_by_token)


# Decay.


def test_decay(run: Run, rng: np.random.Generator):
    a, dt, al = random(rng, 2, 3), random(rng, 3), -np.exp(random(rng, 3))
    a[0, 0] = 25 - dt[0]
    y = run(
        "%y = tg.decay %a dt %dt al %al : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3xf32>",
        "%y : tensor<2x3xf32>",
        a=a,
        dt=dt,
        al=al,
    )
    for r in range(2):
        for h in range(3):
            expected = math.exp(float(al[h]) * math.log1p(math.exp(float(a[r, h]) + float(dt[h]))))
            assert y[r, h] == pytest.approx(expected, rel=1e-5)


# Delta rule.


def key_head(order: KeyHeadOrder, head: int, key_heads: int, value_heads: int) -> int:
    return head // (value_heads // key_heads) if order is KeyHeadOrder.BLOCKED else head % key_heads


def delta_by_loops(
    inputs: list[Floats], state: Floats, key_heads: int, value_heads: int, order: KeyHeadOrder, eps: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The recurrence as one matrix equation, S ← decay·(I - beta·k·kᵀ)·S + beta·k·vᵀ, in float64."""
    q, k, v, z, beta, rate, norm = inputs
    d = len(norm)
    y = np.zeros(v.shape)
    states = state.astype(np.float64).reshape(value_heads, d, d)
    for r in range(len(q)):
        for h in range(value_heads):
            g = key_head(order, h, key_heads, value_heads)
            query = q[r, g * d : (g + 1) * d].astype(np.float64) / math.sqrt(d)
            key = k[r, g * d : (g + 1) * d].astype(np.float64)
            value, gate = (a[r, h * d : (h + 1) * d].astype(np.float64) for a in (v, z))
            erase = np.eye(d) - float(beta[r, h]) * np.outer(key, key)
            states[h] = float(rate[r, h]) * erase @ states[h] + float(beta[r, h]) * np.outer(key, value)
            o = query @ states[h]
            o = o / np.sqrt(np.mean(o**2) + eps) * norm
            y[r, h * d : (h + 1) * d] = o * gate / (1 + np.exp(-gate))
    return y, states.reshape(state.shape)


def run_delta(
    inputs: Sequence[Floats],
    state: NDArray[Any],
    key_heads: int,
    value_heads: int,
    order: KeyHeadOrder = KeyHeadOrder.BLOCKED,
) -> Floats:
    q, k, v, z, beta, rate, norm = inputs
    return delta(
        *(q, k, v, z, beta, rate, norm), state, key_heads=key_heads, value_heads=value_heads, order=order, eps=1e-6
    )


def delta_inputs(rng: np.random.Generator, rows: int, key_heads: int, value_heads: int, d: int) -> list[Floats]:
    """q and k of length 1, as the rule takes them; beta and decay between 0 and 1."""
    q, k = (random(rng, rows, key_heads, d) for _ in range(2))
    q, k = ((a / np.linalg.norm(a, axis=2, keepdims=True)).reshape(rows, -1) for a in (q, k))
    v, z = (random(rng, rows, value_heads * d) for _ in range(2))
    beta, rate = (rng.uniform(0.05, 0.95, (rows, value_heads)).astype(np.float32) for _ in range(2))
    return [q, k, v, z, beta, rate, random(rng, d)]


@pytest.mark.parametrize("order", list(KeyHeadOrder))
@pytest.mark.parametrize("key_heads, value_heads", [(1, 1), (2, 2), (2, 6), (16, 32)])
def test_delta_by_loops(run: Run, rng: np.random.Generator, key_heads: int, value_heads: int, order: KeyHeadOrder):
    rows, d = 3, 8
    inputs = delta_inputs(rng, rows, key_heads, value_heads, d)
    state = random(rng, value_heads * d, d)
    expected, expected_state = delta_by_loops(inputs, state, key_heads, value_heads, order, 1e-6)
    keys, values = key_heads * d, value_heads * d
    widths = [keys, keys, values, values, value_heads, value_heads]
    types = ", ".join(f"tensor<{rows}x{width}xf32>" for width in widths)
    y = run(
        "%y = tg.delta %q, %k, %v gate %z beta %beta decay %rate norm %norm state %s"
        f" heads {value_heads} / {key_heads} {order} eps 1.0e-06 :"
        f" ({types}, tensor<{d}xf32>, memref<{values}x{d}xf32>) -> tensor<{rows}x{values}xf32>",
        f"%y : tensor<{rows}x{values}xf32>",
        state=("s",),
        **dict(zip(("q", "k", "v", "z", "beta", "rate", "norm"), inputs, strict=True)),
        s=state,
    )
    # f32 against f64, through a norm of sums of a few values that may cancel.
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state, expected_state, rtol=1e-4, atol=1e-5)


def test_orders_of_key_heads_differ(rng: np.random.Generator):
    """Value head 1 of 4 reads key head 0 of 2 if blocked, 1 if cyclic."""
    inputs = delta_inputs(rng, 1, 2, 4, 8)
    results: dict[KeyHeadOrder, Floats] = {}
    for order in KeyHeadOrder:
        state = np.zeros((32, 8), np.float32)
        results[order] = run_delta(inputs, state, 2, 4, order)
    blocked, cyclic = (results[order].reshape(4, 8) for order in (KeyHeadOrder.BLOCKED, KeyHeadOrder.CYCLIC))
    np.testing.assert_array_equal(blocked[[0, 3]], cyclic[[0, 3]])
    assert not np.allclose(blocked[1], cyclic[1])


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_delta_in_chunks_is_token_by_token(rng: np.random.Generator, chunks: list[int]):
    """Bit for bit: values, and the state that the next step starts from."""
    *rows, norm = delta_inputs(rng, sum(chunks), 2, 4, 8)
    start = random(rng, 32, 8)

    def steps(sizes: list[int]) -> tuple[Floats, Floats]:
        state, ends = start.copy(), np.cumsum(sizes).tolist()
        parts = [
            run_delta([*(a[end - n : end] for a in rows), norm], state, 2, 4)
            for n, end in zip(sizes, ends, strict=True)
        ]
        return np.concatenate(parts), state

    for in_chunks, by_token in zip(steps(chunks), steps([1] * sum(chunks)), strict=True):
        np.testing.assert_array_equal(in_chunks, by_token)


def test_bf16_state_is_rounded_once_a_step(rng: np.random.Generator):
    inputs = delta_inputs(rng, 5, 1, 1, 8)
    exact = np.zeros((8, 8), np.float32)
    stored = exact.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run_delta(inputs, exact, 1, 1), run_delta(inputs, stored, 1, 1))
    np.testing.assert_array_equal(stored, exact.astype(ml_dtypes.bfloat16))
