"""A tensor of a checkpoint: its stored bytes, mapped from the file, and its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
from gguf import quants
from numpy.typing import NDArray

from lane_mlir.formats import Format

# Values dequantized at a time: the temporaries of one step take some tens of megabytes.
_VALUES_A_STEP = 1 << 20


@dataclass(frozen=True, eq=False)
class Tensor:
    """
    A tensor as a checkpoint stores it.

    `shape` is in numpy's order: the last dimension is the row length k, along which values share blocks. `data` is a
    read-only uint8 view of the mapped file, [rows, bytes a row], with all leading dimensions flattened into rows.
    `offset` is the first byte's position in the file.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    data: NDArray[np.uint8] = field(repr=False)

    @property
    def row_count(self) -> int:
        """The product of all dimensions but the last; 1 for a vector."""
        return prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return self.data.nbytes

    def values(self) -> NDArray[np.float32]:
        """All values in float32, in `shape`. Of an f32 tensor a read-only view of the file, without a copy."""
        return self.rows(0, self.row_count).reshape(self.shape)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """
        Rows start to stop (exclusive) in float32, [stop - start, k]; only these are read.

        Raises IndexError unless 0 <= start <= stop <= row_count.
        """
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"rows {start} to {stop} of tensor {self.name!r}, which has {self.row_count}")
        if self.format is Format.F32:
            return self.data[start:stop].view(np.float32)
        width = self.shape[-1]
        values = np.empty((stop - start, width), np.float32)
        step = max(1, _VALUES_A_STEP // width)
        # A scale may be an infinity or a NaN in a bad file; the values then are too, as the format says.
        with np.errstate(all="ignore"):
            for first in range(start, stop, step):
                last = min(first + step, stop)
                values[first - start : last - start] = quants.dequantize(self.data[first:last], self.format.ggml_type)
        return values
