"""
The rule deferred_norm: a norm that follows a product in its launch leaves the division to the products that read it.

A norm after a product waits for the whole row, and so for the last block of the product. But the division by √(mean of
squares + eps) is by one number for a row, and a product of the row is linear in it: each block can norm, quantize and
write its own columns undivided, with the sum of their squares, and whoever multiplies the row divides its result.
Nobody then waits for a row. A rule of our own, beside the table: the launches stay what they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS, QBLOCK
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
    Touch,
    ViewOp,
    buffer_of,
)
from lane_mlir.dialects.tg import Numerics

DEFERRED_NORM = "deferred_norm"

Product: TypeAlias = GemvOp | GemmPartsOp | GemvGluOp


def defer_norms(schedule: ScheduleOp, numerics: Numerics) -> bool:
    """Defer the norms of a schedule in place, where every reader can divide. Whether any is: forms change then."""
    launches = [launch for launch in schedule.launches() if not isinstance(launch, ViewOp)]
    readers: dict[BufferOp, list[LaunchOp]] = defaultdict(list)
    writers: dict[BufferOp, list[LaunchOp]] = defaultdict(list)
    for launch in launches:
        for values, users in ((launch.reads(), readers), (launch.writes(), writers)):
            for value in values:
                users[_holder(value)].append(launch)
    outputs = {_holder(value) for value in schedule.outputs()}
    deferred = False
    for launch in launches:
        norm = _norm_after_product(launch, numerics)
        if norm is None or norm.out is None:
            continue
        out = buffer_of(norm.out)
        if out.fill.data is not Fill.COMPUTED or out in outputs or writers[out] != [launch]:
            continue
        products = [_divides(reader, norm.out, numerics) for reader in readers[out]]
        if products and all(product is not None for product in products):
            _defer(launch, norm, [product for product in products if product is not None])
            deferred = True
    return deferred


def _holder(value: SSAValue) -> BufferOp:
    return buffer_of(value).holder(Touch.PLAIN)[0]


def _norm_after_product(launch: LaunchOp, numerics: Numerics) -> NormOp | None:
    """The norm of a fold of a product of a few rows with it, if blocks can norm the columns that they compute."""
    if not isinstance(launch, FoldOp) or not isinstance(launch.first, GemvOp) or not isinstance(launch.then, NormOp):
        return None
    product, norm = launch.first, launch.then
    rows, cols = product.m.data, product.n.data
    by_columns = norm.center is None and norm.pre_eps is None and norm.part is None and norm.y is None
    whole = cols % QBLOCK == 0 and (norm.rows.data, norm.cols.data) == (rows, cols)
    in_rows = rows <= GEMV_ROWS and not product.batch_on_tensor_cores(numerics)
    own = product.quant is None and product.target.own is not None
    return norm if by_columns and whole and in_rows and own and product.y in (norm.x, norm.add) else None


def _divides(launch: LaunchOp, x: SSAValue, numerics: Numerics) -> Product | None:
    """The product by which a launch reads an activation, if it does so in no other way and its kernel can divide."""
    product = launch.first if isinstance(launch, FoldOp) else launch
    if not isinstance(product, Product) or product.x is not x or product.squares is not None:
        return None
    if isinstance(launch, FoldOp) and x in launch.then.reads():
        return None
    in_rows = product.m.data <= GEMV_ROWS and not product.batch_on_tensor_cores(numerics)
    return product if in_rows and product.tail is None else None


def _defer(launch: LaunchOp, norm: NormOp, readers: Sequence[Product]) -> None:
    assert norm.out is not None
    out = buffer_of(norm.out)
    made = BufferOp(f"{out.label.data}.squares", (norm.rows.data, norm.cols.data // QBLOCK), Fill.COMPUTED)
    made.buffer.name_hint = made.label.data
    block = out.parent_block()
    assert block is not None
    block.insert_op_after(made, out)
    for op in (norm, *readers):
        op.take("squares", made.buffer)
    for reader in readers:
        reader.norm_eps = norm.eps
    launch.rules = NamesAttr((*launch.rules.data, DEFERRED_NORM))
