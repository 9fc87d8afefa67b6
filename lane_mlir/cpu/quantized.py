"""The quantized form of a buffer, as it lies in the arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lane_mlir.dialects.tg import QUANTIZED_BLOCK, Numerics
from lane_mlir.eval.arrays import Array
from lane_mlir.eval.numerics import Word, quantize_words


@dataclass(frozen=True)
class QuantizedForm:
    """
    n values as blocks of 32 int8 with one f32 scale each, in one word or, under two_pass_int8, two.

    Layout: for each word, the n int8 of all blocks, then the n/32 scales. n is a multiple of 32.
    """

    numerics: Numerics
    words: Sequence[Word]

    @staticmethod
    def over(memory: NDArray[np.uint8], length: int, numerics: Numerics) -> QuantizedForm:
        """The form of `length` values in bytes that are theirs alone."""
        blocks = length // QUANTIZED_BLOCK
        size = length + 4 * blocks
        words: list[Word] = []
        for start in range(0, size * word_count(numerics), size):
            scales = memory[start + length : start + size]
            words.append(Word(memory[start : start + length].view(np.int8), scales.view(np.float32)))
        return QuantizedForm(numerics, words)

    def part(self, start: int, stop: int) -> QuantizedForm:
        """The form of values start to stop, whole blocks, in the same bytes."""
        first, last = start // QUANTIZED_BLOCK, stop // QUANTIZED_BLOCK
        return QuantizedForm(self.numerics, [Word(w.q[start:stop], w.d[first:last]) for w in self.words])

    def values(self) -> Array:
        """The values that the words stand for, [n]."""
        first, *rest = (word.values() for word in self.words)
        return sum(rest, start=first)

    def set(self, values: Array) -> None:
        """Quantize n values of any shape into the words."""
        for word, new in zip(self.words, quantize_words(values.reshape(-1), self.numerics), strict=True):
            word.q[:] = new.q
            word.d[:] = new.d

    def copy(self, other: QuantizedForm) -> None:
        """Take over the words of a form of as many values."""
        for word, new in zip(self.words, other.words, strict=True):
            word.q[:] = new.q
            word.d[:] = new.d


def word_count(numerics: Numerics) -> int:
    """int8 words a value."""
    return max(numerics.words, 1)
