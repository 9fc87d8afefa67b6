"""The storage formats of checkpoint tensors: the one table of names, block sizes and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from xdsl.utils.str_enum import StrEnum


class Format(StrEnum):
    """
    A storage format of the GGUF container, under the name that ggml gives it in lower case.

    A row of `k` values is stored as `k / values` blocks of `bytes` bytes each. f32, f16 and bf16 are blocks of one
    value. Every format here is one that the gguf package can dequantize.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q8_0 = "q8_0"
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"
    TQ1_0 = "tq1_0"
    TQ2_0 = "tq2_0"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"
    IQ1_S = "iq1_s"
    IQ1_M = "iq1_m"
    IQ2_XXS = "iq2_xxs"
    IQ2_XS = "iq2_xs"
    IQ2_S = "iq2_s"
    IQ3_XXS = "iq3_xxs"
    IQ3_S = "iq3_s"
    IQ4_NL = "iq4_nl"
    IQ4_XS = "iq4_xs"

    @property
    def ggml_type(self) -> GGMLQuantizationType:
        """The type number under which a GGUF file stores the format."""
        return GGMLQuantizationType[str(self).upper()]

    @property
    def values(self) -> int:
        """Values in a block."""
        return _size(self)[0]

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return _size(self)[1]

    @property
    def is_block(self) -> bool:
        """Whether values share a scale, so that a product by them takes a quantized activation."""
        return self.values > 1


@cache
def _size(fmt: Format) -> tuple[int, int]:
    return GGML_QUANT_SIZES[fmt.ggml_type]


def format_of(ggml_type: GGMLQuantizationType) -> Format | None:
    """The format stored under a type number; None for one that the gguf package cannot dequantize."""
    name = ggml_type.name.lower()
    return Format(name) if name in {str(f) for f in Format} else None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the checkpoint, by its name there, and how its rows are stored."""

    name: str
    format: Format
