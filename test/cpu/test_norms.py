"""Norms of rows and the quantization of a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.dialects.tg import Numerics
from lane_mlir.eval import quantize, quantize_words

Random = Callable[..., NDArray[np.float32]]


def expect_close(got: NDArray[Any], want: NDArray[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """A few roundings of f32 after sums of at most 64 terms, against float64."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def rms(x: NDArray[Any], w: NDArray[Any] | float, eps: float) -> NDArray[np.float64]:
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * w


def test_norm(run: Any, random: Random, weight: Any, out: Any):
    x, w = random(3, 64), random(64)
    got = run(
        """launch.norm %x weight %w out %y (rows = 3, cols = 64) eps = 1.0e-05 f32
        launch.norm %x out %z (rows = 3, cols = 64) eps = 1.0 f32""",
        x=x,
        w=weight(w),
        y=out((3, 64)),
        z=out((3, 64)),
    )
    expect_close(got.values("y"), rms(x, w, 1e-5))
    expect_close(got.values("z"), rms(x, 1.0, 1.0))


def test_add_norm_writes_the_sum_in_place(run: Any, random: Random, weight: Any, out: Any):
    x, r, w = 1e4 * random(2, 64), random(2, 64), random(64)
    got = run(
        "launch.norm %x add %r sum %r weight %w out %y (rows = 2, cols = 64) eps = 1.0e-05 f32",
        x=x,
        r=r,
        w=weight(w),
        y=out((2, 64)),
    )
    np.testing.assert_array_equal(got.values("r"), x + r)
    expect_close(got.values("y"), rms(x.astype(np.float64) + r, w, 1e-5))


def test_sandwich_norm(run: Any, random: Random, weight: Any, out: Any):
    x, r, p, w = random(2, 32), random(2, 32), random(32), random(32)
    got = run(
        """launch.norm %x pre 1.0e-02 pre_weight %p add %r sum %s weight %w out %y
        (rows = 2, cols = 32) eps = 1.0e-05 f32""",
        x=x,
        r=r,
        p=weight(p),
        w=weight(w),
        s=out((2, 32)),
        y=out((2, 32)),
    )
    total = rms(x, p, 1e-2) + r
    expect_close(got.values("s"), total)
    expect_close(got.values("y"), rms(total, w, 1e-5))


def test_layer_norm(run: Any, random: Random, weight: Any, out: Any):
    x, w, b = random(2, 32) + 3, random(32), random(32)
    got = run(
        """launch.norm %x weight %w bias %b out %y (rows = 2, cols = 32) eps = 1.0e-05 center f32
        launch.norm %x out %z (rows = 2, cols = 32) eps = 1.0e-05 center f32""",
        x=x,
        w=weight(w),
        b=weight(b),
        y=out((2, 32)),
        z=out((2, 32)),
    )
    wide = x.astype(np.float64)
    plain = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got.values("y"), plain * w + b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.values("z"), plain, rtol=1e-5, atol=1e-5)


def test_norm_reads_a_part_and_lands_in_units_of_a_row(run: Any, random: Random, weight: Any):
    x, w = random(2, 24), random(8)
    got = run(
        """launch.norm %x every 24 from 16 weight %w into %t at row %pos pitch 32 every 16 from 4
        (rows = 2, cols = 8) eps = 1.0e-05 f32""",
        x=x,
        w=weight(w),
        pos=np.array([2], np.int32),
        t=np.zeros((4, 32), np.float16),
    ).values("t")
    expected = np.zeros((4, 32))
    expected[2, 4:12], expected[2, 20:28] = rms(x[:, 16:], w, 1e-5)
    # An f16 holds 11 bits.
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-3, atol=1e-6)


def test_norm_in_both_forms_in_two_buffers(run: Any, random: Random, out: Any):
    x = random(2, 32)
    got = run(
        "launch.norm %x out %q into %y every 48 from 16 (rows = 2, cols = 32) eps = 1.0e-05 f32 quant",
        "two_pass_int8",
        x=x,
        q=out((2, 32), quantized=True),
        y=np.zeros((2, 48), np.float32),
    )
    y = got.values("y")[:, 16:]
    expect_close(y, rms(x, 1.0, 1e-5))
    np.testing.assert_array_equal(got.quantized("q"), quantize(np.ascontiguousarray(y), Numerics.TWO_PASS_INT8).ravel())
    assert np.isnan(got.values("q")).all()


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
def test_quant_stores_words_then_scales(run: Any, random: Random, out: Any, numerics: str):
    x = random(3, 64)
    got = run(
        "launch.scale %s into %x (n = 192) factor = 1.0\nlaunch.quant %x (n = 192)",
        numerics,
        s=x,
        x=out((3, 64), quantized=True),
    )
    words = quantize_words(x, Numerics(numerics))
    buffer = got.buffer("x")
    memory = got.program.buffers.quantized(buffer.buffer).words
    assert len(memory) == len(words)
    for stored, expected in zip(memory, words, strict=True):
        np.testing.assert_array_equal(stored.q, expected.q.ravel())
        np.testing.assert_array_equal(stored.d, expected.d.ravel())
    assert buffer.quantized_at is not None
    start = stored_at(got, buffer.quantized_at.data)
    assert [word.q.ctypes.data - start for word in memory] == [216 * i for i in range(len(words))]
    assert [word.d.ctypes.data - start for word in memory] == [216 * i + 192 for i in range(len(words))]


def stored_at(got: Any, byte: int) -> int:
    """The address of a byte of the arena."""
    x = got.buffer("x")
    return got.program.buffers.plain(x.buffer).ctypes.data - x.at.data + byte


def test_an_alias_at_a_whole_block_has_its_words_in_what_it_views(
    run: Any, random: Random, weight: Any, out: Any, alias: Any
):
    x, w = random(2, 32), random(4, 32)
    got = run(
        """launch.scale %s into %x (n = 64) factor = 1.0
        launch.quant %x (n = 64)
        launch.view %x from 32 into %last
        launch.gemv %last by %w<q8_0> into %y (k = 32, n = 4, m = 1) f32""",
        "int8",
        s=x,
        x=out((2, 32), quantized=True),
        last=alias("x", 32, (1, 32)),
        w=weight(w),
        y=out((1, 4)),
    )
    np.testing.assert_allclose(got.values("y"), quantize(x[1:], Numerics.INT8) @ w.T, rtol=1e-5, atol=1e-5)


def test_l2_norm(run: Any, random: Random, out: Any):
    x = random(4, 16)
    x[1] = 0
    got = run("launch.l2_norm %x into %y (rows = 4, cols = 16) eps = 1.0e-06", x=x, y=out((4, 16))).values("y")
    length = np.sqrt((x.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    expect_close(got, x / np.maximum(length, 1e-6))
