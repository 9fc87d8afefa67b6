"""The numpy arrays that stand for the values of a step."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
"""The values of a tensor, in its shape."""

Indices: TypeAlias = NDArray[np.int32]
"""A token or a position, or the indices that an argmax gives."""

StateArray: TypeAlias = NDArray[Any]
"""
An array of state. Its dtype says how it is stored (float32, float16 or bfloat16): it is read as float32, and what is
assigned to it is rounded.
"""


def read(state: StateArray) -> Array:
    """The values of an array of state now: later writes to it do not show."""
    return np.array(state, np.float32)


def scalar(position: Indices) -> int:
    """The position that an array of one element holds."""
    return int(position[0])
