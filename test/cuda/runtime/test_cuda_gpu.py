# pyright: reportUnknownLambdaType=false
"""What of cuda.core is called how, and what becomes of what goes wrong: on a stand-in for cuda.core and its bindings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lane_mlir.cuda.runtime import cuda_gpu
from lane_mlir.cuda.runtime.cuda_gpu import CudaGpu, architecture, open_gpu
from lane_mlir.cuda.runtime.errors import DriverError, OutOfMemory, size_text, too_large
from lane_mlir.cuda.runtime.gpu import KernelLaunch, Signature, Source
from lane_mlir.diagnostics import LaneError


class CUDAError(Exception):
    """As cuda.core's, whose class is not public."""


@dataclass(frozen=True)
class Status:
    name: str
    value: int

    def __int__(self) -> int:
        return self.value


OK = Status("CUDA_SUCCESS", 0)


@dataclass
class World:
    """A machine: its driver, its card, and what was called there."""

    driver: tuple[Any, ...] = (OK, 13000)
    init: Status = OK
    cards: int = 1
    capability: tuple[int, int] = (9, 0)
    broken_cubins: int = 0
    free: int = 1 << 30
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    compiled: list[Any] = field(default_factory=list)

    def module(self, name: str) -> Any:
        return {"cuda.core": self.core(), "cuda.bindings.driver": self.bindings()}[name]

    def call(self, *what: Any) -> Any:
        self.calls.append(what)
        return (OK,)

    def bindings(self) -> Any:
        return SimpleNamespace(
            cuDriverGetVersion=lambda: self.driver,
            cuInit=lambda flags: (self.init,),
            cuDeviceGetCount=lambda: (OK, self.cards),
            cuMemGetInfo=lambda: (OK, self.free, 1 << 31),
            cuMemcpyHtoDAsync=lambda *a: self.call("upload", *a),
            cuMemsetD8Async=lambda *a: (Status("CUDA_ERROR_ILLEGAL_ADDRESS", 700),),
            cuKernelSetAttribute=lambda *a: self.call("attribute", *a),
            cuDeviceGet=lambda ordinal: (OK, f"device {ordinal}"),
            CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
        )

    def core(self) -> Any:
        return SimpleNamespace(
            Device=lambda ordinal: Device(self),
            StreamOptions=SimpleNamespace,
            EventOptions=SimpleNamespace,
            LaunchConfig=lambda **fields: fields,
            launch=lambda *a: self.call("launch", *a),
            ObjectCode=SimpleNamespace(from_cubin=self.from_cubin),
        )

    def from_cubin(self, cubin: bytes, name: str) -> Any:
        def get_kernel(symbol: str) -> Any:
            if self.broken_cubins:
                self.broken_cubins -= 1
                raise CUDAError("CUDA_ERROR_INVALID_IMAGE: the device kernel image is invalid. Or so.")
            return SimpleNamespace(handle=f"handle of {symbol}")

        return SimpleNamespace(get_kernel=get_kernel)


class Device:
    name, device_id = "NVIDIA H200", 0
    properties = SimpleNamespace(multiprocessor_count=132, max_shared_memory_per_block_optin=232448)

    def __init__(self, world: World):
        self.world = world
        self.compute_capability = world.capability

    def set_current(self) -> None:
        self.world.call("set_current")

    def create_stream(self, options: Any) -> Any:
        return SimpleNamespace(handle=7)

    def create_graph_builder(self) -> Builder:
        return Builder(self.world)

    def allocate(self, size: int, stream: Any) -> Any:
        if size > self.world.free:
            raise CUDAError(
                "CUDA_ERROR_OUT_OF_MEMORY: The API call failed because it was unable to allocate enough memory."
            )
        return SimpleNamespace(handle=4096, size=size)


@dataclass
class Builder:
    world: World

    def begin_building(self) -> None:
        self.world.call("begin")

    def end_building(self) -> Builder:
        self.world.call("end")
        return self

    def complete(self) -> Any:
        return SimpleNamespace(upload=lambda stream: self.world.call("upload graph"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def make(**fields: Any) -> World:
        world = World(**fields)
        monkeypatch.setattr(cuda_gpu, "cuda_module", world.module)
        monkeypatch.setattr("lane_mlir.runtime.device.has_driver", lambda: True)

        def compile_unit(text: str, options: Any, *, name: str, cache: Any) -> bytes:
            world.compiled.append((options.arch, name, type(cache).__name__))
            return b"cubin"

        class Cache(dict[Any, Any]):
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None:
                pass

        monkeypatch.setattr(cuda_gpu, "compile_unit", compile_unit)
        monkeypatch.setattr(cuda_gpu, "program_cache", Cache)
        return world

    return make


# --- machines without what is needed ---


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"driver": (OK, 12040)}, r"the NVIDIA driver is for CUDA 12\.4, and kernels are compiled for 13\.0: install the NVIDIA driver, version 580"),
        ({"cards": 0}, "the NVIDIA driver finds no GPU; use the device cpu"),
        ({"init": Status("CUDA_ERROR_NO_DEVICE", 100)}, "the NVIDIA driver finds no GPU"),
        ({"init": Status("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 803)}, "the NVIDIA driver does not start: .*SYSTEM_DRIVER_MISMATCH"),
        ({"capability": (7, 5)}, r"NVIDIA H200 has compute capability 7\.5, and the kernels need 8\.0 \(Ampere\)"),
    ],
)  # fmt: skip
def test_a_card_that_cannot_be_used(
    machine: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine(**fields)
    with pytest.raises(LaneError, match=message) as raised:
        open_gpu()
    assert "\n" not in str(raised.value)


def test_cards_that_are_hidden(machine: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine(cards=0)
    with pytest.raises(LaneError, match=r"finds no GPU \(CUDA_VISIBLE_DEVICES is ''\)"):
        open_gpu()


def test_a_card_that_there_is_not(machine: Any):
    machine(cards=2)
    with pytest.raises(LaneError, match="there is no GPU 2: the driver sees 2, counted from 0"):
        open_gpu(2)


def test_no_driver(machine: Any, monkeypatch: pytest.MonkeyPatch):
    machine()
    monkeypatch.setattr("lane_mlir.runtime.device.has_driver", lambda: False)
    with pytest.raises(
        LaneError, match="no driver for NVIDIA GPUs is installed: install the NVIDIA driver, version 580 or newer"
    ):
        open_gpu()


def test_no_packages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(LaneError, match=r"needs cuda\.core, which is not installed: pip install 'lane-mlir\[cuda\]'"):
        open_gpu()


# --- what is asked of the driver ---


def test_the_card_as_a_chip(machine: Any):
    machine()
    chip = open_gpu().chip
    assert (chip.arch, chip.multiprocessors, chip.shared_memory_per_block, chip.bandwidth) == (
        "sm_90a",
        132,
        227,
        4.8e12,
    )
    assert [architecture(*capability) for capability in ((8, 0), (9, 0), (10, 0), (12, 0))] == [
        "sm_80",
        "sm_90a",
        "sm_100",
        "sm_120",
    ]


SOURCE = Source("a.cu", "", {"small": Signature(()), "large": Signature((), shared=200_000)})


def test_shared_memory_is_asked_for(machine: Any):
    world = machine()
    kernels = CudaGpu(0).load(SOURCE)
    assert list(kernels) == ["small", "large"]
    assert [call for call in world.calls if call[0] == "attribute"] == [
        ("attribute", "shared", 200_000, "handle of large", "device 0")
    ]
    assert world.compiled == [("sm_90a", "a.cu", "Cache")]


def test_a_cubin_that_the_driver_refuses(machine: Any):
    machine(broken_cubins=1)
    with pytest.raises(
        DriverError, match=r"the NVIDIA driver reports CUDA_ERROR_INVALID_IMAGE: the device kernel image is invalid$"
    ):
        CudaGpu(0).load(SOURCE)


def test_nowhere_to_keep_programs(machine: Any, monkeypatch: pytest.MonkeyPatch):
    """In cuda.core's own place: then nothing is kept. In a folder that somebody named: an error."""
    machine()

    @contextmanager
    def program_cache() -> Any:
        raise LaneError("cannot keep compiled programs in None: Read-only file system")
        yield

    monkeypatch.setattr(cuda_gpu, "program_cache", program_cache)
    monkeypatch.delenv("LANE_CUDA_CACHE", raising=False)
    with CudaGpu(0).programs() as programs:
        assert programs is None
    monkeypatch.setenv("LANE_CUDA_CACHE", "/nowhere")
    with pytest.raises(LaneError, match="cannot keep compiled programs"):
        CudaGpu(0).load(SOURCE)


def test_launches_and_graphs(machine: Any):
    world = machine()
    gpu = CudaGpu(0)
    launch = KernelLaunch("kernel", (5, 1, 1), 64, (4096, np.int32(3)), shared=100, pdl=True)  # pyright: ignore[reportArgumentType]
    gpu.compute.launch(launch)
    name, _, config, kernel, *arguments = world.calls[-1]
    assert (name, kernel, arguments) == ("launch", "kernel", [4096, np.int32(3)])
    assert config == {
        "grid": (5, 1, 1), "block": 64, "shmem_size": 100, "programmatic_stream_serialization": True,
    }  # fmt: skip
    before = len(world.calls)
    gpu.capture([launch, launch])
    assert [call[0] for call in world.calls[before:]] == ["begin", "launch", "launch", "end", "upload graph"]
    assert isinstance(world.calls[-4][1], Builder)


def test_errors_of_the_driver(machine: Any):
    machine()
    gpu = CudaGpu(0)
    with pytest.raises(OutOfMemory):
        gpu.allocate(2 << 30)
    with pytest.raises(DriverError) as raised:
        gpu.compute.fill(0, 1, 0)
    assert raised.value.is_fault
    assert not OutOfMemory().is_fault


def test_sizes_for_people():
    assert [size_text(size) for size in (0, 1023, 1024, 3 << 29, 1 << 50)] == [
        "0 bytes", "1023 bytes", "1.00 KiB", "1.50 GiB", "1024.00 TiB",
    ]  # fmt: skip
    error = too_large("a card", {"weights": 8 << 30, "cache and state": 0, "the arena": 1 << 20}, 1 << 30, 4 << 30)
    assert str(error) == (
        "the step does not fit into the memory of a card: it needs 8.00 GiB more (8.00 GiB for weights, 1.00 MiB for the arena), "
        "and 1.00 GiB of 4.00 GiB are free; use a smaller context, a cache in f16, or a model of fewer bits a weight"
    )
