"""Rotation and attention, against loops in float64 and identities."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import Pairing
from lane_mlir.eval.attention import Attention, rope
from lane_mlir.rope import RopeScaling, rope_tables

Run = Callable[..., Any]
Floats = NDArray[np.float32]

# Products of some tens of f32 values, and a softmax of them.
RTOL, ATOL = 2e-5, 2e-6


def assert_close(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL)


# Tables.


def test_plain_table_is_the_powers_of_the_base():
    cos, sin = rope_tables(RopeScaling(10000.0), 6, 4)
    for p in range(6):
        for i in range(4):
            angle = p / 10000 ** (i / 4)
            assert cos[p, i] == np.float32(math.cos(angle))
            assert sin[p, i] == np.float32(math.sin(angle))


def test_table_op(run: Run):
    y = run(
        "%cos, %sin = tg.rope_table base 100.0 freq_scale 0.5 ext_factor 0.0 attn_factor 2.0 beta 32.0, 1.0"
        " original_context 0 factors %f : tensor<2xf32> -> tensor<3x2xf32>, tensor<3x2xf32>",
        "%cos, %sin : tensor<3x2xf32>, tensor<3x2xf32>",
        f=np.array([1, 4], np.float32),
    )
    for table, f in zip(y, (math.cos, math.sin), strict=True):
        expected = [[2 * f(0.5 * p), 2 * f(0.5 * p / 10 / 4)] for p in range(3)]
        np.testing.assert_allclose(table, expected, rtol=1e-6)


def yarn(p: int, i: int, half: int, base: float, factor: float, context: int, ext: float) -> tuple[float, float]:
    """One angle and the magnitude, as YaRN's paper writes them (section 3.2 and 3.4), with ext_factor its strength."""
    wavelength = 2 * math.pi * base ** (i / half)

    def pair(rotations: float) -> float:
        return 2 * half * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), 2 * half - 1)
    gamma = ext * (1 - min(max((i - low) / (high - low), 0), 1))
    theta = 2 * math.pi / wavelength
    return p * ((1 - gamma) * theta / factor + gamma * theta), 0.1 * math.log(factor) + 1


@pytest.mark.parametrize("ext", [1.0, 0.5])
def test_yarn_table_far_out(ext: float):
    scaling = RopeScaling(150000.0, freq_scale=1 / 32, ext_factor=ext, original_context=4096)
    cos, sin = rope_tables(scaling, 8193, 32)
    for p in (0, 1, 4096, 8192):
        for i in range(32):
            angle, magnitude = yarn(p, i, 32, 150000.0, 32.0, 4096, ext)
            assert cos[p, i] == pytest.approx(magnitude * math.cos(angle), abs=2e-7)
            assert sin[p, i] == pytest.approx(magnitude * math.sin(angle), abs=2e-7)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones():
    plain = rope_tables(RopeScaling(10000.0, attn_factor=1 + 0.1 * math.log(4)), 100, 64)
    linear = rope_tables(RopeScaling(10000.0, freq_scale=0.25, attn_factor=1 + 0.1 * math.log(4)), 100, 64)
    mixed = rope_tables(RopeScaling(10000.0, freq_scale=0.25, ext_factor=1.0, original_context=2048), 100, 64)
    for kind in (0, 1):
        np.testing.assert_allclose(mixed[kind][:, 0], plain[kind][:, 0], atol=1e-6)
        np.testing.assert_allclose(mixed[kind][:, -1], linear[kind][:, -1], atol=1e-6)


# Rotation.


@pytest.mark.parametrize("pairing", list(Pairing))
@pytest.mark.parametrize("width, rotary", [(128, 32), (128, 64), (128, 96), (128, 128), (64, 64)])
@pytest.mark.parametrize("heads", [1, 8, 64])
def test_rope_turns_complex_numbers(
    run: Run, rng: np.random.Generator, pairing: Pairing, width: int, rotary: int, heads: int
):
    rows, half, position = 3, rotary // 2, 5
    x = rng.standard_normal((rows * heads, width)).astype(np.float32)
    angles = rng.uniform(-3, 3, (9, half))
    y = run(
        f"%y = tg.rope %x by %cos, %sin at %pos heads {heads} {pairing} : (tensor<{rows * heads}x{width}xf32>,"
        f" tensor<9x{half}xf32>, tensor<9x{half}xf32>, memref<1xi32>) -> tensor<{rows * heads}x{width}xf32>",
        f"%y : tensor<{rows * heads}x{width}xf32>",
        x=x,
        cos=np.cos(angles).astype(np.float32),
        sin=np.sin(angles).astype(np.float32),
        pos=np.array([position], np.int32),
    )
    for unit in range(rows * heads):
        for i in range(half):
            a, b = (i, i + half) if pairing is Pairing.HALF else (2 * i, 2 * i + 1)
            turned = complex(x[unit, a], x[unit, b]) * cmath.exp(1j * angles[position + unit // heads, i])
            assert y[unit, a] == pytest.approx(turned.real, abs=1e-6)
            assert y[unit, b] == pytest.approx(turned.imag, abs=1e-6)
    np.testing.assert_array_equal(y[:, rotary:], x[:, rotary:])


@pytest.mark.parametrize("pairing", list(Pairing))
def test_scores_depend_on_the_distance_alone(rng: np.random.Generator, pairing: Pairing):
    cos, sin = rope_tables(RopeScaling(10000.0), 64, 16)
    q, k = (rng.standard_normal((1, 32)).astype(np.float32) for _ in range(2))

    def score(p: int, j: int) -> float:
        return float((rope(q, cos, sin, p, 1, pairing) @ rope(k, cos, sin, j, 1, pairing).T)[0, 0])

    assert score(7, 3) == pytest.approx(score(61, 57), abs=1e-5)
    assert score(7, 3) != pytest.approx(score(61, 56), abs=1e-3)


@pytest.mark.parametrize("position", [-1, 3, 4])
def test_rope_refuses_positions_past_the_table(position: int):
    table = np.ones((4, 2), np.float32)
    with pytest.raises(LaneError, match=rf"positions {position} to {position + 2} are not within the 4"):
        rope(np.ones((4, 4), np.float32), table, table, position, 2, Pairing.HALF)


# Attention.


def reference(
    attention: Attention,
    q: Floats,
    k: NDArray[Any],
    v: NDArray[Any],
    position: int,
    sinks: Floats | None = None,
    q_tail: Floats | None = None,
    k_tail: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """The formula, one score at a time."""
    heads, kv_heads = attention.heads, attention.kv_heads
    width, value_width = k.shape[1] // kv_heads, v.shape[1] // kv_heads
    y = np.zeros((len(q), heads * value_width))
    for r in range(len(q)):
        p = position + r
        for h in range(heads):
            g = h // (heads // kv_heads)
            scores: dict[int, float] = {}
            for j in range(p + 1):
                if attention.window is not None and j <= p - attention.window:
                    continue
                s = sum(float(q[r, h * width + i]) * float(k[j, g * width + i]) for i in range(width))
                if q_tail is not None and k_tail is not None:
                    tail = k_tail.shape[1]
                    s += sum(float(q_tail[r, h * tail + i]) * float(k_tail[j, i]) for i in range(tail))
                s *= attention.scale
                if attention.softcap is not None:
                    s = attention.softcap * math.tanh(s / attention.softcap)
                scores[j] = s
            total = sum(math.exp(s) for s in scores.values())
            if sinks is not None:
                total += math.exp(float(sinks[h]))
            for j, s in scores.items():
                values = v[j, g * value_width : (g + 1) * value_width].astype(np.float64)
                y[r, h * value_width : (h + 1) * value_width] += math.exp(s) / total * values
    return y


def cache(rng: np.random.Generator, length: int, width: int, written: int, dtype: Any = np.float32) -> NDArray[Any]:
    array = rng.standard_normal((length, width)).astype(dtype)
    array[written:] = np.nan
    return array


CASES = {
    "one head": Attention(1, 1, 0.5),
    "grouped": Attention(6, 2, 0.3),
    "64 heads": Attention(64, 8, 0.3),
    "one kv head": Attention(8, 1, 0.3),
    "window 1": Attention(4, 2, 0.3, window=1),
    "window 3": Attention(4, 2, 0.3, window=3),
    "window as long as the context": Attention(4, 2, 0.3, window=9),
    "softcap": Attention(4, 2, 2.0, softcap=3.0),
    "softcap and window": Attention(4, 4, 2.0, window=4, softcap=1.5),
}


@pytest.mark.parametrize("sunk", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("position, rows", [(0, 1), (0, 5), (6, 1), (4, 3), (8, 1)])
@pytest.mark.parametrize("name", CASES)
def test_attention(rng: np.random.Generator, name: str, position: int, rows: int, sunk: bool):
    """Rows past the position hold NaN; values are of another width than keys."""
    attention = CASES[name]
    q = rng.standard_normal((rows, attention.heads * 8)).astype(np.float32)
    k = cache(rng, 9, attention.kv_heads * 8, position + rows)
    v = cache(rng, 9, attention.kv_heads * 5, position + rows)
    sinks = rng.standard_normal(attention.heads).astype(np.float32) if sunk else None
    y = attention(q, k, v, position, sinks)
    assert_close(y, reference(attention, q, k, v, position, sinks))
    assert y.dtype == np.float32


def test_attention_op_with_everything(run: Run, rng: np.random.Generator):
    q, q_tail = (rng.standard_normal((2, 4 * w)).astype(np.float32) for w in (8, 4))
    k, v, k_tail = (cache(rng, 7, w, 5, np.float16) for w in (16, 12, 4))
    sinks = rng.standard_normal(4).astype(np.float32)
    y = run(
        "%y = tg.attention %q, %k, %v at %pos sinks %sinks : tensor<4xf32> tails %qt, %kt : tensor<2x16xf32>,"
        " memref<7x4xf32> heads 4 / 2 scale 0.25 window 4 softcap 5.0 : tensor<2x32xf32>, memref<7x16xf32>,"
        " memref<7x12xf32>, memref<1xi32> -> tensor<2x24xf32>",
        "%y : tensor<2x24xf32>",
        state=("k", "v", "kt"),
        q=q,
        k=k,
        v=v,
        kt=k_tail,
        qt=q_tail,
        sinks=sinks,
        pos=np.array([3], np.int32),
    )
    attention = Attention(4, 2, 0.25, window=4, softcap=5.0)
    assert_close(y, reference(attention, q, k, v, 3, sinks, q_tail, k_tail))


def test_a_cache_of_one_row(rng: np.random.Generator):
    q, k, v = (rng.standard_normal((1, 4)).astype(np.float32) for _ in range(3))
    np.testing.assert_array_equal(Attention(1, 1, 1.0)(q, k, v, 0), v)


def test_a_sink_that_takes_everything_leaves_nothing(rng: np.random.Generator):
    q, k, v = (rng.standard_normal((2, 4)).astype(np.float32) for _ in range(3))
    y = Attention(1, 1, 1.0, window=1)(q, k, v, 0, np.array([1e4], np.float32))
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("rows", [2, 65])
def test_a_later_row_that_is_not_finite_does_not_reach_an_earlier_one(rng: np.random.Generator, rows: int):
    q, k, v = (rng.standard_normal((rows, 8)).astype(np.float32) for _ in range(3))
    attention = Attention(2, 2, 0.3)
    expected = attention(q, k, v, 0)
    k[-1], v[-1] = np.nan, np.inf
    y = attention(q, k, v, 0)
    assert_close(y[:-1], expected[:-1])
    assert not np.isfinite(y[-1]).any()


def test_rows_before_the_window_are_not_read(rng: np.random.Generator):
    q, k, v = (rng.standard_normal((4, 8)).astype(np.float32) for _ in range(3))
    k[0] = v[0] = np.nan
    attention = Attention(2, 2, 0.3, window=3)
    y = attention(q, k, v, 0)
    assert np.isnan(y[:3]).all()
    assert_close(y[3:], reference(attention, q, k, v, 0)[3:])


@pytest.mark.parametrize("window", [None, 7, 64])
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 130])
def test_a_chunk_is_its_rows_one_at_a_time(rng: np.random.Generator, rows: int, window: int | None):
    q = rng.standard_normal((rows, 16)).astype(np.float32)
    k, v = (rng.standard_normal((rows + 3, 8)).astype(np.float32) for _ in range(2))
    attention = Attention(4, 2, 0.5, window=window)
    alone = np.concatenate([attention(q[r : r + 1], k, v, 2 + r) for r in range(rows)])
    assert_close(attention(q, k, v, 2), alone)


def test_large_scores_do_not_overflow(rng: np.random.Generator):
    q, k, v = (rng.standard_normal((1, 8)).astype(np.float32) for _ in range(3))
    k = np.concatenate([k, -k])
    v = np.concatenate([v, -v])
    y = Attention(1, 1, 1e4)(q, k, v, 1)
    best = 0 if (q @ k[0])[0] > 0 else 1
    np.testing.assert_array_equal(y[0], v[best])


@pytest.mark.parametrize("position", [-1, 8, 10**6])
def test_attention_refuses_positions_past_the_cache(position: int):
    one = np.zeros((9, 4), np.float32)
    with pytest.raises(LaneError, match=rf"positions {position} to {position + 2} are not within the cache's 9 rows"):
        Attention(1, 1, 1.0)(one[:2], one, one, position)
