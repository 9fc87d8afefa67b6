"""State on the device: parameters and arrays that live from step to step, the same for all programs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lane_mlir.cuda.runtime.executable import StateArray
from lane_mlir.cuda.runtime.gpu import Gpu, Slab


@dataclass(frozen=True)
class NewState:
    """Arrays that are to come, with the place of each in one allocation, for so many sequences."""

    slab: Slab
    offsets: Mapping[StateArray, int]
    sequences: int


class State:
    """
    The state of one model on one GPU. Begins as zeros.

    Of each array, those of all sequences lie one after the other, so that a step of one sequence and one of several
    find the same. When there is to be room for more sequences, everything moves: `moves` counts how often.

    Of what is whole numbers, tokens and positions, the host keeps a copy, `numbers`, which who changes the one on the
    device changes too: so positions are checked without asking the device.
    """

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._addresses: dict[StateArray, int] = {}
        self._numbers: dict[StateArray, NDArray[np.int32]] = {}
        self._slabs: list[Slab] = []
        self.sequences = 1
        """Sequences that there is room for."""
        self.moves = 0

    def expect(self, arrays: Iterable[StateArray], sequences: int) -> NewState:
        """Reserve room for the arrays that are not there yet; for all of them, if there are to be more sequences."""
        sequences = max(sequences, self.sequences)
        wanted = dict.fromkeys(arrays)
        if sequences > self.sequences:
            wanted = dict.fromkeys([*self._addresses, *wanted])
        else:
            wanted = dict.fromkeys(array for array in wanted if array not in self._addresses)
        slab = Slab()
        return NewState(slab, {array: slab.reserve(array.size * sequences) for array in wanted}, sequences)

    def add(self, new: NewState) -> None:
        """Take over arrays whose slab is allocated: zero, but for what they held where they were before."""
        stream = self._gpu.compute
        stream.fill(new.slab.address, new.slab.size, 0)
        moved = new.sequences > self.sequences
        for array, offset in new.offsets.items():
            address = new.slab.address + offset
            if array in self._addresses:
                stream.copy(address, self._addresses[array], array.size * self.sequences)
            self._addresses[array] = address
            if array.dtype == "int32":
                numbers = np.zeros((new.sequences, array.count), np.int32)
                if (old := self._numbers.get(array)) is not None:
                    numbers[: len(old)] = old
                self._numbers[array] = numbers
        if moved:
            # What is freed is still copied from: the device frees it in order.
            self._slabs.clear()
            self.sequences = new.sequences
            self.moves += 1
        self._slabs.append(new.slab)

    def reserve(self, sequences: int) -> None:
        """Make room for the state of so many sequences. Raises OutOfMemory."""
        if sequences > self.sequences:
            new = self.expect((), sequences)
            new.slab.allocate(self._gpu)
            self.add(new)

    def address(self, array: StateArray, sequence: int) -> int:
        """The array of a sequence."""
        return self._addresses[array] + sequence * array.size

    def numbers(self, array: StateArray, sequence: int) -> NDArray[np.int32]:
        """The host's copy of an array of whole numbers, flat, of a sequence."""
        return self._numbers[array][sequence]

    def reset(self) -> None:
        """Set everything to zero."""
        for slab in self._slabs:
            self._gpu.compute.fill(slab.address, slab.size, 0)
        for numbers in self._numbers.values():
            numbers.fill(0)

    @property
    def regions(self) -> list[tuple[int, int]]:
        """First byte and size of the memory of all arrays."""
        return [(slab.address, slab.size) for slab in self._slabs]
