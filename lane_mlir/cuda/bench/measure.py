"""Times of steps and of their launches on the device, by events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean, median

import numpy as np

from lane_mlir.cuda.runtime.gpu import Event, Gpu, KernelLaunch, Stream
from lane_mlir.cuda.runtime.probe import delay_launch, read_launch
from lane_mlir.cuda.runtime.program import CudaProgram

READ_BYTES = 8 << 30
"""What is read for the bandwidth, if there is so much: many times what any cache holds."""

SEGMENT = 150
"""Launches that are queued at once, each with an event: fewer than the driver queues before it waits."""

DELAY = 10e-3
"""Seconds that the device is kept busy until a segment is queued, so that no launch waits for the host."""

_WARM = 3
_READ_REPEATS = 7


def read_bandwidth(gpu: Gpu) -> float:
    """Bytes a second that a plain read of much memory reaches: the median of some reads."""
    free, _ = gpu.memory()
    size = min(READ_BYTES, free // 2) // 4096 * 4096
    memory, sink = gpu.allocate(size), gpu.allocate(256)
    # Nothing that a memory controller could make less of than of weights.
    gpu.compute.fill(memory.address, size, 0x5A)
    launch = read_launch(gpu, memory, sink)
    seconds = [timed(gpu, [launch]) for _ in range(_WARM + _READ_REPEATS)][_WARM:]
    return size / median(seconds)


def timed(gpu: Gpu, launches: Sequence[KernelLaunch]) -> float:
    """Seconds that launches take on the device, one after the other."""
    stream, begin, end = gpu.compute, gpu.event(timed=True), gpu.event(timed=True)
    stream.record(begin)
    for launch in launches:
        stream.launch(launch)
    stream.record(end)
    end.sync()
    return end.since(begin)


def step_seconds(program: CudaProgram, position: int, steps: int, repeats: int, *, a_graph: int = 1) -> list[float]:
    """
    Seconds a step takes at a position and after, each time the mean of as many steps as follow one another without the
    host; `a_graph` of them in each graph.
    """
    stream, begin, end = program.gpu.compute, program.gpu.event(timed=True), program.gpu.event(timed=True)
    graphs = max(steps // a_graph, 1)
    graph = program.graph_of(a_graph)
    found: list[float] = []
    for _ in range(repeats + 1):
        stand_at(program, position)
        stream.record(begin)
        for _ in range(graphs):
            stream.run(graph)
        stream.record(end)
        end.sync()
        found.append(end.since(begin) / (graphs * a_graph))
    # The first comes with what is done once.
    return found[1:]


def stand_at(program: CudaProgram, position: int) -> None:
    """Set the position of all sequences of a step."""
    for sequence in range(program.sequences):
        program.set_position(position, sequence)


def generated_seconds(program: CudaProgram, token: int, position: int, count: int) -> float:
    """Seconds a step takes as a caller sees it: by the clock of the host, its tokens in its hands."""
    program.set_tokens(np.full(program.sequences, token, np.int32))
    stand_at(program, position)
    made = program.continued(count)
    next(made)
    started = time.perf_counter()
    rest = sum(1 for _ in made)
    return (time.perf_counter() - started) / max(rest, 1)


def prompt_seconds(programs: Sequence[CudaProgram], repeats: int) -> list[float]:
    """Seconds that it takes to read a prompt, whose chunks are those of the programs, from position 0 on."""
    gpu, found = programs[0].gpu, list[float]()
    for _ in range(repeats + 1):
        begin, end = gpu.event(timed=True), gpu.event(timed=True)
        # Sets every graph up before the time begins.
        graphs = [program.graph for program in programs]
        gpu.compute.sync()
        gpu.compute.record(begin)
        position = 0
        for program, graph in zip(programs, graphs, strict=True):
            program.set_position(position)
            gpu.compute.run(graph)
            position += program.limits.rows
        gpu.compute.record(end)
        end.sync()
        found.append(end.since(begin))
    return found[1:]


def launch_seconds(program: CudaProgram, position: int, repeats: int) -> list[float]:
    """
    Seconds that each kernel launch of a step takes by itself, in the order of the step and on its data: none overlaps
    another, as they do in a graph.
    """
    gpu = program.gpu
    overhead = mean(_kept(_between(gpu, gpu.compute, [None] * SEGMENT)))
    runs: list[list[float]] = []
    for _ in range(repeats + 1):
        stand_at(program, position)
        times: list[float] = []
        for segment in _segments([bound.launch for bound in program.launches]):
            times += _between(gpu, gpu.compute, segment)
        runs.append(times)
    return [max(mean(_kept(list(times))) - overhead, 0.0) for times in zip(*runs[1:], strict=True)]


def _segments(launches: Sequence[KernelLaunch]) -> Iterator[Sequence[KernelLaunch]]:
    for start in range(0, len(launches), SEGMENT):
        yield launches[start : start + SEGMENT]


def _between(gpu: Gpu, stream: Stream, launches: Sequence[KernelLaunch | None]) -> list[float]:
    """Seconds between the events before and after each launch; where there is None, those of the events alone."""
    events: list[Event] = [gpu.event(timed=True) for _ in range(len(launches) + 1)]
    stream.launch(delay_launch(gpu, DELAY))
    stream.record(events[0])
    for launch, event in zip(launches, events[1:], strict=True):
        if launch is not None:
            stream.launch(launch)
        stream.record(event)
    stream.sync()
    return [after.since(before) for before, after in pairwise(events)]


def _kept(values: list[float]) -> list[float]:
    """All but the largest fifth: what something else held up."""
    return sorted(values)[: max(1, len(values) * 4 // 5)]
