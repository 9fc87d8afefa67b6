"""Launches of rotations."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.passes.forms import RopeForm, Scope, describe, rope
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
    forms: list[RopeForm] = []
    for part in op.parts:
        if isinstance(part, tg.ViewOp):
            continue
        form = rope(part, scope.of(Scope(part).leaves))
        if form is None:
            raise Refusal(f"{describe(part)} is no rotation")
        judge.inside_only(scope, form.inside)
        forms.append(form)
    first = forms[0]
    return launch.RopePartsOp(
        [
            launch.Rotation(judge.buffer(f.x), judge.landing(f.landing), f.heads, f.per_row, norm=_norm(judge, f))
            for f in forms
        ],
        judge.buffer(first.cos),
        judge.buffer(first.sin),
        judge.buffer(first.pos),
        hd=first.width,
        half=first.half,
        pairing=first.pairing,
    )
