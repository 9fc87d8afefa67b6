"""Steps that run ahead of the host: their tokens are kept in a ring on the device, and read some steps behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lane_mlir.cuda.runtime.gpu import Event, Gpu, Graph, KernelLaunch, Signature, Slab, Source
from lane_mlir.cuda.runtime.options import Options
from lane_mlir.timeline import phase

_SYMBOL = "record_tokens"
_PARAMETERS = ("const int* const*", "int", "int*", "u32*")
_WARP = 32


def print_record(capacity: int) -> str:
    """The unit with the kernel that keeps the tokens of a step."""
    return (
        '// Keeps the tokens of each step.\n\n#include "record.cuh"\n\nusing namespace lane;\n\n'
        'extern "C" __global__ void record_tokens(const int* const* ids, int count, int* ring, u32* steps) {\n'
        f"  record<{capacity}>(ids, count, ring, steps);\n}}\n"
    )


@dataclass
class Batch:
    """Where the tokens of one queued graph will be, on the host."""

    tokens: NDArray[np.int32]
    """A copy of the whole ring, [capacity, tokens a step]."""
    ran: Event
    copied: Event
    first: int = 0
    count: int = 0


class RunAhead:
    """
    Runs steps in graphs of several, each followed by a copy of the ring on another stream, so that no step waits for a
    copy, nor for the host.

    `launches` are those of a step that moves its tokens and positions on; `ids` where it puts what it chose, an
    address for each of its sequences.
    """

    def __init__(self, gpu: Gpu, launches: Sequence[KernelLaunch], ids: Sequence[int], options: Options):
        self._gpu, self._step, self._options = gpu, list(launches), options
        # A ring that is not written over while the batches before are read.
        self._capacity, count = options.steps * (options.ahead + 1), len(ids)
        memory = Slab()
        places = [memory.reserve(size) for size in (8 * count, 4 * self._capacity * count, 4)]
        memory.allocate(gpu)
        self._memory = memory
        table, self._ring, self._steps = (memory.address + at for at in places)
        gpu.compute.upload(table, np.array(ids, np.int64))
        self._step.append(self._record(table, count))
        self._graphs: dict[int, Graph] = {}
        self._batches = [self._batch(count) for _ in range(options.ahead)]

    def _record(self, table: int, count: int) -> KernelLaunch:
        source = Source("record.cu", print_record(self._capacity), {_SYMBOL: Signature(_PARAMETERS)})
        kernel = self._gpu.load(source)[_SYMBOL]
        threads = -(-count // _WARP) * _WARP
        arguments = (table, np.int32(count), self._ring, self._steps)
        pdl = self._options.pdl and self._gpu.chip.programmatic_launch
        return KernelLaunch(kernel, (1, 1, 1), threads, arguments, pdl=pdl)

    def _batch(self, count: int) -> Batch:
        tokens: NDArray[Any] = self._gpu.pinned(4 * self._capacity * count).view(np.int32)
        return Batch(tokens.reshape(self._capacity, count), self._gpu.event(), self._gpu.event())

    def graph(self, steps: int) -> Graph:
        """A number of steps as one graph."""
        if steps not in self._graphs:
            with phase(f"making a graph of {steps * len(self._step)} launches"):
                self._graphs[steps] = self._gpu.capture(self._step * steps)
        return self._graphs[steps]

    def run(self, count: int, queued: Callable[[int], object]) -> Iterator[list[int]]:
        """The tokens of `count` steps, step by step; `queued(n)` is called when n more steps are queued."""
        self._gpu.compute.fill(self._steps, 4, 0)
        started = 0
        waiting, free = deque[Batch](), deque(self._batches)
        while started < count or waiting:
            while started < count and free:
                # The last steps one by one: none may run beyond the count.
                steps = self._options.steps if count - started >= self._options.steps else 1
                waiting.append(self._queue(free.popleft(), started, steps))
                queued(steps)
                started += steps
            batch = waiting.popleft()
            batch.copied.sync()
            rows = [(batch.first + step) % self._capacity for step in range(batch.count)]
            tokens: list[list[int]] = batch.tokens[rows].tolist()
            free.append(batch)
            yield from tokens

    def _queue(self, batch: Batch, first: int, steps: int) -> Batch:
        compute, copies = self._gpu.compute, self._gpu.copies
        compute.run(self.graph(steps))
        compute.record(batch.ran)
        copies.wait(batch.ran)
        copies.download(batch.tokens, self._ring)
        copies.record(batch.copied)
        batch.first, batch.count = first, steps
        return batch
