"""
lane-mlir: one step of a language model, from a GGUF checkpoint to a fixed schedule of fused kernels, and its run.

    step = lane_mlir.load("model.gguf")
    for piece in step.generate("Once"):
        print(piece, end="", flush=True)

`load` gives a `Step`; `LaneError` is what anything a user can mend raises; `Sampler` chooses tokens. Each is imported
when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lane_mlir.diagnostics import LaneError
    from lane_mlir.runtime import Step, load
    from lane_mlir.text import Sampler

__all__ = ["LaneError", "Sampler", "Step", "load"]

_HOMES = {
    "LaneError": "lane_mlir.diagnostics",
    "Sampler": "lane_mlir.text",
    "Step": "lane_mlir.runtime",
    "load": "lane_mlir.runtime",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
