"""Launches that move values: row sets, slices, joins, views; and the arg-max that moves the step on."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects import launch, tg
from lane_mlir.dialects.launch import Dst, LaunchOp, Row, Target
from lane_mlir.passes.forms import Scope, describe, gemv, in_place, is_view, landing, norm, rope
from lane_mlir.passes.link.judge import Judge, Refusal
from lane_mlir.passes.link.mixture import moe_launch
from lane_mlir.passes.link.norms import link_norm
from lane_mlir.passes.link.products import head_gemv_launch, link_gemv, link_head_gemv
from lane_mlir.passes.link.rotations import link_rope


def link_set_row(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.SetRowOp)
    count, columns = tg.shape_of(op.src)
    table = Target(judge.buffer(op.table), judge.buffer(op.pos), Dst(Row(columns)))
    return launch.SetRowOp(judge.buffer(op.src), table, cols=columns, count=count)


def link_insert(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """Whole rows set into a tensor that nothing else reads: in its place."""
    assert isinstance(op, tg.InsertOp)
    every, start, width = op.every.value.data, op.start.value.data, tg.size_of(op.src)
    if every != tg.size_of(op.dst) or start % width:
        raise Refusal(f"it inserts {width} values from {start} on of every {every}: no kernel sets parts of rows")
    quantized = tg.encoding_of(op.dst) is not None
    judge.insert(op.result, op.dst)
    table = Target(judge.buffer(op.result), dst=Dst(Row(width, start // width)))
    return launch.SetRowOp(judge.buffer(op.src), table, cols=width, count=1, f32=not quantized, quant=quantized)


def link_row_write(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A producer whose result lands in rows of a table."""
    if gemv(op, scope) is not None:
        return link_gemv(judge, op, scope)
    if rope(op, scope) is not None:
        return link_rope(judge, op, scope)
    if norm(op, scope) is not None:
        return link_norm(judge, op, scope)
    first = scope.leaves[0]
    match first:
        case tg.JoinOp():
            return join_launch(judge, first, landed(judge, scope, first.result))
        case tg.HeadMatmulOp():
            return head_gemv_launch(judge, first, landed(judge, scope, first.result), scope)
        case tg.MoeOp():
            return moe_launch(judge, first, landed(judge, scope, first.result))
        case _:
            raise Refusal(f"the kernel of {describe(first)} does not write its result into rows of a table")


def link_join_in_place(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A producer whose result lands in its units of joined rows."""
    if norm(op, scope) is not None:
        return link_norm(judge, op, scope)
    if rope(op, scope) is not None:
        return link_rope(judge, op, scope)
    head_matmul = next((leaf for leaf in scope.leaves if isinstance(leaf, tg.HeadMatmulOp)), None)
    if head_matmul is None:
        raise Refusal(f"the kernel of {describe(scope.leaves[0])} does not write its result in part of wider units")
    at = list(scope.leaves).index(head_matmul)
    y = landed(judge, scope.of(scope.leaves[at:]), head_matmul.result)
    return head_gemv_launch(judge, head_matmul, y, scope.of(scope.leaves[: at + 1]))


def landed(judge: Judge, scope: Scope, result: SSAValue) -> Target:
    """Where the result of the first leaf of an op lands, by the other leaves."""
    place = landing(result, scope.leaves[1:], scope)
    if place is None:
        raise Refusal("its parts are no result and where it lands")
    judge.inside_only(scope, place.inside)
    return judge.landing(place)


def link_slice_read(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    """A reader that reads part of every unit of a wider tensor in place."""
    if norm(op, scope) is not None:
        return link_norm(judge, op, scope)
    if rope(op, scope) is not None:
        return link_rope(judge, op, scope)
    if in_place(scope) is not None and isinstance(scope.leaves[-1], tg.HeadMatmulOp):
        return link_head_gemv(judge, scope.leaves[-1], scope)
    reader = next((leaf for leaf in scope.leaves if not isinstance(leaf, tg.SliceOp | tg.ViewOp)), scope.leaves[-1])
    raise Refusal(f"the kernel of {describe(reader)} reads no part of wider units, or these have no single pitch")


def link_slice(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.SliceOp)
    if is_view(op):
        start = op.start.value.data
        return launch.ViewOp(judge.buffer(op.x), judge.alias(op.result, op.x, start), offset=start)
    return launch.SliceOp(
        judge.buffer(op.x),
        judge.buffer(op.result),
        groups=op.groups,
        every=op.every.value.data,
        start=op.start.value.data,
        width=op.width.value.data,
    )


def link_join(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.JoinOp)
    return join_launch(judge, op, Target(judge.buffer(op.result)))


def join_launch(judge: Judge, op: tg.JoinOp, y: Target) -> LaunchOp:
    """The launch of a join whose result lands somewhere."""
    heads, (a, b), rows = op.heads.value.data, op.widths, tg.shape_of(op.a)[0]
    return launch.JoinOp(judge.buffer(op.a), judge.buffer(op.b), y, rows=rows, heads=heads, ha=a, hb=b)


def link_view(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    assert isinstance(op, tg.ViewOp)
    offset = op.offset.value.data
    alias = judge.alias(op.result, op.x, offset)
    return launch.ViewOp(judge.buffer(op.x), alias, offset=offset)


def link_argmax(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    match scope.leaves:
        case [tg.ArgmaxOp() as argmax]:
            advance = None
        case [tg.ArgmaxOp() as argmax, tg.AdvanceOp() as moved] if scope.same(moved.id, argmax.result):
            advance = (judge.buffer(moved.token), judge.buffer(moved.pos), moved.place)
        case _:
            raise Refusal("its parts are no arg-max and the advance to the token that it picks")
    rows, n = tg.shape_of(argmax.x)
    x, out = judge.buffer(argmax.x), judge.buffer(scope.canonical(argmax.result))
    return launch.ArgMaxOp(x, out, n=n, rows=rows, advance=advance)
