"""Printing of rotations."""

from __future__ import annotations

from collections.abc import Sequence

from lane_mlir.cuda.printer.kernel import Kernel, Printers, Printing, dst_of, element_type, part_of, struct
from lane_mlir.cuda.printer.vectors import WARP
from lane_mlir.dialects.launch import OWN, RopeOp, RopePartsOp, Rotation
from lane_mlir.dialects.launch.operation import ceil_div

_WARPS = 4
"""Warps of a block, a head each: few, so that the heads of one token are spread over the chip."""


def rope_shape(launch: RopeOp | RopePartsOp) -> str:
    """`RopeShape{.hd = 64, .half = 32, .pairing = Pairing::HALF}`."""
    return struct(
        "RopeShape",
        hd=launch.hd.data,
        half=launch.half.data,
        pairing=f"Pairing::{str(launch.pairing.data).upper()}",
        seqs=True if isinstance(launch, RopePartsOp) and launch.seqs is not None else None,
    )


def rope_tables(launch: RopeOp | RopePartsOp, printing: Printing) -> str:
    cos, sin = printing.reads("cos", launch.cos), printing.reads("sin", launch.sin)
    return f"RopeTables{{{cos}, {sin}, {printing.reads('pos', launch.pos)}}}"


def rope_side(rotation: Rotation, printing: Printing, suffix: str = "") -> str:
    """`RopeSide<RopeSideShape{.heads = 8}, float>{…}` with its buffers, their names before a suffix."""
    dst, norm = rotation.y.dst, rotation.norm
    shape = struct(
        "RopeSideShape",
        heads=rotation.heads,
        per_row=rotation.per_row,
        norm=True if norm is not None else None,
        eps=norm[1] if norm is not None else None,
        part=part_of(rotation.part) if rotation.part is not None else None,
        dst=dst_of(dst) if dst != OWN else None,
        yz=rotation.yz or None,
    )
    x = printing.reads(f"x{suffix}", rotation.x)
    weight = printing.reads(f"norm{suffix}", norm[0] if norm is not None else None)
    y, param = printing.writes(f"y{suffix}", rotation.y.buffer), printing.reads(f"row{suffix}", rotation.y.param)
    return f"RopeSide<{shape}, {element_type(rotation.y.buffer)}>{{{x}, {weight}, {y}, {param}}}"


def print_rope(launch: RopeOp | RopePartsOp, printing: Printing) -> Sequence[Kernel]:
    tables, rotations = rope_tables(launch, printing), launch.each()
    suffixes = [str(i) for i in range(len(rotations))] if len(rotations) > 1 else [""]
    sides = ", ".join(rope_side(r, printing, suffix) for r, suffix in zip(rotations, suffixes, strict=True))
    return [
        Kernel(
            name="rope",
            header="rope.cuh",
            call=f"rope<{rope_shape(launch)}>({tables}, {sides})",
            arguments=printing.take(),
            grid=(ceil_div(sum(r.heads for r in rotations), _WARPS), 1, 1),
            block=_WARPS * WARP,
        )
    ]


PRINTERS: Printers = {
    RopeOp: print_rope,
    RopePartsOp: print_rope,
}
