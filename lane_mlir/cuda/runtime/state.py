"""State on the device: parameters and arrays that live from step to step, the same for all programs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lane_mlir.cpu.memory import StateKey
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import BufferOp, DType
from lane_mlir.eval import Indices


def key_of(argument: BufferOp) -> StateKey:
    """The array that an argument of a step is, whichever sequence it is of."""
    key = StateKey.of(argument.role, argument.label.data, argument.shape.data, argument.dtype.data)
    return replace(key, sequence=0)


def sequence_of(argument: BufferOp) -> int:
    """The step's sequence that an argument is of."""
    return argument.role.sequence.data if argument.role is not None else 0


def size_of(key: StateKey) -> int:
    """Bytes of the array of one sequence."""
    return prod(key.shape) * key.dtype.bytes


@dataclass(frozen=True)
class NewState:
    """Arrays that are to come, with the place of each in one allocation, for so many sequences."""

    slab: Slab
    offsets: Mapping[StateKey, int]
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
        self._addresses: dict[StateKey, int] = {}
        self._numbers: dict[StateKey, Indices] = {}
        self._slabs: list[Slab] = []
        self.sequences = 1
        """Sequences that there is room for."""
        self.moves = 0

    def expect(self, arguments: Iterable[BufferOp], sequences: int) -> NewState:
        """Reserve room for the arrays that are not there yet; for all of them, if there are to be more sequences."""
        sequences = max(sequences, self.sequences)
        wanted = dict.fromkeys(key_of(argument) for argument in arguments)
        if sequences > self.sequences:
            wanted = dict.fromkeys([*self._addresses, *wanted])
        else:
            wanted = dict.fromkeys(key for key in wanted if key not in self._addresses)
        slab = Slab()
        return NewState(slab, {key: slab.reserve(size_of(key) * sequences) for key in wanted}, sequences)

    def add(self, new: NewState) -> None:
        """Take over arrays whose slab is allocated: zero, but for what they held where they were before."""
        stream = self._gpu.compute
        stream.fill(new.slab.address, new.slab.size, 0)
        moved = new.sequences > self.sequences
        for key, offset in new.offsets.items():
            address = new.slab.address + offset
            if key in self._addresses:
                stream.copy(address, self._addresses[key], size_of(key) * self.sequences)
            self._addresses[key] = address
            if key.dtype is DType.I32:
                numbers = np.zeros((new.sequences, prod(key.shape)), np.int32)
                if (old := self._numbers.get(key)) is not None:
                    numbers[: len(old)] = old
                self._numbers[key] = numbers
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

    def address(self, held: BufferOp, sequence: int) -> int:
        """
        The array of a parameter or state buffer, which may hold those of several sequences, for a step that runs from a
        sequence on. Raises LaneError for one that does not hold those of sequences in their order.
        """
        parts = list(held.parts()) or [held]
        first, of = parts[0], [sequence_of(part) for part in parts]
        whole = held.length == len(parts) * first.length
        if parts != [held] and (of != list(range(of[0], of[0] + len(of))) or not whole):
            raise LaneError(f'buffer "{held.label.data}" does not hold one array of each sequence, in order')
        key = key_of(first)
        return self._addresses[key] + (sequence + of[0]) * size_of(key)

    def numbers(self, argument: BufferOp, sequence: int) -> Indices:
        """The host's copy of an argument of whole numbers, flat, for a step that runs from a sequence on."""
        return self._numbers[key_of(argument)][sequence + sequence_of(argument)]

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
