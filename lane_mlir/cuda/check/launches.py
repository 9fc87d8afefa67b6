"""
Each launch of a step by itself: on the card, from exactly the inputs that it has on the CPU target, against what it
makes of them there.

So an error is that of one launch, and whatever is wrong with one is not found again in all after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lane_mlir.cpu import CpuProgram, Memory
from lane_mlir.cuda.check.reporter import Measured, Reporter
from lane_mlir.cuda.layout import QBLOCK
from lane_mlir.cuda.lowering import Lowering, vocabularies
from lane_mlir.cuda.runtime.errors import DriverError
from lane_mlir.cuda.runtime.faults import fault
from lane_mlir.cuda.runtime.gpu import Bytes, HostArray
from lane_mlir.cuda.runtime.probe import SlowPredecessor
from lane_mlir.cuda.runtime.program import BoundKernel, CudaProgram
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import BufferOp, DType, Fill, LaunchOp, MoeOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import ArgumentKind, Numerics, TargetAttr

POISON = 0xFF
"""A byte that makes a NaN of every float, and an index far outside of whole numbers."""

REPEATS = 3

_ROUNDING = {DType.F32: 0.0, DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.I32: 0.0}
"""Of a value that is rounded to a type, where both sides may round another way."""


class LaunchCheck:
    """The launches of one program, against those of the CPU target for the same schedule and weights."""

    def __init__(self, program: CudaProgram, schedule: ScheduleOp, memory: Memory, regions: Sequence[tuple[int, int]]):
        """
        `schedule` is what the program was made from. `memory`: of the CPU target. `regions`: where the card has the
        state that the program shares with others.
        """
        self._program, self._gpu, self._schedule = program, program.gpu, schedule
        self._cpu = CpuProgram(schedule, memory)
        target = schedule.target
        self._numerics: Numerics = (target if target is not None else TargetAttr()).numerics.data
        self._lowering = Lowering(schedule, program.gpu.chip)
        self._kernels: dict[LaunchOp, list[BoundKernel]] = {}
        for use, bound in zip(self._lowering.unit.uses, program.launches, strict=True):
            self._kernels.setdefault(use.launch, []).append(bound)
        self._scratch = program.placement.regions
        self._slow = SlowPredecessor(self._gpu, [*self._scratch, program.placement.counters, *regions])
        self._made: list[list[Bytes]] = []
        self._failure: LaneError | None = None

    def run(self, reporter: Reporter, where: str, position: int) -> None:
        """Every launch once at a position, each a case named `where`, its kernel and its number."""
        self._fill_inputs(position)
        cases = list(self._cases(where))
        following = iter(cases)

        def prepare_next() -> None:
            launch, case = next(following, (None, ""))
            if launch is not None and reporter.wants(case):
                self._prepare(launch)

        named = dict(cases)
        prepare_next()

        def ran(op: LaunchOp, seconds: float) -> None:
            reporter.run(named[op], lambda: self._compare(op))
            prepare_next()

        self._cpu.run_traced(ran)

    def _cases(self, where: str) -> Iterator[tuple[LaunchOp, str]]:
        numbers = Counter[str]()
        names = {use.launch: use.kernel.name for use in self._lowering.unit.uses}
        for launch in self._schedule.launches():
            if launch in names:
                kernel = names[launch]
                yield launch, f"{where} {kernel}.{numbers[kernel]}"
                numbers[kernel] += 1

    # What a launch begins with.

    def _fill_inputs(self, position: int) -> None:
        """Random tokens, caches that are NaN from the position on, random state."""
        rng = np.random.default_rng((11, position))
        cpu = self._cpu
        parts = [part for launch in self._schedule.launches() for part in launch.parts()]
        vocabulary = vocabularies(parts)
        cpu.buffers.poison()
        for op, array in cpu.arguments:
            kind = op.role.kind.data if op.role is not None else None
            if kind is ArgumentKind.TOKEN:
                tokens = vocabulary.get(op.holder(Touch.PLAIN)[0], 1)
                array[:] = rng.integers(tokens, size=array.size)
            elif kind is ArgumentKind.POSITION:
                array[:] = position
            else:
                values = rng.standard_normal(op.shape.data, np.float32)
                if kind is ArgumentKind.KV_CACHE:
                    values[position:] = np.nan
                else:
                    values *= np.float32(1 / math.sqrt(op.shape.data[-1]))
                array[:] = values.reshape(-1).astype(array.dtype)

    def _prepare(self, launch: LaunchOp) -> None:
        """
        Run a launch on the card on the CPU target's inputs as they are now: several times, each over poison, and once
        with its kernels each after a predecessor that brings everything late.
        """
        self._made, self._failure = [], None
        try:
            self._run(launch)
        except DriverError as error:
            # Reported as the case's own when its turn comes.
            self._failure = self._fault(launch, error)

    def _run(self, launch: LaunchOp) -> None:
        stream, (_, written) = self._gpu.compute, launch.touches(self._numerics)
        for repeat in range(REPEATS + 1):
            self._upload(launch)
            for bound in self._kernels[launch]:
                # What is early relies on its own predecessor, which is then late.
                if repeat < REPEATS or bound.launch.early:
                    stream.launch(bound.launch)
                else:
                    self._slow.launch(bound.launch)
            self._made.append([self._downloaded(value, form) for value, form in written])
            stream.sync()

    def _fault(self, launch: LaunchOp, error: DriverError) -> LaneError:
        if not error.is_fault:
            return error
        bound = self._kernels[launch][-1]
        return fault(self._program.executable.name, bound.call, bound.launch, error)

    def _upload(self, launch: LaunchOp) -> None:
        stream = self._gpu.compute
        for address, size in self._scratch:
            stream.fill(address, size, POISON)
        reads, writes = launch.touches(self._numerics)
        done: set[tuple[BufferOp, Touch]] = set()
        for value, form in (*reads, *writes):
            held = buffer_of(value).holder(form)[0]
            if held.fill.data is Fill.CONSTANT or (held, form) in done:
                continue
            done.add((held, form))
            stream.upload(self._address(held, form), self._bytes(held, form))

    def _address(self, held: BufferOp, form: Touch) -> int:
        place = self._lowering.plain(held) if form is Touch.PLAIN else self._lowering.quantized(held)
        return self._program.placement.address(place)

    def _bytes(self, held: BufferOp, form: Touch) -> HostArray:
        """A form of a buffer as the card has it, with the values of the CPU target."""
        if form is Touch.PLAIN:
            return self._cpu.buffers.plain(held.buffer)
        words = self._cpu.buffers.quantized(held.buffer).words
        q = np.stack([word.q.reshape(-1, QBLOCK) for word in words], axis=1)
        d = np.stack([word.d.reshape(-1) for word in words], axis=1)
        return np.concatenate([q.reshape(-1).view(np.uint8), np.ascontiguousarray(d).reshape(-1).view(np.uint8)])

    def _downloaded(self, value: Any, form: Touch) -> Bytes:
        held = buffer_of(value).holder(form)[0]
        data = np.zeros(self._bytes(held, form).nbytes, np.uint8)
        self._gpu.compute.download(data, self._address(held, form))
        return data

    # What it ends with.

    def _compare(self, launch: LaunchOp) -> Measured:
        if self._failure is not None:
            raise self._failure
        first, *others = self._made
        _, written = launch.touches(self._numerics)
        for run, other in enumerate(others, 2):
            for (value, form), a, b in zip(written, first, other, strict=True):
                if not np.array_equal(a, b):
                    how = f"run {run}" if run <= REPEATS else "after a slow predecessor"
                    name = buffer_of(value).label.data
                    raise LaneError(f'{form.value} form of "{name}" differs {how}: {_spread(a, b)}')
        tolerance, why = tolerance_of(launch, self._numerics)
        errors = [self._error(value, form, made, tolerance) for (value, form), made in zip(written, first, strict=True)]
        worst, name = max(errors, default=(0.0, "nothing"))
        return Measured(worst, tolerance, why, f'{launch.kind()} writes "{name}"')

    def _error(self, value: Any, form: Touch, made: Bytes, tolerance: float) -> tuple[float, str]:
        """The largest error of a form of what a launch wrote, relative to the largest value; beyond rounding."""
        buffer = buffer_of(value)
        held, start, stop = buffer.holder(form)
        name = f"{buffer.label.data} ({form.value})"
        if form is Touch.PLAIN:
            dtype = held.dtype.data
            want = self._cpu.buffers.plain(held.buffer)
            got = made.view(want.dtype)
            if dtype is DType.I32:
                return (0.0 if np.array_equal(got, want) else math.inf), name
            return relative(got, want, _ROUNDING[dtype]), name
        words = self._cpu.buffers.quantized(buffer.buffer).words
        want = self._cpu.buffers.quantized(buffer.buffer).values()
        got = quantized_values(made, held.length, len(words))[start:stop]
        # A value that is rounded to the other side is a step of the last word away.
        return relative(got, want, 0.0, 1.01 * np.repeat(words[-1].d, QBLOCK)), name


def quantized_values(form: Bytes, length: int, words: int) -> NDArray[np.float32]:
    """The values of a quantized form as it lies on the card."""
    blocks = length // QBLOCK
    q = form[: length * words].view(np.int8).reshape(blocks, words, QBLOCK)
    d = form[length * words :].view(np.float32).reshape(blocks, words, 1)
    return (q * d).sum(axis=1, dtype=np.float32).reshape(-1)


def relative(got: NDArray[Any], want: NDArray[Any], rounding: float, steps: NDArray[Any] | float = 0.0) -> float:
    """
    The largest difference, relative to the largest value, of what rounding does not explain; infinite where only one
    side is finite.
    """
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return math.inf
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want) - rounding * np.abs(want) - steps
    largest = np.abs(want[finite]).max(initial=0.0)
    worst = max(error[finite].max(initial=0.0), 0.0)
    return float(worst / largest) if largest else float(worst)


def tolerance_of(launch: LaunchOp, numerics: Numerics) -> tuple[float, str]:
    """How far a launch may be from the CPU target, relative to the largest value that it writes, and why."""
    parts = launch.parts()
    if any(part.attends_in_two_words(numerics) for part in parts):
        return 1e-4, "keys, values and scores as two int8 words"
    if any(part.attends_on_tensor_cores(numerics) for part in parts):
        return 2e-2, "keys, values and scores as int8"
    if any(isinstance(part, MoeOp) for part in parts) and numerics is not Numerics.DEQUANT:
        # One of some hundred hidden values a step of 1/127 of its block's largest away.
        return (5e-3 if numerics is Numerics.INT8 else 5e-5), "hidden values rounded to the other side"
    return 1e-5, "f32 sums in another order, functions to a few units in the last place"


def _spread(a: Bytes, b: Bytes) -> str:
    wrong = np.flatnonzero(a != b)
    return f"{len(wrong)} bytes, the first at {wrong[0]}"
