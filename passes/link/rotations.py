"""Launches of rotations."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.passes.forms import RopeForm, Scope, describe, leaves, rope
from lane_mlir.passes.link.judge import Judge, Refusal


def link_rope(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    form = rope(op, scope)
    if form is None:
        raise Refusal("its parts are no rotation, the norm of its heads and where it lands")
    judge.inside_only(scope, form.inside)
    return launch.RopeOp(
        judge.buffer(form.x),
        judge.buffer(form.cos),
        judge.buffer(form.sin),
        judge.buffer(form.pos),
        judge.landing(form.landing),
        part=form.part,
        norm=_norm(judge, form),
        heads=form.heads,
        per_row=form.per_row,
        hd=form.width,
        half=form.half,
        pairing=form.pairing,
    )


def _norm(judge: Judge, form: RopeForm) -> tuple[SSAValue, float] | None:
    if form.norm is None:
        return None
    weight, eps = form.norm
    if weight is None:
        raise Refusal("the kernel of a rotation norms heads by a weight, and this norm has none")
    return judge.buffer(weight), eps


def link_rope_parts(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.FusedOp)
    judge.side_by_side(op)
    forms: list[RopeForm] = []
    for part in op.parts:
        form = rope(part, scope.of(leaves(part)))
        if form is None:
            raise Refusal(f"{describe(part)} is no rotation")
        forms.append(form)
    return rope_parts(judge, forms, scope)


def rope_parts(
    judge: Judge, forms: Sequence[RopeForm], scope: Scope, covered: Sequence[int] = ()
) -> launch.RopePartsOp:
    """The launch of several rotations at one position by the same tables; `covered`: what it covers, in a fold."""
    first = forms[0]
    for form in forms:
        judge.inside_only(scope, form.inside)
        if (form.cos, form.sin, form.pos, form.width, form.pairing) != (
            *(first.cos, first.sin, first.pos),
            *(first.width, first.pairing),
        ):
            raise Refusal("its rotations differ in tables, position, head width or pairing")
    return launch.RopePartsOp(
        [
            launch.Rotation(judge.buffer(f.x), judge.landing(f.landing), f.heads, f.per_row, f.part, _norm(judge, f))
            for f in forms
        ],
        judge.buffer(first.cos),
        judge.buffer(first.sin),
        judge.buffer(first.pos),
        hd=first.width,
        half=first.half,
        pairing=first.pairing,
        covers=covered,
    )
