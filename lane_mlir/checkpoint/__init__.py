"""Reading model files: GGUF checkpoints, validated as a whole before anything is taken from them."""

from __future__ import annotations

from lane_mlir.checkpoint.checkpoint import Checkpoint, TensorError
from lane_mlir.checkpoint.metadata import Metadata
from lane_mlir.checkpoint.tensor import Tensor

__all__ = ["Checkpoint", "Metadata", "Tensor", "TensorError"]
