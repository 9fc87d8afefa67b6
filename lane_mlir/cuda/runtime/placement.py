"""Where everything lies that the kernels of a program touch: its places as addresses."""

from __future__ import annotations

from collections.abc import Mapping

from lane_mlir.cuda.runtime.executable import Executable, Place, Region
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.cuda.runtime.state import State
from lane_mlir.cuda.runtime.weights import Weights


class Placement:
    """The memory of one program, and where the weights and state are that it shares with others."""

    def __init__(self, executable: Executable, weights: Weights, state: State):
        self._executable, self._weights, self._state = executable, weights, state
        self._slabs = {region: Slab() for region in (Region.ARENA, Region.SCRATCH, Region.COUNTERS)}
        self._slabs[Region.ARENA].reserve(executable.arena)
        self._slabs[Region.SCRATCH].reserve(executable.scratch)
        self._slabs[Region.COUNTERS].reserve(executable.counters)
        self.arrival = weights.expect(executable.weights)
        self.new_state = state.expect(executable.state, executable.sequences)

    @property
    def needed(self) -> Mapping[str, int]:
        """Bytes that are to be allocated, by what for."""
        return {
            "weights": self.arrival.slab.size,
            "cache and state": self.new_state.slab.size,
            "the arena": sum(slab.size for slab in self._slabs.values()),
        }

    def allocate(self, gpu: Gpu) -> None:
        """Allocate everything that is not there yet, weights not yet loaded. Raises OutOfMemory."""
        for slab in (self.arrival.slab, self.new_state.slab, *self._slabs.values()):
            slab.allocate(gpu)
        gpu.compute.fill(*self.counters, 0)
        self._state.add(self.new_state)

    # Once everything is allocated and loaded.

    def address(self, place: Place, sequence: int = 0) -> int:
        """The address of a place, when the step runs from a sequence of the state on."""
        match place.region:
            case Region.WEIGHT:
                return self._weights.address(self._executable.weights[place.index]) + place.offset
            case Region.STATE:
                array = self._executable.state[place.index]
                return self._state.address(array, sequence + place.sequence) + place.offset
            case region:
                return self._slabs[region].address + place.offset

    @property
    def regions(self) -> list[tuple[int, int]]:
        """First byte and size of the memory whose contents are nothing between two steps: the arena and scratch."""
        slabs = (self._slabs[Region.ARENA], self._slabs[Region.SCRATCH])
        return [(slab.address, slab.size) for slab in slabs if slab.size]

    @property
    def counters(self) -> tuple[int, int]:
        """First byte and size of the scratch that is zero between two launches."""
        slab = self._slabs[Region.COUNTERS]
        return slab.address, slab.size
