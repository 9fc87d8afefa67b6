"""Kernels that check and measure others: a predecessor that is slow on purpose, and a read of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from lane_mlir.cuda.runtime.gpu import Block, Gpu, KernelHandle, KernelLaunch, Signature, Slab, Source

SLOW_COPY, READ_ALL = "slow_copy_regions", "read_all_memory"

_TEXT = """// Kernels that check and measure others.

#include "probe.cuh"

using namespace lane;

extern "C" __global__ void __launch_bounds__(256)
slow_copy_regions(const Region* regions, int count, i64 delay) {
  slow_copy(regions, count, delay);
}

extern "C" __global__ void __launch_bounds__(512)
read_all_memory(const uint4* memory, i64 vectors, u32* sink) {
  read_all<8>(memory, vectors, sink);
}
"""

_SOURCE = Source(
    "probe.cu",
    _TEXT,
    {
        SLOW_COPY: Signature(("const Region*", "int", "i64")),
        READ_ALL: Signature(("const uint4*", "i64", "u32*")),
    },
)

_VECTOR = 16
_COPY_BLOCKS, _COPY_THREADS = 8, 256
_READ_THREADS, _READ_BLOCKS_A_MULTIPROCESSOR = 512, 4


@cache
def _kernels(gpu: Gpu) -> Mapping[str, KernelHandle]:
    return gpu.load(_SOURCE)


class SlowPredecessor:
    """
    Launches kernels so that what they may not read or write before they have waited for their predecessor is not there
    yet: a kernel that does not wait gives another result than one that does.

    `regions`: first byte and size of all memory that launches write, each a multiple of 16 bytes. `delay`: seconds that
    the predecessor takes, more than the host does to launch its successor.
    """

    def __init__(self, gpu: Gpu, regions: Sequence[tuple[int, int]], delay: float = 500e-6):
        self._gpu, self._regions = gpu, [(address, size) for address, size in regions if size]
        slab = Slab()
        table = slab.reserve(24 * max(len(self._regions), 1))
        places = [slab.reserve(size) for _, size in self._regions]
        slab.allocate(gpu)
        self._slab, self._copies = slab, [slab.address + at for at in places]
        entries = [
            (address, copy, size // _VECTOR) for (address, size), copy in zip(self._regions, self._copies, strict=True)
        ]
        gpu.compute.upload(slab.address + table, np.array(entries, np.int64).reshape(-1))
        arguments = (slab.address + table, np.int32(len(entries)), np.int64(delay * 1e9))
        kernel = _kernels(gpu)[SLOW_COPY]
        self._launch = KernelLaunch(kernel, (_COPY_BLOCKS, 1, 1), _COPY_THREADS, arguments)

    def launch(self, kernel: KernelLaunch) -> None:
        """Launch a kernel after a predecessor that lets it start, and brings back what it works on much later."""
        stream = self._gpu.compute
        for (address, size), copy in zip(self._regions, self._copies, strict=True):
            stream.copy(copy, address, size)
            # NaN, or an index far outside.
            stream.fill(address, size, 0xFF)
        stream.launch(self._launch)
        stream.launch(kernel)


def read_launch(gpu: Gpu, memory: Block, sink: Block) -> KernelLaunch:
    """A kernel that reads all of a block of memory once."""
    blocks = gpu.chip.multiprocessors * _READ_BLOCKS_A_MULTIPROCESSOR
    arguments = (memory.address, np.int64(memory.size // _VECTOR), sink.address)
    return KernelLaunch(_kernels(gpu)[READ_ALL], (blocks, 1, 1), _READ_THREADS, arguments)


def delay_launch(gpu: Gpu, seconds: float) -> KernelLaunch:
    """A kernel that keeps a stream busy for a time."""
    arguments = (0, np.int32(0), np.int64(seconds * 1e9))
    return KernelLaunch(_kernels(gpu)[SLOW_COPY], (1, 1, 1), _COPY_THREADS, arguments)
