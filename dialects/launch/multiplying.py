"""What the launches that multiply an activation by weights share."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.launch.attributes import (
    NumberAttr,
    Tail,
)
from lane_mlir.dialects.launch.operation import (
    LaunchOp,
)
from lane_mlir.dialects.tg.attributes import Numerics
from lane_mlir.formats import Format

TAIL = " (`tail` $tail^)?"
ONE = NumberAttr(1)


def expect_rows(op: LaunchOp, x: SSAValue, m: int, k: int, tail: Tail | None) -> None:
    """Refuse an activation that has not the rows that a product computes, or those of the chunk it takes them from."""
    if tail is None:
        op.expect_length("x", x, m * k, f"m = {m} by k = {k}")
        return
    op.expect_length("x", x, tail.rows * k, f"{tail.rows} rows of the chunk by k = {k}")
    if tail.first + m > tail.rows:
        raise op.refuse(f"computes rows {tail.first} to {tail.first + m} of a chunk of {tail.rows}")


def multiplies_in_int8(numerics: Numerics, *formats: Format) -> bool:
    """Whether products by weights in these formats are of int8 words."""
    return numerics is not Numerics.DEQUANT and all(f.is_block for f in formats)
