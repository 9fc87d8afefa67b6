"""A planned schedule, ready to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cpu.buffers import Buffers, PositionLimit, Run, describe
from lane_mlir.cpu.launches import bind
from lane_mlir.cpu.memory import Memory
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import BufferOp, LaunchOp, ScheduleOp, buffer_of
from lane_mlir.dialects.tg import ArgumentKind
from lane_mlir.dialects.tg.operation import dimensions
from lane_mlir.eval import Array, Indices, Weights


class Binding:
    """The launches of a step, each bound to the arrays of its buffers, for some sequences of the memory."""

    def __init__(self, schedule: ScheduleOp, buffers: Buffers):
        self.buffers = buffers
        self.launches: list[tuple[LaunchOp, Run]] = [
            (op, run) for op in schedule.launches() if (run := bind(op, buffers)) is not None
        ]
        self.limits = _tightest(buffers.limits)
        self.arguments = [(op, buffers.plain(op.buffer)) for op in schedule.buffers() if op.is_argument]
        self.tokens = self._parameters(ArgumentKind.TOKEN)
        self.positions = [buffers.indices(op.buffer) for op in self._parameters(ArgumentKind.POSITION)]
        outputs = [buffer_of(value) for value in schedule.outputs()]
        self.outputs = [buffers.plain(op.buffer).reshape(op.shape.data) for op in outputs]

    def _parameters(self, kind: ArgumentKind) -> list[BufferOp]:
        """The parameters of a kind, in the order of their sequences."""
        found = [op for op, _ in self.arguments if op.role is not None and op.role.kind.data is kind]
        return sorted(found, key=lambda op: op.role.sequence.data if op.role is not None else 0)

    def position_of(self, sequence: int) -> tuple[Indices, int]:
        """Where the position of a sequence is: of several sequences, an array may hold each one's, or all."""
        rest = sequence
        for array in self.positions:
            if 0 <= rest < len(array):
                return array, rest
            rest -= len(array)
        raise LaneError(f"the step has no position of sequence {sequence}")


class CpuProgram:
    """
    One step, run in numpy.

    Every launch is bound to the arrays of its buffers once; `run` calls them in order. State, token and position live
    in the memory, where the other programs of the model find them: those of its first sequences, until `select` says
    otherwise.

    Raises: LaneError for a launch that cannot be executed and a tensor that there is not, naming it.
    """

    def __init__(self, schedule: ScheduleOp, memory: Memory):
        self.schedule = schedule
        self._memory = memory
        self._sequence = 0
        self._bound: dict[int, Binding] = {}
        self._arena: NDArray[np.uint8] | None = None
        self._room = 0
        self._bind()

    def _bind(self) -> Binding:
        """The launches bound for the selected sequence: once, but again when all state has moved."""
        if self._room != self._memory.sequences:
            self._bound.clear()
        if self._sequence not in self._bound:
            buffers = Buffers(self.schedule, self._memory, self._sequence, self._arena)
            self._arena = buffers.arena
            self._bound[self._sequence] = Binding(self.schedule, buffers)
            self._room = self._memory.sequences
        return self._bound[self._sequence]

    def select(self, sequence: int) -> None:
        """Run from now on for a sequence of the memory (and, if the step has several, those after it)."""
        if sequence < 0:
            raise LaneError(f"sequence {sequence} is selected, expected at least 0")
        self._sequence = sequence
        self._bind()

    @property
    def buffers(self) -> Buffers:
        """The arrays behind the buffers."""
        return self._bind().buffers

    @property
    def arguments(self) -> Sequence[tuple[BufferOp, NDArray[Any]]]:
        """The parameters and arrays of state, in the order of the step's arguments, and their elements, flat."""
        return self._bind().arguments

    def set_tokens(self, tokens: ArrayLike) -> None:
        """
        Set the tokens that the next run takes, those of the first sequence first.

        Raises: LaneError for another number of them than the step has rows, for one outside the vocabulary, and for
        what is no whole number.
        """
        given = np.asarray(tokens).reshape(-1)
        bound = self._bind()
        rows = sum(op.length for op in bound.tokens)
        if len(given) != rows:
            raise LaneError(f"{len(given)} tokens are given to a step of {rows} rows")
        if given.dtype.kind not in "iu":
            raise LaneError(f"tokens are given as {given.dtype}, expected whole numbers")
        start = 0
        for op in bound.tokens:
            part = given[start : start + op.length]
            self._check_tokens(op, part)
            bound.buffers.indices(op.buffer)[:] = part
            start += op.length

    def _check_tokens(self, op: BufferOp, tokens: NDArray[Any]) -> None:
        vocabulary = self.buffers.vocabulary.get(op)
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
        bound = self._bind()
        array, index = bound.position_of(sequence)
        for limit in bound.limits:
            shared = np.shares_memory(limit.positions[limit.index : limit.index + 1], array[index : index + 1])
            if shared and (refusal := limit.refusal(position)) is not None:
                raise LaneError(refusal)
        array[index] = position

    @property
    def position(self) -> int:
        """The position of the next run, in the first sequence."""
        array, index = self._bind().position_of(0)
        return array.item(index)

    def run(self) -> None:
        """
        Run every launch once. Infinities and NaN follow IEEE arithmetic without a warning.

        Raises: LaneError, before anything runs, for a position beyond the context; for an index that is no row of its
        table, naming the launch.
        """
        bound = self._bind()
        for limit in bound.limits:
            limit.check()
        op: LaunchOp | None = None
        try:
            with np.errstate(all="ignore"):
                for op, run in bound.launches:
                    run()
        except LaneError as error:
            raise _named(op, error) from error

    def run_traced(self, callback: Callable[[LaunchOp, float], object]) -> None:
        """Run every launch once, and after each call back with it and the seconds that it took. Raises as `run`."""
        bound = self._bind()
        for limit in bound.limits:
            limit.check()
        for op, run in bound.launches:
            start = time.perf_counter()
            try:
                with np.errstate(all="ignore"):
                    run()
            except LaneError as error:
                raise _named(op, error) from error
            callback(op, time.perf_counter() - start)

    def output(self, index: int) -> NDArray[Any]:
        """A view of the value of an output, in its shape, which the next run writes again."""
        return self._bind().outputs[index]

    @property
    def outputs(self) -> Sequence[NDArray[Any]]:
        """Views of the values of all outputs."""
        return self._bind().outputs


def _tightest(limits: Iterable[PositionLimit]) -> list[PositionLimit]:
    """Of the limits of each position, the one that allows the least."""
    least: dict[int, PositionLimit] = {}
    for limit in limits:
        key = limit.positions.ctypes.data + limit.index * limit.positions.itemsize
        if key not in least or limit.limit - limit.rows < least[key].limit - least[key].rows:
            least[key] = limit
    return list(least.values())


def _named(op: LaunchOp | None, error: LaneError) -> LaneError:
    return error if op is None else LaneError(f"{describe(op)}: {error}")


def run_schedule(
    schedule: ScheduleOp,
    weights: Memory | Weights | Checkpoint | Mapping[str, Array],
    arguments: Sequence[NDArray[Any]],
) -> list[NDArray[Any]]:
    """
    Run a schedule once, as `lane_mlir.eval.run_step` evaluates a step: the arguments are those of the step, in order,
    and are written in place; the outputs are returned.

    Raises: LaneError for arguments of another number or size, and for whatever the program refuses.
    """
    memory = weights if isinstance(weights, Memory) else Memory(weights)
    program = CpuProgram(schedule, memory)
    name = schedule.sym_name.data
    if len(arguments) != len(program.arguments):
        raise LaneError(f"schedule @{name} takes {len(program.arguments)} arguments, not {len(arguments)}")
    for (op, array), given in zip(program.arguments, arguments, strict=True):
        if given.size != array.size:
            shapes = f"{dimensions(given.shape)}, expected {dimensions(op.shape.data)}"
            raise LaneError(f'argument "{op.label.data}" of @{name} is {shapes}')
        array[:] = given.reshape(-1)
        program.buffers.quantize_given(op, array)
    program.run()
    for (_, array), given in zip(program.arguments, arguments, strict=True):
        given[...] = array.reshape(given.shape)
    return [output.copy() for output in program.outputs]
