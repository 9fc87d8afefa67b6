"""The GPU through cuda.core: the only module that asks the driver for anything."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from lane_mlir.chips import CHIPS, KIB, Chip
from lane_mlir.cuda.compile import CompileOptions, compile_unit, cuda_module, program_cache
from lane_mlir.cuda.runtime.errors import DriverError, driver_error
from lane_mlir.cuda.runtime.gpu import Bytes, HostArray, KernelHandle, KernelLaunch, Signature, Source
from lane_mlir.diagnostics import LaneError
from lane_mlir.timeline import phase

OLDEST_CAPABILITY = (8, 0)
"""The oldest compute capability that the kernels run on: they copy asynchronously into shared memory."""

OLDEST_DRIVER = (13, 0)
"""The oldest version of CUDA whose driver takes what NVRTC 13 compiles."""

_DRIVER_PACKAGE = "install the NVIDIA driver, version 580 or newer"


def open_gpu(ordinal: int = 0) -> CudaGpu:
    """
    The card of a number, as the driver counts those that it may see.

    Raises: LaneError if the packages or the driver are missing, the driver is too old, or there is no card that the
    kernels run on; each says what to install.
    """
    from lane_mlir.runtime.device import has_driver

    with phase("importing cuda.core"):
        cuda_module("cuda.core")
        driver = cuda_module("cuda.bindings.driver")
    # Asked for once and first: cuda.core does not stand being used where there is no driver.
    if not has_driver():
        raise LaneError(f"no driver for NVIDIA GPUs is installed: {_DRIVER_PACKAGE}")
    _expect_driver(driver)
    with phase("starting the driver"):
        count = _expect_card(driver)
    if not 0 <= ordinal < count:
        raise LaneError(f"there is no GPU {ordinal}: the driver sees {count}, counted from 0")
    with phase("opening the card"):
        return CudaGpu(ordinal)


def _expect_driver(driver: Any) -> None:
    version: int = _value(driver.cuDriverGetVersion())
    found = (version // 1000, version % 1000 // 10)
    if found < OLDEST_DRIVER:
        raise LaneError(
            f"the NVIDIA driver is for CUDA {found[0]}.{found[1]}, and kernels are compiled for "
            f"{OLDEST_DRIVER[0]}.{OLDEST_DRIVER[1]}: {_DRIVER_PACKAGE}"
        )


def _expect_card(driver: Any) -> int:
    """How many cards there are."""
    try:
        _value(driver.cuInit(0))
        count: int = _value(driver.cuDeviceGetCount())
    except DriverError as error:
        if error.code != "CUDA_ERROR_NO_DEVICE":
            raise LaneError(f"the NVIDIA driver does not start: {error}") from error
        count = 0
    if not count:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
        raise LaneError(f"the NVIDIA driver finds no GPU{hint}; use the device cpu")
    return count


class CudaGpu:
    """One card, as `lane_mlir.cuda.runtime.gpu.Gpu` describes."""

    def __init__(self, ordinal: int):
        self._core, self._driver = cuda_module("cuda.core"), cuda_module("cuda.bindings.driver")
        self._device = self._core.Device(ordinal)
        self._device.set_current()
        self.name: str = self._device.name
        # A kernel may still run when nobody holds it any more.
        self._modules: list[Any] = []
        # One thread: NVRTC compiles one unit at a time, and lets Python go on meanwhile.
        self._compiler = ThreadPoolExecutor(1, "nvrtc")
        self.chip = self._chip()
        options = self._core.StreamOptions(nonblocking=True)
        self.compute = CudaStream(self._core, self._driver, self._device.create_stream(options=options))
        self.copies = CudaStream(self._core, self._driver, self._device.create_stream(options=options))

    def _chip(self) -> Chip:
        major, minor = self._device.compute_capability
        if (major, minor) < OLDEST_CAPABILITY:
            raise LaneError(
                f"{self.name} has compute capability {major}.{minor}, and the kernels need 8.0 (Ampere) or newer; "
                "use the device cpu"
            )
        properties = self._device.properties
        arch = architecture(major, minor)
        multiprocessors: int = properties.multiprocessor_count
        known = [chip for chip in CHIPS.values() if (chip.arch, chip.multiprocessors) == (arch, multiprocessors)]
        return Chip(
            name=self.name,
            arch=arch,
            capability=(major, minor),
            multiprocessors=multiprocessors,
            shared_memory_per_block=properties.max_shared_memory_per_block_optin // KIB,
            memory_bytes=self.memory()[1],
            bandwidth=max((chip.bandwidth for chip in known), default=0.0),
        )

    def memory(self) -> tuple[int, int]:
        free, total = _values(self._driver.cuMemGetInfo())
        return free, total

    def allocate(self, size: int) -> CudaBlock:
        with _reported():
            return CudaBlock(self._device.allocate(size, stream=self.compute.stream))

    def pinned(self, size: int) -> Bytes:
        with _reported():
            buffer = self._core.LegacyPinnedMemoryResource().allocate(size)
        memory = (ctypes.c_uint8 * size).from_address(int(buffer.handle))
        # The array keeps this object, and this object the allocation.
        setattr(memory, "buffer", buffer)
        return np.frombuffer(memoryview(memory), np.uint8)

    def load(self, source: Source) -> Mapping[str, KernelHandle]:
        return self.begin(source)()

    def begin(self, source: Source) -> Callable[[], Mapping[str, KernelHandle]]:
        cubin = self._compiler.submit(self._compiled, source)
        return lambda: self._loaded(source, cubin.result())

    def _compiled(self, source: Source) -> bytes:
        with phase(f"compiling {source.name}"), self.programs() as cache:
            return compile_unit(source.text, CompileOptions(self.chip.arch), name=source.name, cache=cache)

    def _loaded(self, source: Source, cubin: bytes) -> Mapping[str, KernelHandle]:
        with phase(f"loading the kernels of {source.name}"), _reported():
            module = self._core.ObjectCode.from_cubin(cubin, name=source.name)
            kernels = {symbol: module.get_kernel(symbol) for symbol in source.kernels}
        self._modules.append(module)
        for symbol, signature in source.kernels.items():
            self._allow_shared(kernels[symbol], signature)
        return kernels

    @contextmanager
    def programs(self) -> Generator[Any]:
        with ExitStack() as stack:
            try:
                cache = stack.enter_context(program_cache())
            except LaneError:
                if os.environ.get("LANE_CUDA_CACHE") is not None:
                    raise
                # Its own place cannot be written, and nobody named another.
                cache = None
            yield cache

    def _allow_shared(self, kernel: Any, signature: Signature) -> None:
        """More than 48 KiB of dynamic shared memory must be asked for; cuda.core does not."""
        if signature.shared:
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device = _value(self._driver.cuDeviceGet(self._device.device_id))
            _values(self._driver.cuKernelSetAttribute(attribute, signature.shared, kernel.handle, device))

    def event(self, *, timed: bool = False) -> CudaEvent:
        with _reported():
            return CudaEvent(self._device.create_event(self._core.EventOptions(timing_enabled=timed)))

    def capture(self, launches: Sequence[KernelLaunch]) -> Any:
        with _reported():
            # On a stream of its own, which a launch that cannot be captured may leave unusable.
            builder = self._device.create_graph_builder()
            builder.begin_building()
            for launch in launches:
                self.compute.launch_on(builder, launch)
            graph = builder.end_building().complete()
            graph.upload(self.compute.stream)
        return graph


class CudaBlock:
    """Device memory."""

    def __init__(self, buffer: Any):
        self._buffer = buffer
        self.address: int = int(buffer.handle)
        self.size: int = buffer.size


class CudaEvent:
    def __init__(self, event: Any):
        self.event = event

    def sync(self) -> None:
        with _reported():
            self.event.sync()

    def since(self, earlier: Any) -> float:
        with _reported():
            milliseconds: float = self.event - earlier.event
        return milliseconds / 1e3


class CudaStream:
    """A stream; `stream` is cuda.core's."""

    def __init__(self, core: Any, driver: Any, stream: Any):
        self._core, self._driver, self.stream = core, driver, stream
        self._handle = stream.handle
        self._configurations: dict[tuple[object, ...], Any] = {}

    def upload(self, address: int, data: HostArray) -> None:
        assert data.flags.c_contiguous
        _values(self._driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self._handle))

    def download(self, data: HostArray, address: int) -> None:
        assert data.flags.c_contiguous
        _values(self._driver.cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, self._handle))

    def copy(self, to: int, source: int, size: int) -> None:
        _values(self._driver.cuMemcpyDtoDAsync(to, source, size, self._handle))

    def fill(self, address: int, size: int, byte: int) -> None:
        _values(self._driver.cuMemsetD8Async(address, byte, size, self._handle))

    def launch(self, launch: KernelLaunch) -> None:
        with _reported():
            self.launch_on(self.stream, launch)

    def launch_on(self, stream: Any, launch: KernelLaunch) -> None:
        """Launch on cuda.core's stream or the builder of a graph."""
        key = (launch.grid, launch.block, launch.shared, launch.pdl)
        if key not in self._configurations:
            self._configurations[key] = self._core.LaunchConfig(
                grid=launch.grid,
                block=launch.block,
                shmem_size=launch.shared,
                programmatic_stream_serialization=launch.pdl,
            )
        self._core.launch(stream, self._configurations[key], launch.kernel, *launch.arguments)

    def run(self, graph: Any) -> None:
        # Without `_reported`, since this is what a token costs the host.
        try:
            graph.launch(self.stream)
        except Exception as error:
            raise _translated(error) from error

    def record(self, event: Any) -> None:
        with _reported():
            self.stream.record(event.event)

    def wait(self, event: Any) -> None:
        with _reported():
            self.stream.wait(event.event)

    def sync(self) -> None:
        with _reported():
            self.stream.sync()


def architecture(major: int, minor: int) -> str:
    """NVRTC's name of the architecture of a compute capability; of 9.0 the one with Hopper's own instructions."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


@contextmanager
def _reported() -> Generator[None]:
    """What cuda.core raises for an error of the driver, as ours."""
    try:
        yield
    except Exception as error:
        raise _translated(error) from error


def _translated(error: Exception) -> Exception:
    # cuda.core's own classes of errors are not public.
    match = re.search(r"(CUDA_ERROR_\w+)(?::\s*([^.]*))?", str(error))
    if match is None or isinstance(error, LaneError):
        return error
    return driver_error(match[1], (match[2] or "").strip())


def _values(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call of cuda.bindings returns, without its status. Raises DriverError unless that is success."""
    status, *values = result
    if int(status):
        raise driver_error(str(status.name))
    return tuple(values)


def _value(result: tuple[Any, ...]) -> Any:
    values = _values(result)
    return values[0] if values else None
