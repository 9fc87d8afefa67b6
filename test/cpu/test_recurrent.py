"""Convolutions, gates and the delta rule: against the evaluator's formulas, over their state from row to row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.dialects.tg import KeyHeadOrder
from lane_mlir.eval.recurrent import delta

Random = Callable[..., NDArray[np.float32]]


def expect_close(got: NDArray[Any], want: NDArray[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """A few roundings of f32, against float64."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def convolved(x: NDArray[Any], w: NDArray[Any], ring: NDArray[Any]) -> NDArray[np.float64]:
    history = np.concatenate([ring[1:], x]).astype(np.float64)
    return np.stack([(history[r : r + len(ring)] * w.T).sum(axis=0) for r in range(len(x))])


def silu(x: NDArray[Any]) -> NDArray[Any]:
    return x / (1 + np.exp(-x))


def unit(x: NDArray[Any], block: int) -> NDArray[Any]:
    heads = x.reshape(-1, block)
    return (heads / np.sqrt((heads**2).sum(axis=1, keepdims=True))).reshape(x.shape)


def softplus(x: NDArray[Any]) -> NDArray[np.float64]:
    return np.log1p(np.exp(x.astype(np.float64)))


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_conv(run: Any, random: Random, weight: Any, out: Any, rows: int):
    x, w, ring = random(rows, 8), random(8, 4), random(4, 8)
    got = run(
        f"launch.conv %x by %w ring %ring into %y (chan = 8, taps = 4, rows = {rows})",
        x=x,
        w=weight(w),
        ring=ring,
        y=out((rows, 8)),
    )
    expect_close(got.values("y"), convolved(x, w, ring))
    np.testing.assert_array_equal(got.values("ring"), np.concatenate([ring, x])[-4:])


def test_conv_with_silu_and_l2_norm(run: Any, random: Random, weight: Any, out: Any):
    x, w, ring = random(2, 8), random(8, 3), random(3, 8)
    got = run(
        "launch.conv %x by %w ring %ring into %y (chan = 8, taps = 3, rows = 2) silu l2 4 eps 1.0e-06",
        x=x,
        w=weight(w),
        ring=ring,
        y=out((2, 8)),
    )
    expect_close(got.values("y"), unit(silu(convolved(x, w, ring)), 4))


def test_conv_parts_of_sequences(run: Any, random: Random, weight: Any, out: Any):
    q, v, wq, wv = random(2, 8), random(2, 4), random(8, 4), random(4, 4)
    rq, rv = random(2, 4, 8), random(2, 4, 4)
    got = run(
        """launch.conv_parts [%q by %wq ring %rq into %yq chan = 8 l2, %v by %wv ring %rv into %yv chan = 4]
        (taps = 4, block = 4, seqs = 2) eps = 1.0e-06""",
        q=q,
        v=v,
        wq=weight(wq),
        wv=weight(wv),
        rq=rq,
        rv=rv,
        yq=out((2, 8)),
        yv=out((2, 4)),
    )
    for s in range(2):
        own = slice(s, s + 1)
        expect_close(got.values("yq")[own], unit(silu(convolved(q[own], wq, rq[s])), 4))
        expect_close(got.values("yv")[own], silu(convolved(v[own], wv, rv[s])))
        np.testing.assert_array_equal(got.values("rq")[s], np.concatenate([rq[s, 1:], q[own]]))


def test_decay_and_gates(run: Any, random: Random, weight: Any, out: Any):
    a, b, dt, al = random(2, 4), random(2, 4), random(4), -np.abs(random(4))
    a[0, 0] = 200
    got = run(
        """launch.decay %a, %dt, %al into %y (n = 8, heads = 4)
        launch.gates %b, %a, %dt, %al into %beta, %decay (n = 8, heads = 4)""",
        a=a,
        b=b,
        dt=weight(dt),
        al=weight(al),
        y=out((2, 4)),
        beta=out((2, 4)),
        decay=out((2, 4)),
    )
    expected = np.exp(al * softplus(a + dt))
    expect_close(got.values("y"), expected)
    expect_close(got.values("decay"), expected)
    expect_close(got.values("beta"), 1 / (1 + np.exp(-b.astype(np.float64))))


def test_gate_proj(run: Any, random: Random, weight: Any, out: Any):
    x, wb, wa, dt, al = random(1, 16), random(4, 16), random(4, 16), random(4), -np.abs(random(4))
    got = run(
        "launch.gate_proj %x by %wb, %wa, %dt, %al into %beta, %decay (k = 16, heads = 4) split = 2",
        x=x,
        wb=weight(wb),
        wa=weight(wa),
        dt=weight(dt),
        al=weight(al),
        beta=out((1, 4)),
        decay=out((1, 4)),
    )
    wide = x.astype(np.float64)
    expect_close(got.values("beta"), 1 / (1 + np.exp(-wide @ wb.T)))
    expect_close(got.values("decay"), np.exp(al * softplus(wide @ wa.T + dt)))


@pytest.mark.parametrize("order", ["blocked", "cyclic"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("seqs, rows", [(1, 1), (1, 3), (2, 2)])
def test_delta(run: Any, random: Random, weight: Any, out: Any, order: str, dtype: Any, seqs: int, rows: int):
    hv, hk, d, n = 4, 2, 8, seqs * rows
    q, k, v, z = random(n, hk * d), random(n, hk * d), random(n, hv * d), random(n, hv * d)
    b, a, norm = np.abs(np.tanh(random(n, hv))), np.exp(-np.abs(random(n, hv))), random(d)
    state = random(seqs, hv * d, d).astype(dtype)
    got = run(
        f"""launch.delta %q, %k, %v gate %z beta %b decay %a norm %w state %s into %y {order}
        (hv = 4, hk = 2, d = 8, rows = {rows}) seqs = {seqs} eps = 1.0e-06 f32""",
        q=q,
        k=k,
        v=v,
        z=z,
        b=b,
        a=a,
        w=weight(norm),
        s=state,
        y=out((n, hv * d)),
    )
    kept, each = state.copy(), list[NDArray[np.float32]]()
    for s in range(seqs):
        own = slice(s * rows, (s + 1) * rows)
        arrays = (q[own], k[own], v[own], z[own], b[own], a[own])
        each.append(delta(*arrays, norm, kept[s], key_heads=hk, value_heads=hv, order=KeyHeadOrder(order), eps=1e-6))
    np.testing.assert_array_equal(got.values("y"), np.concatenate(each))
    np.testing.assert_array_equal(got.values("s"), kept)
    assert not np.array_equal(kept, state)
