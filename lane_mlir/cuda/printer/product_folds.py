"""Printing of folds of a product: with the norm of its rows, with the rotations of its heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.cuda.printer.kernel import Folds, Kernel, Printing, constant, refuse
from lane_mlir.cuda.printer.multiplying import Rows
from lane_mlir.cuda.printer.norms import print_norm
from lane_mlir.cuda.printer.products import After, Products
from lane_mlir.cuda.printer.rotations import print_rope, rope_shape, rope_side, rope_tables, rotations_of
from lane_mlir.dialects.launch import (
    FoldOp,
    GemmPartsOp,
    GemvOp,
    NormOp,
    RopeOp,
    RopePartsOp,
    Rotation,
    Touch,
    buffer_of,
)

_HEADER = "gemv_fold.cuh"


def print_product_norm(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """
    Where the readers divide, the blocks of a matrix-vector kernel norm the columns that they compute. Else the norm is
    a kernel of its own: a row that the last block norms while nothing else runs takes longer than that.
    """
    product, then = launch.first, launch.then
    assert isinstance(product, GemvOp | GemmPartsOp)
    assert isinstance(then, NormOp)
    products = Products.of_launch(product)
    if then.squares is None:
        return [*products.kernels(printing), *print_norm(then, printing)]
    if product.m.data > GEMV_ROWS or len(products.products) > 1:
        raise refuse(launch, "the blocks of a product in tiles, or of several, do not norm what they compute")
    residual = then.add if products.products[0].y.buffer is then.x else then.x
    words = printing.words if then.quant is not None else 0

    def after(printing: Printing, rows: Rows) -> str:
        read = f"{printing.reads('norm_add', residual)}, {printing.reads('norm_w', then.w)}"
        written = f"{printing.writes('norm_sum', then.sum)}, {printing.writes('norm_y', then.out if f32 else None)}"
        quantized = printing.writes_quantized("norm_y", then.out) if words else "nullptr, nullptr"
        squares = printing.writes("norm_squares", then.squares)
        return f"NormColumns<{words}, {constant(f32)}>{{{read}, {written}, {quantized}, {squares}}}"

    f32 = then.f32 is not None
    return [products.in_rows(printing, After(after, _HEADER, held=True))]


@dataclass(frozen=True)
class _Rotated:
    """A rotation of heads that are columns of a product: which, the first head's column, and their distance."""

    rotation: Rotation
    product: int
    first: int
    pitch: int


def print_product_rope(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """The last block to write columns of a head rotates it; rotations of tiles are a kernel of their own."""
    product, then = launch.first, launch.then
    assert isinstance(product, GemvOp | GemmPartsOp)
    assert isinstance(then, RopeOp | RopePartsOp)
    products = Products.of_launch(product)
    rotated = [_rotated(rotation, products, then.hd.data) for rotation in rotations_of(then)]
    found = [r for r in rotated if r is not None]
    distinct = len({r.product for r in found}) == len(rotated)
    if product.m.data > GEMV_ROWS or not distinct:
        return [*products.kernels(printing), *print_rope(then, printing)]

    def after(printing: Printing, rows: Rows) -> str:
        text, tables = "NothingAfter{}", rope_tables(then, printing)
        counters = printing.scratch("counters", "u32", 4 * sum(r.rotation.per_row for r in found), zeroed=True)
        begin = 0
        for i, r in enumerate(found):
            side = rope_side(r.rotation, printing, f"_rotated{i}")
            types = f"{rope_shape(then)}, {r.product}, {r.first}, {r.pitch}, {_type(side)}, {_type(text)}"
            text = f"RopeAfter<{types}>{{{tables}, {side}, {counters} + {begin}, {text}}}"
            begin += r.rotation.per_row
        return text

    return [products.in_rows(printing, After(after, _HEADER))]


def _type(value: str) -> str:
    """The type of a braced value: what stands before the brace that its last one closes."""
    depth = 0
    for at in range(len(value) - 1, -1, -1):
        depth += (value[at] == "}") - (value[at] == "{")
        if depth == 0:
            return value[:at]
    raise AssertionError(value)


def _rotated(rotation: Rotation, products: Products, hd: int) -> _Rotated | None:
    """Where the heads of a rotation are in the products' results; None if they are not columns of one, row by row."""
    held, start, _ = buffer_of(rotation.x).holder(Touch.PLAIN)
    for i, product in enumerate(products.products):
        if not product.y.dst.own or buffer_of(product.y.buffer).holder(Touch.PLAIN)[:2] != (held, 0):
            continue
        pitch = rotation.part.pitch if rotation.part is not None else hd
        first = rotation.part.offset if rotation.part is not None else 0
        whole = rotation.per_row * pitch == product.n and start == 0
        rows = rotation.heads == rotation.per_row * products.of.m
        return _Rotated(rotation, i, first, pitch) if whole and rows else None
    return None


FOLDS: Folds = {
    (GemvOp, NormOp): print_product_norm,
    (GemmPartsOp, NormOp): print_product_norm,
    (GemvOp, RopeOp): print_product_rope,
    (GemvOp, RopePartsOp): print_product_rope,
    (GemmPartsOp, RopeOp): print_product_rope,
    (GemmPartsOp, RopePartsOp): print_product_rope,
}
