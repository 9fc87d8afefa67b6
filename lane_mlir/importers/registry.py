"""Which module builds which architecture; modules are imported when a checkpoint needs them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.diagnostics import LaneError, unknown
from lane_mlir.importers.step import Step

Importer: TypeAlias = Callable[[Step], SSAValue]
"""Builds the ops of a step up to its logits, which it returns."""

ARCHITECTURES: dict[str, str] = {
    "llama": "llama",
}
"""The module below `lane_mlir.importers` of each architecture, by `general.architecture`."""

_importers: dict[str, Importer] = {}


def importer(architecture: str) -> Callable[[Importer], Importer]:
    """Registers the function that builds an architecture."""

    def register(build: Importer) -> Importer:
        _importers[architecture] = build
        return build

    return register


def importer_of(architecture: str) -> Importer:
    """The function that builds an architecture; LaneError, with the nearest names, if there is none."""
    if architecture not in ARCHITECTURES:
        raise LaneError(unknown("architecture", architecture, ARCHITECTURES))
    import_module(f"lane_mlir.importers.{ARCHITECTURES[architecture]}")
    return _importers[architecture]
