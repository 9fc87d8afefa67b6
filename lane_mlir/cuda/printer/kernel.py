"""
What printing a launch gives: the kernels that run it, each with its constants, its size and its arguments.

A kernel's constants are in its text; what differs between two launches of the same constants, their buffers, are its
arguments. So all layers of a model share kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from xdsl.ir import SSAValue
from xdsl.utils.str_enum import StrEnum

from lane_mlir.chips import Chip
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import OWN, Dst, DType, LaunchOp, Part, buffer_of
from lane_mlir.dialects.tg import Activation, BinaryOperator, Numerics


class Form(StrEnum):
    """What a pointer to a buffer points at."""

    PLAIN = "plain"
    """The elements of the buffer; of a weight in a block format, its planes."""
    WORDS = "words"
    """The int8 of the quantized form."""
    SCALES = "scales"
    """The f32 scales of the quantized form."""


@dataclass(frozen=True)
class BufferArgument:
    """A pointer to a form of a buffer. `value` is the buffer, which the kernel's text does not depend on."""

    name: str
    c_type: str
    """Type of the elements in CUDA C, with `const` where the kernel only reads them."""
    value: SSAValue
    form: Form = Form.PLAIN


@dataclass(frozen=True)
class ScratchArgument:
    """
    A pointer to memory that a launch has besides its buffers, the same for all kernels of the launch that name it.

    `zeroed`: it is zero at load and every run of the launch leaves it so; it is then the launch's alone. Other scratch
    holds nothing between launches, and all launches may share it.
    """

    name: str
    c_type: str
    bytes: int
    zeroed: bool = False


Argument: TypeAlias = BufferArgument | ScratchArgument


@dataclass(frozen=True)
class Kernel:
    """
    One kernel of a launch.

    The printed kernel is named after `name` and a number, and its body is `call`: an instantiation of a template of
    `header` applied to the arguments by name, `gemv<Q4_K, GemvShape{.k = 576}>(x, w, nullptr, y)`.
    """

    name: str
    header: str
    """The file of lane_mlir/cuda/kernels that has the template."""
    call: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int]
    block: int
    """Threads of a block."""
    shared: int = 0
    """Bytes of dynamic shared memory."""
    blocks_per_multiprocessor: int = 0
    """How many blocks a multiprocessor shall hold at once, if the compiler is to be told."""
    pdl: bool = True
    """Launched so that it may start before its predecessor has ended; it waits by itself."""
    early: bool = False
    """
    It reads before its wait what the kernel before its predecessor wrote; its predecessor, of the same launch, lets it
    start only after a wait of its own.
    """

    def signature(self) -> tuple[object, ...]:
        """Equal for kernels that have the same text and the same size."""
        names = tuple((a.name, a.c_type) for a in self.arguments)
        return (self.name, self.call, names, self.grid, self.block, self.shared)


@dataclass
class Printing:
    """What a schedule is printed for, and how its pieces are written in CUDA C."""

    numerics: Numerics
    chip: Chip
    arguments: list[Argument] = field(default_factory=list[Argument])
    """Those of the kernel that is being made, in order."""

    @property
    def words(self) -> int:
        """int8 words of a quantized value: 1, or 2 under two_pass_int8; 0 under dequant."""
        return self.numerics.words

    def take(self) -> tuple[Argument, ...]:
        """The arguments collected so far, for the kernel that they belong to."""
        taken, self.arguments = tuple(self.arguments), []
        return taken

    # Each of the following adds arguments and returns how the kernel's body names them.

    def reads(self, name: str, value: SSAValue | None) -> str:
        """A buffer that the kernel reads in its plain form, elements of its own type; `nullptr` if there is none."""
        return self._buffer(name, value, Form.PLAIN, "const ")

    def writes(self, name: str, value: SSAValue | None) -> str:
        """A buffer that the kernel writes in its plain form, elements of its own type; `nullptr` if there is none."""
        return self._buffer(name, value, Form.PLAIN, "")

    def weight(self, name: str, value: SSAValue | None) -> str:
        """A weight in a format, as its planes."""
        return self._buffer(name, value, Form.PLAIN, "const ", "u8")

    def reads_quantized(self, name: str, value: SSAValue | None) -> str:
        """The two planes of a quantized form that the kernel reads: `x_words, x_scales`, or `nullptr, nullptr`."""
        return self._quantized(name, value, "const ")

    def writes_quantized(self, name: str, value: SSAValue | None) -> str:
        """The two planes of a quantized form that the kernel writes."""
        return self._quantized(name, value, "")

    def scratch(self, name: str, c_type: str, bytes: int, *, zeroed: bool = False) -> str:
        """Memory besides the buffers."""
        return self._add(ScratchArgument(name, c_type, bytes, zeroed))

    def _quantized(self, name: str, value: SSAValue | None, qualifier: str) -> str:
        words = self._buffer(f"{name}_words", value, Form.WORDS, qualifier, "i8")
        return f"{words}, {self._buffer(f'{name}_scales', value, Form.SCALES, qualifier, 'float')}"

    def _buffer(self, name: str, value: SSAValue | None, form: Form, qualifier: str, c_type: str | None = None) -> str:
        if value is None:
            return "nullptr"
        return self._add(BufferArgument(name, qualifier + (c_type or element_type(value)), value, form))

    def _add(self, argument: Argument) -> str:
        if argument not in self.arguments:
            self.arguments.append(argument)
        return argument.name


LaunchPrinter: TypeAlias = Callable[[Any, Printing], Sequence[Kernel]]
"""A function from a launch of one class to the kernels that run it, in order."""

Printers: TypeAlias = dict[type[LaunchOp], LaunchPrinter]

Folds: TypeAlias = dict[tuple[type[LaunchOp], type[LaunchOp]], LaunchPrinter]
"""How folds are printed, by the classes of their two launches."""


_ELEMENTS = {DType.F32: "float", DType.I32: "int", DType.BF16: "bf16", DType.F16: "f16"}


def element_type(value: SSAValue) -> str:
    """The type of a buffer's elements in CUDA C."""
    return _ELEMENTS[buffer_of(value).dtype.data]


def refuse(launch: LaunchOp, why: str) -> LaneError:
    """The error that no kernel runs a launch, by what it writes, and why."""
    written = ", ".join(f'"{buffer_of(value).label.data}"' for value in launch.writes())
    return LaneError(f"the CUDA target has no kernel for {launch.name} that writes {written}: {why}")


# Constants.


def constant(value: bool | float | str) -> str:
    """A constant of a template; a float exactly as f32, in the shortest decimal that gives it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return (text if "." in text or "e" in text else f"{text}.0") + "f"
    return str(value)


def struct(name: str, **fields: bool | float | str | None) -> str:
    """A struct of constants: `GemvShape{.k = 576, .n = 192}`. Fields that are None are left at their default."""
    given = ", ".join(f".{key} = {constant(value)}" for key, value in fields.items() if value is not None)
    return f"{name}{{{given}}}"


def dst_of(dst: Dst = OWN) -> str:
    """Where a result lands: `Dst{.row_pitch = 192}`."""
    row, unit = dst.row, dst.unit
    return struct(
        "Dst",
        row_pitch=row.pitch if row is not None else None,
        row_index=row.index if row is not None else None,
        unit_pitch=unit.pitch if unit is not None else None,
        unit_offset=unit.offset if unit is not None and unit.offset else None,
    )


def part_of(part: Part | None) -> str:
    """Where units are read: `Part{.pitch = 192, .offset = 64}`."""
    if part is None:
        return "Part{}"
    return struct("Part", pitch=part.pitch, offset=part.offset or None)


def activation_of(act: Activation | None) -> str:
    return f"Activation::{(str(act) if act is not None else 'none').upper()}"


def operator_of(operator: BinaryOperator) -> str:
    return f"BinaryOperator::{str(operator).upper()}"
