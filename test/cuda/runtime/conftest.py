"""A GPU of the runtime that is this host: memory is the host's, kernels are emulated, every call is done at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from lane_mlir.chips import CHIPS
from lane_mlir.cuda.runtime.errors import DriverError, OutOfMemory
from lane_mlir.cuda.runtime.gpu import HostArray, KernelLaunch, Source
from lane_mlir.cuda.source import self_contained

GUARD = 256
"""Bytes around an allocation that nobody may touch."""


class HostBlock:
    def __init__(self, size: int):
        self._memory = np.full(size + 3 * GUARD, 0xFF, np.uint8)
        self.address = -(-self._memory.ctypes.data // GUARD) * GUARD + GUARD
        self.size = size
        self._start = self.address - self._memory.ctypes.data

    def check(self) -> None:
        """Nothing was written outside."""
        assert (self._memory[: self._start] == 0xFF).all()
        assert (self._memory[self._start + self.size :] == 0xFF).all()


@dataclass
class HostEvent:
    recorded: int = 0

    def sync(self) -> None:
        assert self.recorded, "an event is waited for that was never recorded"

    def since(self, earlier: HostEvent) -> float:
        return (self.recorded - earlier.recorded) * 1e-6


@dataclass(frozen=True)
class HostKernel:
    symbol: str
    run: Callable[..., None]


@dataclass
class HostGraph:
    launches: Sequence[KernelLaunch]


@dataclass
class HostStream:
    gpu: HostGpu

    def upload(self, address: int, data: HostArray) -> None:
        assert data.flags.c_contiguous
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, data: HostArray, address: int) -> None:
        assert data.flags.c_contiguous
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def fill(self, address: int, size: int, byte: int) -> None:
        ctypes.memset(address, byte, size)

    def launch(self, launch: KernelLaunch) -> None:
        kernel = launch.kernel
        assert isinstance(kernel, HostKernel)
        if kernel.symbol == self.gpu.failing:
            self.gpu.failed = True
            return
        self.gpu.launched.append(launch)
        kernel.run(launch)

    def run(self, graph: Any) -> None:
        self.gpu.graph_sizes.append(len(graph.launches))
        for launch in graph.launches:
            self.launch(launch)

    def record(self, event: HostEvent) -> None:
        self.gpu.clock += 1
        event.recorded = self.gpu.clock

    def wait(self, event: HostEvent) -> None:
        event.sync()

    def sync(self) -> None:
        if self.gpu.failed:
            raise DriverError("CUDA_ERROR_ILLEGAL_ADDRESS", "while a kernel ran")


@dataclass
class HostGpu:
    """`capacity`: bytes that may be allocated. `failing`: the symbol of a kernel that fails."""

    emulator: Any
    capacity: int = 1 << 30
    failing: str | None = None
    name: str = "an emulated card"
    chip: Any = CHIPS["h200"]
    failed: bool = False
    clock: int = 0
    allocated: int = 0
    blocks: list[HostBlock] = field(default_factory=list)
    launched: list[KernelLaunch] = field(default_factory=list)
    graph_sizes: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.compute, self.copies = HostStream(self), HostStream(self)

    def memory(self) -> tuple[int, int]:
        return self.capacity - self.allocated, self.capacity

    def allocate(self, size: int) -> HostBlock:
        if self.allocated + size > self.capacity:
            raise OutOfMemory
        self.allocated += size
        self.blocks.append(HostBlock(size))
        return self.blocks[-1]

    def pinned(self, size: int) -> Any:
        return np.full(size, 0xFF, np.uint8)

    def load(self, source: Source) -> Mapping[str, HostKernel]:
        self.sources.append(source)
        entries: list[str] = []
        for symbol, signature in source.kernels.items():
            given = [f"({type})(intptr_t)given[{i}]" for i, type in enumerate(signature.parameters)]
            entries.append(
                f'extern "C" void run_{symbol}(void** a, unsigned x, unsigned y, unsigned z, int block, int shared) '
                f"{{ static void** given; given = a; "
                f"emulator::launch([] {{ {symbol}({', '.join(given)}); }}, {{x, y, z}}, block, shared); }}\n"
            )
        library = self.emulator.compiled(self_contained(source.text, source.name) + "".join(entries))
        return {symbol: HostKernel(symbol, _runner(library, symbol)) for symbol in source.kernels}

    def event(self, *, timed: bool = False) -> HostEvent:
        return HostEvent()

    def capture(self, launches: Sequence[KernelLaunch]) -> HostGraph:
        return HostGraph(list(launches))

    def check(self) -> None:
        for block in self.blocks:
            block.check()


def _runner(library: ctypes.CDLL, symbol: str) -> Callable[[KernelLaunch], None]:
    run = getattr(library, f"run_{symbol}")

    def launch(launch: KernelLaunch) -> None:
        values = [int(value) for value in launch.arguments]
        array = (ctypes.c_void_p * max(len(values), 1))(*values)
        run(array, *launch.grid, launch.block, launch.shared)

    return launch


@pytest.fixture
def new_gpu(emulator: Any) -> Callable[..., HostGpu]:
    return lambda **fields: HostGpu(emulator, **fields)
