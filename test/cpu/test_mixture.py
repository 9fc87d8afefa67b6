"""Mixtures of experts, their shared expert, and folds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.dialects.tg import Numerics
from lane_mlir.eval import quantize

Random = Callable[..., NDArray[np.float32]]

D, FF, EXPERTS = 32, 64, 4
SHAPE = f"(d = {D}, dff = {FF}, experts = {EXPERTS}, k = 2, rows = 3)"


def expect_close(got: NDArray[Any], want: NDArray[Any], rtol: float = 1e-4, atol: float = 1e-4) -> None:
    """Three products in a row in f32, of values up to about 100, against float64."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.fixture
def weights(random: Random) -> dict[str, NDArray[np.float32]]:
    return {
        "wr": random(EXPERTS, D),
        "wg": random(EXPERTS, FF, D),
        "wu": random(EXPERTS, FF, D),
        "wd": random(EXPERTS, D, FF),
        "swg": random(FF, D),
        "swu": random(FF, D),
        "swd": random(D, FF),
        "sgate": random(D),
    }


def silu(x: NDArray[Any]) -> NDArray[Any]:
    return x / (1 + np.exp(-x))


def expert(
    x: NDArray[Any],
    gate: NDArray[Any],
    up: NDArray[Any],
    down: NDArray[Any],
    numerics: Numerics = Numerics.DEQUANT,
) -> NDArray[np.float64]:
    hidden = silu(x.astype(np.float64) @ gate.T) * (x @ up.T)
    return quantize(hidden.astype(np.float32), numerics).astype(np.float64) @ down.T


def mixed(x: NDArray[Any], w: dict[str, NDArray[Any]], numerics: Numerics = Numerics.DEQUANT) -> NDArray[np.float64]:
    """The two best experts by a renormalized softmax; the router takes x as it is."""
    logits = x.astype(np.float64) @ w["wr"].T
    rounded, y = quantize(x, numerics), np.zeros(x.shape)
    for r, row in enumerate(logits):
        chosen = np.argsort(-row)[:2]
        weight = np.exp(row[chosen]) / np.exp(row[chosen]).sum()
        y[r] = sum(
            share * expert(rounded[r], w["wg"][e], w["wu"][e], w["wd"][e], numerics)
            for share, e in zip(weight, chosen, strict=True)
        )
    return y


def test_moe_with_a_shared_expert(run: Any, random: Random, weights: Any, weight: Any, out: Any):
    x = random(3, D)
    experts = "launch.moe %x router %wr experts %wg, %wu, %wd [q4_k, q4_k, q6_k]"
    got = run(
        f"""{experts} into %y score softmax act silu {SHAPE} renormalize
        {experts} shared %swg, %swu, %swd [q8_0, q8_0, q8_0] (sdff = {FF}) shared_gate %sgate into %z score softmax
          act silu {SHAPE} renormalize
        {experts} shared %swg, %swu, %swd [q8_0, q8_0, q8_0] (sdff = {FF}) into %u score softmax
          act silu {SHAPE} renormalize""",
        x=x,
        **{name: weight(w) for name, w in weights.items()},
        y=out((3, D)),
        z=out((3, D)),
        u=out((3, D)),
    )
    routed, shared = mixed(x, weights), expert(x, weights["swg"], weights["swu"], weights["swd"])
    gate = 1 / (1 + np.exp(-(x.astype(np.float64) @ weights["sgate"])))
    np.testing.assert_allclose(got.values("y"), routed, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(got.values("z"), routed + gate[:, None] * shared, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(got.values("u"), routed + shared, rtol=1e-4, atol=1e-3)


def test_moe_of_int8_activations_routes_by_the_plain_ones(
    run: Any, random: Random, weights: Any, weight: Any, out: Any
):
    x = np.abs(random(3, D))
    got = run(
        f"""launch.scale %s into %x (n = {3 * D}) factor = 1.0
        launch.quant %x (n = {3 * D})
        launch.moe %x router %wr experts %wg, %wu, %wd [q4_k, q4_k, q6_k] into %y score softmax act silu {SHAPE}
        renormalize""",
        "int8",
        s=x,
        **{name: weight(w) for name, w in weights.items() if name in ("wr", "wg", "wu", "wd")},
        x=out((3, D), quantized=True),
        y=out((3, D)),
    )
    expected = mixed(x, weights, Numerics.INT8)
    # A hidden value that f32 and float64 put on two sides of a step of its 127 moves the result by that much.
    assert np.linalg.norm(got.values("y") - expected) < 1e-3 * np.linalg.norm(expected)
    assert np.linalg.norm(mixed(x, weights) - expected) > 2e-3 * np.linalg.norm(expected)


def test_biases_and_clamped_swiglu(run: Any, random: Random, weights: Any, weight: Any, out: Any):
    x, rb, sb = random(1, D), random(EXPERTS), random(EXPERTS)
    bg, bu, bd = random(EXPERTS, FF), random(EXPERTS, FF), random(EXPERTS, D)
    got = run(
        f"""launch.moe %x router %wr router_bias %rb selection_bias %sb experts %wg, %wu, %wd [mxfp4, mxfp4, mxfp4]
        gate_bias %bg up_bias %bu down_bias %bd into %y score sigmoid act clamped_swiglu alpha = 1.702 limit = 7.0
        (d = {D}, dff = {FF}, experts = {EXPERTS}, k = 1, rows = 1) scale = 2.5""",
        x=x,
        **{name: weight(w) for name, w in weights.items() if name in ("wr", "wg", "wu", "wd")},
        rb=weight(rb),
        sb=weight(sb),
        bg=weight(bg),
        bu=weight(bu),
        bd=weight(bd),
        y=out((1, D)),
    ).values("y")
    wide = x[0].astype(np.float64)
    scores = 1 / (1 + np.exp(-(weights["wr"] @ wide + rb)))
    e = int(np.argmax(scores + sb))
    gate = np.minimum(weights["wg"][e] @ wide + bg[e], 7)
    up = np.clip(weights["wu"][e] @ wide + bu[e], -7, 7)
    hidden = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    expect_close(got[0], 2.5 * scores[e] * (weights["wd"][e] @ hidden + bd[e]))


def test_fold_is_one_launch_after_the_other(run: Any, random: Random, weights: Any, weight: Any, out: Any):
    x, r, w = random(3, D), random(3, D), random(D)
    got = run(
        f"""launch.fold {{
          launch.fold {{
            launch.moe %x router %wr experts %wg, %wu, %wd [q4_k, q4_k, q6_k] into %m score softmax act silu {SHAPE}
              renormalize
            launch.binary add %m, %r into %s (n = {3 * D}) f32
          }}
          launch.norm %s weight %w out %y (rows = 3, cols = {D}) eps = 1.0e-05 f32
        }} covers [1, 2, 3] by [moe_deferred_finalize]""",
        x=x,
        r=r,
        w=weight(w),
        **{name: weight(value) for name, value in weights.items() if name in ("wr", "wg", "wu", "wd")},
        m=out((3, D)),
        s=out((3, D)),
        y=out((3, D)),
    )
    total = mixed(x, weights) + r
    np.testing.assert_allclose(got.values("s"), total, rtol=1e-4, atol=1e-3)
    expected = total / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-5) * w
    expect_close(got.values("y"), expected)
    seen: list[str] = []

    def note(op: LaunchOp, seconds: float) -> None:
        seen.append(op.kind())

    got.program.run_traced(note)
    assert seen == ["moe_norm"]


def test_a_block_router_of_plain_experts_is_refused(bench: Any, random: Random, weights: Any, weight: Any, out: Any):
    with pytest.raises(LaneError, match="cannot route by q8_0 rows to experts of plain values"):
        bench(
            f"launch.moe %x router %wr rows<q8_0> experts %wg, %wu, %wd [f32, q4_k, q6_k] into %y score softmax act silu {SHAPE}",
            x=random(3, D),
            **{name: weight(w) for name, w in weights.items() if name in ("wr", "wg", "wu", "wd")},
            y=out((3, D)),
        )
