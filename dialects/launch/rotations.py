"""Launches that rotate heads by their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from lane_mlir.dialects.launch.attributes import (
    DstAttr,
    NumberAttr,
    Part,
    PartAttr,
    RealAttr,
    RopeSide,
    RopeSideAttr,
)
from lane_mlir.dialects.launch.buffers import buffer_of
from lane_mlir.dialects.launch.directives import Into, RopeSides
from lane_mlir.dialects.launch.operation import (
    ORIGIN,
    LaunchEffects,
    LaunchOp,
    Target,
    Touch,
    fields,
    flags,
    origin,
    present,
    sizes,
    target_of,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import Numerics, Pairing, PairingAttr


def expect_tables(op: LaunchOp, cos: SSAValue, sin: SSAValue, hd: int, half: int) -> None:
    """Refuse tables that do not have a row of `half` for every position, or heads too narrow to rotate."""
    if 2 * half > hd:
        raise op.refuse(f"rotates 2 x half = {2 * half} columns of heads of {hd}")
    if buffer_of(cos).length % half:
        raise op.refuse(f"{op.named('cos', cos)} has {buffer_of(cos).length} elements, no rows of half = {half}")
    op.expect_length("sin", sin, buffer_of(cos).length, "as many as cos")


def expect_heads(op: LaunchOp, heads: int, per_row: int) -> None:
    if per_row == 0 or heads % per_row:
        raise op.refuse(f"heads = {heads} is no multiple of per_row = {per_row}")


@dataclass(frozen=True)
class Rotation:
    """One rotation of several: its heads, how they are read, normed and written."""

    x: SSAValue
    y: Target
    heads: int
    per_row: int
    part: Part | None = None
    norm: tuple[SSAValue, float] | None = None
    yz: int = 0
    """Elements between the tables of two sequences that the heads of a batch land in; 0 without one."""


@irdl_op_definition
class RopeOp(LaunchOp):
    """
    Rotates the leading 2·half columns of every head by its row's position, and copies the rest. Head u stands in row
    u div per_row of the step, at position pos + u div per_row. Where `norm`, each head is RMS-normed first.

    x [heads, hd], whole or in a part of wider units; norm [hd]; cos, sin [positions, half]; y [heads, hd].

    Example:
        `launch.rope %q norm %w eps 1.0e-06 by %cos, %sin at %pos into %y pairing half
        (heads = 8, per_row = 8, hd = 64, half = 32)`
    """

    name = "launch.rope"
    KIND: ClassVar[str] = "rope"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    norm = opt_operand_def(BUFFER)
    cos = operand_def(BUFFER)
    sin = operand_def(BUFFER)
    pos = opt_operand_def(BUFFER)
    y = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    part = opt_prop_def(PartAttr)
    eps = opt_prop_def(RealAttr)
    dst = prop_def(DstAttr)
    pairing = prop_def(PairingAttr)
    heads = prop_def(NumberAttr)
    per_row = prop_def(NumberAttr)
    hd = prop_def(NumberAttr)
    half = prop_def(NumberAttr)

    custom_directives = (Into,)
    assembly_format = (
        "$x (`every` $part^)? (`norm` $norm^ `eps` $eps)? `by` $cos `,` $sin (`at` $pos^)?"
        " `into` custom<Into>($y, $param, $dst) `pairing` $pairing" + sizes("heads", "per_row", "hd", "half") + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        cos: SSAValue,
        sin: SSAValue,
        pos: SSAValue | None,
        y: Target,
        *,
        heads: int,
        per_row: int,
        hd: int,
        half: int,
        pairing: Pairing = Pairing.HALF,
        part: Part | None = None,
        norm: tuple[SSAValue, float] | None = None,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        weight, eps = norm if norm is not None else (None, None)
        super().__init__(
            operands=[x, weight, cos, sin, pos, y.buffer, y.param],
            properties=fields(
                part=part, eps=eps, dst=y.dst, pairing=pairing, heads=heads, per_row=per_row, hd=hd, half=half
            )
            | origin(covers, rules),
        )

    @property
    def target(self) -> Target:
        return target_of(self.y, self.param, self.dst)

    def each(self) -> list[Rotation]:
        """The rotation, as one of several."""
        norm = (self.norm, self.eps.data) if self.norm is not None and self.eps is not None else None
        part = self.part.data if self.part is not None else None
        return [Rotation(self.x, self.target, self.heads.data, self.per_row.data, part, norm)]

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.norm, self.cos, self.sin, self.pos, self.param)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.heads.data * self.hd.data if self.target.own is t else None

    def result(self) -> SSAValue | None:
        return self.target.own

    def unit_target(self) -> Target | None:
        return self.target

    def unit_output(self) -> tuple[int, int] | None:
        return self.heads.data, self.hd.data

    def verify_(self) -> None:
        heads, hd, half = self.heads.data, self.hd.data, self.half.data
        self.expect_positive("heads", "per_row", "hd", "half")
        expect_heads(self, heads, self.per_row.data)
        expect_tables(self, self.cos, self.sin, hd, half)
        if (self.norm is None) != (self.eps is None):
            raise self.refuse("norms its heads by a weight and an epsilon, or not at all")
        part = self.part.data if self.part is not None else None
        self.expect_units("x", self.x, heads, hd, part, f"heads = {heads} by hd = {hd}")
        self.expect_length("norm", self.norm, hd, f"hd = {hd}")
        self.expect_target("y", self.target, heads, hd)


@irdl_op_definition
class RopePartsOp(LaunchOp):
    """
    Several rotations at the same positions in one launch, each as launch.rope.

    `seqs`: the rows are sequences, each at a position of its own, and rotation p of row r lands in its table, `yz`
    elements after that of row r - 1, or, if that is 0, in row r.

    Example:
        `launch.rope_parts [%q into %qr heads = 8 per_row = 8, %k into %kc at row %pos pitch 128 heads = 2 per_row = 2]
        by %cos, %sin at %pos pairing half (hd = 64, half = 32)`
    """

    name = "launch.rope_parts"
    KIND: ClassVar[str] = "rope"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = var_operand_def(BUFFER)
    norm = var_operand_def(BUFFER)
    """The norm weights of the rotations that have one."""
    y = var_operand_def(BUFFER)
    param = var_operand_def(BUFFER)
    """The row parameters of the rotations that land at one."""
    cos = operand_def(BUFFER)
    sin = operand_def(BUFFER)
    pos = opt_operand_def(BUFFER)
    sides = prop_def(ArrayAttr[RopeSideAttr])
    pairing = prop_def(PairingAttr)
    hd = prop_def(NumberAttr)
    half = prop_def(NumberAttr)
    seqs = opt_prop_def(UnitAttr)

    custom_directives = (RopeSides,)
    assembly_format = (
        "custom<RopeSides>($x, $norm, $y, $param, $sides) `by` $cos `,` $sin (`at` $pos^)? `pairing` $pairing"
        + sizes("hd", "half")
        + flags("seqs")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        rotations: Sequence[Rotation],
        cos: SSAValue,
        sin: SSAValue,
        pos: SSAValue | None,
        *,
        hd: int,
        half: int,
        pairing: Pairing = Pairing.HALF,
        seqs: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        sides = [
            RopeSideAttr(RopeSide(r.heads, r.per_row, r.part, r.norm[1] if r.norm else None, r.y.dst, r.yz))
            for r in rotations
        ]
        super().__init__(
            operands=[
                [r.x for r in rotations],
                [r.norm[0] for r in rotations if r.norm is not None],
                [r.y.buffer for r in rotations],
                [r.y.param for r in rotations if r.y.param is not None],
                cos,
                sin,
                pos,
            ],
            properties=fields(sides=ArrayAttr(sides), pairing=pairing, hd=hd, half=half, seqs=seqs)
            | origin(covers, rules),
        )

    def each(self) -> list[Rotation]:
        """The rotations, each with its operands."""
        norms, params = iter(self.norm), iter(self.param)
        made: list[Rotation] = []
        for x, y, attr in zip(self.x, self.y, self.sides.data, strict=True):
            side = attr.data
            norm = (next(norms), side.eps) if side.eps is not None else None
            target = Target(y, next(params) if side.dst.takes_param else None, side.dst)
            made.append(Rotation(x, target, side.heads, side.per_row, side.part, norm, side.yz))
        return made

    def reads(self) -> Sequence[SSAValue]:
        sides = [v for r in self.each() for v in (r.x, r.norm[0] if r.norm else None, r.y.param)]
        return present(*sides, self.cos, self.sin, self.pos)

    def writes(self) -> Sequence[SSAValue]:
        return tuple(self.y)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return tuple(self.y)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return next((r.heads * self.hd.data for r in self.each() if r.y.own is t), None)

    def verify_(self) -> None:
        hd, sides = self.hd.data, [side.data for side in self.sides]
        self.expect_positive("hd", "half")
        counts = (len(self.x), len(self.y), len(self.norm), len(self.param))
        normed, at_param = sum(s.eps is not None for s in sides), sum(s.dst.takes_param for s in sides)
        wanted = (len(sides), len(sides), normed, at_param)
        if not sides or counts != wanted:
            raise self.refuse(
                f"has {counts[0]} inputs, {counts[1]} results, {counts[2]} norms and {counts[3]} row parameters,"
                f" but its {len(sides)} rotations take {wanted[0]}, {wanted[1]}, {wanted[2]} and {wanted[3]}"
            )
        expect_tables(self, self.cos, self.sin, hd, self.half.data)
        for i, r in enumerate(self.each()):
            if r.heads == 0:
                raise self.refuse(f"heads of rotation {i} is 0, expected more")
            expect_heads(self, r.heads, r.per_row)
            self.expect_units(f"x of rotation {i}", r.x, r.heads, hd, r.part, f"heads = {r.heads} by hd = {hd}")
            if r.norm is not None:
                self.expect_length(f"norm of rotation {i}", r.norm[0], hd, f"hd = {hd}")
            if r.yz:
                rows = r.heads // r.per_row
                self.expect_length(f"y of rotation {i}", r.y.buffer, rows * r.yz, f"{rows} sequences by {r.yz}")
            else:
                self.expect_target(f"y of rotation {i}", r.y, r.heads, hd)
