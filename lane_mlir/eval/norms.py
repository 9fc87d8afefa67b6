"""Norms of rows."""

from __future__ import annotations

import numpy as np
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.dialects.tg import L2NormOp, LayerNormOp, RmsNormOp
from lane_mlir.eval.arrays import Array
from lane_mlir.eval.functions import EvaluationFunctions


def rms_norm(x: Array, w: Array | None, eps: float) -> Array:
    """x·w / √(mean of x² + eps) of each row; w is 1 where absent."""
    y = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return y if w is None else y * w


def layer_norm(x: Array, w: Array, b: Array | None, eps: float) -> Array:
    """(x - mean)·w / √(variance + eps) + b of each row; b is 0 where absent."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    y = centred / np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + np.float32(eps)) * w
    return y if b is None else y + b


def l2_norm(x: Array, eps: float) -> Array:
    """x / max(√(sum of x²), eps) of each row."""
    return x / np.maximum(np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True)), np.float32(eps))


class NormFunctions(EvaluationFunctions):
    @impl(RmsNormOp)
    def run_rms_norm(self, interpreter: Interpreter, op: RmsNormOp, args: PythonValues) -> PythonValues:
        x, *w = args
        return (rms_norm(x, w[0] if w else None, op.eps.value.data),)

    @impl(LayerNormOp)
    def run_layer_norm(self, interpreter: Interpreter, op: LayerNormOp, args: PythonValues) -> PythonValues:
        x, w, *b = args
        return (layer_norm(x, w, b[0] if b else None, op.eps.value.data),)

    @impl(L2NormOp)
    def run_l2_norm(self, interpreter: Interpreter, op: L2NormOp, args: PythonValues) -> PythonValues:
        return (l2_norm(args[0], op.eps.value.data),)
