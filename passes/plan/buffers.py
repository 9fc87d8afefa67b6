"""What the buffers of a schedule are: in which forms, of which type, which of them at all."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.dialects.launch import (
    BufferOp,
    DeltaOp,
    DType,
    DTypeAttr,
    Fill,
    GateProjOp,
    GemvF32Op,
    LaunchOp,
    MoeOp,
    ScheduleOp,
    Touch,
    buffer_of,
    holder,
)
from lane_mlir.dialects.launch.operation import Touched
from lane_mlir.dialects.tg import ArgumentKind, Numerics, TargetAttr
from lane_mlir.passes.plan.errors import NoKernel, Shape, Unbound, named


def check_whole_blocks(launches: Sequence[LaunchOp]) -> None:
    """
    Refuse an activation that is read quantized, or what holds its blocks where it is a view, unless it is a whole
    number of blocks. Raises Shape.
    """
    checked: set[BufferOp] = set()
    for launch in launches:
        x = launch.projected_input()
        if x is None or (buffer := buffer_of(x)) in checked:
            continue
        checked.add(buffer)
        _check_whole(launch, buffer)
        _check_whole(launch, buffer.holder(Touch.QUANT)[0])


def _check_whole(launch: LaunchOp, buffer: BufferOp) -> None:
    if buffer.length % QBLOCK:
        whole = -(-buffer.length // QBLOCK) * QBLOCK
        raise Shape(launch, buffer, whole, f"it is read quantized, in blocks of {QBLOCK} values")


def check_bound(schedule: ScheduleOp) -> None:
    """
    Refuse a token or position that is nothing to the step: nothing would ever write it. Values that a caller gives need
    no role. Raises Unbound.
    """
    for buffer in schedule.buffers():
        is_number = buffer.fill.data is Fill.PARAM and buffer.dtype.data is DType.I32
        if is_number and buffer.role is None and buffer.buffer.uses and not buffer.parts():
            raise Unbound(buffer, f'the parameter "{buffer.label.data}" has no role in the step')


def mark_forms(schedule: ScheduleOp, touches: Sequence[tuple[Touched, Touched]]) -> None:
    """
    Give every buffer the forms in which launches touch it and no other. What touches an alias touches what holds its
    elements; an output is read in its plain form.
    """
    for buffer in schedule.buffers():
        buffer.plain = None
        buffer.quantized = None
    marked: set[tuple[SSAValue, Touch]] = set()
    for reads, writes in touches:
        marked.update(reads)
        marked.update(writes)
    marked.update((output, Touch.PLAIN) for output in schedule.outputs())
    for value, form in marked:
        _mark(buffer_of(value), form)


def _mark(buffer: BufferOp, form: Touch) -> None:
    held = buffer.holder(form)[0]
    while True:
        if form is Touch.PLAIN:
            buffer.plain = UnitAttr()
        else:
            buffer.quantized = UnitAttr()
        if buffer is held or buffer.of is None:
            return
        buffer = buffer_of(buffer.of)


def drop_unused(schedule: ScheduleOp) -> None:
    """
    Remove the buffers that nothing uses, aliases before what they are aliases of. Parameters and state stay: they are
    the step's arguments, in order.
    """
    for buffer in reversed(schedule.buffers()):
        if not buffer.buffer.uses and not buffer.is_argument:
            buffer.detach()
            buffer.erase()


def set_types(schedule: ScheduleOp, target: TargetAttr) -> None:
    """
    Store recurrent state and caches as the target says. An alias has the type of what it is an alias of.

    State that a delta rule updates counts as recurrent whatever its role; a convolution's ring stays f32.
    """
    state, cache = DType.of(target.state.data), DType.of(target.cache.data)
    for launch in schedule.launches():
        for st in _delta_states(launch):
            holder(st).dtype = DTypeAttr(state)
    for buffer in schedule.buffers():
        if buffer.role is not None and buffer.role.kind.data is ArgumentKind.KV_CACHE:
            buffer.holder(Touch.PLAIN)[0].dtype = DTypeAttr(cache)
    for buffer in schedule.buffers():
        if buffer.of is not None:
            buffer.dtype = buffer.holder(Touch.PLAIN)[0].dtype


def _delta_states(launch: LaunchOp) -> list[SSAValue]:
    return [part.st for part in launch.parts() if isinstance(part, DeltaOp)]


def refuse_untyped(schedule: ScheduleOp, launches: Sequence[LaunchOp], numerics: Numerics) -> None:
    """Refuse a launch whose kernel reads or writes as f32 what is stored in 16 bits. Raises NoKernel."""
    if all(buffer.dtype.data.bytes == 4 for buffer in schedule.buffers()):
        return
    for launch in launches:
        narrow = [v for v in (*launch.reads(), *launch.writes()) if buffer_of(v).dtype.data.bytes == 2]
        if not narrow:
            continue
        typed = launch.typed(numerics)
        for value in narrow:
            if value not in typed:
                stored = buffer_of(value).dtype.data
                raise NoKernel(
                    launch, f"its kernel takes {named(value)} as f32 only, and the step stores it as {stored}"
                )


def transpose_weights(schedule: ScheduleOp) -> None:
    """
    Let the plain weights of products be stored column by column, as their kernels read them: the rows of a product are
    then neighbours in memory. A weight that something else reads too, such as an embedding, is there twice.
    """
    for launch in schedule.launches():
        for part in launch.parts():
            for weight in _plain_weights(part):
                _transpose(part, weight)


def _plain_weights(launch: LaunchOp) -> tuple[SSAValue, ...]:
    match launch:
        case GemvF32Op():
            return (launch.w,)
        case GateProjOp():
            return (launch.wb, launch.wa)
        case MoeOp(router=None):
            return (launch.wr,)
        case _:
            return ()


def _transpose(launch: LaunchOp, weight: SSAValue) -> None:
    buffer = buffer_of(weight)
    if buffer.fill.data is not Fill.CONSTANT or buffer.transposed is not None or len(buffer.shape.data) != 2:
        return
    users = [use.operation for use in buffer.buffer.uses]
    others = [op for op in users if not isinstance(op, LaunchOp) or weight not in _plain_weights(op)]
    if not others:
        buffer.transposed = UnitAttr()
        return
    copy = buffer.clone()
    copy.properties["name"] = type(buffer.label)(f"{buffer.label.data}.transposed")
    copy.transposed = UnitAttr()
    assert buffer.parent is not None
    buffer.parent.insert_op_after(copy, buffer)
    copy.name_result()
    for op in users:
        if isinstance(op, LaunchOp) and weight in _plain_weights(op):
            op.operands = [copy.buffer if operand is weight else operand for operand in op.operands]
