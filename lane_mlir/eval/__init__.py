"""
The meaning of the tensor graph in numpy, through xDSL's interpreter.

`run_step(module, weights, arguments)` evaluates a step. The modules beside this one have each op's formula as a
function of arrays, which the CPU target computes with too. `validate` compares what a step computes before and after
each rewrite.
"""

from __future__ import annotations

from lane_mlir.eval.arrays import Array, Indices, StateArray
from lane_mlir.eval.numerics import Word, activation_numerics, quantize, quantize_words
from lane_mlir.eval.step import DTYPES, TensorGraphFunctions, make_arguments, run_step
from lane_mlir.eval.weights import CheckpointWeights, GivenWeights, RandomWeights, Weights

__all__ = [
    "DTYPES",
    "Array",
    "CheckpointWeights",
    "GivenWeights",
    "Indices",
    "RandomWeights",
    "StateArray",
    "TensorGraphFunctions",
    "Weights",
    "Word",
    "activation_numerics",
    "make_arguments",
    "quantize",
    "quantize_words",
    "run_step",
]
