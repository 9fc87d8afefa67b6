"""A compiled step on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lane_mlir.cuda.runtime.ahead import RunAhead
from lane_mlir.cuda.runtime.errors import DriverError
from lane_mlir.cuda.runtime.executable import Call, Executable, KernelForm, NumbersArgument, Place, Region
from lane_mlir.cuda.runtime.faults import Ran, fault
from lane_mlir.cuda.runtime.gpu import Graph, KernelHandle, KernelLaunch
from lane_mlir.cuda.runtime.limits import Limits
from lane_mlir.cuda.runtime.placement import Placement
from lane_mlir.diagnostics import LaneError
from lane_mlir.runtime.device import NEXT_ID
from lane_mlir.timeline import phase

if TYPE_CHECKING:
    from lane_mlir.cuda.runtime.device import CudaDevice

SMALL = 4096
"""Bytes of an output up to which it is copied along with another that is asked for."""


@dataclass(frozen=True)
class BoundKernel:
    """A kernel launch of a step, with addresses: ready to be launched."""

    call: Call
    launch: KernelLaunch


def bind(kernel: KernelHandle, form: KernelForm, arguments: Iterable[int], *, pdl: bool = True) -> KernelLaunch:
    """A launch of a kernel on the addresses of its arguments; `pdl`: launches may overlap, if this one can."""
    return KernelLaunch(
        kernel,
        form.grid,
        form.block,
        tuple(arguments),
        form.shared,
        pdl=pdl and form.pdl,
        early=form.early,
    )


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

    def __init__(
        self,
        device: CudaDevice,
        executable: Executable,
        placement: Placement,
        kernels: Mapping[str, KernelHandle],
        ordinal: int,
    ):
        self.executable, self.placement = executable, placement
        self.gpu, self.options = device.gpu, device.options
        self.limits = Limits(executable.rows, executable.positions)
        self._kernels = kernels
        self._state, self._reporting = device.state, device.reporting
        self._history, self._ordinal = device.history, ordinal
        self._tokens, self._positions = executable.token_arguments, executable.position_arguments
        self._sequence = 0
        self._bound: dict[int, Bound] = {}
        self._moves = self._state.moves
        self._fetched: set[int] = set()

    def select(self, sequence: int) -> None:
        """Run from now on for a sequence of the state (and, if the step has several, those after it)."""
        if sequence < 0:
            raise LaneError(f"sequence {sequence} is selected, expected at least 0")
        self._state.reserve(sequence + self.executable.sequences)
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
            self._bound[self._sequence] = Bound([self._bind(call) for call in self.executable.calls])
        return self._bound[self._sequence]

    def _bind(self, call: Call) -> BoundKernel:
        form, pdl = self.executable.kernels[call.kernel], self.options.pdl and self.gpu.chip.programmatic_launch
        return BoundKernel(call, bind(self._kernels[call.kernel], form, map(self._address, call.places), pdl=pdl))

    def _address(self, place: Place) -> int:
        return self.placement.address(place, self._sequence)

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
        counts = [self._numbers(tokens).size for tokens in self._tokens]
        rows = sum(counts)
        if len(given) != rows:
            raise LaneError(f"{len(given)} tokens are given to a step of {rows} rows")
        if given.dtype.kind not in "iu":
            raise LaneError(f"tokens are given as {given.dtype}, expected whole numbers")
        for argument, part in zip(self._tokens, np.split(given, np.cumsum(counts)), strict=False):
            self._check_tokens(argument, part)
            self._put(argument, part.astype(np.int32))
        self._history.add(Ran(self._ordinal, tokens=given.tolist()))

    def _check_tokens(self, argument: NumbersArgument, tokens: NDArray[Any]) -> None:
        vocabulary = argument.vocabulary
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
        argument, index = self._position_of(sequence)
        self.limits.check_position(position)
        numbers = self._numbers(argument).copy()
        numbers[index] = position
        self._put(argument, numbers)
        self._history.add(Ran(self._ordinal, position=position, sequence=sequence))

    @property
    def sequences(self) -> int:
        """Sequences of which it runs a step."""
        return sum(self._numbers(argument).size for argument in self._positions)

    @property
    def position(self) -> int:
        """The position of the next run, in the first sequence."""
        argument, index = self._position_of(0)
        return self._numbers(argument).item(index)

    def _position_of(self, sequence: int) -> tuple[NumbersArgument, int]:
        """Where the position of a sequence is: of several sequences, an array may hold each one's, or all."""
        rest = sequence
        for argument in self._positions:
            count = self._numbers(argument).size
            if 0 <= rest < count:
                return argument, rest
            rest -= count
        raise LaneError(f"the step has no position of sequence {sequence}")

    def _numbers(self, argument: NumbersArgument) -> NDArray[np.int32]:
        return self._state.numbers(self.executable.state[argument.array], self._sequence + argument.sequence)

    def _put(self, argument: NumbersArgument, numbers: NDArray[np.int32]) -> None:
        self._numbers(argument)[:] = numbers
        place = Place(Region.STATE, 0, argument.array, argument.sequence)
        with self._reporting():
            self.gpu.compute.upload(self._address(place), numbers)

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
        with phase(f"making a graph of {steps * len(self.launches)} launches"):
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
                raise fault(self.executable.name, bound.call, bound.launch, error) from error

    def continued(self, count: int) -> Iterator[Sequence[int]]:
        """
        The tokens of the next `count` steps, each the likeliest of each sequence, from where token and position stand;
        fewer if a context ends.

        Steps run ahead of who takes the tokens, without waiting for the host; when that one stops before the end, token
        and position have moved on by a few steps more.

        Raises: LaneError for a step that does not move on by itself.
        """
        if not any(argument.advanced for argument in self._positions):
            raise LaneError(f"the step @{self.executable.name} does not move token and position on by itself")
        rooms = (self.limits.room(int(at)) for argument in self._positions for at in self._numbers(argument))
        return self._continued(min([count, *(room for room in rooms if room is not None)]))

    def _continued(self, count: int) -> Iterator[Sequence[int]]:
        ids = range(NEXT_ID, len(self.executable.outputs))
        if self.options.checked or not self.options.graphs:
            for _ in range(count):
                self.run()
                yield [int(self.output(index).item()) for index in ids]
            return
        step = self.bound
        if step.ahead is None:
            addresses = [self._address(self.executable.outputs[index].place) for index in ids]
            step.ahead = RunAhead(self.gpu, [bound.launch for bound in step.launches], addresses, self.options)
        with self._reporting():
            yield from step.ahead.run(count, self._queued)

    def _queued(self, steps: int) -> None:
        self._history.add(Ran(self._ordinal, steps=steps))
        self._advance(steps)

    def _check_positions(self) -> None:
        for argument in self._positions:
            for position in self._numbers(argument):
                self.limits.check_position(int(position))

    def _advance(self, steps: int) -> None:
        """What the device does with positions when steps run; what outputs were is gone."""
        self._fetched.clear()
        for argument in self._positions:
            if argument.advanced:
                numbers = self._numbers(argument)
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
                    self.gpu.compute.download(self._arrays[i], self._address(self.executable.outputs[i].place))
                self.gpu.compute.sync()
            self._fetched.update(wanted)
        return self._arrays[index]

    @cached_property
    def _arrays(self) -> Sequence[NDArray[Any]]:
        """Where outputs are on the host."""
        found: list[NDArray[Any]] = []
        for output in self.executable.outputs:
            dtype = np.dtype(output.dtype)
            memory = self.gpu.pinned(prod(output.shape) * dtype.itemsize)
            found.append(memory.view(dtype).reshape(output.shape))
        return found
