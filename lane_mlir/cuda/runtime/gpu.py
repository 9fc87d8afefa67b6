"""
A GPU as the runtime sees it: memory, streams, events, kernels, graphs.

`cuda_gpu.py` implements this with cuda.core, and nothing else touches cuda.core or the driver; tests run on an
implementation of it on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lane_mlir.chips import Chip

HostArray: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]

Programs: TypeAlias = MutableMapping[bytes, bytes]

PLACE_ALIGNMENT = 256
"""Bytes to whose multiples places in device memory begin: what the widest loads and the planes of weights need."""


def aligned(size: int) -> int:
    """A size rounded up to whole places."""
    return -(-size // PLACE_ALIGNMENT) * PLACE_ALIGNMENT


class KernelHandle(Protocol):
    """A kernel that is loaded."""


class Block(Protocol):
    """Device memory; it is freed when nothing holds the block any more."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class Source:
    """
    A translation unit to load: its kernels by symbol, each with the types of its parameters in CUDA C, and the bytes of
    dynamic shared memory that it may be launched with.
    """

    name: str
    """The file's name in messages; of letters, digits, `_` and `.`."""
    text: str
    kernels: Mapping[str, Signature]


@dataclass(frozen=True)
class Signature:
    parameters: tuple[str, ...]
    shared: int = 0


@dataclass(frozen=True)
class KernelLaunch:
    """
    A kernel launch with everything but the stream. Arguments are addresses, as plain int, and numpy scalars.

    `pdl`: it may start before its predecessor in the stream has ended, and waits by itself (programmatic dependent
    launch).
    """

    kernel: KernelHandle
    grid: tuple[int, int, int]
    block: int
    arguments: tuple[int | np.generic, ...]
    shared: int = 0
    pdl: bool = False
    early: bool = False
    """It relies on its own predecessor, and must follow it directly."""


class Event(Protocol):
    """A point in a stream."""

    def sync(self) -> None:
        """Wait until the stream has come there."""
        ...

    def since(self, earlier: Event) -> float:
        """Seconds from another event on; both must be timed and over."""
        ...


class Graph(Protocol):
    """Kernel launches, instantiated as one."""


class Stream(Protocol):
    """
    Work that a GPU does in order. Every call but `sync` only queues; host arrays must be contiguous, and those that are
    pinned must stay as they are until the work is done.
    """

    def upload(self, address: int, data: HostArray) -> None: ...

    def download(self, data: HostArray, address: int) -> None:
        """Device to host; an array that is not pinned is there when the stream is synchronized."""
        ...

    def copy(self, to: int, source: int, size: int) -> None: ...

    def fill(self, address: int, size: int, byte: int) -> None: ...

    def launch(self, launch: KernelLaunch) -> None: ...

    def run(self, graph: Graph) -> None: ...

    def record(self, event: Event) -> None: ...

    def wait(self, event: Event) -> None:
        """Let what is queued after this wait for the event as it was recorded last."""
        ...

    def sync(self) -> None:
        """Wait until everything queued is done. Raises DriverError for whatever failed since the last time."""
        ...


class Gpu(Protocol):
    """One card."""

    @property
    def name(self) -> str: ...

    @property
    def chip(self) -> Chip:
        """What kernels are printed and compiled for: the card as it is."""
        ...

    @property
    def compute(self) -> Stream:
        """Where steps run."""
        ...

    @property
    def copies(self) -> Stream:
        """Where results are copied to the host while steps go on."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes of device memory that are free, and all there are."""
        ...

    def allocate(self, size: int) -> Block:
        """Device memory, not initialized. Raises OutOfMemory."""
        ...

    def pinned(self, size: int) -> Bytes:
        """Host memory that the device copies to and from by itself."""
        ...

    def load(self, source: Source) -> Mapping[str, KernelHandle]:
        """Compile and load a unit. Raises LaneError if it cannot be compiled, DriverError if it cannot be loaded."""
        ...

    def begin(self, source: Source) -> Callable[[], Mapping[str, KernelHandle]]:
        """Begin to compile a unit while other things are done; who calls what is returned waits, and gets as `load`."""
        ...

    def programs(self) -> AbstractContextManager[Programs | None]:
        """What is kept of what was compiled, by key, for all processes; None if there is no place to keep it."""
        ...

    def event(self, *, timed: bool = False) -> Event: ...

    def capture(self, launches: Sequence[KernelLaunch]) -> Graph:
        """Make a graph of launches that follow each other."""
        ...


class Slab:
    """Places in one allocation: reserved first, then allocated as a whole, so that it fails as a whole."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes reserved."""
        self._block: Block | None = None

    def reserve(self, size: int) -> int:
        """A place of `size` bytes: its offset."""
        at = self.size
        self.size += aligned(size)
        return at

    def allocate(self, gpu: Gpu) -> None:
        """Allocate what is reserved. Raises OutOfMemory."""
        # Even an empty slab has an address.
        self._block = gpu.allocate(max(self.size, PLACE_ALIGNMENT))

    @property
    def address(self) -> int:
        if self._block is None:
            raise RuntimeError("a slab is used before it is allocated")
        return self._block.address
