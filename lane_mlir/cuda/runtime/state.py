"""State on the device: parameters and arrays that live from step to step, the same for all programs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lane_mlir.cpu.memory import StateKey
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.dialects.launch import BufferOp, DType
from lane_mlir.eval import Indices


def state_key(buffer: BufferOp) -> StateKey:
    return StateKey.of(buffer.role, buffer.label.data, buffer.shape.data, buffer.dtype.data)


@dataclass(frozen=True)
class NewState:
    """Arrays that are to come, with the place of each in one allocation."""

    slab: Slab
    offsets: Mapping[StateKey, int]


class State:
    """
    The state of one model on one GPU. Begins as zeros.

    Of what is whole numbers, tokens and positions, the host keeps a copy, `numbers`, which who changes the one on the
    device changes too: so positions are checked without asking the device.
    """

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._addresses: dict[StateKey, int] = {}
        self._slabs: list[Slab] = []
        self._numbers: dict[StateKey, Indices] = {}

    def expect(self, buffers: Iterable[BufferOp]) -> NewState:
        """Reserve room for the arrays behind buffers that are not there yet."""
        slab, offsets = Slab(), dict[StateKey, int]()
        for buffer in buffers:
            key = state_key(buffer)
            if key not in self._addresses and key not in offsets:
                offsets[key] = slab.reserve(buffer.length * buffer.dtype.data.bytes)
        return NewState(slab, offsets)

    def add(self, new: NewState) -> None:
        """Take over arrays whose slab is allocated, and set them to zero."""
        self._gpu.compute.fill(new.slab.address, new.slab.size, 0)
        self._slabs.append(new.slab)
        for key, offset in new.offsets.items():
            self._addresses[key] = new.slab.address + offset
            if key.dtype is DType.I32:
                self._numbers[key] = np.zeros(int(np.prod(key.shape)), np.int32)

    def address(self, buffer: BufferOp) -> int:
        return self._addresses[state_key(buffer)]

    def numbers(self, buffer: BufferOp) -> Indices:
        """The host's copy of an array of whole numbers, flat."""
        return self._numbers[state_key(buffer)]

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
