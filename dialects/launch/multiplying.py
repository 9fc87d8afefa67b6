"""What the launches that multiply an activation by weights share."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.dialects.launch.attributes import DType, NumberAttr, RealAttr, Tail
from lane_mlir.dialects.launch.buffers import buffer_of
from lane_mlir.dialects.launch.operation import LaunchOp
from lane_mlir.dialects.tg.attributes import Numerics
from lane_mlir.formats import Format

TAIL = " (`tail` $tail^)?"

NORMED = " (`over` `rms` $squares^ `eps` `=` $norm_eps)?"
"""An activation that a launch.norm with `squares` has left for its readers to divide."""

ONE = NumberAttr(1)

AFFINE = " (`scale` $scale^)? (`bias` $bias^)? (`scaled_bias` $scaled_bias^)?"


@dataclass(frozen=True)
class Affine:
    """
    What is done to the sums of a product: y[r, j] = scale·Σ + bias[j], or scale·(Σ + bias[j]) where `scaled_bias`.

    `scale` is one value, 1 if there is none; `bias` [n], 0 if there is none.
    """

    scale: SSAValue | None = None
    bias: SSAValue | None = None
    scaled_bias: bool = False


PLAIN = Affine()
"""The sums as they are."""


def expect_affine(op: LaunchOp, affine: Affine, n: int, of: str = "") -> None:
    """Refuse a scale that is not one value, a bias of another width, and a scaled bias of which one is not there."""
    op.expect_length(f"scale{of}", affine.scale, 1, "one value")
    op.expect_length(f"bias{of}", affine.bias, n, f"n = {n}")
    if affine.scaled_bias and (affine.scale is None or affine.bias is None):
        raise op.refuse(f"scales a bias{of} that is not there, or by nothing (scaled_bias needs scale and bias)")


def expect_rows(op: LaunchOp, x: SSAValue, m: int, k: int, tail: Tail | None) -> None:
    """Refuse an activation that has not the rows that a product computes, or those of the chunk it takes them from."""
    if tail is None:
        op.expect_length("x", x, m * k, f"m = {m} by k = {k}")
        return
    op.expect_length("x", x, tail.rows * k, f"{tail.rows} rows of the chunk by k = {k}")
    if tail.first + m > tail.rows:
        raise op.refuse(f"computes rows {tail.first} to {tail.first + m} of a chunk of {tail.rows}")


def expect_squares(op: LaunchOp, squares: SSAValue | None, rows: int, columns: int) -> None:
    """Refuse sums of squares that are not those of each block of the columns of some rows."""
    if squares is not None and buffer_of(squares).dtype.data is not DType.F32:
        raise op.refuse(f"has squares of type {buffer_of(squares).dtype.data}, expected f32")
    what = f"{rows} rows of {columns} columns in blocks of {QBLOCK}"
    op.expect_length("squares", squares, rows * (columns // QBLOCK), what)


def expect_division(op: LaunchOp, squares: SSAValue | None, eps: RealAttr | None, m: int, k: int) -> None:
    """Refuse what does not say how an activation of m rows is divided by the root of its mean square."""
    if (squares is None) != (eps is None):
        raise op.refuse("has the sums of squares of its activation if and only if it has the norm's epsilon")
    if squares is not None and k % QBLOCK:
        raise op.refuse(f"divides rows of {k} values, no whole number of blocks of {QBLOCK}")
    if eps is not None and not eps.data > 0:
        raise op.refuse(f"divides by a root with eps = {eps.data}, expected more than 0")
    expect_squares(op, squares, m, k)


def multiplies_in_int8(numerics: Numerics, *formats: Format) -> bool:
    """Whether products by weights in these formats are of int8 words."""
    return numerics is not Numerics.DEQUANT and all(f.is_block for f in formats)
