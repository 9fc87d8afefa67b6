"""A GPU of the runtime that is this host: memory is the host's, kernels are emulated, every call is done at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from xdsl.parser import Parser

from lane_mlir.checkpoint import Tensor
from lane_mlir.chips import CHIPS
from lane_mlir.cpu import Memory
from lane_mlir.cuda.runtime import CudaDevice, Options
from lane_mlir.cuda.runtime.errors import DriverError, OutOfMemory
from lane_mlir.cuda.runtime.gpu import HostArray, KernelLaunch, Source
from lane_mlir.cuda.runtime.weights import GivenTensors
from lane_mlir.cuda.source import self_contained
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.formats import Format
from lane_mlir.runtime.compilation import module_context, schedules
from lane_mlir.runtime.recipe import Recipe

CONTEXT, VOCABULARY, WIDTH = 24, 96, 256

GUARD = 256
"""Bytes around an allocation that nobody may touch."""


class HostBlock:
    def __init__(self, size: int):
        self._memory = np.full(size + 3 * GUARD, 0xFF, np.uint8)
        self.address = -(-self._memory.ctypes.data // GUARD) * GUARD + GUARD
        self.size = size
        self._start = self.address - self._memory.ctypes.data

    def check(self) -> None:
        """Nothing was written outside."""
        assert (self._memory[: self._start] == 0xFF).all()
        assert (self._memory[self._start + self.size :] == 0xFF).all()


@dataclass
class HostEvent:
    recorded: int = 0

    def sync(self) -> None:
        assert self.recorded, "an event is waited for that was never recorded"

    def since(self, earlier: HostEvent) -> float:
        return (self.recorded - earlier.recorded) * 1e-6


@dataclass(frozen=True)
class HostKernel:
    symbol: str
    run: Callable[..., None]


@dataclass
class HostGraph:
    launches: Sequence[KernelLaunch]


@dataclass
class HostStream:
    gpu: HostGpu

    def upload(self, address: int, data: HostArray) -> None:
        assert data.flags.c_contiguous
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, data: HostArray, address: int) -> None:
        assert data.flags.c_contiguous
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def fill(self, address: int, size: int, byte: int) -> None:
        ctypes.memset(address, byte, size)

    def launch(self, launch: KernelLaunch) -> None:
        kernel = launch.kernel
        assert isinstance(kernel, HostKernel)
        if kernel.symbol == self.gpu.failing:
            self.gpu.failed = True
            return
        self.gpu.launched.append(launch)
        self.gpu.clock += 1
        kernel.run(launch)

    def run(self, graph: Any) -> None:
        self.gpu.graph_sizes.append(len(graph.launches))
        for launch in graph.launches:
            self.launch(launch)

    def record(self, event: HostEvent) -> None:
        self.gpu.clock += 1
        event.recorded = self.gpu.clock

    def wait(self, event: HostEvent) -> None:
        event.sync()

    def sync(self) -> None:
        if self.gpu.failed:
            raise DriverError("CUDA_ERROR_ILLEGAL_ADDRESS", "while a kernel ran")


@dataclass(eq=False)
class HostGpu:
    """`capacity`: bytes that may be allocated. `failing`: the symbol of a kernel that fails."""

    emulator: Any
    capacity: int = 1 << 30
    failing: str | None = None
    name: str = "an emulated card"
    chip: Any = CHIPS["h200"]
    failed: bool = False
    clock: int = 0
    allocated: int = 0
    blocks: list[HostBlock] = field(default_factory=list)
    launched: list[KernelLaunch] = field(default_factory=list)
    graph_sizes: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    kept: Any = None

    def __post_init__(self) -> None:
        self.compute, self.copies = HostStream(self), HostStream(self)

    def memory(self) -> tuple[int, int]:
        return self.capacity - self.allocated, self.capacity

    def allocate(self, size: int) -> HostBlock:
        if self.allocated + size > self.capacity:
            raise OutOfMemory
        self.allocated += size
        self.blocks.append(HostBlock(size))
        return self.blocks[-1]

    def pinned(self, size: int) -> Any:
        return np.full(size, 0xFF, np.uint8)

    def load(self, source: Source) -> Mapping[str, HostKernel]:
        self.sources.append(source)
        entries: list[str] = []
        for symbol, signature in source.kernels.items():
            given = [f"({type})(intptr_t)given[{i}]" for i, type in enumerate(signature.parameters)]
            entries.append(
                f'extern "C" void run_{symbol}(void** a, unsigned x, unsigned y, unsigned z, int block, int shared) '
                f"{{ static void** given; given = a; "
                f"emulator::launch([] {{ {symbol}({', '.join(given)}); }}, {{x, y, z}}, block, shared); }}\n"
            )
        library = self.emulator.compiled(self_contained(source.text, source.name) + "".join(entries))
        return {symbol: HostKernel(symbol, _runner(library, symbol)) for symbol in source.kernels}

    def begin(self, source: Source) -> Callable[[], Mapping[str, HostKernel]]:
        return lambda: self.load(source)

    @contextmanager
    def programs(self) -> Generator[Any]:
        yield self.kept

    def event(self, *, timed: bool = False) -> HostEvent:
        return HostEvent()

    def capture(self, launches: Sequence[KernelLaunch]) -> HostGraph:
        return HostGraph(list(launches))

    def check(self) -> None:
        for block in self.blocks:
            block.check()


def _runner(library: ctypes.CDLL, symbol: str) -> Callable[[KernelLaunch], None]:
    run = getattr(library, f"run_{symbol}")

    def launch(launch: KernelLaunch) -> None:
        values = [int(value) for value in launch.arguments]
        array = (ctypes.c_void_p * max(len(values), 1))(*values)
        run(array, *launch.grid, launch.block, launch.shared)

    return launch


@pytest.fixture(scope="session")
def new_gpu(emulator: Any) -> Callable[..., HostGpu]:
    def make(**fields: Any) -> HostGpu:
        return HostGpu(emulator, **fields)

    return make


# A small step.


def step_text(rows: int, numerics: str) -> str:
    """A step without attention: an embedding, keys rotated into a cache, a residual, tied logits."""
    x, tail = f"tensor<{rows}x{WIDTH}xf32>", f"tensor<1x{WIDTH}xf32>"
    table, wk, wo = (
        f"tensor<{n}x{WIDTH}xf32, #tg.rows<{f}>>" for n, f in ((VOCABULARY, "q8_0"), (128, "q4_1"), (WIDTH, "q8_0"))
    )
    advance = "tg.advance %id to %token, %position : tensor<1xi32>, memref<1xi32>, memref<1xi32>" if rows == 1 else ""
    return f"""builtin.module attributes {{tg.target = #tg.target<h200, {numerics}, cache = f16, state = f32>}} {{
  func.func @step(%token: memref<{rows}xi32> {{tg.arg = #tg.arg<token, 0, "token">}},
                  %position: memref<1xi32> {{tg.arg = #tg.arg<position, 0, "position">}},
                  %cache: memref<{CONTEXT}x128xf32> {{tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">}})
      -> (tensor<1x{VOCABULARY}xf32>, tensor<1xi32>) {{
    %cos, %sin = tg.rope_table base 1.0e+04 freq_scale 1.0 ext_factor 0.0 attn_factor 1.0 beta 32.0, 1.0
      original_context 0 -> tensor<{CONTEXT}x32xf32>, tensor<{CONTEXT}x32xf32>
    %table = tg.constant "token_embd.weight" : {table}
    %x = tg.gather %table[%token] : ({table}, memref<{rows}xi32>) -> {x}
    %w = tg.constant "norm.weight" : tensor<{WIDTH}xf32>
    %n = tg.rms_norm %x weight %w eps 1.0e-05 : ({x}, tensor<{WIDTH}xf32>) -> {x}
    %wk = tg.constant "k.weight" : {wk}
    %k = tg.matmul %n, %wk : ({x}, {wk}) -> tensor<{rows}x128xf32>
    %heads = tg.view %k from 0 : (tensor<{rows}x128xf32>) -> tensor<{2 * rows}x64xf32>
    %rotated = tg.rope %heads by %cos, %sin at %position heads 2 half : (tensor<{2 * rows}x64xf32>, tensor<{CONTEXT}x32xf32>, tensor<{CONTEXT}x32xf32>, memref<1xi32>) -> tensor<{2 * rows}x64xf32>
    %flat = tg.view %rotated from 0 : (tensor<{2 * rows}x64xf32>) -> tensor<{rows}x128xf32>
    tg.set_row %flat into %cache[%position] : tensor<{rows}x128xf32>, memref<{CONTEXT}x128xf32>, memref<1xi32>
    %wo = tg.constant "o.weight" : {wo}
    %o = tg.matmul %n, %wo : ({x}, {wo}) -> {x}
    %y = tg.binary add %x, %o : ({x}, {x}) -> {x}
    %last = tg.slice %y every {rows * WIDTH} from {(rows - 1) * WIDTH} width {WIDTH} : ({x}) -> {tail}
    %m = tg.rms_norm %last weight %w eps 1.0e-05 : ({tail}, tensor<{WIDTH}xf32>) -> {tail}
    %logits = tg.matmul %m, %table : ({tail}, {table}) -> tensor<1x{VOCABULARY}xf32>
    %id = tg.argmax %logits : (tensor<1x{VOCABULARY}xf32>) -> tensor<1xi32>
    {advance}
    func.return %logits, %id : tensor<1x{VOCABULARY}xf32>, tensor<1xi32>
  }}
}}
"""


@cache
def planned(rows: int = 1, numerics: str = "int8") -> ScheduleOp:
    module = Parser(module_context(), step_text(rows, numerics)).parse_module()
    module.verify()
    Recipe(held=("qkv_head_epilogue",)).lower(module)
    (found,) = schedules(module)
    return found


@cache
def tensors() -> dict[str, Tensor]:
    rng = np.random.default_rng(5)
    shapes = {
        "token_embd.weight": ((VOCABULARY, WIDTH), Format.Q8_0),
        "norm.weight": ((WIDTH,), Format.F32),
        "k.weight": ((128, WIDTH), Format.Q4_1),
        "o.weight": ((WIDTH, WIDTH), Format.Q8_0),
    }
    found: dict[str, Tensor] = {}
    for offset, (name, (shape, fmt)) in enumerate(shapes.items()):
        values = rng.standard_normal(shape).astype(np.float32) / np.float32(8)
        data = values if fmt is Format.F32 else quants.quantize(values, GGMLQuantizationType[str(fmt).upper()])
        found[name] = Tensor(name, shape, fmt, offset, data.view(np.uint8).reshape(int(np.prod(shape[:-1])), -1))
    return found


def dequantized() -> Memory:
    return Memory({name: tensor.values() for name, tensor in tensors().items()})


@pytest.fixture
def schedule() -> Callable[..., ScheduleOp]:
    """`schedule(rows, numerics)`: the step, planned, for a context of 24 positions and a vocabulary of 96 tokens."""
    return planned


@pytest.fixture
def memory() -> Callable[[], Memory]:
    """What the CPU target has of the step's weights."""
    return dequantized


@pytest.fixture
def new_device(new_gpu: Callable[..., Any]) -> Callable[..., CudaDevice]:
    """`new_device(options, …)`: an emulated device with the step's weights."""

    def make(options: Options | None = None, **fields: Any) -> CudaDevice:
        return CudaDevice(GivenTensors(tensors()), new_gpu(**fields), options=options or Options())

    return make
