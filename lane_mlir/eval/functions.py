"""What the implementations of all ops share: the weights and the numerics that they are evaluated with."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.interpreter import InterpreterFunctions
from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Numerics, encoding_of, format_of_weight
from lane_mlir.eval.arrays import Array
from lane_mlir.eval.numerics import activation_numerics, quantize
from lane_mlir.eval.weights import Weights


@dataclass
class EvaluationFunctions(InterpreterFunctions):
    """Base of the implementations of one kind of op."""

    weights: Weights
    numerics: Numerics

    def product_input(self, x: Array, x_value: SSAValue, w_value: SSAValue) -> Array:
        """
        The activation as a product by the weight takes it: a plain one is quantized first where the numerics and the
        weight's format want it; one that is quantized already has been rounded.
        """
        if encoding_of(x_value) is not None:
            return x
        return quantize(x, activation_numerics(self.numerics, format_of_weight(w_value)))
