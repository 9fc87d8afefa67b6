"""From a planned schedule to what the runtime runs: its kernels printed, each argument of each as a place in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr

from lane_mlir.chips import Chip
from lane_mlir.cpu.buffers import describe
from lane_mlir.cpu.memory import DTYPES, StateKey, rope_table_of
from lane_mlir.cuda.layout import QuantizedForm
from lane_mlir.cuda.printer import BufferArgument, Form, ScratchArgument, Unit, Use, print_unit
from lane_mlir.cuda.printer.kernel import Argument
from lane_mlir.cuda.runtime.executable import (
    Call,
    Executable,
    KernelForm,
    NumbersArgument,
    Output,
    Place,
    Region,
    StateArray,
)
from lane_mlir.cuda.runtime.gpu import Slab, Source
from lane_mlir.cuda.runtime.weights import Stored, Weight
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import (
    ArgMaxOp,
    AttentionOp,
    BufferOp,
    DType,
    Fill,
    GatherOp,
    LaunchOp,
    ScheduleOp,
    TensorAttr,
    Touch,
    buffer_of,
)
from lane_mlir.dialects.tg import ArgumentKind
from lane_mlir.formats import StoredTensor
from lane_mlir.rope import RopeTable

T = TypeVar("T")


class Lowering:
    """
    A planned schedule, printed for a chip, with the place of everything that its kernels touch.

    Scratch that is zeroed is its launch's own; the rest is one piece that all launches use in turn.

    Raises: LaneError for a schedule that is not planned, a launch that has no kernel, or a buffer that has no place.
    """

    def __init__(self, schedule: ScheduleOp, chip: Chip):
        if schedule.arena is None:
            raise LaneError(f"schedule @{schedule.sym_name.data} has no arena: run plan before")
        self.schedule, self.unit = schedule, print_unit(schedule, chip)
        self._words = schedule.target.numerics.data.words if schedule.target is not None else 0
        self._weights: dict[Weight, int] = {}
        self._state: dict[StateArray, int] = {}
        self._arena, self._scratch, self._counters = Slab(), Slab(), Slab()
        self._arena.reserve(schedule.arena.data)
        self._forms: dict[BufferOp, int] = {}
        self._scratch_places: dict[tuple[LaunchOp, str], Place] = {}
        self._reserve_scratch()
        self._arguments = [op for op in schedule.buffers() if op.is_argument]
        for argument in self._arguments:
            self._array(argument)
        self.executable: Executable = self._lowered()

    def _lowered(self) -> Executable:
        schedule, unit = self.schedule, self.unit
        parts = [part for launch in schedule.launches() for part in launch.parts()]
        calls = tuple(
            call_of(use, tuple(self.place(use.launch, argument) for argument in use.arguments)) for use in unit.uses
        )
        tokens, positions = (self._numbers(kind, parts) for kind in (ArgumentKind.TOKEN, ArgumentKind.POSITION))
        counts = [sum(op.length for op in parameters(schedule, k)) for k in (ArgumentKind.TOKEN, ArgumentKind.POSITION)]
        return Executable(
            name=schedule.sym_name.data,
            text=unit.text,
            kernels={use.symbol: form_of(use) for use in unit.uses},
            calls=calls,
            outputs=tuple(self._output(buffer_of(value)) for value in schedule.outputs()),
            weights=tuple(self._weights),
            state=tuple(self._state),
            token_arguments=tokens,
            position_arguments=positions,
            rows=max(counts[0] // max(counts[1], 1), 1),
            positions=min(_context(schedule, parts), default=None),
            sequences=1 + max((sequence_of(op) for op in self._arguments), default=0),
            arena=self._arena.size,
            scratch=self._scratch.size,
            counters=self._counters.size,
        )

    def _reserve_scratch(self) -> None:
        needed: dict[LaunchOp, dict[str, ScratchArgument]] = {}
        for use in self.unit.uses:
            for argument in use.arguments:
                if isinstance(argument, ScratchArgument):
                    sizes = needed.setdefault(use.launch, {})
                    known = sizes.setdefault(argument.name, argument)
                    if argument.bytes > known.bytes:
                        sizes[argument.name] = argument
        shared = 0
        for launch, arguments in needed.items():
            own = Slab()
            for name, argument in arguments.items():
                slab, region = (self._counters, Region.COUNTERS) if argument.zeroed else (own, Region.SCRATCH)
                self._scratch_places[launch, name] = Place(region, slab.reserve(argument.bytes))
            shared = max(shared, own.size)
        self._scratch.reserve(shared)

    # Where things are.

    def place(self, launch: LaunchOp, argument: Argument) -> Place:
        """Where an argument of a kernel of a launch points to."""
        match argument:
            case ScratchArgument():
                return self._scratch_places[launch, argument.name]
            case BufferArgument(form=Form.PLAIN):
                buffer = buffer_of(argument.value)
                if buffer.holder(Touch.PLAIN)[0].fill.data is not Fill.CONSTANT:
                    return self.plain(buffer)
                weight, offset = weight_of(buffer, argument.c_type)
                return Place(Region.WEIGHT, offset, _index(self._weights, weight))
            case BufferArgument():
                buffer = buffer_of(argument.value)
                form, place, start = self._quantized(buffer)
                at = form.words_at(start) if argument.form is Form.WORDS else form.scales_at(start)
                return Place(place.region, place.offset + at)

    def plain(self, buffer: BufferOp) -> Place:
        """The first element of a buffer that is no constant."""
        held, start, _ = buffer.holder(Touch.PLAIN)
        offset = start * held.dtype.data.bytes
        if held.fill.data not in (Fill.PARAM, Fill.ZERO):
            return Place(Region.ARENA, self._in_arena(held, Touch.PLAIN) + offset)
        parts = list(held.parts()) or [held]
        first, of = parts[0], [sequence_of(part) for part in parts]
        whole = held.length == len(parts) * first.length
        if parts != [held] and (of != list(range(of[0], of[0] + len(of))) or not whole):
            raise LaneError(f'buffer "{held.label.data}" does not hold one array of each sequence, in order')
        return Place(Region.STATE, offset, self._array(first), of[0])

    def quantized(self, buffer: BufferOp) -> Place:
        """The quantized form that holds that of a buffer."""
        return self._quantized(buffer)[1]

    def _quantized(self, buffer: BufferOp) -> tuple[QuantizedForm, Place, int]:
        """How the quantized form that a buffer is in lies, where, and the buffer's first element in it."""
        held, start, _ = buffer.holder(Touch.QUANT)
        form = QuantizedForm(held.length, self._words)
        if held.fill.data in (Fill.COMPUTED, Fill.ALIAS):
            at = self._in_arena(held, Touch.QUANT)
        else:
            # What lies outside of the arena has its quantized form behind it.
            if held not in self._forms:
                self._forms[held] = self._arena.reserve(form.size)
            at = self._forms[held]
        return form, Place(Region.ARENA, at), start

    def _in_arena(self, held: BufferOp, form: Touch) -> int:
        at = held.place(form)
        if at is None:
            what = f'the {form.value} form of buffer "{held.label.data}"'
            raise LaneError(f"{what} has no place in the arena of @{self.schedule.sym_name.data}: run plan")
        return at

    def _array(self, argument: BufferOp) -> int:
        return _index(self._state, state_array(argument))

    # Arguments and outputs.

    def _numbers(self, kind: ArgumentKind, parts: list[LaunchOp]) -> tuple[NumbersArgument, ...]:
        vocabulary, advanced = vocabularies(parts), {self._argument(op) for op in _advanced(parts)}
        found: list[NumbersArgument] = []
        for op in parameters(self.schedule, kind):
            array, sequence = self._argument(op)
            tokens = vocabulary.get(op.holder(Touch.PLAIN)[0])
            found.append(NumbersArgument(array, sequence, tokens, (array, sequence) in advanced))
        return tuple(found)

    def _argument(self, op: BufferOp) -> tuple[int, int]:
        return self._array(op), sequence_of(op)

    def _output(self, buffer: BufferOp) -> Output:
        return Output(self.plain(buffer), buffer.shape.data, dtype_of(buffer.dtype.data))


def _index(known: dict[T, int], one: T) -> int:
    return known.setdefault(one, len(known))


def dtype_of(dtype: DType) -> str:
    """numpy's name of a type."""
    return np.dtype(DTYPES[dtype]).name


def sequence_of(argument: BufferOp) -> int:
    """The step's sequence that an argument is of."""
    return argument.role.sequence.data if argument.role is not None else 0


def state_array(argument: BufferOp) -> StateArray:
    """The array that an argument of a step is, whichever sequence it is of."""
    key = StateKey.of(argument.role, argument.label.data, argument.shape.data, argument.dtype.data)
    return StateArray(None if key.kind is None else str(key.kind), key.name, key.shape, dtype_of(key.dtype))


def parameters(schedule: ScheduleOp, kind: ArgumentKind) -> list[BufferOp]:
    """The arguments of a step of a kind, in the order of their sequences."""
    found = [op for op in schedule.buffers() if op.is_argument and op.role is not None and op.role.kind.data is kind]
    return sorted(found, key=sequence_of)


def vocabularies(parts: list[LaunchOp]) -> dict[BufferOp, int]:
    """Each array of tokens, and the rows of the shortest table that it points into."""
    found: dict[BufferOp, int] = {}
    for part in parts:
        if isinstance(part, GatherOp):
            index, rows = buffer_of(part.index).holder(Touch.PLAIN)[0], buffer_of(part.table).length // part.cols.data
            found[index] = min(rows, found.get(index, rows))
    return found


def _context(schedule: ScheduleOp, parts: list[LaunchOp]) -> Iterator[int]:
    """The lengths of caches and of tables of rotations, which are as long as the context."""
    yield from (part.len.data for part in parts if isinstance(part, AttentionOp))
    for buffer in schedule.buffers():
        if isinstance(buffer.constant, DictionaryAttr) and "rope_table" in buffer.constant.data:
            yield buffer.shape.data[0]


def _advanced(parts: list[LaunchOp]) -> Iterator[BufferOp]:
    """The positions that a run moves on."""
    for part in parts:
        if isinstance(part, ArgMaxOp) and (advance := part.advance) is not None:
            buffer = buffer_of(advance[1])
            yield from buffer.parts() or [buffer]


# Kernels.


def form_of(use: Use) -> KernelForm:
    """How the kernel of a launch is launched."""
    kernel, types = use.kernel, tuple(f"{argument.c_type}*" for argument in use.arguments)
    return KernelForm(types, kernel.grid, kernel.block, kernel.shared, kernel.pdl, kernel.early)


def call_of(use: Use, places: tuple[Place, ...]) -> Call:
    """A launch of a kernel, with what its messages say of it."""
    rules = f" by {', '.join(use.launch.rules.data)}" if use.launch.rules.data else ""
    return Call(use.symbol, places, f"{describe(use.launch)}{rules}", tuple(map(_name, use.arguments)))


def _name(argument: Argument) -> str:
    if isinstance(argument, ScratchArgument):
        return "scratch"
    buffer = buffer_of(argument.value)
    shape = "x".join(map(str, buffer.shape.data))
    return f'{argument.name} = "{buffer.label.data}" {buffer.dtype.data}[{shape}]'


def unit_source(unit: Unit, name: str) -> Source:
    """A printed unit as it is loaded."""
    return Source(name, unit.text, {use.symbol: form_of(use).signature for use in unit.uses})


# Weights.


def weight_of(buffer: BufferOp, c_type: str) -> tuple[Weight, int]:
    """
    What a pointer of a type in CUDA C to a constant, or into one, reads: the weight, and the pointer's offset in it in
    bytes. `const u8` points to planes, everything else to values.

    Raises: LaneError for a constant that cannot be read so.
    """
    held, start, stop = buffer.holder(Touch.PLAIN)
    if held.dtype.data is not DType.F32:
        raise LaneError(f'constant buffer "{held.label.data}" is of type {held.dtype.data}, expected f32')
    if c_type.removeprefix("const ") == "u8" and held.transposed is None:
        return _planes(held, start, stop)
    source, shape = _source(held), held.shape.data
    if held.transposed is None:
        return Weight(source, shape, Stored.VALUES, 0, held.length), 4 * start
    if (start, stop) != (0, held.length):
        raise LaneError(f'buffer "{buffer.label.data}" is part of "{held.label.data}", which is stored by columns')
    return Weight(source, shape, Stored.COLUMNS, 0, held.length), 0


def _source(held: BufferOp) -> StoredTensor | RopeTable:
    match held.constant:
        case TensorAttr():
            return held.constant.data
        case DictionaryAttr() if "rope_table" in held.constant.data:
            return rope_table_of(held.constant)
        case _:
            raise LaneError(f"cannot make the constant {held.constant}: it is neither a tensor nor a rotation table")


def _planes(held: BufferOp, start: int, stop: int) -> tuple[Weight, int]:
    source, shape = _source(held), held.shape.data
    if not isinstance(source, StoredTensor):
        raise LaneError(f'buffer "{held.label.data}" is read as a weight in a format, and holds {held.constant}')
    fmt = source.format
    if not fmt.is_block:
        return Weight(source, shape, Stored.PLANES, 0, held.length), start * fmt.bytes
    if start % fmt.values or stop % fmt.values:
        raise LaneError(
            f'elements {start} to {stop} of "{held.label.data}" are no whole blocks of {fmt.values} of its format {fmt}'
        )
    return Weight(source, shape, Stored.PLANES, start, stop - start), 0
