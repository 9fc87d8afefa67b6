"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, Run, refuse
from lane_mlir.cpu.landing import store_at
from lane_mlir.cpu.products import Input, refuse_batched_rows
from lane_mlir.dialects.launch import MoeOp
from lane_mlir.eval import Array, activation_numerics
from lane_mlir.eval.elementwise import sigmoid
from lane_mlir.eval.products import Experts, Routing, matmul, moe
from lane_mlir.formats import Format


def bind_moe(op: MoeOp, buffers: Buffers) -> Run:
    d, rows = op.d.data, op.rows.data
    refuse_batched_rows(op, op.target)
    router_format = Format.F32 if op.router is None else op.router.data
    if router_format.is_block and not all(fmt.is_block for fmt in op.input_formats()):
        refuse(op, f"cannot route by {router_format} rows to experts of plain values (router, formats)")
    router, router_bias, selection_bias = buffers.matrix(op.wr, d), buffers.optional(op.rb), buffers.optional(op.sb)
    experts, routing = _experts(op, buffers), _routing(op)
    plain, quantized = (_input(op, buffers, fmt) for fmt in (router_format, _block_format(op)))
    store, add_shared = store_at(buffers, op.target, rows, d), _bind_shared(op, buffers)

    def run() -> None:
        x = plain()
        y = moe(x, router, experts, routing, router_bias, selection_bias, quantized())
        store(y if add_shared is None else y + add_shared(x))

    return run


def _input(op: MoeOp, buffers: Buffers, fmt: Format) -> Callable[[], Array]:
    """The activation as a product by weights of a format takes it."""
    return Input.whole(buffers, op.x, fmt, op.d.data, op.rows.data).read


def _block_format(op: MoeOp) -> Format:
    """A block format of the weights that the activation is multiplied by, if there is one."""
    return next((fmt for fmt in op.input_formats() if fmt.is_block), Format.F32)


def _routing(op: MoeOp) -> Routing:
    return Routing(
        used=op.k.data,
        scoring=op.scoring.data,
        renormalize=op.renormalize is not None,
        scale=op.scale.data,
        groups=op.groups.data,
        groups_used=op.groups_used.data,
    )


def _experts(op: MoeOp, buffers: Buffers) -> Experts:
    """The experts that are chosen from."""
    count, d, dff = op.experts.data, op.d.data, op.dff.data

    def biases(value: SSAValue | None, width: int) -> Array | None:
        return None if value is None else buffers.values(value).reshape(count, width)

    return _made_of(
        op,
        buffers,
        (op.wg, op.wu, op.wd),
        (biases(op.bg, dff), biases(op.bu, dff), biases(op.bd, d)),
        formats=op.formats.data,
        shape=(count, dff, d),
    )


def _made_of(
    op: MoeOp,
    buffers: Buffers,
    weights: tuple[SSAValue, SSAValue, SSAValue],
    biases: tuple[Array | None, Array | None, Array | None],
    formats: Sequence[Format],
    shape: tuple[int, int, int],
) -> Experts:
    (gate, up, down), (count, dff, d) = (buffers.values(w) for w in weights), shape
    of_gate, of_up, of_down = (activation_numerics(buffers.numerics, fmt) for fmt in formats)
    return Experts(
        gate.reshape(count, dff, d),
        up.reshape(count, dff, d),
        down.reshape(count, d, dff),
        *biases,
        activation=op.act.data,
        alpha=op.alpha.data if op.alpha is not None else 1.0,
        limit=op.limit.data if op.limit is not None else 0.0,
        numerics=(of_gate, of_up, of_down),
    )


def _bind_shared(op: MoeOp, buffers: Buffers) -> Callable[[Array], Array] | None:
    """What the shared expert adds, given the router's activation; None if there is no such expert."""
    shared = op.shared
    if shared is None:
        return None
    weights, no_biases = (shared.wg, shared.wu, shared.wd), (None, None, None)
    expert = _made_of(op, buffers, weights, no_biases, shared.formats, (1, shared.dff, op.d.data))
    x_gate, x_up = (_input(op, buffers, fmt) for fmt in shared.formats[:2])
    gate = None if shared.gate is None else buffers.matrix(shared.gate, op.d.data)

    def compute(x: Array) -> Array:
        y = expert.compute(0, x_gate(), x_up())
        return y if gate is None else y * sigmoid(matmul(x, gate))

    return compute
