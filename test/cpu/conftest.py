"""Running a few launches, written as text, on arrays."""

from __future__ import annotations

import math
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
from lane_mlir.dialects.launch import LAUNCH, BufferOp, ScheduleOp
from lane_mlir.dialects.tg import TG

ALIGNMENT = 64
DTYPES = {
    np.dtype(np.float32): "f32",
    np.dtype(np.int32): "i32",
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
}


@dataclass(frozen=True)
class Weight:
    """A constant of the checkpoint."""

    values: NDArray[np.float32]


@dataclass(frozen=True)
class Out:
    """A computed buffer; `dtype` of its elements, `quantized` if it has that form too."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    quantized: bool = False


@dataclass(frozen=True)
class Alias:
    """A view of another buffer from an element on."""

    of: str
    offset: int
    shape: tuple[int, ...]


class Bench:
    """A schedule of some launches over named buffers, planned as a planner would: every computed one has a place."""

    def __init__(self, launches: str, buffers: Mapping[str, Any], numerics: str = "dequant", header: str = ""):
        self.inputs: dict[str, NDArray[Any]] = {
            name: value for name, value in buffers.items() if isinstance(value, np.ndarray)
        }
        weights = {name: b.values for name, b in buffers.items() if isinstance(b, Weight)}
        self.arena = 0
        lines = [self._buffer(name, buffer, numerics) for name, buffer in buffers.items()]
        outs = ", ".join(f"%{name}" for name, buffer in buffers.items() if isinstance(buffer, Out))
        self.text = (
            f"launch.schedule @test target<h200, {numerics}, cache = f32, state = f32> arena {self.arena} {{\n{header}"
            + "".join(f"  {line}\n" for line in lines)
            + f"{launches}\n  launch.yield {outs}\n}}"
        )
        self.schedule = parse(self.text)
        self.memory = Memory(weights)
        self.program = CpuProgram(self.schedule, self.memory)
        self.fill()

    def _buffer(self, name: str, buffer: Any, numerics: str) -> str:
        start = f'%{name} = launch.buffer "{name}" '
        match buffer:
            case Weight(values):
                shape = "x".join(map(str, values.shape))
                return f'{start}f32[{shape}] constant #launch.tensor<"{name}", f32> plain'
            case Alias(of, offset, shape):
                return f"{start}f32[{'x'.join(map(str, shape))}] alias %{of} + {offset} plain quantized"
            case Out(shape, dtype, quantized):
                size, plain = math.prod(shape), ""
                plain = f"plain at {self._place(4 * size)}"
                words = 2 if numerics == "two_pass_int8" else 1
                blocks = f" quantized quantized_at {self._place(36 * words * size // 32)}" if quantized else ""
                return f"{start}{dtype}[{'x'.join(map(str, shape))}] computed {plain}{blocks}"
            case _:
                fill = "param" if buffer.dtype == np.int32 else "zero"
                return f"{start}{DTYPES[buffer.dtype]}[{'x'.join(map(str, buffer.shape))}] {fill} plain"

    def _place(self, size: int) -> int:
        at = self.arena
        self.arena += -(-size // ALIGNMENT) * ALIGNMENT
        return at

    def buffer(self, name: str) -> BufferOp:
        return next(op for op in self.schedule.buffers() if op.label.data == name)

    def fill(self) -> None:
        """Put the inputs in place, and NaN everywhere else."""
        self.program.buffers.poison()
        for name, values in self.inputs.items():
            self.program.buffers.plain(self.buffer(name).buffer)[:] = values.reshape(-1)

    def values(self, name: str) -> NDArray[Any]:
        """A copy of a buffer's elements, in its shape."""
        buffer = self.buffer(name)
        return self.program.buffers.plain(buffer.buffer).reshape(buffer.shape.data).copy()

    def quantized(self, name: str) -> NDArray[np.float32]:
        """The values of a buffer's quantized form, flat."""
        return self.program.buffers.quantized(self.buffer(name).buffer).values()

    def run(self) -> Bench:
        """Run three times from the same inputs, each over memory full of NaN, and expect the same bits."""
        self.program.run()
        first = {op.label.data: self.values(op.label.data).tobytes() for op in self.schedule.buffers()}
        for _ in range(2):
            self.fill()
            self.program.run()
            assert {name: self.values(name).tobytes() for name in first} == first
        return self


def parse(text: str) -> ScheduleOp:
    context = Context()
    for dialect in (Builtin, TG, LAUNCH):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    schedule = module.body.block.first_op
    assert isinstance(schedule, ScheduleOp)
    return schedule


Run: TypeAlias = Callable[..., Bench]


@pytest.fixture
def bench() -> Run:
    """`bench(launches, x=array, w=Weight(array), y=Out(shape))`: a program of launches, ready to run."""

    def make(launches: str, numerics: str = "dequant", **buffers: Any) -> Bench:
        return Bench(launches, buffers, numerics)

    return make


@pytest.fixture
def run(bench: Run) -> Run:
    """As `bench`, and run."""

    def run(launches: str, numerics: str = "dequant", **buffers: Any) -> Bench:
        return bench(launches, numerics, **buffers).run()

    return run


@pytest.fixture
def random() -> Callable[..., NDArray[np.float32]]:
    """Normal values of a shape, the same in every run of a test."""
    rng = np.random.default_rng(7)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


@pytest.fixture
def weight() -> Callable[[NDArray[np.float32]], Weight]:
    return Weight


@pytest.fixture
def out() -> Callable[..., Out]:
    return Out


@pytest.fixture
def alias() -> Callable[[str, int, tuple[int, ...]], Alias]:
    return Alias
