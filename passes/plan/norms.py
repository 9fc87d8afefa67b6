"""
The rule deferred_norm: a norm that follows a product in its launch leaves the division to the products that read it.

A norm after a product waits for the whole row, and so for the last block of the product. But the division by √(mean of
squares + eps) is by one number for a row, and a product of the row is linear in it: each block can norm, quantize and
write its own columns undivided, with the sum of their squares, and whoever multiplies the row divides its result.
Nobody then waits for a row. A rule of our own, beside the table: the launches stay what they are.

Results divided later differ in their last bits. That seldom moves what is rounded to one int8 word; but the second word
of two_pass_int8 is of the rest that the first leaves, 1/254 of the largest value or less, in which the last bits weigh
as much more: a few in a thousand would be other ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import GEMV_MMA_MIN_ROWS, GEMV_ROWS, QBLOCK
from lane_mlir.dialects.launch import (
    BufferOp,
    Fill,
    FoldOp,
    GemmPartsOp,
    GemvGluOp,
    GemvOp,
    LaunchOp,
    NamesAttr,
    NormOp,
    ScheduleOp,
    buffer_of,
    holder,
)
from lane_mlir.dialects.tg import Numerics
from lane_mlir.passes.fuse.report import Decision, Report
from lane_mlir.passes.plan.errors import named
from lane_mlir.passes.plan.uses import Uses

DEFERRED_NORM = "deferred_norm"

Product: TypeAlias = GemvOp | GemmPartsOp | GemvGluOp


class Whole(Exception):
    """A norm divides its rows itself. The message says why, in a sentence."""


def defer_norms(schedule: ScheduleOp, numerics: Numerics, report: Report, *, held: bool = False) -> bool:
    """
    Defer the norms of a schedule in place, where every reader can divide. Whether any is: forms change then.

    `held`: only the decisions are made.
    """
    uses = Uses(schedule)
    deferred = False
    for launch in uses.launches:
        norm = launch.then if isinstance(launch, FoldOp) else None
        if not isinstance(launch, FoldOp) or not isinstance(norm, NormOp) or norm.out is None:
            continue
        reason = ""
        try:
            _check_by_columns(launch.first, norm, numerics)
            readers = [_divides(reader, norm.out, numerics) for reader in _readers(uses, launch, norm.out)]
            if not held:
                _defer(launch, norm, readers)
                deferred = True
        except Whole as why:
            reason = str(why)
        where = buffer_of(norm.out).label.data
        report.add(Decision.of(DEFERRED_NORM, launch.kind(), launch.covers.data, where, refusal=reason, held=held))
    return deferred


def _in_tiles(product: Product, numerics: Numerics) -> bool:
    """Whether the rows of a product are too many for the matrix-vector kernels, or better off on tensor cores."""
    most = GEMV_ROWS if numerics is Numerics.DEQUANT else GEMV_MMA_MIN_ROWS - 1
    return product.m.data > most


def _readers(uses: Uses, launch: LaunchOp, out: SSAValue) -> Sequence[LaunchOp]:
    readers = uses.readers_within(launch, out)
    if not readers:
        raise Whole(f"{named(out)} is not read within the step, or not a result of this launch alone")
    return readers


def _check_by_columns(product: LaunchOp, norm: NormOp, numerics: Numerics) -> None:
    """Raises Whole for a norm whose columns the blocks of a product, each those it computes, cannot norm."""
    if not isinstance(product, GemvOp):
        raise Whole(f"blocks norm what they compute after a product of one weight, not after a {product.kind()}")
    if norm.center is not None:
        raise Whole("a layer norm takes the mean of the whole row away first")
    if norm.pre_eps is not None:
        raise Whole("the norm that comes first needs the whole row before anything is added to it")
    rows, cols = product.m.data, product.n.data
    if _in_tiles(product, numerics):
        raise Whole(f"its {rows} rows are multiplied in tiles, by kernels that norm nothing")
    if cols % QBLOCK:
        raise Whole(f"its rows of {cols} columns are no whole number of blocks of {QBLOCK}")
    own = product.quant is None and product.target.own is not None and norm.part is None and norm.y is None
    once = sum(holder(operand) is holder(product.y) for operand in norm.operands) == 1
    if not (own and once and product.y in (norm.x, norm.add)) or (norm.rows.data, norm.cols.data) != (rows, cols):
        raise Whole("it does not norm the rows of the product as they are")
    if numerics is Numerics.TWO_PASS_INT8:
        raise Whole("divided later, results differ in their last bits, and some second int8 words are then other ones")


def _divides(launch: LaunchOp, x: SSAValue, numerics: Numerics) -> Product:
    """The product by which a launch reads an activation. Raises Whole if it reads it otherwise or cannot divide."""
    product = launch.first if isinstance(launch, FoldOp) else launch
    if not isinstance(product, Product) or product.x is not x or product.squares is not None:
        raise Whole(f"{launch.kind()} reads it too, and divides nothing")
    parts = launch.parts()
    if sum(holder(operand) is holder(x) for part in parts for operand in part.operands) > 1:
        raise Whole(f"{launch.kind()} reads it otherwise than as its activation too")
    if _in_tiles(product, numerics) or product.tail is not None:
        raise Whole(f"{launch.kind()} multiplies {product.m.data} rows of it by a kernel that divides nothing")
    return product


def _defer(launch: LaunchOp, norm: NormOp, readers: Sequence[Product]) -> None:
    assert norm.out is not None
    out = buffer_of(norm.out)
    made = BufferOp(f"{out.label.data}.squares", (norm.rows.data, norm.cols.data // QBLOCK), Fill.COMPUTED)
    block = out.parent_block()
    assert block is not None
    block.insert_op_after(made, out)
    for op in (norm, *readers):
        op.take("squares", made.buffer)
    for reader in readers:
        reader.norm_eps = norm.eps
    launch.rules = NamesAttr((*launch.rules.data, DEFERRED_NORM))
