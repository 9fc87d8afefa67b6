"""Importers: a checkpoint's step as a module of `tg`, one file a family of models."""

from __future__ import annotations

from lane_mlir.dialects.tg import MAX_SEQUENCES
from lane_mlir.importers.importing import DEFAULT_CONTEXT, import_step
from lane_mlir.importers.registry import ARCHITECTURES, Importer, importer

__all__ = ["ARCHITECTURES", "DEFAULT_CONTEXT", "MAX_SEQUENCES", "Importer", "import_step", "importer"]
