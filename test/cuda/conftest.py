"""Running printed kernels on the host, by emulator/emulator.h: what the tests of kernels' arithmetic share."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from xdsl.ir import SSAValue

from lane_mlir.cuda.layout import QuantizedForm
from lane_mlir.cuda.printer import BufferArgument, Form, ScratchArgument, Unit, print_unit
from lane_mlir.cuda.source import self_contained
from lane_mlir.dialects.launch import BufferOp, DType, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import Numerics

EMULATOR = Path(__file__).parent / "emulator" / "emulator.h"
COMPILER = shutil.which("g++")

NUMPY_TYPES = {DType.F32: np.float32, DType.I32: np.int32, DType.F16: np.float16, DType.BF16: np.uint16}
"""Types in which the elements of plain buffers are kept; bf16 as its bits."""


@dataclass
class Memory:
    """The arrays of a schedule's buffers, NaN where nothing was put: plain forms by buffer, quantized forms as bytes."""

    words: int
    plain: dict[BufferOp, np.ndarray] = field(default_factory=dict)
    quantized: dict[BufferOp, np.ndarray] = field(default_factory=dict)
    scratch: dict[object, np.ndarray] = field(default_factory=dict)

    def plain_of(self, buffer: BufferOp) -> np.ndarray:
        """The elements of a buffer, also of an alias."""
        held, start, end = buffer.holder(Touch.PLAIN)
        if held not in self.plain:
            dtype = NUMPY_TYPES[held.dtype.data]
            array = np.zeros(held.length, dtype)
            array.view(np.uint8)[:] = 0xFF  # NaN, or -1
            self.plain[held] = array
        return self.plain[held][start:end]

    def quantized_of(self, buffer: BufferOp) -> tuple[np.ndarray, QuantizedForm, int]:
        """The bytes of the form, how they lie, and the element that the buffer begins with."""
        held, start, _ = buffer.holder(Touch.QUANT)
        form = QuantizedForm(held.length, self.words)
        if held not in self.quantized:
            # Scales are NaN; no int8 word says that it was not written.
            self.quantized[held] = np.full(form.size, 0xFF, np.uint8)
        return self.quantized[held], form, start

    def quantized_values(self, buffer: BufferOp) -> np.ndarray:
        """What the quantized form of a buffer is read back as."""
        bytes, form, start = self.quantized_of(buffer)
        blocks = buffer.length // 32
        words_at, scales_at = form.words_at(start), form.scales_at(start)
        q = bytes[words_at : words_at + blocks * 32 * self.words].view(np.int8).reshape(blocks, self.words, 32)
        d = bytes[scales_at : scales_at + blocks * 4 * self.words].view(np.float32).reshape(blocks, self.words, 1)
        return (q * d).sum(axis=1, dtype=np.float32).reshape(-1)

    def address(self, argument: BufferArgument | ScratchArgument, launch: object) -> int:
        if isinstance(argument, ScratchArgument):
            key = (launch, argument.name, argument.bytes)
            if key not in self.scratch:
                self.scratch[key] = np.full(argument.bytes, 0 if argument.zeroed else 0xFF, np.uint8)
            return self.scratch[key].ctypes.data
        buffer = buffer_of(argument.value)
        if argument.form is Form.PLAIN:
            return self.plain_of(buffer).ctypes.data
        bytes, form, start = self.quantized_of(buffer)
        at = form.words_at(start) if argument.form is Form.WORDS else form.scales_at(start)
        return bytes.ctypes.data + at


OPTIONS = ("-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-w")


class Emulator:
    """Compiles units for the host, each once, and runs schedules on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries: dict[str, ctypes.CDLL] = {}
        # The emulator is read once for all units: g++ takes a precompiled header that lies beside the header.
        text = EMULATOR.read_bytes()
        self._header = folder / f"{hashlib.sha256(text).hexdigest()[:24]}.h"
        self._make(self._header, lambda part: part.write_bytes(text))
        self._make(
            Path(f"{self._header}.gch"), lambda part: _run_compiler("-x", "c++-header", self._header, "-o", part)
        )

    def run(self, schedule: ScheduleOp, memory: Memory, *, steps: int = 1) -> Unit:
        """Run the kernels of a schedule on the memory of its buffers, as often as there are steps."""
        unit = print_unit(schedule)
        loaded = self.loaded(unit)
        for _ in range(steps):
            for use in unit.uses:
                addresses = [memory.address(argument, use.launch) for argument in use.arguments]
                kernel = use.kernel
                array = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
                getattr(loaded, f"run_{use.symbol}")(array, *kernel.grid, kernel.block, kernel.shared)
        return unit

    def loaded(self, unit: Unit) -> ctypes.CDLL:
        entries: dict[str, str] = {}
        for use in unit.uses:
            arguments = ", ".join(f"({a.c_type}*)given[{i}]" for i, a in enumerate(use.arguments))
            entries[use.symbol] = (
                f'extern "C" void run_{use.symbol}(void** a, unsigned x, unsigned y, unsigned z, int block, int shared) '
                f"{{ static void** given; given = a; "
                f"emulator::launch([] {{ {use.symbol}({arguments}); }}, {{x, y, z}}, block, shared); }}"
            )
        return self.compiled(self_contained(unit.text, "step.cu") + "\n".join(entries.values()) + "\n")

    def compiled(self, source: str) -> ctypes.CDLL:
        """A unit of kernels and entries as a library."""
        key = hashlib.sha256(f"{self._header}\n{source}".encode()).hexdigest()[:24]
        if key not in self.libraries:
            library, file = self.folder / f"{key}.so", self.folder / f"{key}.cpp"
            self._make(file, lambda part: part.write_text(source))
            self._make(library, lambda part: _run_compiler("-shared", "-include", self._header, file, "-o", part))
            self.libraries[key] = ctypes.CDLL(str(library))
        return self.libraries[key]

    @staticmethod
    def _make(file: Path, make: Callable[[Path], object]) -> None:
        """Make a file that is not there; the processes of a test run, which share the folder, see it when it is whole."""
        if not file.exists():
            part = file.with_name(f"{file.name}.{os.getpid()}.part")
            make(part)
            part.rename(file)


def _run_compiler(*arguments: str | Path) -> None:
    made = subprocess.run(["g++", *OPTIONS, *arguments], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[:4000]


class Recorder:
    """In place of the emulator: runs nothing, but notes which kernel templates a test calls, and with which flags."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def compiled(self, source: str) -> ctypes.CDLL:
        pytest.skip("calls a host function")

    def run(self, schedule: ScheduleOp, memory: Memory, *, steps: int = 1) -> Unit:
        test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
        with open(self._file, "a", encoding="utf-8") as file:
            for use in print_unit(schedule).uses:
                template, flags = use.kernel.call.partition("<")[0], re.findall(r"\.(\w+) = true", use.kernel.call)
                file.write("\t".join((test, template, *sorted(set(flags)))) + "\n")
        pytest.skip("recorded")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of a test run: those of pytest-xdist have a folder each in that of the run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def emulator(shared_folder: Path) -> Emulator | Recorder:
    """
    The emulator; LANE_EMULATOR_CACHE names a folder that keeps compiled units between runs, LANE_RECORD a file to
    record in what tests would run.
    """
    if "LANE_RECORD" in os.environ:
        return Recorder(Path(os.environ["LANE_RECORD"]))
    if COMPILER is None:
        pytest.skip("kernels are emulated on the host by g++, which is not installed")
    kept = os.environ.get("LANE_EMULATOR_CACHE")
    folder = Path(kept) if kept is not None else shared_folder / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return Emulator(folder)


@pytest.fixture(scope="session")
def new_memory() -> type[Memory]:
    return Memory


def words_of(numerics: Numerics) -> int:
    return {Numerics.DEQUANT: 0, Numerics.INT8: 1, Numerics.TWO_PASS_INT8: 2}[numerics]


def value_of(buffer: BufferOp) -> SSAValue:
    return buffer.buffer
