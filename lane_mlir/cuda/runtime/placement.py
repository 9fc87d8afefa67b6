"""Where everything lies that the kernels of a program touch: each argument of each kernel launch as an address."""

from __future__ import annotations

from collections.abc import Mapping

from lane_mlir.cuda.layout import QuantizedForm
from lane_mlir.cuda.printer import BufferArgument, Form, ScratchArgument, Unit
from lane_mlir.cuda.printer.kernel import Argument
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.cuda.runtime.state import State, sequence_of
from lane_mlir.cuda.runtime.weights import Weight, Weights, weight_of
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import BufferOp, Fill, LaunchOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import Numerics

WORDS: Mapping[Numerics, int] = {Numerics.DEQUANT: 0, Numerics.INT8: 1, Numerics.TWO_PASS_INT8: 2}
"""int8 words of a quantized value."""


class Placement:
    """
    The memory of one program: its arena, the quantized forms of what lies outside of it, and scratch; and where the
    weights and state that it shares with others are.

    Scratch that is zeroed is its launch's own; the rest is one piece that all launches use in turn.

    Raises: LaneError for a schedule that is not planned, or a buffer that has no place.
    """

    def __init__(self, schedule: ScheduleOp, unit: Unit, weights: Weights, state: State):
        if schedule.arena is None:
            raise LaneError(f"schedule @{schedule.sym_name.data} has no arena: run plan before")
        self._name = schedule.sym_name.data
        self._weights, self._state = weights, state
        self._words = WORDS[schedule.target.numerics.data if schedule.target is not None else Numerics.DEQUANT]
        self._arena, self._scratch, self._counters = Slab(), Slab(), Slab()
        self._arena.reserve(schedule.arena.data)
        self._forms: dict[BufferOp, int] = {}
        self._scratch_sizes: dict[LaunchOp, dict[str, ScratchArgument]] = {}
        self._scratch_offsets: dict[tuple[LaunchOp, str], int] = {}
        needed = [self._reserve(use.launch, argument) for use in unit.uses for argument in use.arguments]
        self._reserve_scratch()
        self.arrival = weights.expect(weight for weight in needed if weight is not None)
        arguments = [op for op in schedule.buffers() if op.is_argument]
        sequences = 1 + max((sequence_of(op) for op in arguments), default=0)
        self.new_state = state.expect(arguments, sequences)

    def _reserve(self, launch: LaunchOp, argument: Argument) -> Weight | None:
        """Room for what an argument points to; the weight, if it is one."""
        if isinstance(argument, ScratchArgument):
            sizes = self._scratch_sizes.setdefault(launch, {})
            known = sizes.setdefault(argument.name, argument)
            if argument.bytes > known.bytes:
                sizes[argument.name] = argument
            return None
        buffer = buffer_of(argument.value)
        if argument.form is Form.PLAIN:
            held = buffer.holder(Touch.PLAIN)[0]
            return weight_of(buffer, argument.c_type)[0] if held.fill.data is Fill.CONSTANT else None
        held = buffer.holder(Touch.QUANT)[0]
        if held.fill.data in (Fill.COMPUTED, Fill.ALIAS):
            self._place(held, Touch.QUANT)
        elif held not in self._forms:
            self._forms[held] = self._arena.reserve(QuantizedForm(held.length, self._words).size)
        return None

    def _reserve_scratch(self) -> None:
        shared = 0
        for launch, arguments in self._scratch_sizes.items():
            own = Slab()
            for name, argument in arguments.items():
                slab = self._counters if argument.zeroed else own
                self._scratch_offsets[launch, name] = slab.reserve(argument.bytes)
            shared = max(shared, own.size)
        self._scratch.reserve(shared)

    @property
    def needed(self) -> Mapping[str, int]:
        """Bytes that are to be allocated, by what for."""
        return {
            "weights": self.arrival.slab.size,
            "cache and state": self.new_state.slab.size,
            "the arena": self._arena.size + self._scratch.size + self._counters.size,
        }

    def allocate(self, gpu: Gpu) -> None:
        """Allocate everything that is not there yet, weights not yet loaded. Raises OutOfMemory."""
        for slab in (self.arrival.slab, self.new_state.slab, self._arena, self._scratch, self._counters):
            slab.allocate(gpu)
        gpu.compute.fill(self._counters.address, self._counters.size, 0)
        self._state.add(self.new_state)

    # Once everything is allocated and loaded.

    def address(self, launch: LaunchOp, argument: Argument, sequence: int = 0) -> int:
        """What a kernel of a launch gets as an argument, when the step runs from a sequence of the state on."""
        match argument:
            case ScratchArgument():
                slab = self._counters if argument.zeroed else self._scratch
                return slab.address + self._scratch_offsets[launch, argument.name]
            case BufferArgument(form=Form.PLAIN):
                return self._plain(buffer_of(argument.value), argument.c_type, sequence)
            case BufferArgument():
                form, address, start = self.quantized(buffer_of(argument.value))
                is_words = argument.form is Form.WORDS
                return address + (form.words_at(start) if is_words else form.scales_at(start))

    def plain(self, buffer: BufferOp, sequence: int = 0) -> int:
        """The first element of a buffer that is no constant."""
        held, start, _ = buffer.holder(Touch.PLAIN)
        offset = start * held.dtype.data.bytes
        if held.fill.data in (Fill.PARAM, Fill.ZERO):
            return self._state.address(held, sequence) + offset
        return self._arena.address + self._place(held, Touch.PLAIN) + offset

    def quantized(self, buffer: BufferOp) -> tuple[QuantizedForm, int, int]:
        """How the quantized form that a buffer is in lies, its address, and the buffer's first element in it."""
        held, start, _ = buffer.holder(Touch.QUANT)
        at = self._forms[held] if held in self._forms else self._place(held, Touch.QUANT)
        return QuantizedForm(held.length, self._words), self._arena.address + at, start

    @property
    def regions(self) -> list[tuple[int, int]]:
        """First byte and size of the memory whose contents are nothing between two steps: the arena and scratch."""
        return [(slab.address, slab.size) for slab in (self._arena, self._scratch) if slab.size]

    @property
    def counters(self) -> tuple[int, int]:
        """First byte and size of the scratch that is zero between two launches."""
        return self._counters.address, self._counters.size

    def _plain(self, buffer: BufferOp, c_type: str, sequence: int) -> int:
        if buffer.holder(Touch.PLAIN)[0].fill.data is not Fill.CONSTANT:
            return self.plain(buffer, sequence)
        weight, offset = weight_of(buffer, c_type)
        return self._weights.address(weight) + offset

    def _place(self, held: BufferOp, form: Touch) -> int:
        at = held.place(form)
        if at is None:
            what = f'the {form.value} form of buffer "{held.label.data}"'
            raise LaneError(f"{what} has no place in the arena of @{self._name}: run plan")
        return at
