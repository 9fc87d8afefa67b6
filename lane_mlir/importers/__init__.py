"""
Importers: a checkpoint's step as a module of `tg`, one file a family of models.

What is imported from here is imported when it is first used, so that `model`, which reads metadata, takes no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lane_mlir.importers.importing import import_step
    from lane_mlir.importers.registry import ARCHITECTURES, Importer, importer

__all__ = ["ARCHITECTURES", "Importer", "import_step", "importer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "importing" if name == "import_step" else "registry"
    return getattr(import_module(f"{__name__}.{home}"), name)
