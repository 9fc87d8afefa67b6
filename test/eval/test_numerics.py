"""Activations as blocks of int8: the values they are read back as."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import Numerics
from lane_mlir.eval import activation_numerics, quantize, quantize_words
from lane_mlir.formats import Format

BLOCKS = arrays(np.float32, (2, 64), elements=st.floats(-(2.0**99), 2.0**99, width=32))


def test_a_block_worked_by_hand():
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, -63.4, 2.5, 3.5, -0.49]
    (word,) = quantize_words(x, Numerics.INT8)
    assert word.d.tolist() == [[1.0]]
    # Halves go to the even integer.
    assert word.q[0, :6].tolist() == [127, -63, 2, 4, 0, 0]
    assert quantize(x, Numerics.INT8)[0, :6].tolist() == [127, -63, 2, 4, 0, 0]


def test_each_block_has_its_own_scale():
    x = np.concatenate([np.full(32, 1.0), np.full(32, 1000.0)]).astype(np.float32)[None]
    (word,) = quantize_words(x, Numerics.INT8)
    assert word.q.tolist() == [[127] * 64]
    assert word.d.tolist() == [[np.float32(1) / np.float32(127), np.float32(1000) / np.float32(127)]]


@given(BLOCKS)
def test_one_word_is_off_by_half_a_step_at_most(x: np.ndarray):
    """In exact arithmetic; the factor allows for three roundings of f32."""
    for row, values in zip(x, quantize(x, Numerics.INT8), strict=True):
        for start in (0, 32):
            largest = max(abs(Fraction(float(v))) for v in row[start : start + 32])
            step = largest / 127
            for before, after in zip(row[start : start + 32], values[start : start + 32], strict=True):
                error = abs(Fraction(float(before)) - Fraction(float(after)))
                assert error <= step / 2 * Fraction(1.0001) or largest < Fraction(1.6e-36)


@given(BLOCKS)
def test_integers_stay_within_127(x: np.ndarray):
    for word in quantize_words(x, Numerics.TWO_PASS_INT8):
        assert np.abs(word.q.astype(int)).max() <= 127


@given(BLOCKS)
def test_the_second_word_quantizes_the_rest(x: np.ndarray):
    first, second = quantize_words(x, Numerics.TWO_PASS_INT8)
    (alone,) = quantize_words(x, Numerics.INT8)
    np.testing.assert_array_equal(first.q, alone.q)
    (rest,) = quantize_words(x - alone.values(), Numerics.INT8)
    np.testing.assert_array_equal(second.q, rest.q)
    np.testing.assert_array_equal(quantize(x, Numerics.TWO_PASS_INT8), first.values() + second.values())


def test_two_words_are_a_hundred_times_closer(rng: np.random.Generator):
    x = rng.standard_normal((64, 256)).astype(np.float32)
    error = {n: np.linalg.norm(quantize(x, n) - x) for n in (Numerics.INT8, Numerics.TWO_PASS_INT8)}
    # A step of the second word is 1/254 of the first's.
    assert error[Numerics.TWO_PASS_INT8] < error[Numerics.INT8] / 100


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 9.9e-37, 1.4e-36])
@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.TWO_PASS_INT8])
def test_a_block_without_a_normal_scale_is_zero(largest: float, numerics: Numerics):
    x = np.full((1, 32), largest, np.float32)
    for word in quantize_words(x, numerics):
        assert not word.q.any()
        assert not word.d.any()
    assert not quantize(x, numerics).any()


@pytest.mark.parametrize("value", [1.6e-36, 2048.0, 4096.0, 65504.0, 65536.0, 1e30, 3.4e38])
def test_blocks_of_any_size_stay_finite(value: float):
    x = np.full((1, 32), value, np.float32)
    x[0, ::2] *= -1
    for numerics in (Numerics.INT8, Numerics.TWO_PASS_INT8):
        np.testing.assert_allclose(quantize(x, numerics), x, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_visible_in_its_block_alone(bad: float):
    x = np.ones((1, 64), np.float32)
    x[0, 3] = bad
    y = quantize(x, Numerics.INT8)
    assert np.isnan(y[0, :32]).all()
    np.testing.assert_allclose(y[0, 32:], 1, rtol=1e-6)


def test_dequant_leaves_an_activation_alone(rng: np.random.Generator):
    x = rng.standard_normal((2, 40)).astype(np.float32)
    assert quantize(x, Numerics.DEQUANT) is x


def test_rows_of_no_whole_blocks_are_refused():
    with pytest.raises(LaneError, match="rows of 40 values, no multiple of 32"):
        quantize(np.zeros((1, 40), np.float32), Numerics.INT8)


@pytest.mark.parametrize("form", [Format.F32, Format.F16, Format.BF16])
def test_formats_without_blocks_take_plain_activations(form: Format):
    assert activation_numerics(Numerics.INT8, form) is Numerics.DEQUANT


@pytest.mark.parametrize("form", [Format.Q8_0, Format.Q4_K, Format.MXFP4])
def test_block_formats_take_what_the_numerics_say(form: Format):
    for numerics in Numerics:
        assert activation_numerics(numerics, form) is numerics
