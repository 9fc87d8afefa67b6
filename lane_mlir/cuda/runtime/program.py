"""A planned schedule on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lane_mlir.cpu.memory import DTYPES
from lane_mlir.cuda.printer import Unit, Use
from lane_mlir.cuda.printer.kernel import Argument
from lane_mlir.cuda.runtime.ahead import RunAhead
from lane_mlir.cuda.runtime.errors import DriverError
from lane_mlir.cuda.runtime.faults import Ran, fault
from lane_mlir.cuda.runtime.gpu import Graph, KernelHandle, KernelLaunch, Signature, Source
from lane_mlir.cuda.runtime.limits import Limits, parameters
from lane_mlir.cuda.runtime.placement import Placement
from lane_mlir.cuda.runtime.state import sequence_of
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import ArgMaxOp, BufferOp, LaunchOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import ArgumentKind
from lane_mlir.eval import Indices
from lane_mlir.runtime.device import NEXT_ID

if TYPE_CHECKING:
    from lane_mlir.cuda.runtime.device import CudaDevice

SMALL = 4096
"""Bytes of an output up to which it is copied along with another that is asked for."""


@dataclass(frozen=True)
class BoundKernel:
    """A kernel of the unit with the buffers of one launch, ready to be launched."""

    use: Use
    launch: KernelLaunch


def unit_source(unit: Unit, name: str) -> Source:
    """A printed unit as it is loaded."""
    kernels = {
        use.symbol: Signature(tuple(f"{a.c_type}*" for a in use.arguments), use.kernel.shared) for use in unit.uses
    }
    return Source(name, unit.text, kernels)


def bind(
    unit: Unit,
    kernels: Mapping[str, KernelHandle],
    address: Callable[[LaunchOp, Argument], int],
    *,
    pdl: bool = True,
) -> list[BoundKernel]:
    """Every kernel launch of a unit, in order; `address(launch, argument)` says where each argument is."""
    return [
        BoundKernel(
            use,
            KernelLaunch(
                kernels[use.symbol],
                use.kernel.grid,
                use.kernel.block,
                tuple(address(use.launch, argument) for argument in use.arguments),
                use.kernel.shared,
                pdl=pdl and use.kernel.pdl,
                cooperative=use.kernel.cooperative,
            ),
        )
        for use in unit.uses
    ]


@dataclass
class Bound:
    """A step with the state of some sequences: its kernel launches, and the graphs of them that were needed."""

    launches: Sequence[BoundKernel]
    graph: Graph | None = None
    ahead: RunAhead | None = None


class CudaProgram:
    """
    One step, on a GPU: as `lane_mlir.runtime.Program` describes, and `select` and `continued` besides.

    State, token and position lie in the device's state, where the other programs of the model find them: those of its
    first sequences, until `select` says otherwise.
    """

    def __init__(self, device: CudaDevice, schedule: ScheduleOp, unit: Unit, placement: Placement, ordinal: int):
        self.schedule, self.unit, self.placement = schedule, unit, placement
        self.gpu, self.options = device.gpu, device.options
        self.limits = Limits.of(schedule)
        self._kernels = self.gpu.load(unit_source(unit, f"{schedule.sym_name.data}.cu"))
        self._state, self._reporting = device.state, device.reporting
        self._history, self._ordinal = device.history, ordinal
        self._tokens = parameters(schedule, ArgumentKind.TOKEN)
        self._positions = parameters(schedule, ArgumentKind.POSITION)
        self._advanced = list(_advanced(schedule))
        self._sequence = 0
        self._bound: dict[int, Bound] = {}
        self._moves = self._state.moves
        self._fetched: set[int] = set()

    def select(self, sequence: int) -> None:
        """Run from now on for a sequence of the state (and, if the step has several, those after it)."""
        if sequence < 0:
            raise LaneError(f"sequence {sequence} is selected, expected at least 0")
        arguments = [op for op in self.schedule.buffers() if op.is_argument]
        self._state.reserve(sequence + 1 + max(map(sequence_of, arguments), default=0))
        self._sequence = sequence
        self._fetched.clear()
        self._history.add(Ran(self._ordinal, selected=sequence))

    @property
    def bound(self) -> Bound:
        """The step for the selected sequence: made once, and again when all state has moved."""
        if self._moves != self._state.moves:
            self._bound.clear()
            self._moves = self._state.moves
        if self._sequence not in self._bound:
            address = partial(self.placement.address, sequence=self._sequence)
            pdl = self.options.pdl and self.gpu.chip.programmatic_launch
            self._bound[self._sequence] = Bound(bind(self.unit, self._kernels, address, pdl=pdl))
        return self._bound[self._sequence]

    @property
    def launches(self) -> Sequence[BoundKernel]:
        """The kernel launches of a step, in order."""
        return self.bound.launches

    # What goes in.

    def set_tokens(self, tokens: ArrayLike) -> None:
        """
        Set the tokens that the next run takes, those of the first sequence first.

        Raises: LaneError for another number of them than the step has rows, for one outside the vocabulary, and for
        what is no whole number.
        """
        given = np.asarray(tokens).reshape(-1)
        rows = sum(op.length for op in self._tokens)
        if len(given) != rows:
            raise LaneError(f"{len(given)} tokens are given to a step of {rows} rows")
        if given.dtype.kind not in "iu":
            raise LaneError(f"tokens are given as {given.dtype}, expected whole numbers")
        for op, part in zip(self._tokens, np.split(given, np.cumsum([op.length for op in self._tokens])), strict=False):
            self._check_tokens(op, part)
            self._put(op, part.astype(np.int32))
        self._history.add(Ran(self._ordinal, tokens=given.tolist()))

    def _check_tokens(self, op: BufferOp, tokens: NDArray[Any]) -> None:
        vocabulary = self.limits.vocabulary.get(op.holder(Touch.PLAIN)[0])
        if vocabulary is None:
            return
        wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
        if wrong.size:
            raise LaneError(
                f"token {tokens[wrong[0]]} of row {wrong[0]} is not within the vocabulary of {vocabulary} tokens"
            )

    def set_position(self, position: int, sequence: int = 0) -> None:
        """
        Set the position of the first row of the next run, in a sequence.

        Raises: LaneError for a position that leaves no room for the step's rows.
        """
        op, index = self._position_of(sequence)
        self.limits.check_position(position)
        numbers = self._numbers(op).copy()
        numbers[index] = position
        self._put(op, numbers)
        self._history.add(Ran(self._ordinal, position=position, sequence=sequence))

    @property
    def sequences(self) -> int:
        """Sequences of which it runs a step."""
        return sum(op.length for op in self._positions)

    @property
    def position(self) -> int:
        """The position of the next run, in the first sequence."""
        op, index = self._position_of(0)
        return self._numbers(op).item(index)

    def _position_of(self, sequence: int) -> tuple[BufferOp, int]:
        """Where the position of a sequence is: of several sequences, an array may hold each one's, or all."""
        rest = sequence
        for op in self._positions:
            if 0 <= rest < op.length:
                return op, rest
            rest -= op.length
        raise LaneError(f"the step has no position of sequence {sequence}")

    def _numbers(self, op: BufferOp) -> Indices:
        return self._state.numbers(op, self._sequence)

    def _put(self, op: BufferOp, numbers: Indices) -> None:
        self._numbers(op)[:] = numbers
        with self._reporting():
            self.gpu.compute.upload(self.placement.plain(op, self._sequence), numbers)

    # Running.

    def run(self) -> None:
        """
        Run every launch once; returns while they run, unless the options say `checked`.

        Raises: LaneError, before anything runs, for a position beyond the context.
        """
        self._check_positions()
        self._history.add(Ran(self._ordinal, steps=1))
        with self._reporting():
            if self.options.checked:
                self.run_checked()
            elif self.options.graphs:
                self.gpu.compute.run(self.graph)
            else:
                for bound in self.launches:
                    self.gpu.compute.launch(bound.launch)
        self._advance(1)

    @property
    def graph(self) -> Graph:
        """The step as a graph, made when it is first needed."""
        bound = self.bound
        if bound.graph is None:
            bound.graph = self.graph_of(1)
        return bound.graph

    def graph_of(self, steps: int) -> Graph:
        """A graph of its own for a number of steps, each as the one before left token and position."""
        return self.gpu.capture([bound.launch for bound in self.launches] * steps)

    def run_checked(self) -> None:
        """
        Run every launch once, each to its end before the next begins.

        Raises: KernelFault for one that fails, with its launch, what it was made from and its buffers.
        """
        stream = self.gpu.compute
        stream.sync()
        for bound in self.launches:
            try:
                stream.launch(bound.launch)
                stream.sync()
            except DriverError as error:
                if not error.is_fault:
                    raise
                raise fault(self.schedule, bound.use, bound.launch, error) from error

    def continued(self, count: int) -> Iterator[Sequence[int]]:
        """
        The tokens of the next `count` steps, each the likeliest of each sequence, from where token and position stand;
        fewer if a context ends.

        Steps run ahead of who takes the tokens, without waiting for the host; when that one stops before the end, token
        and position have moved on by a few steps more.

        Raises: LaneError for a step that does not move on by itself.
        """
        if not self._advanced:
            raise LaneError(f"the step @{self.schedule.sym_name.data} does not move token and position on by itself")
        rooms = (self.limits.room(int(position)) for op in self._positions for position in self._numbers(op))
        return self._continued(min([count, *(room for room in rooms if room is not None)]))

    def _continued(self, count: int) -> Iterator[Sequence[int]]:
        ids = range(NEXT_ID, len(self.schedule.outputs()))
        if self.options.checked or not self.options.graphs:
            for _ in range(count):
                self.run()
                yield [int(self.output(index).item()) for index in ids]
            return
        step = self.bound
        if step.ahead is None:
            buffers = (buffer_of(self.schedule.outputs()[index]) for index in ids)
            addresses = [self.placement.plain(buffer, self._sequence) for buffer in buffers]
            step.ahead = RunAhead(self.gpu, [bound.launch for bound in step.launches], addresses, self.options)
        with self._reporting():
            yield from step.ahead.run(count, self._queued)

    def _queued(self, steps: int) -> None:
        self._history.add(Ran(self._ordinal, steps=steps))
        self._advance(steps)

    def _check_positions(self) -> None:
        for op in self._positions:
            for position in self._numbers(op):
                self.limits.check_position(int(position))

    def _advance(self, steps: int) -> None:
        """What the device does with positions when steps run; what outputs were is gone."""
        self._fetched.clear()
        for op in self._advanced:
            numbers = self._numbers(op)
            numbers += steps

    # What comes out.

    def output(self, index: int) -> NDArray[Any]:
        """
        An output of the last run, in its shape, in an array that the next call after a run writes again.

        Raises: KernelFault if the run failed.
        """
        if index not in self._fetched:
            small = [i for i, array in enumerate(self._arrays) if array.nbytes <= SMALL and i not in self._fetched]
            wanted = dict.fromkeys([index, *small])
            with self._reporting():
                for i in wanted:
                    buffer = buffer_of(self.schedule.outputs()[i])
                    self.gpu.compute.download(self._arrays[i], self.placement.plain(buffer, self._sequence))
                self.gpu.compute.sync()
            self._fetched.update(wanted)
        return self._arrays[index]

    @cached_property
    def _arrays(self) -> Sequence[NDArray[Any]]:
        """Where outputs are on the host."""
        found: list[NDArray[Any]] = []
        for buffer in map(buffer_of, self.schedule.outputs()):
            dtype = np.dtype(DTYPES[buffer.dtype.data])
            memory = self.gpu.pinned(buffer.length * dtype.itemsize)
            found.append(memory.view(dtype).reshape(buffer.shape.data))
        return found


def _advanced(schedule: ScheduleOp) -> Iterator[BufferOp]:
    """The positions that a run moves on."""
    for launch in schedule.launches():
        for part in launch.parts():
            if isinstance(part, ArgMaxOp) and (advance := part.advance) is not None:
                buffer = buffer_of(advance[1])
                yield from buffer.parts() or [buffer]
