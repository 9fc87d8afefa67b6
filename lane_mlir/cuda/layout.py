"""
How weights and quantized activations lie in device memory.

A checkpoint stores a block of values with its scales beside it, in 18, 34 or 210 bytes, which no wide load can read.
At load a weight is repacked, losslessly, into *planes*: arrays of one kind of field each, every one aligned, so that
neighbouring lanes of a warp read neighbouring 16 bytes. A plane of `bytes` bytes for every `values` values is

    plane[row][block][bytes],   block = column div values

and begins at a multiple of 256 bytes from the weight's first byte. The fields:

- `low`, `high`: int8 values 0 to 15 and 16 to 31 of a block of 32.
- `nibbles`: 4 bits a value; byte i has value i in its low and value i + 16 in its high half.
- `codes`: 4 bits a value, indices into a table of 16; byte i has value 2i in its low and value 2i + 1 in its high half.
- `bits`: the bit above the others of each value; value 4w + j is bit 8j + w of a 32-bit word.
- `pairs`: 2 bits a value, of values 4w + j the bits 8j + 2(w mod 4) of the 32-bit word w div 4 of two.
  (A shift and a mask make of `bits` and `pairs` four bytes of neighbouring values, as dp4a takes them.)
- `scale`: f16 d. `scale_min`: f16 d, f16 m. `exponent`: the E8M0 byte.
- `factors`: the small integers that multiply d (and m) in a part of a superblock of 256.
- `values`: the elements of a format that has no blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lane_mlir.diagnostics import LaneError
from lane_mlir.formats import Format

PLANE_ALIGNMENT = 256
"""Bytes to whose multiples planes begin."""

MAX_PLANES = 4
"""Planes of a format at most."""

QBLOCK = 32
"""Values that share a scale in a quantized activation."""


@dataclass(frozen=True)
class Plane:
    """One field of a format: `bytes` bytes for every `values` neighbouring values of a row."""

    name: str
    bytes: int
    values: int

    def size(self, rows: int, k: int) -> int:
        """Bytes of the plane of `rows` rows of k values."""
        return rows * (k // self.values) * self.bytes


@dataclass(frozen=True)
class Layout:
    """The planes of a format, in order."""

    format: Format
    planes: tuple[Plane, ...]

    def offsets(self, rows: int, k: int) -> tuple[int, ...]:
        """First byte of each plane, of a weight of `rows` rows of k values."""
        offsets: list[int] = []
        at = 0
        for plane in self.planes:
            offsets.append(at)
            at += math.ceil(plane.size(rows, k) / PLANE_ALIGNMENT) * PLANE_ALIGNMENT
        return tuple(offsets)

    def size(self, rows: int, k: int) -> int:
        """Bytes of the whole weight; no more than its alignment asks for beyond the sum of its planes."""
        return self.offsets(rows, k)[-1] + self.planes[-1].size(rows, k)


_NIBBLES = Plane("nibbles", 16, 32)
_CODES = Plane("codes", 16, 32)
_BITS = Plane("bits", 4, 32)
_PAIRS = Plane("pairs", 8, 32)
_SCALE = Plane("scale", 2, 32)
_SCALE_MIN = Plane("scale_min", 4, 32)
_FACTORS = Plane("factors", 2, 32)
_SUPER_SCALE = Plane("scale", 2, 256)
_SUPER_SCALE_MIN = Plane("scale_min", 4, 256)

_PLANES: dict[Format, tuple[Plane, ...]] = {
    Format.F32: (Plane("values", 4, 1),),
    Format.F16: (Plane("values", 2, 1),),
    Format.BF16: (Plane("values", 2, 1),),
    Format.Q8_0: (Plane("low", 16, 32), Plane("high", 16, 32), _SCALE),
    Format.Q4_0: (_NIBBLES, _SCALE),
    Format.Q4_1: (_NIBBLES, _SCALE_MIN),
    Format.Q5_0: (_NIBBLES, _BITS, _SCALE),
    Format.Q5_1: (_NIBBLES, _BITS, _SCALE_MIN),
    Format.Q2_K: (_PAIRS, _FACTORS, _SUPER_SCALE_MIN),
    Format.Q3_K: (_PAIRS, _BITS, _FACTORS, _SUPER_SCALE),
    Format.Q4_K: (_NIBBLES, _FACTORS, _SUPER_SCALE_MIN),
    Format.Q5_K: (_NIBBLES, _BITS, _FACTORS, _SUPER_SCALE_MIN),
    Format.Q6_K: (_NIBBLES, _PAIRS, _FACTORS, _SUPER_SCALE),
    Format.IQ4_NL: (_CODES, _SCALE),
    Format.IQ4_XS: (_CODES, Plane("factors", 1, 32), _SUPER_SCALE),
    Format.MXFP4: (_CODES, Plane("exponent", 1, 32)),
}

LAYOUTS: dict[Format, Layout] = {fmt: Layout(fmt, planes) for fmt, planes in _PLANES.items()}
"""The layout of every format that the kernels take."""


def layout(fmt: Format) -> Layout:
    """The layout of a format. Raises LaneError if no kernel takes it."""
    if fmt not in LAYOUTS:
        taken = ", ".join(sorted(str(f) for f in LAYOUTS))
        raise LaneError(f"no CUDA kernel takes weights in the format {fmt}; they take {taken}")
    return LAYOUTS[fmt]


@dataclass(frozen=True)
class QuantizedForm:
    """
    Where the quantized form of a buffer of `length` values lies: the int8 of every block of 32, the first word of all
    and then (words = 2) the second; after all blocks, every block's `words` f32 scales.
    """

    length: int
    words: int

    def words_at(self, element: int) -> int:
        """First byte of the int8 of the block that begins at an element, a multiple of 32."""
        return element * self.words

    def scales_at(self, element: int) -> int:
        """First byte of the scales of the block that begins at an element, a multiple of 32."""
        blocks = math.ceil(self.length / QBLOCK)
        return blocks * QBLOCK * self.words + element // QBLOCK * 4 * self.words

    @property
    def size(self) -> int:
        """Bytes of the form."""
        return self.scales_at(math.ceil(self.length / QBLOCK) * QBLOCK)
