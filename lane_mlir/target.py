"""What a step is compiled for, by name: chip, numerics, and how the cache and recurrent state are stored."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.utils.str_enum import StrEnum

from lane_mlir.chips import DEFAULT_CHIP, chip
from lane_mlir.diagnostics import LaneError, UsageError, unknown

MAX_SEQUENCES = 16
"""Sequences of a step at most: the rows that the matrix-vector kernels take."""


class Numerics(StrEnum):
    """
    The arithmetic of products by weights in a block format.

    - `dequant`: weights and activations in f32, the reference.
    - `int8`: the activation as blocks of 32 int8 with one f32 scale, integer dot products.
    - `two_pass_int8`: the activation as two such int8 words, the second of what the first leaves.

    Norms, softmax, router and residual are f32 under each.
    """

    DEQUANT = "dequant"
    INT8 = "int8"
    TWO_PASS_INT8 = "two_pass_int8"

    @property
    def words(self) -> int:
        """int8 words of a quantized value; 0 where nothing is quantized."""
        return {Numerics.DEQUANT: 0, Numerics.INT8: 1, Numerics.TWO_PASS_INT8: 2}[self]


class Precision(StrEnum):
    """How an array of the step's state is stored."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"


@dataclass(frozen=True)
class Target:
    """The fields of `#tg.target`, as plain values."""

    chip: str = DEFAULT_CHIP
    numerics: Numerics = Numerics.DEQUANT
    cache: Precision = Precision.F32
    state: Precision = Precision.F32


def make_target(
    numerics: str = "dequant", chip_name: str = DEFAULT_CHIP, cache: str = "f32", state: str = "f32"
) -> Target:
    """
    What a step is compiled for, from the names of the options.

    Raises UsageError with the valid names for a numerics, chip or precision that does not exist.
    """
    if numerics not in (known := [str(n) for n in Numerics]):
        raise UsageError(unknown("numerics", numerics, known))
    for kind, name, precisions in (("cache", cache, ("f32", "f16")), ("state", state, ("f32", "bf16"))):
        if name not in precisions:
            raise UsageError(unknown(f"precision of the {kind}", name, precisions))
    try:
        chip(chip_name)
    except LaneError as error:
        raise UsageError(str(error)) from None
    return Target(chip_name, Numerics(numerics), Precision(cache), Precision(state))
