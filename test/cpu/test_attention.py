"""Attention over a cache: shapes, windows, tails, gates, sequences, and what must never be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.dialects.tg import Numerics
from lane_mlir.eval import quantize

Random = Callable[..., NDArray[np.float32]]


def expect_close(got: NDArray[Any], want: NDArray[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Softmax and sums of at most 32 terms in f32, against float64."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def attend(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    position: int,
    scale: float,
    window: int = 1 << 30,
    softcap: float = 0.0,
    sinks: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """q [rows, heads, hd], k [length, kv, hd], v [length, kv, vd], in float64, one score at a time."""
    rows, heads, _ = q.shape
    y = np.zeros((rows, heads, v.shape[2]))
    for r in range(rows):
        seen = range(max(0, position + r - window + 1), position + r + 1)
        for h in range(heads):
            g = h // (heads // k.shape[1])
            s = np.array([scale * np.dot(q[r, h].astype(np.float64), k[j, g]) for j in seen])
            s = softcap * np.tanh(s / softcap) if softcap else s
            e = np.exp(s)
            total = e.sum() + (0 if sinks is None else np.exp(sinks[h]))
            y[r, h] = sum(e[i] / total * v[j, g].astype(np.float64) for i, j in enumerate(seen))
    return y.reshape(rows, -1)


def fields(heads: int, group: int, hd: int, vd: int, length: int, rows: int) -> str:
    return f"(heads = {heads}, group = {group}, hd = {hd}, vd = {vd}, len = {length}, rows = {rows})"


RUNS = "(per_block = 1, splits = 4) parallel f32"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows, position", [(1, 0), (1, 9), (3, 0), (3, 6)])
def test_grouped_heads_never_read_past_the_position(
    run: Any, random: Random, out: Any, rows: int, position: int, dtype: Any
):
    q, k, v = random(rows, 6, 8), random(12, 2, 8).astype(dtype), random(12, 2, 4).astype(dtype)
    k[position + rows :], v[position + rows :] = np.nan, np.nan
    got = run(
        f"launch.attention %q, %k, %v at %pos into %y {fields(6, 3, 8, 4, 12, rows)} values 8 + 0 scale = 0.3 {RUNS}",
        q=q.reshape(rows, -1),
        k=k.reshape(12, -1),
        v=v.reshape(12, -1),
        pos=np.array([position], np.int32),
        y=out((rows, 24)),
    )
    expect_close(got.values("y"), attend(q, k, v, position, 0.3))


def test_nan_of_one_rows_future_stays_out_of_the_rows_before(run: Any, random: Random, out: Any):
    q, k, v = random(2, 1, 8), random(4, 1, 8), random(4, 1, 8)
    v[1] = np.nan
    got = run(
        f"launch.attention %q, %k, %v at %pos into %y {fields(1, 1, 8, 8, 4, 2)} values 8 + 0 scale = 1.0 {RUNS}",
        q=q.reshape(2, -1),
        k=k.reshape(4, -1),
        v=v.reshape(4, -1),
        pos=np.array([0], np.int32),
        y=out((2, 8)),
    ).values("y")
    expect_close(got[0], v[0, 0])
    assert np.isnan(got[1]).all()


@pytest.mark.parametrize("window", [1, 3, 20])
def test_window_softcap_and_sinks(run: Any, random: Random, weight: Any, out: Any, window: int):
    q, k, v, sinks = random(4, 2, 8), random(16, 1, 8), random(16, 1, 8), random(2)
    got = run(
        f"""launch.attention %q, %k, %v at %pos sinks %s into %y {fields(2, 2, 8, 8, 16, 4)} values 8 + 0 scale = 0.5
        window = {window} softcap = 2.0 {RUNS}""",
        q=q.reshape(4, -1),
        k=k.reshape(16, -1),
        v=v.reshape(16, -1),
        s=weight(sinks),
        pos=np.array([5], np.int32),
        y=out((4, 16)),
    )
    expected = attend(q, k, v, 5, 0.5, window, 2.0, sinks)
    expect_close(got.values("y"), expected)


def test_values_inside_the_key_rows(run: Any, random: Random, out: Any):
    q, cache = random(1, 4, 12), random(8, 12)
    got = run(
        f"launch.attention %q, %c, %c at %pos into %y {fields(4, 4, 12, 8, 8, 1)} values 12 + 2 scale = 0.5 {RUNS}",
        q=q.reshape(1, -1),
        c=cache,
        pos=np.array([6], np.int32),
        y=out((1, 32)),
    )
    k = cache[:, None]
    expect_close(got.values("y"), attend(q, k, k[:, :, 2:10], 6, 0.5))


def test_tails_of_queries_and_keys(run: Any, random: Random, out: Any):
    rows, heads, own, tail, length = 2, 2, 4, 3, 6
    q, k, v = random(rows * heads, 10), random(length, heads, own), random(length, heads, 5)
    k_tail = random(length, 8)
    got = run(
        f"""launch.attention %q, %k, %v at %pos
        tails %q, %kt[own = 4 q_pitch = 10 q_tail 10 from 6 k_tail 8 from 2] into %y
        {fields(heads, 1, own + tail, 5, length, rows)} values 10 + 0 scale = 0.4 {RUNS}""",
        q=q,
        k=k.reshape(length, -1),
        v=v.reshape(length, -1),
        kt=k_tail,
        pos=np.array([3], np.int32),
        y=out((rows, heads * 5)),
    )
    queries = np.concatenate([q[:, :own], q[:, 6:9]], axis=1).reshape(rows, heads, own + tail)
    keys = np.concatenate([k, np.repeat(k_tail[:, None, 2:5], heads, axis=1)], axis=2)
    expect_close(got.values("y"), attend(queries, keys, v, 3, 0.4))


def test_gate_and_quantized_result(run: Any, random: Random, out: Any):
    q, k, v, gate = random(1, 2, 16), random(4, 2, 16), random(4, 2, 16), random(40)
    got = run(
        f"""launch.attention %q, %k, %v at %pos gate sigmoid %g + 8 into %y {fields(2, 1, 16, 16, 4, 1)}
        values 32 + 0 scale = 0.5 (per_block = 1, splits = 1) f32 quant""",
        "int8",
        q=q.reshape(1, -1),
        k=k.reshape(4, -1),
        v=v.reshape(4, -1),
        g=gate,
        pos=np.array([2], np.int32),
        y=out((1, 32), quantized=True),
    )
    y = got.values("y")
    expect_close(y, attend(q, k, v, 2, 0.5) / (1 + np.exp(-gate[8:].astype(np.float64))))
    np.testing.assert_array_equal(got.quantized("y"), quantize(y, Numerics.INT8).ravel())


def test_sequences_each_at_a_position_of_its_own(run: Any, random: Random, out: Any):
    q, k, v = random(3, 2, 4), random(3, 5, 1, 4), random(3, 5, 1, 4)
    positions = [2, 0, 4]
    for s, position in enumerate(positions):
        k[s, position + 1 :] = v[s, position + 1 :] = np.nan
    got = run(
        f"""launch.attention %q, %k, %v at %pos into %y {fields(2, 2, 4, 4, 5, 3)} values 4 + 0 scale = 0.5
        (per_block = 1, splits = 1) seq = 20 f32""",
        q=q.reshape(3, -1),
        k=k.reshape(15, -1),
        v=v.reshape(15, -1),
        pos=np.array(positions, np.int32),
        y=out((3, 8)),
    ).values("y")
    each = [attend(q[s : s + 1], k[s], v[s], position, 0.5) for s, position in enumerate(positions)]
    expect_close(got, np.concatenate(each))
