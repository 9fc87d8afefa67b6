"""Elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.dialects.tg import Activation, BinaryOp, BinaryOperator, ScaleOp, UnaryOp
from lane_mlir.eval.arrays import Array
from lane_mlir.eval.functions import EvaluationFunctions

_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """1 / (1 + e⁻ˣ)."""
    # e⁻ˣ is infinite for very negative x, and the quotient then 0 as it should be.
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-x))


def silu(x: Array) -> Array:
    """x·sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """x·Φ(x), Φ the distribution function of the standard normal."""
    wide = x.astype(np.float64)
    return (wide * 0.5 * (1 + _erf(wide / math.sqrt(2)))).astype(np.float32)


def gelu_tanh(x: Array) -> Array:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""
    with np.errstate(over="ignore"):
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def softplus(x: Array) -> Array:
    """log(1 + eˣ) without overflow: the identity for large x."""
    return np.logaddexp(np.float32(0), x)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


ACTIVATIONS: Mapping[Activation, Callable[[Array], Array]] = MappingProxyType(
    {
        Activation.SILU: silu,
        Activation.GELU: gelu,
        Activation.GELU_TANH: gelu_tanh,
        Activation.SIGMOID: sigmoid,
        Activation.SOFTPLUS: softplus,
        Activation.TANH: np.tanh,
        Activation.RELU: relu,
        Activation.EXP: np.exp,
    }
)
"""The function of each activation."""

OPERATORS: Mapping[BinaryOperator, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        BinaryOperator.ADD: np.add,
        BinaryOperator.SUB: np.subtract,
        BinaryOperator.MUL: np.multiply,
        BinaryOperator.DIV: np.divide,
    }
)
"""The function of each operator; the second operand is broadcast to the first as numpy does."""


class ElementwiseFunctions(EvaluationFunctions):
    @impl(BinaryOp)
    def run_binary(self, interpreter: Interpreter, op: BinaryOp, args: PythonValues) -> PythonValues:
        a, b = args
        return (OPERATORS[op.operator.data](a, b),)

    @impl(UnaryOp)
    def run_unary(self, interpreter: Interpreter, op: UnaryOp, args: PythonValues) -> PythonValues:
        return (ACTIVATIONS[op.activation.data](args[0]),)

    @impl(ScaleOp)
    def run_scale(self, interpreter: Interpreter, op: ScaleOp, args: PythonValues) -> PythonValues:
        return (args[0] * np.float32(op.factor.value.data),)
