"""
Repacking in numpy: from a checkpoint's blocks to the planes of `lane_mlir.cuda.layout`, and from planes to values.

The kernel that does it on the device, kernels/repack.cuh, is compared with this byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lane_mlir.cuda.layout import layout
from lane_mlir.formats import Format

Bytes: TypeAlias = NDArray[Any]
"""Bytes, or integers of 8 bits; numpy's annotations lose the type in arithmetic."""
Values: TypeAlias = NDArray[Any]
"""Values in f32, likewise."""
Planes: TypeAlias = dict[str, Bytes]
"""The planes of a weight by name, each [blocks of the plane, bytes]."""

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The values that the codes of iq4_nl and iq4_xs stand for."""
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The values that the codes of mxfp4 stand for, doubled."""


def repack(fmt: Format, raw: Bytes, rows: int, k: int) -> Bytes:
    """
    A weight's bytes on the device, from its bytes in the checkpoint (both flat). Bytes between planes are 0.

    Raises: LaneError if no kernel takes the format.
    """
    planes, out = layout(fmt), np.zeros(layout(fmt).size(rows, k), np.uint8)
    if not fmt.is_block:
        out[:] = raw.reshape(-1)
        return out
    fields = _FIELDS[fmt](raw.reshape(-1, fmt.bytes))
    for plane, at in zip(planes.planes, planes.offsets(rows, k), strict=True):
        out[at : at + plane.size(rows, k)] = fields[plane.name].reshape(-1)
    return out


def dequantize(fmt: Format, packed: Bytes, rows: int, k: int) -> Values:
    """
    The values [rows, k] of a repacked weight.

    Raises: LaneError if no kernel takes the format.
    """
    how = layout(fmt)
    fields = {
        plane.name: packed[at : at + plane.size(rows, k)].reshape(-1, plane.bytes)
        for plane, at in zip(how.planes, how.offsets(rows, k), strict=True)
    }
    return _VALUES[fmt](fields).reshape(rows, k)


# Fields of four, two and one bits a value, of codes [blocks, 32].


def _nibbles(codes: Bytes) -> Bytes:
    return codes[:, :16] & 15 | (codes[:, 16:] & 15) << 4


def _sequential(codes: Bytes) -> Bytes:
    return codes[:, 0::2] & 15 | (codes[:, 1::2] & 15) << 4


def _pairs(codes: Bytes) -> Bytes:
    fields = (codes & 3).reshape(-1, 2, 4, 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(fields, axis=2).reshape(-1, 8)


def _bits(codes: Bytes) -> Bytes:
    fields = (codes & 1).reshape(-1, 8, 4) << np.arange(8, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(fields, axis=1)


def _from_nibbles(field: Bytes) -> Bytes:
    return np.concatenate([field & 15, field >> 4], axis=1)


def _from_sequential(field: Bytes) -> Bytes:
    return np.stack([field & 15, field >> 4], axis=-1).reshape(-1, 32)


def _from_pairs(field: Bytes) -> Bytes:
    return (field.reshape(-1, 2, 1, 4) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(-1, 32)


def _from_bits(field: Bytes) -> Bytes:
    return (field.reshape(-1, 1, 4) >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 32)


# From the checkpoint's blocks [blocks, bytes] to fields.


def _split(raw: Bytes, *sizes: int) -> list[Bytes]:
    return np.split(raw, np.cumsum(sizes)[:-1], axis=1)


def _simple(raw: Bytes, head: int, high: bool) -> tuple[Bytes, Bytes, Bytes]:
    """Scale field, low and high bits of the codes of a block of 32 with nibbles in ggml's order."""
    if not high:
        scale, low = _split(raw, head, 16)
        return scale, _from_nibbles(low), np.zeros((len(raw), 32), np.uint8)
    scale, bits, low = _split(raw, head, 4, 16)
    return scale, _from_nibbles(low), np.unpackbits(bits, axis=1, bitorder="little")


def _block_fields(head: int, high: bool) -> Callable[[Bytes], Planes]:
    def fields(raw: Bytes) -> Planes:
        scale, low, bits = _simple(raw, head, high)
        return {"nibbles": _nibbles(low), "bits": _bits(bits), ("scale" if head == 2 else "scale_min"): scale}

    return fields


def _q8_0(raw: Bytes) -> Planes:
    scale, low, high = _split(raw, 2, 16, 16)
    return {"low": low, "high": high, "scale": scale}


def _six_bits(scales: Bytes) -> Bytes:
    """The 8 scales and 8 minima of 6 bits in the 12 bytes of a superblock of q4_k and q5_k: [superblocks, 8, 2]."""
    d, m, dm = _split(scales, 4, 4, 4)
    scale = np.concatenate([d & 63, dm & 15 | d >> 2 & 48], axis=1)
    minimum = np.concatenate([m & 63, dm >> 4 | m >> 2 & 48], axis=1)
    return np.stack([scale, minimum], axis=-1)


def _q4_k(raw: Bytes) -> Planes:
    scale_min, scales, low = _split(raw, 4, 12, 128)
    codes = _from_nibble_rows(low.reshape(-1, 4, 32))
    return {"nibbles": _nibbles(codes), "factors": _six_bits(scales), "scale_min": scale_min}


def _q5_k(raw: Bytes) -> Planes:
    scale_min, scales, high, low = _split(raw, 4, 12, 32, 128)
    codes = _from_nibble_rows(low.reshape(-1, 4, 32))
    bits = (high[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 32)
    return {
        "nibbles": _nibbles(codes),
        "bits": _bits(bits),
        "factors": _six_bits(scales),
        "scale_min": scale_min,
    }


def _from_nibble_rows(low: Bytes) -> Bytes:
    """Codes [blocks, 32] of rows of bytes whose low halves are one run of values and whose high halves the next."""
    return np.stack([low & 15, low >> 4], axis=2).reshape(-1, 32)


def _two_bit_rows(field: Bytes) -> Bytes:
    """Codes [blocks, 32] of 2 bits, four runs of 32 in each 32 bytes."""
    return (field.reshape(-1, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(-1, 32)


def _q6_k(raw: Bytes) -> Planes:
    low, high, factors, scale = _split(raw, 128, 64, 16, 2)
    codes = _from_nibble_rows(low.reshape(-1, 2, 64))
    return {"nibbles": _nibbles(codes), "pairs": _pairs(_two_bit_rows(high)), "factors": factors, "scale": scale}


def _q2_k(raw: Bytes) -> Planes:
    factors, low, scale_min = _split(raw, 16, 64, 4)
    return {"pairs": _pairs(_two_bit_rows(low)), "factors": factors, "scale_min": scale_min}


def _q3_k(raw: Bytes) -> Planes:
    high, low, scales, scale = _split(raw, 32, 64, 12, 2)
    bits = (high[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 32)
    first, second = _split(scales, 8, 4)
    nibbles = np.concatenate([first & 15, first >> 4], axis=1)
    tops = (second[:, None, :] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(-1, 16)
    factors = (nibbles | tops << 4).view(np.int8) - np.int8(32)
    return {
        "pairs": _pairs(_two_bit_rows(low)),
        "bits": _bits(bits),
        "factors": factors.view(np.uint8),
        "scale": scale,
    }


def _iq4_nl(raw: Bytes) -> Planes:
    scale, low = _split(raw, 2, 16)
    return {"codes": _sequential(_from_nibbles(low)), "scale": scale}


def _iq4_xs(raw: Bytes) -> Planes:
    scale, high, low_scales, low = _split(raw, 2, 2, 4, 128)
    bits = (high.copy().view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    nibbles = np.stack([low_scales & 15, low_scales >> 4], axis=-1).reshape(-1, 8)
    factors = (nibbles | bits << 4).view(np.int8) - np.int8(32)
    return {
        "codes": _sequential(_from_nibbles(low.reshape(-1, 16))),
        "factors": factors.view(np.uint8),
        "scale": scale,
    }


def _mxfp4(raw: Bytes) -> Planes:
    exponent, low = _split(raw, 1, 16)
    return {"codes": _sequential(_from_nibbles(low)), "exponent": exponent}


_FIELDS: Mapping[Format, Callable[[Bytes], Planes]] = {
    Format.Q8_0: _q8_0,
    Format.Q4_0: _block_fields(2, high=False),
    Format.Q4_1: _block_fields(4, high=False),
    Format.Q5_0: _block_fields(2, high=True),
    Format.Q5_1: _block_fields(4, high=True),
    Format.Q2_K: _q2_k,
    Format.Q3_K: _q3_k,
    Format.Q4_K: _q4_k,
    Format.Q5_K: _q5_k,
    Format.Q6_K: _q6_k,
    Format.IQ4_NL: _iq4_nl,
    Format.IQ4_XS: _iq4_xs,
    Format.MXFP4: _mxfp4,
}

# From fields to values. The order of operations is that of ggml's formulas, since f32 rounds after each.


@dataclass(frozen=True)
class _Scales:
    """Scale and minimum of every run of values that shares them, [runs]."""

    d: Values
    m: Values


def _halves(field: Bytes) -> Values:
    return np.ascontiguousarray(field).view(np.float16).astype(np.float32)


def _codes(p: Planes) -> Values:
    """The integers of all values, [blocks, 32]."""
    if "nibbles" in p:
        codes = _from_nibbles(p["nibbles"])
        if "pairs" in p:
            codes = codes | _from_pairs(p["pairs"]) << 4
        if "bits" in p:
            codes = codes | _from_bits(p["bits"]) << 4
    else:
        codes = _from_pairs(p["pairs"])
        if "bits" in p:
            codes = codes | _from_bits(p["bits"]) << 2
    return codes.astype(np.float32)


def _scaled(offset: int) -> Callable[[Planes], Values]:
    """d·(code - offset), one d a block."""
    return lambda p: _halves(p["scale"]) * (_codes(p) - np.float32(offset))


def _scaled_min(p: Planes) -> Values:
    """d·code + m."""
    pair = _halves(p["scale_min"])
    return pair[:, :1] * _codes(p) + pair[:, 1:]


def _super_scaled(offset: int) -> Callable[[Planes], Values]:
    """(d·factor)·(code - offset), one factor every 16 values, one d every 256."""

    def values(p: Planes) -> Values:
        factors = p["factors"].view(np.int8).astype(np.float32).reshape(-1, 16)
        d = (_halves(p["scale"]) * factors).reshape(-1, 1)
        return d * (_codes(p).reshape(-1, 16) - np.float32(offset))

    return values


def _super_scaled_min(p: Planes) -> Values:
    """(d·factor)·code - m·minimum, one factor and minimum every 32 values."""
    pair, factors = _halves(p["scale_min"]), p["factors"].astype(np.float32).reshape(-1, 8, 2)
    scales = _Scales((pair[:, :1] * factors[..., 0]).reshape(-1, 1), (pair[:, 1:] * factors[..., 1]).reshape(-1, 1))
    return scales.d * _codes(p) - scales.m


def _q2_k_values(p: Planes) -> Values:
    """(d·factor)·code - m·minimum, one byte of both every 16 values."""
    pair, factors = _halves(p["scale_min"]), p["factors"].reshape(-1, 16)
    d = (pair[:, :1] * (factors & 15).astype(np.float32)).reshape(-1, 1)
    m = (pair[:, 1:] * (factors >> 4).astype(np.float32)).reshape(-1, 1)
    return d * _codes(p).reshape(-1, 16) - m


def _q8_0_values(p: Planes) -> Values:
    return np.concatenate([p["low"], p["high"]], axis=1).view(np.int8).astype(np.float32) * _halves(p["scale"])


def _iq4_nl_values(p: Planes) -> Values:
    return _halves(p["scale"]) * IQ4_VALUES[_from_sequential(p["codes"])]


def _iq4_xs_values(p: Planes) -> Values:
    d = _halves(p["scale"]) * p["factors"].view(np.int8).astype(np.float32).reshape(-1, 8)
    return d.reshape(-1, 1) * IQ4_VALUES[_from_sequential(p["codes"])]


def _mxfp4_values(p: Planes) -> Values:
    return half_of_e8m0(p["exponent"]) * MXFP4_VALUES[_from_sequential(p["codes"])]


def half_of_e8m0(e: Bytes) -> Values:
    """2^(e - 128), exactly, for every byte: the bits of an f32, a subnormal one for 0 and 1."""
    wide = e.astype(np.uint32)
    return np.where(wide < 2, np.uint32(0x00200000) << wide, (wide - np.uint32(1)) << np.uint32(23)).view(np.float32)


def _plain(dtype: type[np.generic]) -> Callable[[Planes], Values]:
    return lambda p: np.ascontiguousarray(p["values"]).view(dtype).astype(np.float32)


def _bf16_values(p: Planes) -> Values:
    return (np.ascontiguousarray(p["values"]).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_VALUES: Mapping[Format, Callable[[Planes], Values]] = {
    Format.F32: _plain(np.float32),
    Format.F16: _plain(np.float16),
    Format.BF16: _bf16_values,
    Format.Q8_0: _q8_0_values,
    Format.Q4_0: _scaled(8),
    Format.Q4_1: _scaled_min,
    Format.Q5_0: _scaled(16),
    Format.Q5_1: _scaled_min,
    Format.Q2_K: _q2_k_values,
    Format.Q3_K: _super_scaled(4),
    Format.Q4_K: _super_scaled_min,
    Format.Q5_K: _super_scaled_min,
    Format.Q6_K: _super_scaled(32),
    Format.IQ4_NL: _iq4_nl_values,
    Format.IQ4_XS: _iq4_xs_values,
    Format.MXFP4: _mxfp4_values,
}
