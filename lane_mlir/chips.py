"""The chips that steps are compiled for, as data: what a plan and a kernel need to know of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lane_mlir.diagnostics import LaneError, unknown

KIB = 1024
GIB = 1024**3


@dataclass(frozen=True)
class Chip:
    """
    One GPU model.

    Sources: NVIDIA's architecture white papers and the compute capability tables of the CUDA C++ Programming Guide.
    """

    name: str
    """The name by which options and `#tg.target` call it."""
    arch: str
    """NVRTC's name of the architecture, such as `sm_90a`."""
    capability: tuple[int, int]
    """Compute capability, major and minor."""
    multiprocessors: int
    """Streaming multiprocessors that the model has enabled."""
    shared_memory_per_block: int
    """Shared memory that one block may ask for, in KiB."""
    memory_bytes: int
    """Device memory."""
    bandwidth: float
    """Peak of the device memory, in bytes a second."""

    @property
    def programmatic_launch(self) -> bool:
        """Whether a kernel can start before the one it depends on has ended (`griddepcontrol`, from capability 9.0)."""
        return self.capability >= (9, 0)

    @property
    def shared_memory_bytes(self) -> int:
        """Shared memory that one block may ask for, in bytes."""
        return self.shared_memory_per_block * KIB


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        c.name: c
        for c in (
            Chip("a100", "sm_80", (8, 0), 108, 163, 80 * GIB, 2.0e12),
            Chip("l40s", "sm_89", (8, 9), 142, 99, 48 * GIB, 0.864e12),
            Chip("rtx4090", "sm_89", (8, 9), 128, 99, 24 * GIB, 1.008e12),
            Chip("h100", "sm_90a", (9, 0), 132, 227, 80 * GIB, 3.35e12),
            Chip("h200", "sm_90a", (9, 0), 132, 227, 140 * GIB, 4.8e12),
            Chip("b200", "sm_100", (10, 0), 148, 227, 180 * GIB, 7.7e12),
            Chip("rtx5090", "sm_120", (12, 0), 170, 99, 32 * GIB, 1.79e12),
        )
    }
)

DEFAULT_CHIP = "h200"


def chip(name: str = DEFAULT_CHIP) -> Chip:
    """The chip of a name. Raises LaneError with the nearest names if there is none."""
    if name not in CHIPS:
        raise LaneError(unknown("chip", name, CHIPS))
    return CHIPS[name]
