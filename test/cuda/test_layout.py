"""Repacked weights hold exactly the values that the checkpoint's format says, for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize

from lane_mlir.cuda.layout import LAYOUTS, PLANE_ALIGNMENT, QuantizedForm, layout
from lane_mlir.cuda.repack import dequantize, half_of_e8m0, repack
from lane_mlir.diagnostics import LaneError
from lane_mlir.formats import Format

ROWS = 3
FORMATS = sorted(LAYOUTS)


def raw_weight(fmt: Format, rows: int, k: int, seed: int) -> np.ndarray:
    """Random bytes that are a weight: any codes, but scales that are finite, as 16-bit floats with an exponent below 16."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * k // fmt.values, fmt.bytes), dtype=np.uint8)
    if fmt is Format.F32:
        return rng.standard_normal(rows * k).astype(np.float32).view(np.uint8)
    high_bytes = {
        Format.F16: (1,), Format.BF16: (1,), Format.Q8_0: (1,), Format.Q4_0: (1,), Format.Q4_1: (1, 3), Format.Q5_0: (1,),
        Format.Q5_1: (1, 3), Format.Q2_K: (81, 83), Format.Q3_K: (109,), Format.Q4_K: (1, 3), Format.Q5_K: (1, 3),
        Format.Q6_K: (209,), Format.IQ4_NL: (1,), Format.IQ4_XS: (1,), Format.MXFP4: (),
    }[fmt]  # fmt: skip
    if fmt is Format.MXFP4:
        blocks[:, 0] %= 250  # 12·2^(e - 128) beyond is no f32
    for byte in high_bytes:
        blocks[:, byte] &= 0xBF
    return blocks.reshape(-1)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("k", [256, 768])
def test_values_survive_repacking(fmt: Format, k: int):
    raw = raw_weight(fmt, ROWS, k, seed=k)
    expected = gguf_dequantize(raw.reshape(ROWS, -1), fmt.ggml_type)
    values = dequantize(fmt, repack(fmt, raw, ROWS, k), ROWS, k)
    assert values.dtype == np.float32
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_lie_one_after_the_other(fmt: Format):
    """A weight's rows are the rows of its planes: repacking two weights apart or as one gives the same rows."""
    raw = raw_weight(fmt, 4, 256, seed=1)
    both = dequantize(fmt, repack(fmt, raw, 4, 256), 4, 256)
    halves = [dequantize(fmt, repack(fmt, half, 2, 256), 2, 256) for half in np.split(raw, 2)]
    assert np.array_equal(both, np.concatenate(halves))


@pytest.mark.parametrize("fmt", FORMATS)
def test_planes_are_aligned_and_apart(fmt: Format):
    how, rows, k = layout(fmt), 5, 768
    offsets = how.offsets(rows, k)
    ends = [at + plane.size(rows, k) for at, plane in zip(offsets, how.planes, strict=True)]
    assert all(at % PLANE_ALIGNMENT == 0 for at in offsets)
    assert all(end <= at for end, at in zip(ends, offsets[1:], strict=False))
    assert ends[-1] == how.size(rows, k)


@pytest.mark.parametrize(
    "fmt, bits",
    [(Format.Q8_0, 8.5), (Format.Q4_0, 4.5), (Format.Q4_K, 4.625), (Format.Q6_K, 6.5625), (Format.MXFP4, 4.25)],
)
def test_bits_a_value(fmt: Format, bits: float):
    """What a value costs: the format's own bits; q4_k's 6-bit scales as bytes cost an eighth of a bit more."""
    assert layout(fmt).size(1024, 4096) * 8 == bits * 1024 * 4096


def test_every_e8m0_scale_is_half_of_its_power_of_two():
    scales = half_of_e8m0(np.arange(256, dtype=np.uint8))
    assert np.array_equal(scales, np.exp2(np.arange(256) - 128.0).astype(np.float32))


def test_a_format_without_a_kernel_is_refused():
    with pytest.raises(LaneError, match=r"no CUDA kernel takes weights in the format iq1_s; they take bf16, f16, f32"):
        layout(Format.IQ1_S)


@pytest.mark.parametrize("words", [1, 2])
def test_the_quantized_form_of_a_part_lies_inside_that_of_the_whole(words: int):
    whole = QuantizedForm(96, words)
    assert whole.words_at(32) == 32 * words
    assert whole.scales_at(0) == 96 * words
    assert whole.scales_at(64) == 96 * words + 2 * 4 * words
    assert whole.size == 3 * 36 * words
