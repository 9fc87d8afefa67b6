"""What goes wrong on a GPU, as errors of one line for people."""

from __future__ import annotations

from collections.abc import Mapping

from lane_mlir.diagnostics import LaneError

FAULTS = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
    }
)
"""Codes that a kernel is to blame for; most of them leave the process without a usable GPU."""

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class DriverError(LaneError):
    """The driver refused a call, or reports what failed before it."""

    def __init__(self, code: str, meaning: str = ""):
        super().__init__(f"the NVIDIA driver reports {code}{f': {meaning}' if meaning else ''}")
        self.code = code
        """The driver's name of the error, such as CUDA_ERROR_ILLEGAL_ADDRESS."""

    @property
    def is_fault(self) -> bool:
        """Whether a kernel is to blame."""
        return self.code in FAULTS


class OutOfMemory(DriverError):
    """Device memory does not suffice."""

    def __init__(self) -> None:
        super().__init__(_OUT_OF_MEMORY, "out of device memory")


class KernelFault(LaneError):
    """A kernel failed: the message says which launch, of what, on which buffers."""


def driver_error(code: str, meaning: str = "") -> DriverError:
    """The error for a code of the driver."""
    return OutOfMemory() if code == _OUT_OF_MEMORY else DriverError(code, meaning)


def size_text(size: int) -> str:
    """A size for people: `8.13 GiB`."""
    value, unit = float(size), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{size} bytes" if unit == 0 else f"{value:.2f} {_UNITS[unit]}"


def too_large(device: str, needed: Mapping[str, int], free: int, total: int) -> LaneError:
    """
    The error that a step does not fit into device memory: what it needs for what, and what is free.

    Example: `needed` is {"weights": 8 << 30, "cache and state": 1 << 30, "arena": 1 << 20}.
    """
    parts = ", ".join(f"{size_text(size)} for {what}" for what, size in needed.items() if size)
    wanted = size_text(sum(needed.values()))
    return LaneError(
        f"the step does not fit into the memory of {device}: it needs {wanted} more ({parts}), and {size_text(free)} "
        f"of {size_text(total)} are free; use a smaller context, a cache in f16, or a model of fewer bits a weight"
    )
