"""Printing of mixtures of many rows, sorted by the experts that they have chosen."""

from __future__ import annotations

from dataclasses import dataclass

from lane_mlir.cuda.kernels.gemm import (
    GEMM_TILE_N,
    gemm_blk_rows,
    gemm_shared_bytes,
    has_minima,
    scales_halves,
    tile_rows,
)
from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.cuda.printer.experts import Mixture
from lane_mlir.cuda.printer.kernel import Kernel, Printing, constant, dst_of, refuse, struct
from lane_mlir.cuda.printer.multiplying import type_of
from lane_mlir.cuda.printer.vectors import WARP, threads_for
from lane_mlir.dialects.launch import SharedExpert
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.dialects.tg import Numerics
from lane_mlir.formats import Format

_CHOOSE_WARPS = 4
_GATHER_WARPS = 8
_SORT_THREADS = 1024
_SEGMENTS = 32
"""Warps of the block that sorts, as in moe_sorted.cuh."""


@dataclass(frozen=True)
class SortedMixture:
    """A mixture whose rows are sorted, with the sizes of what is sorted."""

    mixture: Mixture
    tile: int
    """Rows of a tile."""

    @staticmethod
    def of(mixture: Mixture, numerics: Numerics) -> SortedMixture:
        launch = mixture.launch
        two = numerics is Numerics.TWO_PASS_INT8
        most = min(gemm_blk_rows(format, two) for format in launch.formats.data)
        # As many as an expert has, with room for some more than its share.
        share = ceil_div(5 * launch.rows.data * launch.k.data, 4 * launch.experts.data)
        return SortedMixture(mixture, tile_rows(share, most))

    @property
    def slots(self) -> int:
        return self.mixture.launch.rows.data * self.mixture.launch.k.data

    @property
    def tiles(self) -> int:
        """Tiles at most: every expert that is chosen may have one that is not full."""
        return self.slots // self.tile + min(self.mixture.launch.experts.data, self.slots)

    @property
    def places(self) -> int:
        return self.tiles * self.tile

    # Memory of the launch's own.

    def _place(self, printing: Printing) -> str:
        """The place of each slot."""
        return printing.scratch("place", "int", 4 * self.slots)

    def _slot_at(self, printing: Printing) -> str:
        """The slot at each place."""
        return printing.scratch("slot_at", "int", 4 * self.places)

    def _tile_expert(self, printing: Printing) -> str:
        """The expert of each tile."""
        return printing.scratch("tile_expert", "int", 4 * self.tiles)

    def _quantized(self, printing: Printing, name: str, rows: int, width: int) -> str:
        words, n = self.mixture.words, rows * width
        q = printing.scratch(f"{name}_words", "i8", n * words)
        return f"{q}, {printing.scratch(f'{name}_scales', 'float', n // QBLOCK * words * 4)}"

    # Kernels.

    def kernels(self, printing: Printing) -> list[Kernel]:
        shared = self.mixture.launch.shared
        return [
            self.mixture.router(printing),
            self._choose(printing),
            self._sort(printing),
            self._gather(printing),
            self._gate_up(printing),
            self._down(printing),
            *(self._shared(printing, shared) if shared is not None else ()),
            self._combine(printing),
        ]

    def _kernel(
        self, name: str, call: str, printing: Printing, grid: tuple[int, int, int], block: int, shared: int = 0
    ) -> Kernel:
        return Kernel(
            name=name,
            header="moe_sorted.cuh",
            call=call,
            arguments=printing.take(),
            grid=grid,
            block=block,
            shared=shared,
        )

    def _choose(self, printing: Printing) -> Kernel:
        choice, chosen = self.mixture.choice(printing), self.mixture.chosen(printing)
        call = f"moe_choose<{self.mixture.router_shape()}, {_CHOOSE_WARPS}>({choice}, {chosen})"
        rows = self.mixture.launch.rows.data
        return self._kernel("moe_choose", call, printing, (ceil_div(rows, _CHOOSE_WARPS), 1, 1), _CHOOSE_WARPS * WARP)

    def _sort(self, printing: Printing) -> Kernel:
        launch = self.mixture.launch
        experts = launch.experts.data
        shared = 2 * _SEGMENTS * experts + 2 * ceil_div(self.slots, 2) * 2 + 8 * experts
        if shared > printing.chip.shared_memory_bytes:
            raise refuse(
                launch, f"sorting {self.slots} choices takes {shared} bytes of shared memory, which are too many"
            )
        shape = struct(
            "SortShape",
            slots=self.slots,
            used=launch.k.data,
            chosen=self.mixture.chosen_count,
            experts=experts,
            tile=self.tile,
            tiles=self.tiles,
        )
        made = f"{self._place(printing)}, {self._slot_at(printing)}, {self._tile_expert(printing)}"
        call = f"moe_sort<{shape}>({self.mixture.chosen(printing)}, {made})"
        return self._kernel("moe_sort", call, printing, (1, 1, 1), _SORT_THREADS, shared)

    def _gather(self, printing: Printing) -> Kernel:
        launch, words = self.mixture.launch, self.mixture.words
        d = launch.d.data
        x, slot_at = printing.reads_quantized("x", launch.x), self._slot_at(printing)
        constants = f"{d}, {words}, {launch.k.data}, {self.places}, {_GATHER_WARPS}"
        call = f"moe_gather<{constants}>({x}, {slot_at}, {self._quantized(printing, 'sorted', self.places, d)})"
        grid = (ceil_div(self.places, _GATHER_WARPS), 1, 1)
        return self._kernel("moe_gather", call, printing, grid, _GATHER_WARPS * WARP)

    def _shape(self, k: int, rows: int, m: int, *, glu: bool) -> str:
        return struct(
            "GemmShape",
            k=k,
            m=m,
            words=self.mixture.words,
            rows=rows,
            quant=glu or None,
            f32=False if glu else None,
            glu=glu or None,
        )

    def _bytes(self, rows: int, *formats: Format) -> int:
        halves, minima = any(map(scales_halves, formats)), any(map(has_minima, formats))
        return gemm_shared_bytes(rows, self.mixture.words, halves, minima)

    def _gate_up(self, printing: Printing) -> Kernel:
        launch = self.mixture.launch
        d, dff, (gate, up, _) = launch.d.data, launch.dff.data, launch.formats.data
        weights = [
            printing.weight("w_gate", launch.wg),
            printing.weight("w_up", launch.wu),
            printing.reads("bias_gate", launch.bg),
            printing.reads("bias_up", launch.bu),
        ]
        x = f"GemvInput{{{self._quantized(printing, 'sorted', self.places, d)}, nullptr}}"
        tile_expert = self._tile_expert(printing)
        hidden = self._quantized(printing, "hidden", self.places, dff)
        shape = self._shape(d, self.tile, self.places, glu=True)
        call = (
            f"moe_gate_up<{type_of(gate)}, {type_of(up)}, {shape}, {self.mixture.shape}>"
            f"({x}, MoeWeights{{{', '.join(weights)}}}, {tile_expert}, QuantizedResult{{{hidden}}})"
        )
        grid = (self.tiles, ceil_div(dff, GEMM_TILE_N // 2), 1)
        return self._kernel("moe_gate_up", call, printing, grid, 2 * self.tile, self._bytes(self.tile, gate, up))

    def _down(self, printing: Printing) -> Kernel:
        launch = self.mixture.launch
        d, dff, down = launch.d.data, launch.dff.data, launch.formats.data[2]
        hidden = f"GemvInput{{{self._quantized(printing, 'hidden', self.places, dff)}, nullptr}}"
        weight, bias = printing.weight("w_down", launch.wd), printing.reads("bias_down", launch.bd)
        tile_expert = self._tile_expert(printing)
        result = printing.scratch("result", "float", 4 * self.places * d)
        shape = self._shape(dff, self.tile, self.places, glu=False)
        call = (
            f"moe_down_up<{type_of(down)}, {shape}, {self.mixture.shape}>"
            f"({hidden}, {weight}, {bias}, {tile_expert}, {result})"
        )
        grid = (self.tiles, ceil_div(d, GEMM_TILE_N), 1)
        return self._kernel("moe_down_up", call, printing, grid, 2 * self.tile, self._bytes(self.tile, down))

    def _shared(self, printing: Printing, expert: SharedExpert) -> list[Kernel]:
        """The shared expert's products, of all rows as they are."""
        launch = self.mixture.launch
        d, dff, rows = launch.d.data, expert.dff, launch.rows.data
        gate, up, down = expert.formats
        two = self.mixture.words == 2
        tile = tile_rows(rows, min(gemm_blk_rows(format, two) for format in expert.formats))
        x = f"GemvInput{{{printing.reads_quantized('x', launch.x)}, nullptr}}"
        weights = f"{printing.weight('w_gate', expert.wg)}, {printing.weight('w_up', expert.wu)}"
        hidden = f"QuantizedResult{{{self._quantized(printing, 'shared_hidden', rows, dff)}}}"
        types = (
            f"{type_of(gate)}, {type_of(up)}, {self._shape(d, tile, rows, glu=True)}, {constant(dff)}, Activation::SILU"
        )
        grid = (ceil_div(rows, tile), ceil_div(dff, GEMM_TILE_N // 2), 1)
        call = f"gemm_glu<{types}>({x}, {weights}, Affine{{}}, Affine{{}}, nullptr, {hidden})"
        first = self._kernel("moe_shared_hidden", call, printing, grid, 2 * tile, self._bytes(tile, gate, up))
        hidden = f"GemvInput{{{self._quantized(printing, 'shared_hidden', rows, dff)}, nullptr}}"
        weight, result = printing.weight("w_down", expert.wd), printing.scratch("shared", "float", 4 * rows * d)
        shape = self._shape(dff, tile, rows, glu=False)
        product = f"Product<{type_of(down)}, {d}>{{{weight}, {{}}, {result}, nullptr}}"
        call = f"gemm<{shape}>({hidden}, QuantizedResult{{}}, {product})"
        grid = (ceil_div(rows, tile), ceil_div(d, GEMM_TILE_N), 1)
        return [first, self._kernel("moe_shared", call, printing, grid, 2 * tile, self._bytes(tile, down))]

    def _combine(self, printing: Printing) -> Kernel:
        launch = self.mixture.launch
        d, rows = launch.d.data, launch.rows.data
        chosen, place = self.mixture.chosen(printing), self._place(printing)
        result, shared = printing.scratch("result", "float", 4 * self.places * d), "nullptr"
        if launch.shared is not None:
            shared = printing.scratch("shared", "float", 4 * rows * d)
        y, param = printing.writes("y", launch.y), printing.reads("row", launch.param)
        threads = threads_for(ceil_div(d, 4))
        call = (
            f"moe_combine<{self.mixture.shape}, {threads}, {dst_of(launch.dst.data)}>"
            f"({chosen}, {place}, {result}, {shared}, {y}, {param})"
        )
        return self._kernel("moe_combine", call, printing, (rows, 1, 1), threads)
