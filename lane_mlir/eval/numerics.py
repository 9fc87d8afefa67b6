"""
Activations as the integer kernels see them: blocks of 32 values of a row as int8 words with one f32 scale.

The arithmetic is stated down to the operation, in f32, so that a kernel can be compared bit for bit:

    amax = max |x| of the block;  d = amax / 127;  q = rint(x·(1/d)), halves to even (CUDA's __float2int_rn)

q and d are 0 where d is not a normal number (amax below 1.5e-36), so 1/d is always finite; |q| is at most 127 without a
clamp. A block with an infinity or a NaN has q = 0 and d = NaN: what is wrong stays visible. The second word of
`two_pass_int8` quantizes x - q·d the same way with its own scale; product and difference are rounded one after the
other (__fmul_rn, __fsub_rn), not fused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import QUANTIZED_BLOCK, Numerics
from lane_mlir.eval.arrays import Array
from lane_mlir.formats import Format

_LARGEST = np.float32(127)
_SMALLEST_NORMAL = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Word:
    """One int8 word of each value, q [rows, k], and the scale of each block, d [rows, k/32]."""

    q: NDArray[np.int8]
    d: Array

    def values(self) -> Array:
        """q·d, [rows, k]."""
        blocks = self.q.reshape(*self.d.shape, QUANTIZED_BLOCK)
        return (blocks * self.d[..., None]).reshape(self.q.shape)


def quantize_words(x: Array, numerics: Numerics) -> tuple[Word, ...]:
    """
    The words of an activation [rows, k]: none under `dequant`, one under `int8`, two under `two_pass_int8`.

    Raises: LaneError if a row is no whole number of blocks.
    """
    if x.shape[-1] % QUANTIZED_BLOCK:
        raise LaneError(f"cannot quantize rows of {x.shape[-1]} values, no multiple of {QUANTIZED_BLOCK}")
    words: list[Word] = []
    rest = x
    for _ in range(numerics.words):
        if words:
            rest = rest - words[-1].values()
        words.append(_word(rest))
    return tuple(words)


def quantize(x: Array, numerics: Numerics) -> Array:
    """
    The values that an activation is read back as; under `dequant` the activation itself.

    Raises: LaneError if a row is no whole number of blocks.
    """
    if numerics is Numerics.DEQUANT:
        return x
    first, *rest = (word.values() for word in quantize_words(x, numerics))
    return sum(rest, start=first)


def activation_numerics(numerics: Numerics, weight: Format) -> Numerics:
    """How a product by a weight of this format takes its activation: only block formats take it quantized."""
    return numerics if weight.is_block else Numerics.DEQUANT


def _word(x: Array) -> Word:
    blocks = x.reshape(*x.shape[:-1], -1, QUANTIZED_BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    finite = np.isfinite(amax)
    d = np.where(finite, amax, np.float32(0)) / _LARGEST
    normal = d >= _SMALLEST_NORMAL
    inverse = np.divide(np.float32(1), d, where=normal, out=np.zeros_like(d))
    # Blocks that are not normal are multiplied by 0; infinities and NaN in them are put out of the way first.
    q = np.rint(np.where(normal[..., None], blocks, np.float32(0)) * inverse[..., None])
    scale = np.where(finite, np.where(normal, d, np.float32(0)), np.float32(np.nan))
    return Word(q.astype(np.int8).reshape(x.shape), scale)
