"""Printing of launches that work element by element."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.cuda.printer.kernel import Kernel, Printers, Printing, activation_of, constant, operator_of, struct
from lane_mlir.cuda.printer.vectors import quantize_apart, vector_width
from lane_mlir.dialects.launch import BinaryOp, ScaleOp, SwiGluOp, UnaryOp
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.dialects.tg import Activation, BinaryOperator

_THREADS = 128
"""Threads of a block: few, so that a row of some thousand values is spread over the chip."""


def _kernel(name: str, call: str, printing: Printing, n: int, vec: int) -> Kernel:
    return Kernel(
        name=name,
        header="elementwise.cuh",
        call=call,
        arguments=printing.take(),
        grid=(ceil_div(n, vec * _THREADS), 1, 1),
        block=_THREADS,
    )


def _width(values: Sequence[SSAValue], n: int) -> int:
    return 4 if vector_width(values, (n,)) == 4 else 1


def _print_binary(
    launch: BinaryOp | SwiGluOp,
    printing: Printing,
    operands: tuple[SSAValue, SSAValue],
    act: Activation | None,
    operator: BinaryOperator,
    row: int | None = None,
    column: int | None = None,
) -> Sequence[Kernel]:
    (a, b), n, f32 = operands, launch.n.data, launch.f32 is not None
    # What belongs to values side by side is loaded with them only if it lies so too.
    along = column is None and (row is None or row % 4 == 0)
    vec = _width((a, launch.out, b) if along else (a, launch.out), n)
    quantizes = launch.quant is not None and vec == 4 and n % QBLOCK == 0
    apart = launch.quant is not None and not quantizes
    shape = struct(
        "ElementwiseShape",
        n=n,
        vec=None if vec == 4 else vec,
        row=row,
        column=column,
        f32=None if f32 or apart else False,
        words=printing.words if quantizes else None,
    )
    read = f"{printing.reads('a', a)}, {printing.reads('b', b)}"
    if apart and not f32:
        made = printing.scratch("values", "float", 4 * n)
    else:
        made = printing.writes("y", launch.out if f32 else None)
    quantized = printing.writes_quantized("y", launch.out) if quantizes else "nullptr, nullptr"
    call = f"binary<{shape}, {activation_of(act)}, {operator_of(operator)}>({read}, {made}, {quantized})"
    kernels = [_kernel("binary" if act is None else "gated", call, printing, n, vec)]
    if apart:
        values = printing.reads("x", launch.out) if f32 else printing.scratch("values", "const float", 4 * n)
        kernels.append(quantize_apart(printing, values, launch.out, n))
    return kernels


def print_binary(launch: BinaryOp, printing: Printing) -> Sequence[Kernel]:
    return _print_binary(
        launch,
        printing,
        (launch.a, launch.b),
        launch.gate.data if launch.gate is not None else None,
        launch.op.data,
        launch.row.data if launch.row is not None else None,
        launch.column.data if launch.column is not None else None,
    )


def print_swiglu(launch: SwiGluOp, printing: Printing) -> Sequence[Kernel]:
    return _print_binary(launch, printing, (launch.g, launch.u), Activation.SILU, BinaryOperator.MUL)


def _print_map(launch: UnaryOp | ScaleOp, printing: Printing, name: str, constants: str, factor: str) -> list[Kernel]:
    n = launch.n.data
    vec = _width((launch.x, launch.y), n)
    shape = struct("ElementwiseShape", n=n, vec=None if vec == 4 else vec)
    x, y = printing.reads("x", launch.x), printing.writes("y", launch.y)
    return [_kernel(name, f"{name}<{shape}{constants}>({x}, {factor}{y})", printing, n, vec)]


def print_unary(launch: UnaryOp, printing: Printing) -> Sequence[Kernel]:
    return _print_map(launch, printing, "unary", f", {activation_of(launch.act.data)}", "")


def print_scale(launch: ScaleOp, printing: Printing) -> Sequence[Kernel]:
    return _print_map(launch, printing, "scale", "", f"{constant(launch.factor.data)}, ")


PRINTERS: Printers = {
    BinaryOp: print_binary,
    SwiGluOp: print_swiglu,
    UnaryOp: print_unary,
    ScaleOp: print_scale,
}
