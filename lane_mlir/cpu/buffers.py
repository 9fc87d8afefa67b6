"""The buffers of a schedule as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from xdsl.dialects.builtin import NameLoc
from xdsl.ir import SSAValue

from lane_mlir.cpu.memory import DTYPES, Memory
from lane_mlir.cpu.quantized import QuantizedForm
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import BufferOp, DType, Fill, LaunchOp, Part, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import QUANTIZED_BLOCK, Numerics, TargetAttr
from lane_mlir.eval import Array, Indices, StateArray

Run: TypeAlias = Callable[[], object]
"""A bound launch: runs it once."""

_ALIGNMENT = 64
_NAN_BYTE = 0xFF
"""A byte that makes a NaN of every float type, so that what is read before it is written shows."""


@dataclass(frozen=True)
class PositionLimit:
    """A position that must leave room for rows: positions[index] + rows <= limit."""

    positions: Indices
    index: int
    rows: int
    limit: int

    def refusal(self, position: int) -> str | None:
        """What is wrong with a position, if anything."""
        if 0 <= position <= self.limit - self.rows:
            return None
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        return f"position {position} with {rows} is not within the context of {self.limit} positions"

    def check(self) -> None:
        if (refusal := self.refusal(self.positions.item(self.index))) is not None:
            raise LaneError(refusal)


class Buffers:
    """
    The arrays behind the buffers of one schedule.

    Each is made when it is first asked for. An alias is a view of what it aliases. Of a planned schedule, computed
    buffers lie in the arena where the plan put them; before planning each has memory of its own.

    Parameters and state are those of the step's sequences in the memory, from `sequence` on.

    `limits` collects, while launches are bound, what positions they can run at; `vocabulary`, for each array of tokens
    or other indices, the rows of the table that it points into.
    """

    def __init__(self, schedule: ScheduleOp, memory: Memory, sequence: int = 0, arena: NDArray[np.uint8] | None = None):
        self.memory = memory
        self._sequence = sequence
        roles = [op.role.sequence.data for op in schedule.buffers() if op.role is not None]
        memory.reserve(sequence + max(roles, default=0) + 1)
        target = schedule.target if schedule.target is not None else TargetAttr()
        self.numerics: Numerics = target.numerics.data
        self.limits: list[PositionLimit] = []
        self.vocabulary: dict[BufferOp, int] = {}
        self._name = schedule.sym_name.data
        self.arena: NDArray[np.uint8] | None = arena
        if arena is None and schedule.arena is not None:
            self.arena = _allocate(schedule.arena.data)
        self._computed: list[NDArray[np.uint8]] = [] if self.arena is None else [self.arena]
        self._plain: dict[BufferOp, NDArray[Any]] = {}
        self._quantized: dict[BufferOp, QuantizedForm] = {}

    def poison(self) -> None:
        """Fill all computed buffers with NaN."""
        for memory in self._computed:
            memory.fill(_NAN_BYTE)

    # Forms of buffers.

    def plain(self, value: SSAValue) -> NDArray[Any]:
        """The elements of a buffer, flat, in the type that they are stored in."""
        holder, start, stop = buffer_of(value).holder(Touch.PLAIN)
        if holder not in self._plain:
            self._plain[holder] = self._elements(holder)
        return self._plain[holder][start:stop]

    def values(self, value: SSAValue) -> Array:
        """
        The elements of an f32 buffer, flat.

        Raises: LaneError for a buffer stored as another type.
        """
        array = self.plain(value)
        if array.dtype != np.float32:
            raise LaneError(
                f'buffer "{buffer_of(value).label.data}" is stored as {array.dtype}, but a launch takes it as float32'
            )
        return array

    def matrix(self, value: SSAValue, columns: int) -> Array:
        """The elements of an f32 buffer in rows."""
        return self.values(value).reshape(-1, columns)

    def optional(self, value: SSAValue | None) -> Array | None:
        """The elements of an f32 buffer, flat, if there is one."""
        return None if value is None else self.values(value)

    def indices(self, value: SSAValue) -> Indices:
        """
        The elements of an i32 buffer.

        Raises: LaneError for a buffer stored as another type.
        """
        array = self.plain(value)
        if array.dtype != np.int32:
            raise LaneError(f'buffer "{buffer_of(value).label.data}" is stored as {array.dtype}, expected int32')
        return array

    def quantized(self, value: SSAValue) -> QuantizedForm:
        """
        The quantized form of a buffer.

        Raises: LaneError if its values are no whole number of blocks, or under numerics that quantize nothing.
        """
        buffer = buffer_of(value)
        if self.numerics is Numerics.DEQUANT:
            raise LaneError(f'buffer "{buffer.label.data}" is used quantized, but the numerics are dequant')
        if buffer.length % QUANTIZED_BLOCK:
            raise LaneError(
                f'buffer "{buffer.label.data}" has {buffer.length} values, no multiple of {QUANTIZED_BLOCK} to quantize'
            )
        holder, start, stop = buffer.holder(Touch.QUANT)
        if holder not in self._quantized:
            memory = self._bytes(holder, Touch.QUANT, holder.bytes(Touch.QUANT, self.numerics))
            self._quantized[holder] = QuantizedForm.over(memory, holder.length, self.numerics)
        return self._quantized[holder].part(start, stop)

    def quantize_given(self, buffer: BufferOp, values: Array) -> None:
        """Let a parameter have its values quantized too, if any launch takes it so."""
        if (form := self._quantized.get(buffer)) is not None:
            form.set(values)

    # Positions.

    def position(self, value: SSAValue | None, index: int = 0) -> Callable[[], int]:
        """Reads a position; it is 0 where no buffer holds one."""
        if value is None:
            return int
        return partial(self.indices(value).item, index)

    def limit(self, value: SSAValue | None, rows: int, limit: int, index: int = 0) -> None:
        """
        Note that a launch runs `rows` rows from a position on, of `limit` that there are.

        Raises: LaneError if there is no position and the rows are too many.
        """
        positions = np.zeros(1, np.int32) if value is None else self.indices(value)
        noted = PositionLimit(positions, index, rows, limit)
        if value is None:
            noted.check()
        else:
            self.limits.append(noted)

    # How they are stored.

    def _elements(self, buffer: BufferOp) -> NDArray[Any]:
        shape, dtype, fill = buffer.shape.data, buffer.dtype.data, buffer.fill.data
        match fill:
            case Fill.CONSTANT:
                assert buffer.constant is not None
                if dtype is not DType.F32:
                    raise LaneError(f'constant buffer "{buffer.label.data}" is of type {dtype}, expected f32')
                return self.memory.constant(buffer.constant, shape).reshape(-1)
            case Fill.PARAM | Fill.ZERO:
                return self._state(buffer)
            case Fill.COMPUTED | Fill.ALIAS:
                return self._bytes(buffer, Touch.PLAIN, buffer.length * dtype.bytes).view(DTYPES[dtype])

    def _state(self, buffer: BufferOp) -> NDArray[Any]:
        """A parameter or an array of state, or those of several sequences, one after the other."""
        parts = buffer.parts() or [buffer]
        one, first = parts[0], self._sequence
        if one.role is not None:
            first += one.role.sequence.data
        of = [part.role.sequence.data for part in parts if part.role is not None]
        if parts != [buffer] and (of != list(range(of[0], of[0] + len(of))) or buffer.length != len(of) * one.length):
            raise LaneError(f'buffer "{buffer.label.data}" does not hold one array of each sequence, in order')
        arrays = self.memory.state(one.role, one.label.data, one.shape.data, buffer.dtype.data)
        return arrays[first : first + len(parts)].reshape(-1)

    def _bytes(self, buffer: BufferOp, form: Touch, size: int) -> NDArray[np.uint8]:
        """The bytes of a form of a buffer: its place in the arena, or memory of its own where nothing is planned."""
        at, what = buffer.place(form), f'the {form.value} form of buffer "{buffer.label.data}"'
        if self.arena is None or (at is None and buffer.fill.data not in (Fill.COMPUTED, Fill.ALIAS)):
            own = _allocate(size)
            self._computed.append(own)
            return own
        if at is None:
            raise LaneError(f"{what} has no place in the arena of @{self._name}; run plan")
        if at % 4 or at + size > len(self.arena):
            raise LaneError(f"{what} lies at bytes {at} to {at + size} of an arena of {len(self.arena)}")
        return self.arena[at : at + size]


def _allocate(size: int) -> NDArray[np.uint8]:
    """Aligned bytes, all of them parts of a NaN."""
    memory = np.full(size + _ALIGNMENT, _NAN_BYTE, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def units(flat: StateArray, count: int, width: int, part: Part | None) -> StateArray:
    """Units of `width` elements of a flat array, [count, width]: side by side, or each in a part of a wider one."""
    if part is None:
        return flat[: count * width].reshape(count, width)
    size = flat.itemsize
    # The last unit may end before its pitch does, where the array does.
    return as_strided(
        flat[part.offset :], (count, width), (part.pitch * size, size), writeable=bool(flat.flags.writeable)
    )


def read(array: StateArray) -> Callable[[], Array]:
    """Reads an array that may be stored in 16 bits as f32."""
    if array.dtype == np.float32:
        return lambda: array
    return lambda: array.astype(np.float32)


def in_order(*runs: Run) -> Run:
    """Several runs as one."""
    match runs:
        case (run,):
            return run
        case (first, second):

            def run_both() -> None:
                first()
                second()

            return run_both
        case _:

            def run_all() -> None:
                for run in runs:
                    run()

            return run_all


def refuse(op: LaunchOp, message: str) -> NoReturn:
    """Refuse a launch that cannot be executed."""
    raise LaneError(f"{describe(op)}: {message}")


def describe(op: LaunchOp) -> str:
    """A launch as a message names it: by the lifted ops that it covers, and the tensor that it came from."""
    covers = f" of ops {', '.join(map(str, op.covers.data))}" if op.covers.data else ""
    tensor = f" ({op.location.desc.data})" if isinstance(op.location, NameLoc) else ""
    return f"{op.name}{covers}{tensor}"
