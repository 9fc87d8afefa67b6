"""Printing of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lane_mlir.cuda.kernels.attention import ATTN_TILE, PART_KEYS, RowSplit, split_rows
from lane_mlir.cuda.kernels.gemv import GEMV_ROWS, QBLOCK
from lane_mlir.cuda.printer.kernel import (
    Folds,
    Kernel,
    Printers,
    Printing,
    activation_of,
    element_type,
    part_of,
    refuse,
    struct,
)
from lane_mlir.cuda.printer.rotations import rope_shape, rope_side, rope_tables
from lane_mlir.cuda.printer.vectors import WARP, numbers_of, quantize_apart, vector_width
from lane_mlir.dialects.launch import AttentionOp, DType, FoldOp, RopeOp, RopePartsOp, buffer_of, elements
from lane_mlir.dialects.launch.operation import ceil_div

_MAX_PARTS = 64
"""Parts that are summed at once, as in attention_parts.cuh."""

_TILE_WARPS = 8
"""Warps of a block on tensor cores, 16 positions each: as many as a part has at least."""

_TILE_HEADS = 8
"""Heads of a block there at most."""

_WIDEST = 256
"""Columns of a head there at most."""

_FLASH_QUERIES = 64
"""Queries of a block of a chunk, as in attention_flash.cuh."""

_FLASH_THREADS = 128
"""Threads of such a block."""

_TWO_BLOCKS = 256
"""Columns of key and value up to which two blocks there share a multiprocessor's registers."""


@dataclass(frozen=True)
class AttentionConstants:
    """What all kernels of attention know of a launch."""

    launch: AttentionOp
    words: int
    """Words of the quantized result that the kernel itself writes; 0: none, or it is written apart."""

    @staticmethod
    def of(launch: AttentionOp, printing: Printing, columns: int) -> AttentionConstants:
        """`columns`: of a run of the result that a block of threads owns."""
        whole = columns % QBLOCK == 0 and launch.vd.data % 4 == 0
        return AttentionConstants(launch, printing.words if launch.quant is not None and whole else 0)

    @property
    def quantized_apart(self) -> bool:
        """Whether a kernel of its own quantizes the result."""
        return self.launch.quant is not None and not self.words

    @property
    def own(self) -> int:
        """Columns of a key that are not its tail."""
        return self.launch.hd.data if self.launch.split is None else self.launch.split.data.own

    def key_vec(self) -> int:
        """Elements of keys that can be loaded at once."""
        launch = self.launch
        size = buffer_of(launch.kc).dtype.data.bytes
        numbers = [self.own, launch.hd.data, launch.key_width, launch.seq.data if launch.seq is not None else 0]
        if launch.split is not None:
            numbers += numbers_of(launch.split.data.k_tail)
        if launch.k_tail is not None:
            size = max(size, buffer_of(launch.k_tail).dtype.data.bytes)
        return vector_width((launch.kc, launch.k_tail), numbers, 16 // size)

    def value_vec(self) -> int:
        launch = self.launch
        numbers = [launch.vd.data, launch.vstride.data, launch.voff.data]
        numbers.append(launch.seq.data if launch.seq is not None else 0)
        return vector_width((launch.vc,), numbers, 16 // buffer_of(launch.vc).dtype.data.bytes)

    def shape(self, **kernel: int | None) -> str:
        """`AttentionShape{.heads = 9, …}`, with the numbers of a kernel."""
        launch, split = self.launch, self.launch.split.data if self.launch.split is not None else None
        return struct(
            "AttentionShape",
            heads=launch.heads.data,
            group=launch.group.data,
            hd=launch.hd.data,
            vd=launch.vd.data,
            len=launch.len.data,
            rows=launch.rows.data,
            own=self.own,
            q_pitch=split.q_pitch if split is not None else launch.hd.data,
            k_pitch=launch.key_width,
            v_pitch=launch.vstride.data,
            v_offset=launch.voff.data or None,
            q_tail=part_of(split.q_tail) if split is not None else None,
            k_tail=part_of(split.k_tail) if split is not None else None,
            scale=launch.scale.data,
            window=launch.window.data if launch.window is not None else None,
            softcap=launch.softcap.data if launch.softcap is not None else None,
            seq=launch.seq.data if launch.seq is not None else None,
            gated=True if launch.gate is not None else None,
            gate=activation_of(launch.gate_act.data) if launch.gate_act is not None else None,
            gate_offset=launch.goff.data or None,
            f32=None if launch.f32 is not None or self.quantized_apart else False,
            words=self.words or None,
            **kernel,
        )

    def operands(
        self, printing: Printing, partial: str = "nullptr", counter: str = "nullptr", *, reads_q: bool = True
    ) -> str:
        """`AttentionOperands<f16, f16, float>{…}` with its buffers; `reads_q`: unless the kernel makes the queries."""
        launch = self.launch
        types = ", ".join(element_type(v) if v is not None else "float" for v in (launch.kc, launch.vc, launch.k_tail))
        read = [
            printing.reads(name, value)
            for name, value in (
                ("q", launch.q if reads_q else None),
                ("k", launch.kc),
                ("v", launch.vc),
                ("pos", launch.pos),
                ("sinks", launch.sinks),
                ("q_tail", launch.q_tail),
                ("k_tail", launch.k_tail),
                ("gate", launch.gate),
            )
        ]
        if self.quantized_apart and launch.f32 is None:
            made = printing.scratch("values", "float", 4 * buffer_of(launch.out).length)
        else:
            made = printing.writes("y", launch.out if launch.f32 is not None else None)
        quantized = printing.writes_quantized("y", launch.out) if self.words else "nullptr, nullptr"
        return f"AttentionOperands<{types}>{{{', '.join([*read, made, quantized, partial, counter])}}}"

    def after(self, printing: Printing) -> list[Kernel]:
        """The kernel that quantizes the result, where one does."""
        if not self.quantized_apart:
            return []
        out, n = self.launch.out, buffer_of(self.launch.out).length
        if self.launch.f32 is not None:
            return [quantize_apart(printing, printing.reads("x", out), out, n)]
        return [quantize_apart(printing, printing.scratch("values", "const float", 4 * n), out, n)]


def print_attention(launch: AttentionOp, printing: Printing) -> Sequence[Kernel]:
    if launch.rows.data > GEMV_ROWS:
        chunk = AttentionConstants.of(launch, printing, launch.vd.data)
        keys = _flash_keys(chunk, printing)
        if keys is not None:
            return print_flash(chunk, printing, keys)
    return print_rows(launch, printing)


def print_flash(made: AttentionConstants, printing: Printing, keys: int) -> Sequence[Kernel]:
    """Attention of a chunk: a block takes 64 queries of one key head and goes over tiles of `keys` positions."""
    launch = made.launch
    queries = ceil_div(launch.rows.data * launch.group.data, _FLASH_QUERIES)
    kernel = Kernel(
        name="attention_flash",
        header="attention_flash.cuh",
        call=f"attention_flash<{made.shape()}, {keys}>({made.operands(printing)})",
        arguments=printing.take(),
        grid=(queries, launch.heads.data // launch.group.data, 1),
        block=_FLASH_THREADS,
        shared=_flash_bytes(launch, keys),
    )
    return [kernel, *made.after(printing)]


def _flash_keys(made: AttentionConstants, printing: Printing) -> int | None:
    """Positions of a tile of keys, two of which fit in shared memory; None if the tile kernel takes no such launch."""
    launch = made.launch
    stored = {buffer_of(value).dtype.data for value in (launch.kc, launch.vc)}
    widths = (launch.hd.data, launch.vd.data)
    whole = made.key_vec() == made.value_vec() == 8 and all(width % 16 == 0 and width <= _WIDEST for width in widths)
    if stored != {DType.F16} or not whole or launch.split is not None or launch.seq is not None:
        return None
    fitting = (k for k in (64, 32) if _flash_bytes(launch, k) <= printing.chip.shared_memory_bytes)
    return next(fitting, None)


def _flash_bytes(launch: AttentionOp, keys: int) -> int:
    """Shared memory of a block: both words of the queries, two tiles of keys and values."""
    hd, vd = (width + 8 if width // 8 % 2 == 0 else width for width in (launch.hd.data, launch.vd.data))
    return 2 * (2 * _FLASH_QUERIES * hd + 2 * keys * (hd + vd))


def print_rotated(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """Attention row by row, whose blocks rotate the heads that they read beforehand."""
    rope, then = launch.first, launch.then
    assert isinstance(rope, RopeOp | RopePartsOp)
    assert isinstance(then, AttentionOp)
    if then.rows.data > 1 and then.seq is None:
        raise refuse(launch, f"each of its {then.rows.data} rows attends keys that other rows rotate")
    return print_rows(then, printing, rope)


def _rotations(rope: RopeOp | RopePartsOp, attention: AttentionOp, printing: Printing) -> str:
    """`RotateBefore<RopeShape{…}, RopeSide<…>, RopeSide<…>>{…}`."""
    tables, query, key = rope_tables(rope, printing), "", "NothingBefore{}"
    for side in rope.each():
        if elements(side.y.buffer) == elements(attention.q):
            query = rope_side(side, printing, "_query")
        else:
            key = rope_side(side, printing, "_key")
    sides = (query, key)
    types = ", ".join(side[: side.rindex("{")] for side in sides)
    return f"RotateBefore<{rope_shape(rope)}, {types}>{{{tables}, {', '.join(sides)}}}"


def print_rows(launch: AttentionOp, printing: Printing, rope: RopeOp | RopePartsOp | None = None) -> Sequence[Kernel]:
    """
    Attention row by row: a block takes a row, some heads of one key head, and a part of the positions. `rope`: the
    rotations that are left to it.
    """
    rows, heads, per_block, vd = launch.rows.data, launch.heads.data, launch.per_block.data, launch.vd.data
    made = AttentionConstants.of(launch, printing, per_block * vd)
    blocks = heads // per_block
    on_tensor_cores = _takes_tiles(made)
    parts, least = _parts(launch, on_tensor_cores)
    partial, counter = "nullptr", "nullptr"
    if parts > 1:
        pairs = ceil_div(2 * rows * heads * parts, 4) * 4
        partial = printing.scratch("partial", "float", 4 * (pairs + rows * heads * parts * vd))
        counter = printing.scratch("counter", "u32", 4 * rows * blocks, zeroed=True)
    numbers = {
        "per_block": per_block,
        "parts": parts if parts > 1 else None,
        "least": least if parts > 1 else None,
    }
    if on_tensor_cores:
        wide = launch.hd.data + vd > _TWO_BLOCKS
        numbers |= {"heads_a_warp": per_block, "warps": _TILE_WARPS}
        warps, shared, resident = _TILE_WARPS, _tile_bytes(launch), 1 if wide else 2
    else:
        split = split_rows(
            launch.hd.data,
            vd,
            per_block,
            key_vec=made.key_vec(),
            value_vec=made.value_vec(),
            key_bytes=buffer_of(launch.kc).dtype.data.bytes,
            value_bytes=buffer_of(launch.vc).dtype.data.bytes,
        )
        numbers |= {
            "lanes": split.lanes,
            "key_vec": split.key_vec,
            "value_vec": split.value_vec,
            "at_once": split.at_once,
            "heads_a_warp": split.heads_a_warp,
            "warps": split.warps,
        }
        warps, shared, resident = split.warps, _row_bytes(launch, split), 2
    if shared > printing.chip.shared_memory_bytes:
        raise refuse(launch, f"{per_block} heads a block of hd = {launch.hd.data} take {shared} bytes of shared memory")
    name = "attention_mma" if on_tensor_cores else "attention"
    before = "NothingBefore{}" if rope is None else _rotations(rope, launch, printing)
    operands = made.operands(printing, partial, counter, reads_q=rope is None)
    kernel = Kernel(
        name=name if rope is None else f"rope_{name}",
        header=f"{name}.cuh",
        call=f"{name}<{made.shape(**numbers)}>({operands}, {before})",
        arguments=printing.take(),
        grid=(parts, blocks, rows),
        block=warps * WARP,
        shared=shared,
        blocks_per_multiprocessor=resident,
    )
    return [kernel, *made.after(printing)]


def _takes_tiles(made: AttentionConstants) -> bool:
    """Whether keys and values are f16 that tensor cores can take as they lie."""
    launch = made.launch
    stored = {buffer_of(value).dtype.data for value in (launch.kc, launch.vc)}
    narrow = launch.hd.data <= _WIDEST and launch.vd.data <= _WIDEST and launch.per_block.data <= _TILE_HEADS
    whole = made.key_vec() == made.value_vec() == 8
    return stored == {DType.F16} and narrow and whole and launch.split is None


def _tile_bytes(launch: AttentionOp) -> int:
    """Shared memory of a block on tensor cores: queries, the warps' sums and results, and their weights."""
    per_block, vd = launch.per_block.data, launch.vd.data
    queries = 2 * ceil_div(launch.hd.data, 32) * WARP * 16
    results = max(_TILE_WARPS * per_block * vd, 4 * _TILE_WARPS * WARP, _rotated_floats(launch))
    return queries + 8 * _TILE_WARPS * _TILE_HEADS + 4 * results + 4 * per_block * (_MAX_PARTS + 2)


def _parts(launch: AttentionOp, on_tensor_cores: bool) -> tuple[int, int]:
    """Parts of the context that have blocks of their own, at most, and positions of one at least."""
    narrow = on_tensor_cores and launch.hd.data + launch.vd.data <= PART_KEYS
    least = 2 * PART_KEYS if narrow else PART_KEYS
    if launch.shared is not None:
        # All heads read the same rows, which are wide: a part has few, and the heads' blocks find them in the cache.
        return min(launch.shared.data, _MAX_PARTS), ATTN_TILE
    if launch.parallel is None:
        return 1, least
    return min(launch.splits.data, ceil_div(launch.len.data, least), _MAX_PARTS), least


def _rotated_floats(launch: AttentionOp) -> int:
    """Of rotated queries, and a key in f16, which lie where the results will."""
    return launch.per_block.data * launch.hd.data + ceil_div(launch.hd.data, 2)


def _row_bytes(launch: AttentionOp, split: RowSplit) -> int:
    """Shared memory of a block: queries, scores, the warps' results and their weights."""
    per_block, threads = launch.per_block.data, split.warps * WARP
    sets = per_block // split.heads_a_warp
    queries = ceil_div(per_block * launch.hd.data, 4) * 4
    scores = split.warps * (WARP // split.lanes) * split.at_once * split.heads_a_warp
    results = max(split.warps // sets * per_block * launch.vd.data, 4 * threads, _rotated_floats(launch))
    weights = per_block * (_MAX_PARTS + 2)
    return 4 * (queries + ceil_div(scores, 4) * 4 + ceil_div(results, 4) * 4 + weights)


PRINTERS: Printers = {AttentionOp: print_attention}

FOLDS: Folds = {(RopeOp, AttentionOp): print_rotated, (RopePartsOp, AttentionOp): print_rotated}
