"""Printing of folds of a product: with the norm of its rows, with the rotations of its heads."""

from __future__ import annotations

from collections.abc import Sequence

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.cuda.printer.kernel import Folds, Kernel, Printing, constant, refuse
from lane_mlir.cuda.printer.norms import print_norm
from lane_mlir.cuda.printer.products import Products
from lane_mlir.cuda.printer.rotations import print_rope
from lane_mlir.dialects.launch import (
    FoldOp,
    GemmPartsOp,
    GemvOp,
    NormOp,
    RopeOp,
    RopePartsOp,
)


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

    def after(printing: Printing) -> str:
        read = f"{printing.reads('norm_add', residual)}, {printing.reads('norm_w', then.w)}"
        written = f"{printing.writes('norm_sum', then.sum)}, {printing.writes('norm_y', then.out if f32 else None)}"
        quantized = printing.writes_quantized("norm_y", then.out) if words else "nullptr, nullptr"
        squares = printing.writes("norm_squares", then.squares)
        return f"NormColumns<{words}, {constant(f32)}>{{{read}, {written}, {quantized}, {squares}}}"

    f32 = then.f32 is not None
    return [products.in_rows(printing, after)]


def print_product_rope(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """
    A kernel each: the last blocks to write a head take longer to see that they are than a kernel that rotates heads.
    """
    product, then = launch.first, launch.then
    assert isinstance(product, GemvOp | GemmPartsOp)
    assert isinstance(then, RopeOp | RopePartsOp)
    return [*Products.of_launch(product).kernels(printing), *print_rope(then, printing)]


FOLDS: Folds = {
    (GemvOp, NormOp): print_product_norm,
    (GemmPartsOp, NormOp): print_product_norm,
    (GemvOp, RopeOp): print_product_rope,
    (GemvOp, RopePartsOp): print_product_rope,
    (GemmPartsOp, RopeOp): print_product_rope,
    (GemmPartsOp, RopePartsOp): print_product_rope,
}
