"""Printing of products by weights, and of the quantization of what they read."""

from __future__ import annotations

from collections.abc import Sequence

from lane_mlir.cuda.printer.kernel import Kernel, Printers, Printing
from lane_mlir.dialects.launch import QuantOp
from lane_mlir.dialects.launch.operation import ceil_div

_QUANT_THREADS = 128


def print_quant(launch: QuantOp, printing: Printing) -> Sequence[Kernel]:
    n = launch.n.data
    x, quantized = printing.reads("x", launch.x), printing.writes_quantized("y", launch.x)
    return [
        Kernel(
            name="quant",
            header="quant.cuh",
            call=f"quant<{printing.words}>({x}, {n}, {quantized})",
            arguments=printing.take(),
            grid=(ceil_div(n, 4 * _QUANT_THREADS), 1, 1),
            block=_QUANT_THREADS,
        )
    ]


PRINTERS: Printers = {
    QuantOp: print_quant,
}
