"""Sliding windows: which layers attend only to the last positions."""

from __future__ import annotations

from typing import cast

from lane_mlir.importers.model import Model
from lane_mlir.importers.step import Step

EVERY_LAYER = 0
"""The period of a pattern in which every layer is local."""


def windows_of(
    step: Step, *, period: int, default: int | None = None, required: bool = False, zero_is_none: bool = False
) -> tuple[int | None, ...]:
    """
    The window of each layer, None where it attends to every position of the step.

    Keys: attention.sliding_window (`default` if absent and not `required`; where `zero_is_none`, 0 says that there are
    no windows) and attention.sliding_window_pattern, an array with true for each local layer, or the period: the last
    layer of each period is global.
    """
    model, name = step.model, "attention.sliding_window"
    is_given = required or model.key(name) in model.checkpoint.metadata
    window = model.count(name, None, least=0 if zero_is_none else 1) if is_given else default
    local = local_layers(model, period)
    if not window:
        return (None,) * model.layers
    return tuple(window if is_local and window < step.context else None for is_local in local)


def has_windows(model: Model) -> bool:
    """Whether a family whose windows are optional has them."""
    return bool(model.optional("attention.sliding_window", int))


def local_layers(model: Model, period: int) -> tuple[bool, ...]:
    """Which layers are local, by the file's pattern, or else by the period."""
    name = "attention.sliding_window_pattern"
    key, metadata = model.key(name), model.checkpoint.metadata
    if not metadata.is_array(key):
        period = model.optional(name, int, period)
        if period < 0:
            raise model.refuse_key(name, f"is {period}, expected at least 0")
        return tuple(period == EVERY_LAYER or layer % period < period - 1 for layer in range(model.layers))
    flags = cast("list[object]", metadata.value(key))
    model.ignore(name)
    if len(flags) < model.layers or not all(flag in (0, 1) for flag in flags):
        raise model.refuse_key(name, f"has {len(flags)} values, expected 0 or 1 for each of {model.layers} layers")
    return tuple(bool(flag) for flag in flags[: model.layers])
