"""Launches, written as text, on emulated kernels and on the CPU target: the same buffers must get the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from lane_mlir.cpu import CpuProgram, Memory
from lane_mlir.cuda.repack import dequantize, repack
from lane_mlir.dialects.launch import LAUNCH, BufferOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import TG, Numerics
from lane_mlir.eval import quantize
from lane_mlir.eval.numerics import quantize_words
from lane_mlir.formats import Format

RELATIVE = 2e-6
"""Of the largest value: f32 sums of some hundred terms in another order, and another library's functions."""

DTYPES = {
    np.dtype(np.float32): "f32",
    np.dtype(np.int32): "i32",
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
}
PRECISION = {"f32": 0.0, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Relative error of a value that is rounded to a type, where both sides may round another way."""


@dataclass(frozen=True)
class Rows:
    """A weight: random blocks of a format."""

    format: Format
    n: int
    k: int


@dataclass(frozen=True)
class Transposed:
    """A plain weight that is stored column by column."""

    values: NDArray[np.float32]


@dataclass(frozen=True)
class Activation:
    """Values that are there in their quantized form too, under numerics that have one."""

    values: NDArray[np.float32]


@dataclass(frozen=True)
class Out:
    """A computed buffer, NaN at first."""

    shape: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True)
class Alias:
    """A view of another buffer from an element on."""

    of: str
    offset: int
    shape: tuple[int, ...]


Buffer: TypeAlias = "NDArray[Any] | Rows | Transposed | Activation | Out | Alias"


class Comparison:
    """A schedule of some launches over named buffers, run both ways."""

    def __init__(
        self,
        emulator: Any,
        memory: Any,
        launches: str,
        numerics: str,
        buffers: Mapping[str, Buffer],
        *,
        reference: bool = True,
    ):
        lines = "".join(f"  {self._line(name, buffer)}\n" for name, buffer in buffers.items())
        text = (
            f"launch.schedule @test target<h200, {numerics}, cache = f32, state = f32> {{\n{lines}{launches}\n"
            "  launch.yield\n}"
        )
        self.schedule = parse(text)
        self.numerics = Numerics(numerics)
        self.buffers: dict[str, BufferOp] = {op.label.data: op for op in self.schedule.buffers()}
        self.emulated_memory = memory({"dequant": 0, "int8": 1, "two_pass_int8": 2}[numerics])
        transposed = {name: b.values for name, b in buffers.items() if isinstance(b, Transposed)}
        self.program = CpuProgram(self.schedule, Memory(transposed))
        self.rng = np.random.default_rng(11)
        for name, buffer in buffers.items():
            self._fill(name, buffer)
        self.unit = emulator.run(self.schedule, self.emulated_memory)
        self.text: str = self.unit.text
        if reference:
            self.program.run()

    @staticmethod
    def _line(name: str, buffer: Buffer) -> str:
        start = f'%{name} = launch.buffer "{name}" '
        match buffer:
            case np.ndarray():
                fill = "param" if buffer.dtype == np.int32 else "zero"
                return f"{start}{DTYPES[buffer.dtype]}[{_shape(buffer.shape)}] {fill} plain"
            case Rows(_, n, k):
                return f"{start}f32[{_shape((n, k))}] computed plain"
            case Transposed(values):
                shape = _shape(values.shape)
                return f'{start}f32[{shape}] constant #launch.tensor<"{name}", f32> transposed plain'
            case Activation(values):
                return f"{start}f32[{_shape(values.shape)}] computed plain quantized"
            case Out(shape, dtype):
                return f"{start}{dtype}[{_shape(shape)}] computed plain quantized"
            case Alias(of, offset, shape):
                return f"{start}f32[{_shape(shape)}] alias %{of} + {offset} plain quantized"

    def _fill(self, name: str, buffer: Buffer) -> None:
        op, emulated = self.buffers[name], self.emulated_memory
        match buffer:
            case np.ndarray():
                self._put(op, buffer)
            case Rows(fmt, n, k):
                packed = repack(fmt, random_blocks(fmt, n, k, self.rng), n, k)
                emulated.plain[op] = packed.view(np.uint8)
                self.program.buffers.plain(op.buffer)[:] = dequantize(fmt, packed, n, k).reshape(-1)
            case Transposed(values):
                emulated.plain[op] = np.ascontiguousarray(values.T).reshape(-1)
            case Activation(values):
                self._put(op, values)
                self._quantize(op, values)
            case Out() | Alias():
                pass

    def _put(self, op: BufferOp, values: NDArray[Any]) -> None:
        self.program.buffers.plain(op.buffer)[:] = values.reshape(-1)
        stored = values.view(np.uint16) if values.dtype == ml_dtypes.bfloat16 else values
        self.emulated_memory.plain_of(op)[:] = stored.reshape(-1)

    def _quantize(self, op: BufferOp, values: NDArray[np.float32]) -> None:
        if self.numerics is Numerics.DEQUANT:
            return
        self.program.buffers.quantized(op.buffer).set(values)
        words = quantize_words(values, self.numerics)
        bytes, form, _ = self.emulated_memory.quantized_of(op)
        q = np.stack([word.q.reshape(-1, 32) for word in words], axis=1)
        d = np.stack([word.d.reshape(-1) for word in words], axis=1)
        bytes[: form.scales_at(0)] = q.reshape(-1).view(np.uint8)
        bytes[form.scales_at(0) :] = d.reshape(-1).view(np.uint8)

    # What the kernels made of a buffer, and what it should be.

    def emulated(self, name: str) -> NDArray[Any]:
        op = self.buffers[name]
        values = self.emulated_memory.plain_of(op)
        values = values.view(ml_dtypes.bfloat16) if op.holder(Touch.PLAIN)[0].dtype.data == "bf16" else values
        return values.reshape(op.shape.data)

    def expected(self, name: str) -> NDArray[Any]:
        op = self.buffers[name]
        return self.program.buffers.plain(op.buffer).reshape(op.shape.data)

    def check(self, relative: float = RELATIVE) -> Comparison:
        """Every form of every buffer that a launch writes has the values that the CPU target gives it."""
        written = {
            (buffer_of(value), form)
            for launch in self.schedule.launches()
            for value, form in launch.touches(self.numerics)[1]
        }
        assert written
        for op, form in written:
            if form is Touch.PLAIN:
                self._check_values(op, relative)
            else:
                self._check_words(op, relative, exact=(op, Touch.PLAIN) in written)
        return self

    def _check_values(self, op: BufferOp, relative: float) -> None:
        got, want = self.emulated(op.label.data), self.expected(op.label.data)
        if got.dtype == np.int32:
            np.testing.assert_array_equal(got, want, err_msg=op.label.data)
            return
        assert np.array_equal(np.isfinite(got.astype(np.float32)), np.isfinite(want.astype(np.float32))), op.label.data
        got, want = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(want)
        largest = np.abs(want[finite]).max(initial=0.0)
        rounding = PRECISION[str(op.dtype.data)] * np.abs(want[finite])
        error = np.abs(got[finite] - want[finite])
        assert (error <= relative * largest + rounding).all(), (op.label.data, error.max(), largest)

    def _check_words(self, op: BufferOp, relative: float, exact: bool) -> None:
        got = self.emulated_memory.quantized_values(op)
        want = self.program.buffers.quantized(op.buffer)
        step = np.repeat(want.words[-1].d, 32)
        assert np.isfinite(got).all(), op.label.data
        # A value that is rounded to the other side is one step of the last word away.
        largest = np.abs(want.values()).max(initial=0.0)
        assert (np.abs(got - want.values()) <= 1.01 * step + relative * largest).all(), op.label.data
        if exact:
            values = self.emulated(op.label.data).reshape(1, -1)
            assert np.array_equal(got, quantize(values, self.numerics).reshape(-1)), op.label.data


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def parse(text: str) -> ScheduleOp:
    context = Context()
    for dialect in (Builtin, TG, LAUNCH):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    (schedule,) = (op for op in module.ops if isinstance(op, ScheduleOp))
    return schedule


def random_blocks(fmt: Format, rows: int, k: int, rng: np.random.Generator) -> NDArray[Any]:
    """A weight's bytes in the checkpoint: random codes, and scales such that the values are of order 1."""
    count = rows * k // fmt.values
    values = rng.standard_normal(rows * k).astype(np.float32) / np.float32(4)
    match fmt:
        case Format.F32:
            return values.view(np.uint8)
        case Format.F16:
            return values.astype(np.float16).view(np.uint8)
        case Format.BF16:
            return values.astype(ml_dtypes.bfloat16).view(np.uint8)
        case _:
            pass
    blocks = rng.integers(0, 256, (count, fmt.bytes), dtype=np.uint8)
    if fmt is Format.MXFP4:
        blocks[:, 0] = rng.integers(118, 126, count)
        return blocks.reshape(-1)
    places = {
        Format.Q4_1: (0, 2), Format.Q5_1: (0, 2), Format.Q2_K: (80, 82), Format.Q3_K: (108,), Format.Q4_K: (0, 2),
        Format.Q5_K: (0, 2), Format.Q6_K: (208,),
    }.get(fmt, (0,))  # fmt: skip
    for place in places:
        scales = (rng.uniform(0.25, 1, count) / 64).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks.reshape(-1)


Compare: TypeAlias = Callable[..., Comparison]


@pytest.fixture
def compare(emulator: Any, new_memory: Any) -> Compare:
    """Runs launches on both: `compare("launch.scale %x into %y …", x=array, y=out((2, 64))).check()`."""

    def run(launches: str, numerics: str = "dequant", *, reference: bool = True, **buffers: Buffer) -> Comparison:
        return Comparison(emulator, new_memory, launches, numerics, buffers, reference=reference)

    return run


@pytest.fixture
def random() -> Callable[..., NDArray[np.float32]]:
    """Arrays of standard normal values, always the same."""
    rng = np.random.default_rng(7)

    def make(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    return make


@pytest.fixture
def out() -> type[Out]:
    return Out


@pytest.fixture
def alias() -> type[Alias]:
    return Alias


@pytest.fixture
def rows() -> type[Rows]:
    return Rows


@pytest.fixture
def transposed() -> type[Transposed]:
    return Transposed


@pytest.fixture
def activation() -> type[Activation]:
    return Activation
