"""How many: rows a warp computes, parts that sums and contexts are split in. Chosen by format, shape and chip."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.chips import Chip
from lane_mlir.cuda.kernels.attention import (
    ATTN_SHARED_HEADS,
    attended_span,
    attn_shared_smem_bytes,
    attn_shared_splits,
)
from lane_mlir.cuda.kernels.gemm import GEMM_F32_TILE, GEMM_F32_TILE_K, gemm_f32_splits
from lane_mlir.cuda.kernels.gemv import gemv_f32_parts, rows_a_warp, why_one_row
from lane_mlir.dialects.launch import (
    AttentionOp,
    GateProjOp,
    GemmPartsOp,
    GemvF32Op,
    GemvGluOp,
    GemvOp,
    LaunchOp,
    MoeOp,
    NamesAttr,
    NumberAttr,
    SliceOp,
    buffer_of,
)
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.dialects.tg import Numerics
from lane_mlir.passes.fuse.report import Decision, Report

ROWS_A_WARP = "rows_a_warp"


Product: TypeAlias = GemvOp | GemvGluOp | MoeOp | GemmPartsOp
"""The launches whose products can take several output rows a warp."""


def choose_rows_a_warp(launches: Sequence[LaunchOp], report: Report, *, held: bool = False) -> None:
    """
    The rule rows_a_warp: several output rows a warp for the matrix-vector products that gain by it. It fires once for
    each product: for every one of a launch of several. `held`: every product has one row a warp.
    """
    for launch in launches:
        for product in launch.parts():
            if isinstance(product, GemvF32Op):
                _decide(report, launch, product.w, "the kernel of a product by plain f32 values has no rows a warp")
            elif isinstance(product, Product):
                _choose(launch, product, report, held)


def _choose(launch: LaunchOp, product: Product, report: Report, held: bool) -> None:
    wide, weights = _rows(product), [_weight(product)]
    if isinstance(product, GemmPartsOp):
        # The judge has chosen them already, if it could.
        wide, weights = max(product.per_warp.data, wide), list(product.w)
    if held:
        product.per_warp = NumberAttr(1)
    elif wide > 1:
        product.per_warp = NumberAttr(wide)
        if ROWS_A_WARP not in launch.rules.data:  # planned once already
            launch.rules = NamesAttr(launch.rules.data + (ROWS_A_WARP,) * len(weights))
    for weight in weights:
        _decide(report, launch, weight, "" if wide > 1 else _why_one_row(product), held)


def _decide(report: Report, launch: LaunchOp, weight: SSAValue, reason: str, held: bool = False) -> None:
    where = buffer_of(weight).label.data
    report.add(Decision.of(ROWS_A_WARP, launch.kind(), launch.covers.data, where, refusal=reason, held=held))


def _weight(product: Product) -> SSAValue:
    """The weight that a product is named for."""
    match product:
        case GemvOp():
            return product.w
        case GemvGluOp() | MoeOp():
            return product.wg
        case GemmPartsOp():
            return product.w[0]


def _why_one_row(product: Product) -> str:
    match product:
        case GemvOp() | GemvGluOp():
            return why_one_row(product.n.data, product.m.data)
        case GemmPartsOp():
            odd = next((part for part in product.each() if part.n % 2), None)
            if odd is not None:
                return f"of the products in one launch, {buffer_of(odd.w).label.data} decides: {why_one_row(odd.n, 1)}"
            return f"of the products in one launch: {why_one_row(product.gemm_cols(), product.m.data)}"
        case MoeOp() if product.rows.data != 1:
            return f"only a mixture of one row takes several rows a warp, not one of {product.rows.data}"
        case MoeOp():
            return f"of the hidden rows of the experts used: {why_one_row(_hidden_rows(product), 1)}"


def _rows(product: GemvOp | GemvGluOp | MoeOp | GemmPartsOp) -> int:
    match product:
        case GemvOp():
            return rows_a_warp(product.format.data, product.n.data, product.k.data, product.m.data)
        case GemvGluOp():
            n, k, m = product.n.data, product.k.data, product.m.data
            return min(rows_a_warp(f, n, k, m) for f in product.formats.data)
        case GemmPartsOp():
            k, m = product.k.data, product.m.data
            widths = [part.data.n for part in product.products]
            return min(rows_a_warp(f, sum(widths), k, m, math.gcd(*widths)) for f in product.formats.data)
        case MoeOp():
            if product.rows.data != 1:
                return 1
            hidden = _hidden_rows(product)
            return min(rows_a_warp(f, hidden, product.d.data, 1) for f in product.input_formats())


def _hidden_rows(mixture: MoeOp) -> int:
    """The output rows of the first products of the experts that a row uses, the shared one among them."""
    shared = mixture.shared
    return mixture.k.data * mixture.dff.data + (shared.dff if shared is not None else 0)


def choose_splits(launches: Sequence[LaunchOp], numerics: Numerics, chip: Chip) -> None:
    """Parts into which the sums of products by plain weights are split, so that few outputs still fill the chip."""
    for launch in launches:
        product = launch.mixture() or launch
        match product:
            case MoeOp(router=None) if product.on_tensor_cores(numerics):
                tiles = _tiles(product.experts.data, product.rows.data)
                splits = gemm_f32_splits(tiles, chip.multiprocessors, ceil_div(product.d.data, GEMM_F32_TILE_K))
                product.router_split = NumberAttr(splits)
            case GemvF32Op() if product.multiplies_in_tiles(numerics):
                tiles = _tiles(product.n.data, product.m.data)
                splits = gemm_f32_splits(tiles, chip.multiprocessors, ceil_div(product.k.data, GEMM_F32_TILE_K))
                product.split = NumberAttr(splits)
            case GemvF32Op():
                product.split = NumberAttr(gemv_f32_parts(product.n.data, product.k.data, chip.multiprocessors))
            case GateProjOp():
                product.split = NumberAttr(gemv_f32_parts(product.heads.data, product.k.data, chip.multiprocessors))
            case _:
                pass


def _tiles(columns: int, rows: int) -> int:
    return ceil_div(columns, GEMM_F32_TILE) * ceil_div(rows, GEMM_F32_TILE)


def share_key_rows(launches: Sequence[LaunchOp], numerics: Numerics, chip: Chip) -> None:
    """
    Attention whose heads all read the same key rows, with the values inside them, by one block for all heads: each key
    row is then read once, not once a head. Under `dequant` heads stay apart.
    """
    if numerics is Numerics.DEQUANT:
        return
    alike = [(i, op) for i, op in enumerate(launches) if isinstance(op, AttentionOp) and op.heads == op.group]
    if not alike:
        return
    rows = KeyRows(launches)
    for index, launch in alike:
        if launch.attends_in_tiles(numerics):
            continue
        heads, hd = launch.heads.data, launch.hd.data
        fits = (
            launch.split is None
            and heads <= ATTN_SHARED_HEADS
            and hd % 4 == 0
            and launch.vd.data % 2 == 0
            and attn_shared_smem_bytes(heads, hd) <= chip.shared_memory_bytes
        )
        if fits and rows.hold_values_of(launch, index):
            window = launch.window.data if launch.window is not None else None
            span = attended_span(launch.len.data, window)
            launch.shared = NumberAttr(attn_shared_splits(span, chip.multiprocessors))


class KeyRows:
    """Which attention finds its values inside its key rows, in a sequence of launches."""

    def __init__(self, launches: Sequence[LaunchOp]):
        self._slices = {op.y: (index, op) for index, op in enumerate(launches) if isinstance(op, SliceOp)}
        self._writers: dict[SSAValue, list[int]] = defaultdict(list)
        for index, launch in enumerate(launches):
            for buffer in launch.writes():
                self._writers[buffer].append(index)

    def hold_values_of(self, launch: AttentionOp, index: int) -> bool:
        """Whether the values are a part of every key row, in place or as a slice of them that is still true."""
        key_heads = launch.heads.data // launch.group.data
        key_width, value_width = key_heads * launch.hd.data, key_heads * launch.vd.data
        if launch.kc is launch.vc:
            inside = launch.voff.data % 2 == 0 and launch.voff.data + launch.vd.data <= launch.hd.data
            return inside and launch.vstride.data == key_width
        at, made = self._slices.get(launch.vc, (0, None))
        if made is None or made.x is not launch.kc:
            return False
        start = made.start.data
        return (
            made.every.data == key_width
            and made.width.data == value_width
            and start % 2 == 0
            and start + launch.vd.data <= launch.hd.data
            and launch.voff.data == 0
            and launch.vstride.data == value_width
            and not self._written_between(launch.kc, at, index)
        )

    def _written_between(self, buffer: SSAValue, after: int, before: int) -> bool:
        written = self._writers.get(buffer, [])
        following = bisect_right(written, after)
        return following < len(written) and written[following] < before
