"""Products by weights, by BLAS on weights dequantized once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, Run, in_order, read, refuse, units
from lane_mlir.cpu.landing import Store, fixed_place, store_at, store_forms
from lane_mlir.cpu.norms import root_mean_square
from lane_mlir.dialects.launch import (
    Affine,
    GemmPartsOp,
    GemvF32Op,
    GemvGluOp,
    GemvOp,
    HeadGemvOp,
    LaunchOp,
    Tail,
    TailAttr,
    Target,
)
from lane_mlir.dialects.tg import QUANTIZED_BLOCK, Activation, Numerics
from lane_mlir.eval import Array
from lane_mlir.eval.elementwise import ACTIVATIONS
from lane_mlir.eval.products import head_matmul, matmul
from lane_mlir.formats import Format


@dataclass(frozen=True)
class Input:
    """The activation of a product, [m, k]: an array that is always the same one, or one that is read anew."""

    read: Callable[[], Array]
    array: Array | None = None

    @staticmethod
    def of(op: GemvOp | GemmPartsOp | GemvGluOp, buffers: Buffers, fmt: Format) -> Input:
        """As a launch takes it in a product by a weight of a format; divided, where a norm has left that to it."""
        k, m = op.k.data, op.m.data
        x = Input.whole(buffers, op.x, fmt, k, m, op.tail)
        if op.squares is None or op.norm_eps is None:
            return x
        squares, eps = buffers.matrix(op.squares, k // QUANTIZED_BLOCK), np.float32(op.norm_eps.data)

        return Input(lambda: x.read() / root_mean_square(squares, k, eps))

    @staticmethod
    def whole(buffers: Buffers, x: SSAValue, fmt: Format, k: int, m: int, tail: TailAttr | None = None) -> Input:
        """As a product by a weight of a format takes it: quantized where the numerics and the format say so."""
        rows = (tail.data if tail is not None else Tail(0, m)).first
        if buffers.numerics is Numerics.DEQUANT or not fmt.is_block:
            array = buffers.matrix(x, k)[rows : rows + m]
            return Input(lambda: array, array)
        form = buffers.quantized(x).part(rows * k, (rows + m) * k)
        return Input(lambda: form.values().reshape(m, k))


def multiply(x: Input, w: Array, out: Array) -> Run:
    """out = x·wᵀ: w [n, k], out [m, n], C-contiguous."""
    if x.array is not None:
        return partial(matmul, x.array, w, out)
    return lambda: matmul(x.read(), w, out)


def bind_product(
    buffers: Buffers, x: Input, w: SSAValue, affine: Affine, m: int, n: int, place: Array | None, store: Store
) -> Run:
    """out = x·wᵀ, scaled and with its bias, straight into `place` if it is there and whole, else by way of `store`."""
    direct = place is not None and place.dtype == np.float32 and place.flags.c_contiguous
    out = place if place is not None and direct else np.empty((m, n), np.float32)
    runs: list[Run] = [multiply(x, buffers.values(w).reshape(n, -1), out)]
    then = [(np.multiply, affine.scale), (np.add, affine.bias)]
    for function, operand in reversed(then) if affine.scaled_bias else then:
        if operand is not None:
            runs.append(partial(function, out, buffers.values(operand), out))
    if not direct:
        runs.append(partial(store, out))
    return in_order(*runs)


def bind_landing(buffers: Buffers, x: Input, w: SSAValue, affine: Affine, m: int, n: int, target: Target) -> Run:
    """A product whose result lands at a target."""
    place = fixed_place(buffers, target, m, n)
    return bind_product(buffers, x, w, affine, m, n, place, store_at(buffers, target, m, n))


def refuse_batched_rows(op: LaunchOp, *targets: Target) -> None:
    """Rows of sequences would each land at a position of their own, which no such launch states."""
    if op.is_batch() and any(target.dst.takes_param for target in targets):
        refuse(op, "cannot set the rows of several sequences at one position (batch, with a row parameter)")


def bind_gemv(op: GemvOp, buffers: Buffers) -> Run:
    m, n = op.m.data, op.n.data
    refuse_batched_rows(op, op.target)
    x = Input.of(op, buffers, op.format.data)
    if op.quant is None:
        return bind_landing(buffers, x, op.w, op.affine, m, n, op.target)
    if not op.target.dst.own:
        refuse(op, "cannot write its result quantized in part of a buffer (quant, with a place in y)")
    store = store_forms(buffers, op.y, op.f32, op.quant)
    return bind_product(buffers, x, op.w, op.affine, m, n, None, store)


def bind_gemv_f32(op: GemvF32Op, buffers: Buffers) -> Run:
    m, n = op.m.data, op.n.data
    refuse_batched_rows(op, op.target)
    x = Input.whole(buffers, op.x, Format.F32, op.k.data, m)
    return bind_landing(buffers, x, op.w, op.affine, m, n, op.target)


def bind_gemm_parts(op: GemmPartsOp, buffers: Buffers) -> Run:
    m, products = op.m.data, op.each()
    refuse_batched_rows(op, *(p.y for p in products))
    x = Input.of(op, buffers, products[0].format)
    if x.array is None:
        # Reading the words once for all products.
        values = np.empty((m, op.k.data), np.float32)
        load, x = partial(_load, x.read, values), Input(lambda: values, values)
        return in_order(load, *(bind_landing(buffers, x, p.w, p.affine, m, p.n, p.y) for p in products))
    return in_order(*(bind_landing(buffers, x, p.w, p.affine, m, p.n, p.y) for p in products))


def _load(source: Callable[[], Array], into: Array) -> None:
    into[...] = source()


def bind_gemv_glu(op: GemvGluOp, buffers: Buffers) -> Run:
    n, m = op.n.data, op.m.data
    gate, up = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
    runs: list[Run] = []
    for out, w, affine, fmt in zip((gate, up), (op.wg, op.wu), (op.gate, op.up), op.formats.data, strict=True):
        x = Input.of(op, buffers, fmt)
        runs.append(bind_product(buffers, x, w, affine, m, n, out, _nowhere))
    act = ACTIVATIONS[Activation.SILU if op.act is None else op.act.data]
    store = store_forms(buffers, op.out, op.f32, op.quant)
    return in_order(*runs, lambda: store(act(gate) * up))


def _nowhere(values: Array) -> None:
    """The result is where it belongs already."""


def bind_head_gemv(op: HeadGemvOp, buffers: Buffers) -> Run:
    m, heads, a, b = op.m.data, op.heads.data, op.a.data, op.b.data
    refuse_batched_rows(op, op.target)
    shared, part = op.shared is not None, op.part.data if op.part is not None else None
    x = units(buffers.plain(op.x), m if shared else m * heads, a, part)
    x = x if shared else x.reshape(m, heads, a)
    transposed = op.transposed is not None
    w = buffers.values(op.w).reshape(heads, a, b) if transposed else buffers.values(op.w).reshape(heads, b, a)
    count, width = (m, heads * b) if op.rows_out is not None else (m * heads, b)
    if op.upto is None or op.step is None:
        source, store = read(x), store_at(buffers, op.target, count, width)
        return lambda: store(head_matmul(source(), w, shared, transposed))
    place, position, step = fixed_place(buffers, op.target, count, width), buffers.position(op.upto), op.step.data
    if place is None:
        refuse(op, "cannot compute rows up to a position and set them at another (upto, with a row parameter)")

    def run_up_to() -> None:
        rows = min(m, position() + step)
        y = head_matmul(x[:rows].astype(np.float32), w, shared, transposed)
        place[: rows * count // m] = y.reshape(-1, width)

    return run_up_to
