"""Text to token ids and back, from a checkpoint's own metadata, and the choice of the next token."""

from __future__ import annotations

from lane_mlir.text.sampling import Sampler
from lane_mlir.text.tokenizer import Stream, Tokenizer

__all__ = ["Sampler", "Stream", "Tokenizer"]
