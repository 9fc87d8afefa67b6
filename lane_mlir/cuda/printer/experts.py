"""How kernels take a mixture of experts; the kernels of a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lane_mlir.cuda.kernels.gemv import (
    QBLOCK,
    GemvSplit,
    read_alike,
    rows_a_warp,
    split_gemv,
    staged_bytes,
    unit_values,
)
from lane_mlir.cuda.kernels.moe import (
    MOST_CHOSEN,
    ROUTER_COLUMNS,
    ROUTER_WARPS,
    router_rows,
    router_warps,
    split_down,
)
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.printer.kernel import (
    Kernel,
    Printing,
    dst_of,
    element_type,
    refuse,
    struct,
)
from lane_mlir.cuda.printer.multiplying import type_of
from lane_mlir.cuda.printer.vectors import WARP, vector_width
from lane_mlir.dialects.launch import MoeOp, buffer_of
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.formats import Format


@dataclass(frozen=True)
class Mixture:
    """A mixture as kernels take it."""

    launch: MoeOp
    words: int
    """int8 words of a quantized activation; 0 under dequant."""
    multiprocessors: int

    @staticmethod
    def of(launch: MoeOp, printing: Printing) -> Mixture:
        """Raises LaneError for formats, widths and numbers of experts that no kernel takes."""
        mixture = Mixture(launch, printing.words, printing.chip.multiprocessors)
        d, dff, shared = launch.d.data, launch.dff.data, launch.shared
        gate, up, down = launch.formats.data
        pairs = [(gate, up, down, dff)]
        if shared is not None:
            pairs.append((*shared.formats, shared.dff))
        for of_gate, of_up, of_down, width in pairs:
            for format, k in ((of_gate, d), (of_up, d), (of_down, width)):
                layout(format)
                if k % unit_values(format):
                    raise refuse(launch, f"rows of {k} values in {format} are no whole number of units")
            if not read_alike(of_gate, of_up):
                raise refuse(launch, f"its gate and up weights are read in different units, {of_gate} and {of_up}")
        if max(launch.k.data, launch.groups.data) > MOST_CHOSEN:
            raise refuse(
                launch,
                f"a row chooses k = {launch.k.data} experts of {launch.groups.data} groups, beyond {MOST_CHOSEN}",
            )
        if vector_width((launch.x,), (d,)) < 4:
            raise refuse(launch, f"its rows of {d} values do not begin at multiples of 4")
        return mixture

    # Forms of activations.

    def words_for(self, format: Format) -> int:
        """int8 words in which a product by a weight of the format takes its activation; 0 for f32."""
        return self.words if format.is_block else 0

    def input(self, printing: Printing, format: Format) -> str:
        """The mixture's activation as a product by a weight of the format takes it."""
        if self.words_for(format):
            return f"GemvInput{{{printing.reads_quantized('x', self.launch.x)}, nullptr}}"
        return f"GemvInput{{nullptr, nullptr, {printing.reads('x', self.launch.x)}}}"

    def hidden(self, printing: Printing, name: str, rows: int, width: int, words: int) -> str:
        """The hidden values of some rows, in memory of the launch's own."""
        n = rows * width
        if not words:
            return f"Hidden{{nullptr, nullptr, {printing.scratch(name, 'float', 4 * n)}}}"
        q = printing.scratch(f"{name}_words", "i8", n * words)
        return f"Hidden{{{q}, {printing.scratch(f'{name}_scales', 'float', n // QBLOCK * words * 4)}, nullptr}}"

    def chosen(self, printing: Printing) -> str:
        """The experts that each row has chosen and their weights."""
        return printing.scratch("chosen", "Routed", 8 * self.launch.rows.data * self.chosen_count)

    @property
    def gated(self) -> bool:
        """Whether the shared expert has a gate."""
        return self.launch.sgate is not None

    @property
    def chosen_count(self) -> int:
        return self.launch.k.data + self.gated

    # Constants.

    def router_shape(self, **numbers: int | None) -> str:
        launch = self.launch
        return struct(
            "RouterShape",
            d=launch.d.data,
            experts=launch.experts.data,
            used=launch.k.data,
            rows=launch.rows.data,
            scoring=f"Scoring::{str(launch.scoring.data).upper()}",
            renormalize=True if launch.renormalize is not None else None,
            scale=launch.scale.data if launch.scale.data != 1.0 else None,
            groups=launch.groups.data if launch.groups.data > 1 else None,
            groups_used=launch.groups_used.data if launch.groups.data > 1 else None,
            gated=self.gated or None,
            **numbers,
        )

    @property
    def shape(self) -> str:
        launch, shared = self.launch, self.launch.shared
        return struct(
            "MoeShape",
            d=launch.d.data,
            dff=launch.dff.data,
            experts=launch.experts.data,
            used=launch.k.data,
            rows=launch.rows.data,
            sdff=shared.dff if shared is not None else None,
            gated=self.gated or None,
            act=f"ExpertActivation::{str(launch.act.data).upper()}",
            alpha=launch.alpha.data if launch.alpha is not None else None,
            limit=launch.limit.data if launch.limit is not None else None,
            words=self.words_for(launch.formats.data[2]) or None,
            shared_words=self.words_for(shared.formats[2]) or None if shared is not None else None,
        )

    # Kernels.

    def router(self, printing: Printing) -> Kernel:
        """Logits of all experts."""
        launch = self.launch
        d, experts, rows = launch.d.data, launch.experts.data, launch.rows.data
        columns, rows_a_block = experts + self.gated, router_rows(rows)
        transposed = buffer_of(launch.wr).transposed is not None
        format = launch.router.data if launch.router is not None else Format.F32
        layout(format)
        if not transposed and d % unit_values(format):
            raise refuse(launch, f"rows of {d} values in {format} are no whole number of units")
        words = self.words_for(format)
        warps = router_warps(experts, d, self.multiprocessors) if transposed else ROUTER_WARPS
        shape = self.router_shape(rows_a_block=rows_a_block, warps=warps, words=words or None)
        x = printing.reads("x", launch.x) if transposed else self.input(printing, format)
        operands = self._router_operands(printing)
        call = f"route_transposed<{shape}>({x}, {operands})"
        if not transposed:
            call = f"route_rows<{shape}, {type_of(format)}>({x}, {operands})"
        blocks = ceil_div(columns, ROUTER_COLUMNS if transposed else warps)
        return Kernel(
            name="moe_router",
            header="moe_router.cuh",
            call=call,
            arguments=printing.take(),
            grid=(blocks, ceil_div(rows, rows_a_block), 1),
            block=warps * WARP,
        )

    def _router_operands(self, printing: Printing) -> str:
        launch = self.launch
        given = [
            printing.weight("router", launch.wr),
            printing.reads("router_bias", launch.rb),
            printing.weight("shared_gate", launch.sgate),
            self.logits(printing),
        ]
        return f"RouterOperands{{{', '.join(given)}}}"

    def logits(self, printing: Printing) -> str:
        """The router's logits of all rows."""
        return printing.scratch("logits", "float", 4 * self.launch.rows.data * (self.launch.experts.data + self.gated))

    def choice(self, printing: Printing) -> str:
        """The router's logits, and what else decides."""
        bias = printing.reads("selection_bias", self.launch.sb)
        return f"MoeChoice{{{self.logits(printing)}, {bias}}}"

    def _split(self, formats: Sequence[Format], per_warp: int, whole: bool) -> GemvSplit:
        launch = self.launch
        return split_gemv(
            formats[0],
            launch.dff.data * launch.k.data * launch.rows.data,
            launch.d.data,
            1,
            words=self.words_for(formats[0]),
            per_warp=per_warp,
            whole_blocks=whole,
            multiprocessors=self.multiprocessors,
            weights=2,
        )

    @property
    def per_warp(self) -> int:
        """Rows of a gate and an up weight of a warp: as planned for one row; each of several has warps of its own."""
        launch = self.launch
        if launch.rows.data == 1:
            return launch.per_warp.data
        hidden = launch.rows.data * launch.k.data * launch.dff.data
        return min(rows_a_warp(format, hidden, launch.d.data, 1) for format in launch.input_formats())

    def _gemv_shape(self, split: GemvSplit, k: int, format: Format) -> str:
        return struct(
            "GemvShape",
            k=k,
            words=self.words_for(format),
            lanes=split.lanes,
            rows=split.rows,
            warps=split.warps,
            depth=split.depth,
            tile=split.tile,
        )

    def hidden_kernel(self, printing: Printing) -> Kernel:
        """The gate and up products of the chosen experts, and of the shared one."""
        launch, shared = self.launch, self.launch.shared
        d, dff, rows, used = launch.d.data, launch.dff.data, launch.rows.data, launch.k.data
        gate, up, down = launch.formats.data
        of_shared = shared.formats if shared is not None else (gate, up, down)
        words = (self.words_for(down), self.words_for(of_shared[2]))
        split = self._split((gate, up), self.per_warp, any(words))
        shared_split = replace(self._split(of_shared, self.per_warp, any(words)), warps=split.warps)
        shape, shared_shape = self._gemv_shape(split, d, gate), self._gemv_shape(shared_split, d, of_shared[0])
        types = (
            f"{type_of(gate)}, {type_of(up)}, {shape}, {type_of(of_shared[0])}, {type_of(of_shared[1])}, {shared_shape}"
        )
        x, shared_x = self.input(printing, gate), self.input(printing, of_shared[0])
        weights = [
            printing.weight("w_gate", launch.wg),
            printing.weight("w_up", launch.wu),
            printing.reads("bias_gate", launch.bg),
            printing.reads("bias_up", launch.bu),
        ]
        shared_weights = ["nullptr"] * 4
        if shared is not None:
            shared_weights[:2] = [printing.weight("shared_gate", shared.wg), printing.weight("shared_up", shared.wu)]
        hidden = self.hidden(printing, "hidden", rows * used, dff, words[0])
        shared_hidden = "Hidden{}"
        if shared is not None:
            shared_hidden = self.hidden(printing, "shared_hidden", rows, shared.dff, words[1])
        call = (
            f"moe_hidden<{types}, {self.shape}, {self.router_shape()}>({x}, {shared_x}, {self.choice(printing)}, "
            f"MoeWeights{{{', '.join(weights)}}}, MoeWeights{{{', '.join(shared_weights)}}}, {hidden}, {shared_hidden})"
        )
        blocks = rows * used * ceil_div(dff, split.columns)
        if shared is not None:
            blocks += rows * ceil_div(shared.dff, shared_split.columns)
        staged = max(
            staged_bytes(split, gate, 1, self.words_for(gate)),
            staged_bytes(shared_split, of_shared[0], 1, self.words_for(of_shared[0])),
        )
        return Kernel(
            name=f"moe_hidden_{gate}",
            header="moe.cuh",
            call=call,
            arguments=printing.take(),
            grid=(blocks, 1, 1),
            block=split.warps * WARP,
            shared=max(staged, 4 * max(split.columns, shared_split.columns)),
        )

    def down_kernel(self, printing: Printing) -> Kernel:
        """The down products, weighted and added."""
        launch, shared = self.launch, self.launch.shared
        d, dff, rows, used = launch.d.data, launch.dff.data, launch.rows.data, launch.k.data
        down = launch.formats.data[2]
        of_shared, width = (shared.formats[2], shared.dff) if shared is not None else (down, used * dff)
        words, shared_words = self.words_for(down), self.words_for(of_shared)
        split = split_down(down, d, used * dff, words=words, multiprocessors=self.multiprocessors)
        depth = split_down(of_shared, d, width, words=shared_words, multiprocessors=self.multiprocessors).depth
        shared_split = replace(split, tile=width, depth=depth)
        staged = max(staged_bytes(split, down, 1, words), staged_bytes(shared_split, of_shared, 1, shared_words))
        if staged > printing.chip.shared_memory_bytes:
            raise refuse(launch, f"the hidden values of a row take {staged} bytes of shared memory, more than there is")
        types = (
            f"{type_of(down)}, {self._gemv_shape(split, used * dff, down)}, "
            f"{type_of(of_shared)}, {self._gemv_shape(shared_split, width, of_shared)}, {self.shape}, "
            f"{self.router_shape()}, {dst_of(launch.dst.data)}"
        )
        choice, weight = self.choice(printing), printing.weight("w_down", launch.wd)
        bias = printing.reads("bias_down", launch.bd)
        shared_weight = printing.weight("shared_down", shared.wd if shared is not None else None)
        hidden = self.hidden(printing, "hidden", rows * used, dff, words)
        shared_hidden = "Hidden{}"
        if shared is not None:
            shared_hidden = self.hidden(printing, "shared_hidden", rows, width, shared_words)
        y, param = printing.writes("y", launch.y), printing.reads("row", launch.param)
        call = (
            f"moe_down<{types}, {element_type(launch.y)}>({choice}, {weight}, {bias}, {shared_weight}, "
            f"{hidden}, {shared_hidden}, {y}, {param})"
        )
        return Kernel(
            name=f"moe_down_{down}",
            header="moe.cuh",
            call=call,
            arguments=printing.take(),
            grid=(ceil_div(d, split.columns), rows, 1),
            block=split.warps * WARP,
            shared=staged,
            early=True,
        )

    def kernels(self, printing: Printing) -> list[Kernel]:
        return [self.router(printing), self.hidden_kernel(printing), self.down_kernel(printing)]
