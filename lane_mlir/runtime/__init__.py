"""The Python API: a checkpoint loaded onto a device, compiled step by step, generating text."""

from __future__ import annotations

from lane_mlir.runtime.device import DEVICES, Device, Program
from lane_mlir.runtime.generation import Finish, Generation
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.runtime.step import Compiled, Progress, Step, Timing, load

__all__ = [
    "DEVICES",
    "Compiled",
    "Device",
    "Finish",
    "Generation",
    "Program",
    "Progress",
    "Recipe",
    "Step",
    "Timing",
    "load",
]
