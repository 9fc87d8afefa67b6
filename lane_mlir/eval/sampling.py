"""The choice of the next token, and the advance to it."""

from __future__ import annotations

import numpy as np
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.dialects.tg import AdvanceOp, ArgmaxOp
from lane_mlir.eval.arrays import Array, Indices
from lane_mlir.eval.functions import EvaluationFunctions


def argmax(x: Array) -> Indices:
    """The column of each row's largest value, the first of equal ones."""
    return np.argmax(x, axis=1).astype(np.int32)


def advance(id: Indices, token: Indices, position: Indices, item: int = 0) -> None:
    """token[item] = id[0], position[0] += 1."""
    token[item] = id[0]
    position[0] += 1


class SamplingFunctions(EvaluationFunctions):
    @impl(ArgmaxOp)
    def run_argmax(self, interpreter: Interpreter, op: ArgmaxOp, args: PythonValues) -> PythonValues:
        return (argmax(args[0]),)

    @impl(AdvanceOp)
    def run_advance(self, interpreter: Interpreter, op: AdvanceOp, args: PythonValues) -> PythonValues:
        advance(*args, item=op.place)
        return ()
