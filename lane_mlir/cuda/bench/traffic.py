"""What a launch must move and compute: bytes of weights, of state and of activations, and operations of products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lane_mlir.cuda.lowering import weight_of
from lane_mlir.cuda.printer import BufferArgument, Use
from lane_mlir.dialects.launch import (
    AttentionOp,
    BufferOp,
    DeltaOp,
    Fill,
    GateProjOp,
    GatherOp,
    GemmPartsOp,
    GemvF32Op,
    GemvGluOp,
    GemvOp,
    HeadGemvOp,
    LaunchOp,
    MoeOp,
    RopeOp,
    RopePartsOp,
    Touch,
    buffer_of,
    holder,
)
from lane_mlir.dialects.tg import Numerics


@dataclass(frozen=True)
class Traffic:
    """Bytes that must be moved at least, each counted once, and operations (a multiplication and an addition are 2)."""

    weights: float = 0.0
    state: float = 0.0
    activations: float = 0.0
    operations: float = 0.0

    @property
    def bytes(self) -> float:
        return self.weights + self.state + self.activations

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.weights + other.weights,
            self.state + other.state,
            self.activations + other.activations,
            self.operations + other.operations,
        )


def traffic(uses: Sequence[Use], position: int, numerics: Numerics) -> Traffic:
    """
    What the kernels of one launch move when its first row stands at a position. Of the experts of a mixture those are
    counted that its rows choose if they choose at random.
    """
    launch = uses[0].launch
    parts = launch.parts()
    shares = dict(share for part in parts for share in _shares(part))
    weights: dict[object, float] = {}
    for use in uses:
        for argument in use.arguments:
            if isinstance(argument, BufferArgument):
                buffer = buffer_of(argument.value)
                held = buffer.holder(Touch.PLAIN)[0]
                if held.fill.data is Fill.CONSTANT:
                    weight = weight_of(buffer, argument.c_type)[0]
                    weights[weight] = weight.size * shares.get(held, 1.0)
    attended = {buffer: size for part in parts for buffer, size in _attended(part, position)}
    state, activations = sum(attended.values()), 0.0
    reads, writes = launch.touches(numerics)
    for value, form in {*reads, *writes}:
        buffer = buffer_of(value)
        held = buffer.holder(form)[0]
        if held.fill.data in (Fill.PARAM, Fill.ZERO):
            state += 0.0 if held in attended else _state(parts, buffer, held)
        elif held.fill.data is not Fill.CONSTANT:
            activations += buffer.bytes(form, numerics)
    return Traffic(sum(weights.values()), state, activations, sum(operations(part, position) for part in parts))


def _shares(part: LaunchOp) -> Iterator[tuple[BufferOp, float]]:
    """Constants of which a launch reads only some rows, and how many of all."""
    match part:
        case GatherOp():
            yield holder(part.table), part.rows.data * part.cols.data / buffer_of(part.table).length
        case RopeOp():
            yield from _table_rows(part, part.heads.data // part.per_row.data)
        case RopePartsOp():
            yield from _table_rows(part, max(side.heads // side.per_row for side in part.each()))
        case MoeOp():
            used = 1 - (1 - part.k.data / part.experts.data) ** part.rows.data
            for weight in (part.wg, part.wu, part.wd, part.bg, part.bu, part.bd):
                if weight is not None:
                    yield holder(weight), used
        case _:
            pass


def _table_rows(part: RopeOp | RopePartsOp, rows: int) -> Iterator[tuple[BufferOp, float]]:
    for table in (part.cos, part.sin):
        yield holder(table), min(rows * part.half.data / buffer_of(table).length, 1.0)


def _attended(part: LaunchOp, position: int) -> Iterator[tuple[BufferOp, float]]:
    """Caches that a launch attends over, and the bytes of them that it reads."""
    if not isinstance(part, AttentionOp):
        return
    count = attended_rows(part, position)
    if part.seq is not None:
        count *= part.rows.data
    widths = [(part.kc, part.key_width), (part.vc, part.heads.data // part.group.data * part.vd.data)]
    if part.k_tail is not None and part.split is not None:
        widths.append((part.k_tail, part.hd.data - part.split.data.own))
    seen: set[BufferOp] = set()
    for value, width in widths:
        held = holder(value)
        # Values inside of keys are read once.
        if held not in seen:
            seen.add(held)
            yield held, float(count * width * held.dtype.data.bytes)


def attended_rows(part: AttentionOp, position: int) -> int:
    """Positions that the rows of an attention read, together."""
    rows = 1 if part.seq is not None else part.rows.data
    count = min(position + rows, part.len.data)
    return count if part.window is None else min(count, part.window.data + rows - 1)


def _state(parts: Sequence[LaunchOp], buffer: BufferOp, held: BufferOp) -> float:
    """Bytes of state that is read and written whole; of a table, those of a row."""
    if any(isinstance(part, DeltaOp) and holder(part.st) is held for part in parts):
        return 2.0 * buffer.length * held.dtype.data.bytes
    return held.length // held.shape.data[0] * held.dtype.data.bytes


def operations(part: LaunchOp, position: int) -> float:
    """Operations of the products of a launch; those of everything else do not count."""
    match part:
        case GemvOp() | GemvF32Op():
            return 2.0 * part.m.data * part.n.data * part.k.data
        case GemmPartsOp():
            return 2.0 * part.m.data * part.gemm_cols() * part.k.data
        case GemvGluOp():
            return 4.0 * part.m.data * part.n.data * part.k.data
        case GateProjOp():
            return 4.0 * part.heads.data * part.k.data
        case HeadGemvOp():
            return 2.0 * part.m.data * part.heads.data * part.a.data * part.b.data
        case MoeOp():
            return _mixture_operations(part)
        case AttentionOp():
            return (
                2.0 * part.rows.data * part.heads.data * (part.hd.data + part.vd.data) * attended_rows(part, position)
            )
        case DeltaOp():
            return 6.0 * part.rows.data * part.hv.data * part.d.data**2
        case _:
            return 0.0


def _mixture_operations(part: MoeOp) -> float:
    routed = part.k.data * 3 * part.dff.data + part.experts.data
    shared = 3 * part.sdff.data if part.sdff is not None else 0
    return 2.0 * part.rows.data * part.d.data * (routed + shared)
