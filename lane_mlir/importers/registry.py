"""Which module builds which architecture; modules are imported when a checkpoint needs them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.diagnostics import unknown
from lane_mlir.importers.model import Model
from lane_mlir.importers.step import Step

Importer: TypeAlias = Callable[[Step], SSAValue]
"""Builds the ops of a step up to its logits, which it returns."""

ARCHITECTURES: dict[str, str] = {
    "deepseek2": "deepseek2",
    "ernie4_5": "ernie",
    "exaone4": "exaone",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "glm4": "glm4",
    "glm4moe": "glm4moe",
    "gpt-oss": "gpt_oss",
    "granite": "granite",
    "granitemoe": "granite",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2",
    "llama": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen3next": "qwen3next",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
}
"""The module below `lane_mlir.importers` of each architecture, by `general.architecture`."""

_importers: dict[str, Importer] = {}


def importer(architecture: str) -> Callable[[Importer], Importer]:
    """Registers the function that builds an architecture."""

    def register(build: Importer) -> Importer:
        _importers[architecture] = build
        return build

    return register


def importer_of(model: Model) -> Importer:
    """The function that builds a model's architecture; LaneError, with the nearest names, if there is none."""
    architecture = model.architecture
    if architecture not in ARCHITECTURES:
        raise model.refuse(unknown("architecture", architecture, ARCHITECTURES))
    import_module(f"lane_mlir.importers.{ARCHITECTURES[architecture]}")
    return _importers[architecture]
