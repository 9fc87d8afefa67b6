"""Products by weights: where they read, where they land, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import Numerics
from lane_mlir.eval import quantize

Random = Callable[..., NDArray[np.float32]]


def expect_close(got: NDArray[Any], want: NDArray[Any], rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """f32 sums of at most 128 products of standard normal values, against float64."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def product(x: NDArray[Any], w: NDArray[Any]) -> NDArray[np.float64]:
    return x.astype(np.float64) @ w.astype(np.float64).T


def silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("m", [1, 3])
def test_gemv_with_bias(run: Any, random: Random, weight: Any, out: Any, m: int):
    x, w, b = random(m, 64), random(96, 64), random(96)
    got = run(
        f"launch.gemv %x by %w<q4_k> bias %b into %y (k = 64, n = 96, m = {m}) f32",
        x=x,
        w=weight(w),
        b=weight(b),
        y=out((m, 96)),
    )
    expect_close(got.values("y"), product(x, w) + b)


Affine = Callable[[NDArray[np.float64], NDArray[Any], NDArray[Any]], NDArray[np.float64]]
"""What is done to a product's sums, given a scale and a bias."""

SCALED: dict[str, Affine] = {
    "scale %s": lambda y, s, b: s * y,
    "scale %s bias %b": lambda y, s, b: s * y + b,
    "scale %s bias %b scaled_bias": lambda y, s, b: s * (y + b),
}


@pytest.mark.parametrize("text", SCALED)
@pytest.mark.parametrize("m", [1, 3])
def test_products_with_a_scale(run: Any, random: Random, weight: Any, out: Any, text: str, m: int):
    of = SCALED[text]
    x, w, wp, s, b = random(m, 64), random(96, 64), random(96, 64), random(1), random(96)
    gate_text = " ".join(f"gate_{word}" if word[0] != "%" else word for word in text.split())
    got = run(
        f"""launch.gemv %x by %w<q4_k> {text} into %y (k = 64, n = 96, m = {m}) f32
        launch.gemv_f32 %x by %wp {text} into %f (k = 64, n = 96, m = {m})
        launch.gemm_parts %x by [%w {text} into %p n = 96, %wp into %o n = 96] [q4_k, q4_k] (k = 64, m = {m})
        launch.gemv_glu %x by %w, %wp [q4_k, q4_k] {gate_text} act relu into %g (k = 64, n = 96, m = {m}) f32
        launch.gemv_glu %x by %wp, %w [q4_k, q4_k] {gate_text.replace("gate", "up")} act relu into %u
          (k = 64, n = 96, m = {m}) f32""",
        x=x,
        w=weight(w),
        wp=weight(wp),
        s=weight(s),
        b=weight(b),
        **{name: out((m, 96)) for name in "yfpogu"},
    )
    y, other = of(product(x, w), s, b), product(x, wp)
    expect_close(got.values("y"), y)
    expect_close(got.values("p"), y)
    expect_close(got.values("f"), of(other, s, b))
    expect_close(got.values("o"), other)
    np.testing.assert_allclose(got.values("g"), np.maximum(y, 0) * other, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(got.values("u"), np.maximum(other, 0) * y, rtol=1e-5, atol=1e-4)


def test_tail_computes_the_last_rows_of_a_chunk(run: Any, random: Random, weight: Any, out: Any):
    x, w = random(5, 32), random(8, 32)
    got = run(
        "launch.gemv %x by %w<f32> into %y (k = 32, n = 8, m = 2) tail 3 of 5 f32", x=x, w=weight(w), y=out((2, 8))
    )
    expect_close(got.values("y"), product(x[3:], w))


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize("m", [1, 2])
def test_int8_reads_the_stored_words(run: Any, random: Random, weight: Any, out: Any, numerics: str, m: int):
    x, w, w_plain = random(m, 64), random(96, 64), random(8, 64)
    got = run(
        f"""launch.unary relu %s into %x (n = {m * 64})
        launch.quant %x (n = {m * 64})
        launch.gemv %x by %w<q4_k> into %y (k = 64, n = 96, m = {m}) f32
        launch.gemv %x by %wp<f32> into %z (k = 64, n = 8, m = {m}) f32""",
        numerics,
        s=x,
        x=out((m, 64), quantized=True),
        w=weight(w),
        wp=weight(w_plain),
        y=out((m, 96)),
        z=out((m, 8)),
    )
    positive = np.maximum(x, 0)
    rounded = quantize(positive, Numerics(numerics))
    assert np.abs(rounded - positive).max() > 0
    np.testing.assert_array_equal(got.quantized("x"), rounded.reshape(-1))
    expect_close(got.values("y"), product(rounded, w))
    # A weight of plain values takes the activation as it is.
    expect_close(got.values("z"), product(positive, w_plain))


def test_a_result_in_both_forms(run: Any, random: Random, weight: Any, out: Any):
    x, w = random(2, 32), random(64, 32)
    got = run(
        """launch.unary relu %s into %x (n = 64)
        launch.quant %x (n = 64)
        launch.gemv %x by %w<q4_0> into %y (k = 32, n = 64, m = 2) f32 quant""",
        "int8",
        s=x,
        x=out((2, 32), quantized=True),
        w=weight(w),
        y=out((2, 64), quantized=True),
    )
    y = got.values("y")
    np.testing.assert_array_equal(got.quantized("y"), quantize(y, Numerics.INT8).reshape(-1))


def test_a_quantized_result_alone_leaves_the_plain_form(run: Any, random: Random, weight: Any, out: Any):
    x, w = random(1, 32), random(64, 32)
    got = run(
        "launch.gemv %x by %w<f32> into %y (k = 32, n = 64, m = 1) quant",
        "int8",
        x=x,
        w=weight(w),
        y=out((1, 64), quantized=True),
    )
    assert np.isnan(got.values("y")).all()
    # One rounding to 127 steps of the largest of a block.
    np.testing.assert_allclose(got.quantized("y"), product(x, w)[0], atol=np.abs(product(x, w)).max() / 127)


@pytest.mark.parametrize("m", [1, 3])
def test_gemv_f32_lands_in_units(run: Any, random: Random, weight: Any, out: Any, m: int):
    x, w, b, y = random(m, 32), random(8, 32), random(8), random(m, 24)
    got = run(
        f"launch.gemv_f32 %x by %w bias %b into %y every 24 from 8 (k = 32, n = 8, m = {m}) split = 2",
        x=x,
        w=weight(w),
        b=weight(b),
        y=y,
    ).values("y")
    expect_close(got[:, 8:16], product(x, w) + b)
    np.testing.assert_array_equal(np.delete(got, np.s_[8:16], axis=1), np.delete(y, np.s_[8:16], axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gemm_parts_land_in_rows_units_and_buffers(run: Any, random: Random, weight: Any, out: Any, dtype: Any):
    x, wq, wk, wv, bk = random(2, 32), random(16, 32), random(8, 32), random(8, 32), random(8)
    cache, wide = np.zeros((6, 8), dtype), np.zeros((2, 24), np.float32)
    got = run(
        """launch.gemm_parts %x by [%wq into %q n = 16, %wk bias %bk into %cache at row %pos pitch 8 n = 8,
        %wv into %wide every 24 from 16 n = 8] [q4_k, q4_k, q4_k] (k = 32, m = 2)""",
        x=x,
        wq=weight(wq),
        wk=weight(wk),
        wv=weight(wv),
        bk=weight(bk),
        pos=np.array([3], np.int32),
        cache=cache,
        wide=wide,
        q=out((2, 16)),
    )
    expect_close(got.values("q"), product(x, wq))
    expected = np.zeros((6, 8))
    expected[3:5] = product(x, wk) + bk
    # An f16 holds 11 bits.
    expect_close(got.values("cache").astype(np.float64), expected, rtol=1e-5 if dtype is np.float32 else 1e-3)
    expect_close(got.values("wide")[:, 16:], product(x, wv))
    assert not got.values("wide")[:, :16].any()


def test_gemm_parts_int8(run: Any, random: Random, weight: Any, out: Any):
    x, wa, wb = random(1, 32), random(8, 32), random(4, 32)
    got = run(
        """launch.unary relu %s into %x (n = 32)
        launch.quant %x (n = 32)
        launch.gemm_parts %x by [%wa into %a n = 8, %wb into %b n = 4] [q8_0, q8_0] (k = 32, m = 1)""",
        "int8",
        s=x,
        x=out((1, 32), quantized=True),
        wa=weight(wa),
        wb=weight(wb),
        a=out((1, 8)),
        b=out((1, 4)),
    )
    rounded = quantize(np.maximum(x, 0), Numerics.INT8)
    expect_close(got.values("a"), product(rounded, wa))
    expect_close(got.values("b"), product(rounded, wb))


@pytest.mark.parametrize("m", [1, 4])
def test_glu(run: Any, random: Random, weight: Any, out: Any, m: int):
    x, wg, wu, bg, bu = random(m, 32), random(64, 32), random(64, 32), random(64), random(64)
    got = run(
        f"""launch.gemv_glu %x by %wg, %wu [q4_k, q6_k] into %y (k = 32, n = 64, m = {m}) f32
        launch.gemv_glu %x by %wg, %wu [q4_k, q6_k] gate_bias %bg up_bias %bu act relu into %z
          (k = 32, n = 64, m = {m}) f32""",
        x=x,
        wg=weight(wg),
        wu=weight(wu),
        bg=weight(bg),
        bu=weight(bu),
        y=out((m, 64)),
        z=out((m, 64)),
    )
    np.testing.assert_allclose(got.values("y"), silu(product(x, wg)) * product(x, wu), rtol=1e-5, atol=1e-4)
    biased = np.maximum(product(x, wg) + bg, 0) * (product(x, wu) + bu)
    np.testing.assert_allclose(got.values("z"), biased, rtol=1e-5, atol=1e-4)


def test_glu_with_one_plain_weight_reads_both_forms(run: Any, random: Random, weight: Any, out: Any):
    x, wg, wu = random(1, 32), random(8, 32), random(8, 32)
    got = run(
        """launch.unary relu %s into %x (n = 32)
        launch.quant %x (n = 32)
        launch.gemv_glu %x by %wg, %wu [q8_0, f32] into %y (k = 32, n = 8, m = 1) f32""",
        "int8",
        s=x,
        x=out((1, 32), quantized=True),
        wg=weight(wg),
        wu=weight(wu),
        y=out((1, 8)),
    )
    positive = np.maximum(x, 0)
    expected = silu(product(quantize(positive, Numerics.INT8), wg)) * product(positive, wu)
    expect_close(got.values("y"), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_head_gemv_reads_and_lands_in_parts(run: Any, random: Random, weight: Any, out: Any, dtype: Any):
    m, heads, a, b = 2, 3, 4, 5
    x, w = random(m * heads, 10).astype(dtype), random(heads, b, a)
    got = run(
        f"""launch.head_gemv %x every 10 from 6 by %w<q8_0> into %y every 8 from 3
        (m = {m}, heads = {heads}, a = {a}, b = {b})""",
        x=x,
        w=weight(w),
        y=np.zeros((m * heads, 8), np.float32),
    ).values("y")
    expected = np.einsum("rha,hba->rhb", x[:, 6:].reshape(m, heads, a).astype(np.float64), w).reshape(-1, b)
    expect_close(got[:, 3:], expected)
    assert not got[:, :3].any()


def test_head_gemv_of_shared_rows_up_to_the_position(run: Any, random: Random, weight: Any, out: Any):
    x, w = random(6, 4), random(2, 3, 4)
    x[4:] = np.nan
    got = run(
        "launch.head_gemv %x by %w<q8_0> into %y (m = 6, heads = 2, a = 4, b = 3) upto %pos step 1 shared",
        x=x,
        w=weight(w),
        pos=np.array([3], np.int32),
        y=out((6, 6)),
    ).values("y")
    expect_close(got[:4], np.einsum("ra,hba->rhb", x[:4], w).reshape(4, 6))
    assert np.isnan(got[4:]).all()


def test_head_gemv_lands_in_rows_of_a_table(run: Any, random: Random, weight: Any):
    x, w = random(2, 8), random(2, 3, 4)
    got = run(
        "launch.head_gemv %x by %w<q8_0> into %t at row %pos pitch 6 (m = 2, heads = 2, a = 4, b = 3) rows_out",
        x=x,
        w=weight(w),
        pos=np.array([1], np.int32),
        t=np.zeros((4, 6), np.float32),
    ).values("t")
    expected = np.zeros((4, 6))
    expected[1:3] = np.einsum("rha,hba->rhb", x.reshape(2, 2, 4), w).reshape(2, 6)
    expect_close(got, expected)


def test_rows_of_sequences_at_one_position_are_refused(bench: Any, random: Random, weight: Any):
    with pytest.raises(LaneError, match=r"launch\.gemv of ops 4: cannot set the rows of several sequences"):
        bench(
            "launch.gemv %x by %w<f32> into %t at row %pos pitch 4 (k = 4, n = 4, m = 2) f32 batch covers [4]",
            x=random(2, 4),
            w=weight(random(4, 4)),
            pos=np.array([0], np.int32),
            t=np.zeros((4, 4), np.float32),
        )


def test_a_quantized_result_in_part_of_a_buffer_is_refused(bench: Any, random: Random, weight: Any, out: Any):
    with pytest.raises(LaneError, match=r"cannot write its result quantized in part of a buffer \(quant"):
        bench(
            "launch.gemv %x by %w<f32> into %t every 64 from 0 (k = 4, n = 32, m = 1) f32 quant",
            "int8",
            x=random(1, 4),
            w=weight(random(32, 4)),
            t=out((1, 64), quantized=True),
        )
