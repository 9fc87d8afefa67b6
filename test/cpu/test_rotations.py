"""Rotations of heads: where they read, at which position, and where they land."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError

Random = Callable[..., NDArray[np.float32]]


def expect_close(got: NDArray[Any], want: NDArray[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """A few roundings of f32, against float64."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def tables(positions: int, half: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(half) / half))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(x: NDArray[Any], position: int, half: int, pairing: str = "half") -> NDArray[np.float64]:
    """Heads of one row, [heads, width], rotated as complex numbers."""
    y = x.astype(np.float64)
    first, second = (
        (slice(0, half), slice(half, 2 * half)) if pairing == "half" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    turned = (y[:, first] + 1j * y[:, second]) * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
    y[:, first], y[:, second] = turned.real, turned.imag
    return y


def normed(x: NDArray[Any], w: NDArray[Any], eps: float) -> NDArray[np.float64]:
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * w


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("width", [8, 12])
def test_rope(run: Any, random: Random, weight: Any, out: Any, pairing: str, width: int):
    cos, sin = tables(10, 4)
    x = random(2 * 3, width)
    got = run(
        f"""launch.rope %x by %cos, %sin at %pos into %y pairing {pairing}
        (heads = 6, per_row = 3, hd = {width}, half = 4)""",
        x=x,
        cos=weight(cos),
        sin=weight(sin),
        pos=np.array([5], np.int32),
        y=out((6, width)),
    ).values("y")
    expected = np.concatenate([rotated(x[:3], 5, 4, pairing), rotated(x[3:], 6, 4, pairing)])
    expect_close(got, expected)


def test_rope_norms_a_part_and_lands_in_rows_of_a_cache(run: Any, random: Random, weight: Any):
    cos, sin = tables(10, 4)
    x, w = random(2 * 2, 24), random(8)
    got = run(
        """launch.rope %x every 24 from 16 norm %w eps 1.0e-06 by %cos, %sin at %pos into %c at row %pos pitch 16
        pairing half (heads = 4, per_row = 2, hd = 8, half = 4)""",
        x=x,
        w=weight(w),
        cos=weight(cos),
        sin=weight(sin),
        pos=np.array([2], np.int32),
        c=np.zeros((5, 16), np.float16),
    ).values("c")
    heads = normed(x[:, 16:], w, 1e-6)
    expected = np.zeros((5, 16))
    expected[2], expected[3] = rotated(heads[:2], 2, 4).ravel(), rotated(heads[2:], 3, 4).ravel()
    # An f16 holds 11 bits.
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-3, atol=1e-6)


def test_rope_without_a_position_stands_at_0(run: Any, random: Random, weight: Any, out: Any):
    cos, sin = tables(2, 4)
    x = random(2, 8)
    got = run(
        "launch.rope %x by %cos, %sin into %y pairing half (heads = 2, per_row = 1, hd = 8, half = 4)",
        x=x,
        cos=weight(cos),
        sin=weight(sin),
        y=out((2, 8)),
    ).values("y")
    expect_close(got, np.concatenate([x[:1], rotated(x[1:], 1, 4)]))


def test_rope_parts(run: Any, random: Random, weight: Any, out: Any):
    cos, sin = tables(6, 4)
    q, k, w = random(4, 8), random(2, 8), random(8)
    got = run(
        """launch.rope_parts [%q norm %w eps 1.0e-06 into %y heads = 4 per_row = 4,
        %k into %c at row %pos pitch 16 heads = 2 per_row = 2] by %cos, %sin at %pos pairing half (hd = 8, half = 4)""",
        q=q,
        k=k,
        w=weight(w),
        cos=weight(cos),
        sin=weight(sin),
        pos=np.array([3], np.int32),
        c=np.zeros((4, 16), np.float32),
        y=out((4, 8)),
    )
    expect_close(got.values("y"), rotated(normed(q, w, 1e-6), 3, 4))
    expect_close(got.values("c")[3], rotated(k, 3, 4).ravel())
    assert not got.values("c")[:3].any()


def test_rope_parts_of_sequences(run: Any, random: Random, weight: Any, out: Any):
    cos, sin = tables(6, 4)
    q, k = random(2 * 2, 8), random(2, 8)
    got = run(
        """launch.rope_parts [%q into %y heads = 4 per_row = 2,
        %k into %c at row %pos pitch 8 heads = 2 per_row = 1 apart 32] by %cos, %sin at %pos pairing half
        (hd = 8, half = 4) seqs""",
        q=q,
        k=k,
        cos=weight(cos),
        sin=weight(sin),
        pos=np.array([3, 1], np.int32),
        c=np.zeros((2, 4, 8), np.float32),
        y=out((4, 8)),
    )
    expect_close(got.values("y"), np.concatenate([rotated(q[:2], 3, 4), rotated(q[2:], 1, 4)]))
    expected = np.zeros((2, 4, 8))
    expected[0, 3], expected[1, 1] = rotated(k[:1], 3, 4)[0], rotated(k[1:], 1, 4)[0]
    expect_close(got.values("c"), expected)


@pytest.mark.parametrize("position", [-1, 9, 2**31 - 1])
def test_a_position_without_a_table_row_is_refused_before_anything_runs(
    bench: Any, random: Random, weight: Any, out: Any, position: int
):
    cos, sin = tables(10, 4)
    got = bench(
        """launch.scale %x into %x (n = 16) factor = 2.0
        launch.rope %x by %cos, %sin at %pos into %y pairing half (heads = 2, per_row = 1, hd = 8, half = 4)""",
        x=random(2, 8),
        cos=weight(cos),
        sin=weight(sin),
        pos=np.array([position], np.int32),
        y=out((2, 8)),
    )
    before = got.values("x")
    with pytest.raises(LaneError, match=f"position {position} with 2 rows is not within the context of 10 positions"):
        got.program.run()
    np.testing.assert_array_equal(got.values("x"), before)


@pytest.mark.parametrize("lengths", [(4, 10), (10, 4)])
def test_the_shortest_table_limits_the_position(
    bench: Any, random: Random, weight: Any, out: Any, lengths: tuple[int, int]
):
    (ca, sa), (cb, sb) = (tables(length, 4) for length in lengths)
    got = bench(
        """launch.rope %x by %ca, %sa at %pos into %y pairing half (heads = 2, per_row = 1, hd = 8, half = 4)
        launch.rope %x by %cb, %sb at %pos into %z pairing half (heads = 2, per_row = 2, hd = 8, half = 4)""",
        x=random(2, 8),
        ca=weight(ca),
        sa=weight(sa),
        cb=weight(cb),
        sb=weight(sb),
        pos=np.array([2], np.int32),
        y=out((2, 8)),
        z=out((2, 8)),
    )
    got.run()
    got.program.buffers.plain(got.buffer("pos").buffer)[0] = 4
    with pytest.raises(LaneError, match="is not within the context of 4 positions"):
        got.program.run()
