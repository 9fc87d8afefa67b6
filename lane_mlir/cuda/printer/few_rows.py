"""How products of 8 to 16 rows run on tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lane_mlir.cuda.kernels.gemm_rows import GEMM_ROWS_WARPS, GemmRowsSplit, split_gemm_rows, takes_rows
from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.cuda.printer.kernel import Kernel, Printing, struct
from lane_mlir.cuda.printer.multiplying import WARP, Multiplication
from lane_mlir.formats import Format


@dataclass(frozen=True)
class FewRows:
    """Products of 8 to 16 rows in int8 on tensor cores."""

    of: Multiplication
    words: int
    split: GemmRowsSplit
    f32: bool
    quant: bool
    glu: bool

    @staticmethod
    def choose(
        of: Multiplication,
        printing: Printing,
        widths: Sequence[int],
        *,
        up: Format | None = None,
        f32: bool = True,
        quant: bool = False,
    ) -> FewRows | None:
        """
        For products of some widths, side by side; None if the kernel does not take them. `up`: the format of the up
        weight of a gated pair.
        """
        words, formats = of.words(printing), (of.format,) if up is None else (of.format, up)
        if not words or not takes_rows(formats, of.m, of.k) or (quant and any(n % QBLOCK for n in widths)):
            return None
        if of.undivided is not None:
            return None
        split = split_gemm_rows(
            of.format,
            sum(widths),
            of.k,
            words=words,
            glu=up is not None,
            quant=quant,
            fill=printing.chip.multiprocessors,
        )
        if split.shared > printing.chip.shared_memory_bytes:
            return None
        return FewRows(of, words, split, f32, quant, up is not None)

    @property
    def columns(self) -> int:
        """Output columns of a block."""
        return self.split.columns

    @property
    def shape(self) -> str:
        """The constants: `GemmRowsShape{.k = 4096, …}`."""
        return struct(
            "GemmRowsShape",
            k=self.of.k,
            m=self.of.m,
            words=self.words,
            tiles=self.split.tiles,
            stages=self.split.stages,
            quant=self.quant or None,
            f32=None if self.f32 else False,
            glu=self.glu or None,
        )

    def kernel(self, name: str, call: str, printing: Printing, blocks: int) -> Kernel:
        return Kernel(
            name=f"{name}_{self.of.format}",
            header="gemm_rows.cuh",
            call=call,
            arguments=printing.take(),
            grid=(blocks, 1, 1),
            block=GEMM_ROWS_WARPS * WARP,
            shared=self.split.shared,
        )
