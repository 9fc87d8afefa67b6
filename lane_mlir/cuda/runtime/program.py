"""A planned schedule on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import ArgMaxOp, BufferOp, DType, LaunchOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import ArgumentKind
from lane_mlir.eval import Indices

if TYPE_CHECKING:
    from lane_mlir.cuda.runtime.device import CudaDevice

NEXT_ID = 1
"""The output that is the arg-max."""


@dataclass(frozen=True)
class Bound:
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
) -> list[Bound]:
    """Every kernel launch of a unit, in order; `address(launch, argument)` says where each argument is."""
    return [
        Bound(
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


class CudaProgram:
    """
    One step, on a GPU: as `lane_mlir.runtime.Program` describes, and `continued` besides.

    State, token and position lie in the device's state, where the other programs of the model find them.
    """

    def __init__(self, device: CudaDevice, schedule: ScheduleOp, unit: Unit, placement: Placement, ordinal: int):
        self.schedule, self.unit, self.placement = schedule, unit, placement
        self.gpu, self.options = device.gpu, device.options
        self.limits = Limits.of(schedule)
        pdl = self.options.pdl and self.gpu.chip.programmatic_launch
        kernels = self.gpu.load(unit_source(unit, f"{schedule.sym_name.data}.cu"))
        self.launches: Sequence[Bound] = bind(unit, kernels, placement.address, pdl=pdl)
        """The kernel launches of a step, in order."""
        self._state, self._reporting = device.state, device.reporting
        self._history, self._ordinal = device.history, ordinal
        self._tokens = parameters(schedule, ArgumentKind.TOKEN)
        self._positions = parameters(schedule, ArgumentKind.POSITION)
        self._advanced = list(_advanced(schedule))
        self._graph: Graph | None = None
        self._ahead: RunAhead | None = None
        self._outputs: dict[int, NDArray[Any]] = {}

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
        vocabulary = self.limits.vocabulary.get(op)
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
        numbers = self._state.numbers(op).copy()
        numbers[index] = position
        self._put(op, numbers)
        self._history.add(Ran(self._ordinal, position=position, sequence=sequence))

    @property
    def position(self) -> int:
        """The position of the next run, in the first sequence."""
        op, index = self._position_of(0)
        return self._state.numbers(op).item(index)

    def _position_of(self, sequence: int) -> tuple[BufferOp, int]:
        """Where the position of a sequence is: of several sequences, an array may hold each one's, or all."""
        rest = sequence
        for op in self._positions:
            if 0 <= rest < op.length:
                return op, rest
            rest -= op.length
        raise LaneError(f"the step has no position of sequence {sequence}")

    def _put(self, op: BufferOp, numbers: Indices) -> None:
        self._state.numbers(op)[:] = numbers
        with self._reporting():
            self.gpu.compute.upload(self._state.address(op), numbers)

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
        if self._graph is None:
            self._graph = self.graph_of(1)
        return self._graph

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

    def continued(self, count: int) -> Iterator[int]:
        """
        The next `count` tokens, each the likeliest, from where token and position stand; fewer if the context ends.

        Steps run ahead of who takes the tokens, without waiting for the host; when that one stops before the end, token
        and position have moved on by a few steps more.

        Raises: LaneError for a step that does not move on by itself.
        """
        if not self._advanced or self.limits.rows > 1 or len(self._positions) > 1:
            raise LaneError(f"the step @{self.schedule.sym_name.data} does not continue one sequence by itself")
        room = self.limits.room(self.position)
        return self._continued(count if room is None else min(count, room))

    def _continued(self, count: int) -> Iterator[int]:
        if self.options.checked or not self.options.graphs:
            for _ in range(count):
                self.run()
                yield int(self.output(NEXT_ID).item(-1))
            return
        if self._ahead is None:
            ids = buffer_of(self.schedule.outputs()[NEXT_ID])
            launches = [bound.launch for bound in self.launches]
            self._ahead = RunAhead(self.gpu, launches, self.placement.plain(ids), ids.length, self.options)
        with self._reporting():
            yield from self._ahead.run(count, self._queued)

    def _queued(self, steps: int) -> None:
        self._history.add(Ran(self._ordinal, steps=steps))
        self._advance(steps)

    def _check_positions(self) -> None:
        for op in self._positions:
            for position in self._state.numbers(op):
                self.limits.check_position(int(position))

    def _advance(self, steps: int) -> None:
        """What the device does with positions when steps run."""
        for op, index in self._advanced:
            self._state.numbers(op)[index] += steps

    # What comes out.

    def output(self, index: int) -> NDArray[Any]:
        """
        An output of the last run, in its shape, in an array that the next call for it writes again.

        Raises: KernelFault if the run failed.
        """
        buffer = buffer_of(self.schedule.outputs()[index])
        if index not in self._outputs:
            dtype = np.dtype(DTYPES[buffer.dtype.data])
            memory = self.gpu.pinned(buffer.length * dtype.itemsize)
            self._outputs[index] = memory.view(dtype).reshape(buffer.shape.data)
        array = self._outputs[index]
        with self._reporting():
            self.gpu.compute.download(array, self.placement.plain(buffer))
            self.gpu.compute.sync()
        return array


def _advanced(schedule: ScheduleOp) -> Iterator[tuple[BufferOp, int]]:
    """The positions that a run moves on: the arrays that hold them, and the place of each there."""
    for launch in schedule.launches():
        for part in launch.parts():
            if isinstance(part, ArgMaxOp) and (advance := part.advance) is not None:
                held, start, stop = buffer_of(advance[1]).holder(Touch.PLAIN)
                assert held.dtype.data is DType.I32
                yield from ((held, index) for index in range(start, stop))
