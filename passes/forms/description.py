"""Ops as messages and reports name them."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, FusedLoc, LocationAttr, NameLoc, UnknownLoc, UnregisteredOp
from xdsl.ir import Operation

from lane_mlir.dialects.tg import FusedOp
from lane_mlir.passes.forms.scope import covers


def locations(op: Operation) -> Sequence[LocationAttr]:
    """The places that an op comes from."""
    location = op.location
    if isinstance(location, FusedLoc) and isinstance(location.locations, ArrayAttr):
        return location.locations.data  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return () if isinstance(location, UnknownLoc) else (location,)


def describe(op: Operation) -> str:
    """An op as a reason names it: `tg.matmul[12] (blk.0.attn_q.weight)`."""
    kind = f'"{op.fusion_class.data}"' if isinstance(op, FusedOp) else op_name(op).removeprefix("tg.")
    numbers = ", ".join(map(str, covers(op)))
    name = place_name(op)
    return kind + (f"[{numbers}]" if numbers else "") + (f" ({name})" if name else "")


def place_name(op: Operation) -> str:
    """The name that an op's location carries; of a fused op, the first."""
    return next((place.desc.data for place in locations(op) if isinstance(place, NameLoc)), "")


def op_name(op: Operation) -> str:
    """The name of an op, in the text it was parsed from."""
    return op.op_name.data if isinstance(op, UnregisteredOp) else op.name
