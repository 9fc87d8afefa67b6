"""Products by weights: matrix product, per-head product, mixture of experts; and the quantization of activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from xdsl.interpreter import Interpreter, PythonValues, impl

from lane_mlir.dialects.tg import (
    MAX_SEQUENCES,
    ExpertActivation,
    HeadMatmulOp,
    MatmulOp,
    MoeOp,
    Numerics,
    QuantizeOp,
    Scoring,
    format_of_weight,
)
from lane_mlir.eval.arrays import Array
from lane_mlir.eval.elementwise import gelu_tanh, sigmoid, silu
from lane_mlir.eval.functions import EvaluationFunctions
from lane_mlir.eval.numerics import activation_numerics, quantize

SMALLEST_SUM = 2.0**-14
"""The least that the weights of chosen experts are divided by."""

_WEIGHTS_AT_ONCE = 1 << 20
"""Weights that are multiplied by all rows at once: 4 MB, which a last-level cache holds."""


def matmul(x: Array, w: Array, out: Array | None = None) -> Array:
    """
    x·wᵀ: x [m, k], w [n, k], y [m, n], which is `out` where given, C-contiguous.

    Each of up to MAX_SEQUENCES rows is a product by itself, its sums those that it has alone: BLAS adds up in an order
    that depends on the number of rows. So what a sequence computes does not depend on which run beside it.
    """
    (m, k), n = x.shape, len(w)
    y = np.empty((m, n), np.float32) if out is None else out
    if m > MAX_SEQUENCES:
        return np.matmul(x, w.T, y)
    # Each part of the weights for all rows before the next, while it is in the cache.
    at_once = max(1, _WEIGHTS_AT_ONCE // k)
    for start in range(0, n, at_once):
        part = w[start : start + at_once]
        for row, result in zip(x, y, strict=True):
            np.dot(part, row, result[start : start + at_once])
    return y


def head_matmul(x: Array, w: Array, shared: bool = False, transposed: bool = False) -> Array:
    """
    y[r, h] = w[h]·x[r, h]: x [m, heads·a], or [m, a] where `shared`; w [heads, b, a], or [heads, a, b] where
    `transposed`; y [m, heads·b].
    """
    w = w.transpose(0, 2, 1) if transposed else w
    heads, b, a = w.shape
    rows = x.reshape(-1, 1 if shared else heads, a)
    if len(rows) <= MAX_SEQUENCES:
        # Each by itself, as in `matmul`.
        return np.matmul(w, rows[..., None]).reshape(-1, heads * b)
    y = np.matmul(rows.transpose(1, 0, 2), w.transpose(0, 2, 1))
    return y.transpose(1, 0, 2).reshape(-1, heads * b)


def softmax(x: Array) -> Array:
    """eˣ over its sum, of each row."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Routing:
    """How a router chooses experts and weighs them; the fields are those of `tg.moe`."""

    used: int
    scoring: Scoring = Scoring.SOFTMAX
    renormalize: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1

    def choose(self, logits: Array, selection_bias: Array | None = None) -> tuple[NDArray[np.intp], Array]:
        """The chosen experts of each row, best first, [rows, used], and their weights."""
        scores = self._scores(logits)
        selection = scores if selection_bias is None else scores + selection_bias
        if self.groups > 1:
            selection = np.where(self._open(selection), selection, -np.inf)
        chosen = _best(selection, self.used)
        weights = np.take_along_axis(scores, chosen, axis=1)
        if self.scoring is Scoring.SOFTMAX_CHOSEN:
            weights = softmax(weights)
        if self.renormalize:
            weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.float32(SMALLEST_SUM))
        return chosen, weights * np.float32(self.scale)

    def _scores(self, logits: Array) -> Array:
        match self.scoring:
            case Scoring.SOFTMAX:
                return softmax(logits)
            case Scoring.SIGMOID:
                return sigmoid(logits)
            case Scoring.SOFTMAX_CHOSEN:
                return logits

    def _open(self, selection: Array) -> NDArray[np.bool_]:
        """Which experts are in the groups that are chosen from: those with the largest sums of their two best."""
        rows, experts = selection.shape
        runs = np.sort(selection.reshape(rows, self.groups, -1), axis=2)
        groups = _best(runs[:, :, -2:].sum(axis=2), self.groups_used)
        is_open = np.zeros((rows, self.groups), np.bool_)
        np.put_along_axis(is_open, groups, True, axis=1)
        return np.repeat(is_open, experts // self.groups, axis=1)


def _best(scores: Array, count: int) -> NDArray[np.intp]:
    """The columns of the largest scores of each row, largest first, the lower column first among equals."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


@dataclass(frozen=True)
class Experts:
    """
    The weights of a mixture's experts, what they compute between them, and how each product takes its activation.

    gate, up [experts, ff, d], down [experts, d, ff]; biases [experts, ff] or [experts, d].
    """

    gate: Array
    up: Array
    down: Array
    gate_bias: Array | None = None
    up_bias: Array | None = None
    down_bias: Array | None = None
    activation: ExpertActivation = ExpertActivation.SILU
    alpha: float = 1.0
    limit: float = 0.0
    numerics: tuple[Numerics, Numerics, Numerics] = (Numerics.DEQUANT, Numerics.DEQUANT, Numerics.DEQUANT)
    """Of gate, up and down."""

    def compute(self, expert: int, x_gate: Array, x_up: Array) -> Array:
        """What an expert makes of rows, as its gate product takes them and as its up product does."""
        gate = _add(matmul(x_gate, self.gate[expert]), self.gate_bias, expert)
        up = _add(matmul(x_up, self.up[expert]), self.up_bias, expert)
        hidden = quantize(expert_activation(self.activation, gate, up, self.alpha, self.limit), self.numerics[2])
        return _add(matmul(hidden, self.down[expert]), self.down_bias, expert)


def _add(x: Array, biases: Array | None, expert: int) -> Array:
    return x if biases is None else x + biases[expert]


def expert_activation(kind: ExpertActivation, gate: Array, up: Array, alpha: float = 1.0, limit: float = 0.0) -> Array:
    """silu(g)·u, gelu_tanh(g)·u, or g'·sigmoid(alpha·g')·(u' + 1) of g and u clamped to `limit` (g only from above)."""
    match kind:
        case ExpertActivation.SILU:
            return silu(gate) * up
        case ExpertActivation.GELU_TANH:
            return gelu_tanh(gate) * up
        case ExpertActivation.CLAMPED_SWIGLU:
            gate = np.minimum(gate, np.float32(limit))
            up = np.clip(up, np.float32(-limit), np.float32(limit))
            return gate * sigmoid(np.float32(alpha) * gate) * (up + 1)


def moe(
    x: Array,
    router: Array,
    experts: Experts,
    routing: Routing,
    router_bias: Array | None = None,
    selection_bias: Array | None = None,
    quantized: Array | None = None,
) -> Array:
    """
    The weighted sum of the experts that the router chooses for each row: x, y [m, d], router [experts, d]; `quantized`
    is x quantized already, for the products that take it so.
    """
    logits = matmul(x, router)
    x_gate, x_up = (
        quantize(x, numerics) if quantized is None or numerics is Numerics.DEQUANT else quantized
        for numerics in experts.numerics[:2]
    )
    logits = logits if router_bias is None else logits + router_bias
    return mixture(logits, x_gate, x_up, experts, routing, selection_bias)


def mixture(
    logits: Array,
    x_gate: Array,
    x_up: Array,
    experts: Experts,
    routing: Routing,
    selection_bias: Array | None = None,
) -> Array:
    """The mixture of rows with the router's logits [m, experts], as the gate and the up products take these rows."""
    chosen, weights = routing.choose(logits, selection_bias)
    y = np.zeros_like(x_gate)
    for expert in np.unique(chosen):
        rows, places = np.nonzero(chosen == expert)
        y[rows] += weights[rows, places, None] * experts.compute(int(expert), x_gate[rows], x_up[rows])
    return y


class ProductFunctions(EvaluationFunctions):
    @impl(QuantizeOp)
    def run_quantize(self, interpreter: Interpreter, op: QuantizeOp, args: PythonValues) -> PythonValues:
        return (quantize(args[0], op.numerics),)

    @impl(MatmulOp)
    def run_matmul(self, interpreter: Interpreter, op: MatmulOp, args: PythonValues) -> PythonValues:
        x, w = args
        return (matmul(self.product_input(x, op.x, op.w), w),)

    @impl(HeadMatmulOp)
    def run_head_matmul(self, interpreter: Interpreter, op: HeadMatmulOp, args: PythonValues) -> PythonValues:
        x, w = args[:2]
        return (head_matmul(np.asarray(x, np.float32), w, op.shared is not None, op.transposed is not None),)

    @impl(MoeOp)
    def run_moe(self, interpreter: Interpreter, op: MoeOp, args: PythonValues) -> PythonValues:
        value_of = dict(zip(op.operands, args, strict=True))
        biases = {
            name: None if bias is None else value_of[bias]
            for name, bias in (("gate_bias", op.gate_bias), ("up_bias", op.up_bias), ("down_bias", op.down_bias))
        }
        gate, up, down = (
            activation_numerics(self.numerics, format_of_weight(weight)) for weight in (op.gate, op.up, op.down)
        )
        experts = Experts(
            *(value_of[weight] for weight in (op.gate, op.up, op.down)),
            **biases,
            activation=op.activation.data,
            alpha=1.0 if op.alpha is None else op.alpha.value.data,
            limit=0.0 if op.limit is None else op.limit.value.data,
            numerics=(gate, up, down),
        )
        router_bias = None if op.router_bias is None else value_of[op.router_bias]
        selection_bias = None if op.selection_bias is None else value_of[op.selection_bias]
        quantized = None if op.quantized is None else value_of[op.quantized]
        routing = routing_of(op)
        return (moe(value_of[op.x], value_of[op.router], experts, routing, router_bias, selection_bias, quantized),)


def routing_of(op: MoeOp) -> Routing:
    """The routing that an op states."""
    return Routing(
        used=op.used.value.data,
        scoring=op.scoring.data,
        renormalize=op.renormalize is not None,
        scale=op.scale.value.data,
        groups=op.groups.value.data,
        groups_used=op.groups_used.value.data,
    )
