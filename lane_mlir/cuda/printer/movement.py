"""Printing of launches that move values, and of the choice of the next token."""

from __future__ import annotations

from collections.abc import Sequence

from lane_mlir.cuda.kernels.gemv import QBLOCK, unit_values
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.printer.kernel import (
    Folds,
    Kernel,
    Printers,
    Printing,
    constant,
    dst_of,
    refuse,
    struct,
)
from lane_mlir.cuda.printer.norms import NormConstants, print_norm
from lane_mlir.cuda.printer.vectors import threads_for, vector_width
from lane_mlir.dialects.launch import (
    ArgMaxOp,
    Dst,
    FoldOp,
    GatherOp,
    JoinOp,
    NormOp,
    SetRowOp,
    SliceOp,
    buffer_of,
)
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.formats import Format

_THREADS = 256

_ARGMAX_THREADS = 256

_ARGMAX_VALUES = 4 * 4 * _ARGMAX_THREADS
"""Values that a block of the arg-max takes: 4 vectors a thread, all on their way at once."""

_GATHER_THREADS = 1024
"""Threads of a block that gathers a row, at most: 4 columns each, so that most rows are one load a thread."""


# Gathers.


def _gather_constants(launch: GatherOp, threads: int, shape: str) -> str:
    format = launch.format.data if launch.format is not None else Format.F32
    cols = launch.cols.data
    layout(format)
    if cols % unit_values(format):
        raise refuse(launch, f"its rows of {cols} values are no whole number of units of {unit_values(format)}")
    if vector_width((launch.out,), (cols,)) < 4:
        raise refuse(launch, f"its rows of {cols} values do not begin at multiples of 4")
    return f"{str(format).upper()}, {buffer_of(launch.table).length // cols}, {shape}, {threads}"


def _gather_operands(launch: GatherOp, printing: Printing) -> str:
    table, index = printing.weight("table", launch.table), printing.reads("index", launch.index)
    scale = constant(launch.scale.data if launch.scale is not None else 1.0)
    return f"{table}, {index}, {scale}, {printing.writes('out', launch.out)}"


def print_gather(launch: GatherOp, printing: Printing) -> Sequence[Kernel]:
    cols = launch.cols.data
    threads = threads_for(ceil_div(cols, 4), _GATHER_THREADS)
    constants = _gather_constants(launch, threads, struct("NormShape", cols=cols))
    call = f"gather<{constants}>({_gather_operands(launch, printing)})"
    return [_gather_kernel("gather", launch, call, printing, threads)]


def _gather_kernel(name: str, launch: GatherOp, call: str, printing: Printing, threads: int) -> Kernel:
    return Kernel(
        name=name,
        header="gather.cuh",
        call=call,
        arguments=printing.take(),
        grid=(launch.rows.data, 1, 1),
        block=threads,
    )


def print_gather_norm(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """The fold of a gather and the norm of its result: a block gathers a row and norms it."""
    gather, norm = launch.first, launch.then
    assert isinstance(gather, GatherOp)
    assert isinstance(norm, NormOp)
    made = NormConstants.of(norm, printing)
    follows = norm.x is gather.out and norm.part is None and norm.cols.data == gather.cols.data
    if not follows or made.vec != 4:
        # A launch of its own for each reads what the other has written.
        return [*print_gather(gather, printing), *print_norm(norm, printing)]
    threads = threads_for(gather.cols.data // 4, _GATHER_THREADS)
    constants = _gather_constants(gather, threads, made.shape)
    operands = _gather_operands(gather, printing)
    call = f"gather_norm<{constants}>({operands}, {made.operands(printing, 'norm_', reads_x=False)})"
    return [_gather_kernel("gather_norm", gather, call, printing, threads), *made.after(printing)]


# Row sets, slices, joins.


def _kernel(name: str, call: str, printing: Printing, n: int) -> Kernel:
    return Kernel(
        name=name,
        header="movement.cuh",
        call=call,
        arguments=printing.take(),
        grid=(ceil_div(n, _THREADS), 1, 1),
        block=_THREADS,
    )


def _apart(apart: int, dst: Dst) -> str:
    if not apart:
        return "Apart{}"
    return struct("Apart", apart=apart, pitch=dst.row.pitch if dst.row is not None else None)


def print_set_row(launch: SetRowOp, printing: Printing) -> Sequence[Kernel]:
    cols, count, dst = launch.cols.data, launch.count.data, launch.dst.data
    seq = launch.seq.data if launch.seq is not None else 0
    kernels: list[Kernel] = []
    if launch.f32 is not None:
        constants = f"{cols}, {count}, {dst_of(dst)}, {_apart(seq, dst)}"
        src, table = printing.reads("src", launch.src), printing.writes("table", launch.table)
        call = f"set_row<{constants}>({src}, {table}, {printing.reads('row', launch.param)})"
        kernels.append(_kernel("set_row", call, printing, count * cols))
    if launch.quant is not None:
        if seq:
            raise refuse(launch, "it sets quantized rows of several sequences")
        if cols % QBLOCK:
            raise refuse(launch, f"it sets quantized rows of {cols} values, no whole number of blocks of {QBLOCK}")
        src = printing.reads_quantized("src", launch.src)
        table = printing.writes_quantized("table", launch.table)
        constants = f"{cols}, {count}, {dst_of(dst)}, {printing.words}"
        call = f"set_quantized_row<{constants}>({src}, {table}, {printing.reads('row', launch.param)})"
        kernels.append(_kernel("set_quantized_row", call, printing, count * cols * printing.words // 4))
    return kernels


def print_slice(launch: SliceOp, printing: Printing) -> Sequence[Kernel]:
    groups, width = launch.groups.data, launch.width.data
    constants = f"{groups}, {launch.every.data}, {launch.start.data}, {width}"
    call = f"slice<{constants}>({printing.reads('x', launch.x)}, {printing.writes('y', launch.y)})"
    return [_kernel("slice", call, printing, groups * width)]


def print_join(launch: JoinOp, printing: Printing) -> Sequence[Kernel]:
    rows, heads, ha, hb = launch.rows.data, launch.heads.data, launch.ha.data, launch.hb.data
    dst = launch.dst.data
    constants = f"{rows}, {heads}, {ha}, {hb}, {dst_of(dst)}, {_apart(launch.yz.data, dst)}"
    a, b, y = printing.reads("a", launch.a), printing.reads("b", launch.b), printing.writes("y", launch.y)
    call = f"join<{constants}>({a}, {b}, {y}, {printing.reads('row', launch.param)})"
    return [_kernel("join", call, printing, rows * heads * (ha + hb))]


# The next token.


def print_argmax(launch: ArgMaxOp, printing: Printing) -> Sequence[Kernel]:
    n, rows = launch.n.data, launch.rows.data
    vec = 4 if vector_width((launch.x,), (n,)) == 4 else 1
    blocks = max(1, min(ceil_div(n, _ARGMAX_VALUES), printing.chip.multiprocessors))
    x, out = printing.reads("x", launch.x), printing.writes("out", launch.out)
    token, position = "nullptr", "nullptr"
    if (advance := launch.advance) is not None:
        token = f"{printing.writes('token', advance[0])} + {advance[2]}"
        position = printing.writes("position", advance[1])
    best, counter = "nullptr", "nullptr"
    if blocks > 1:
        best = printing.scratch("best", "u64", 8 * rows * blocks)
        counter = printing.scratch("counter", "u32", 4 * rows, zeroed=True)
    call = f"argmax<{n}, {vec}, {_ARGMAX_THREADS}, {blocks}>({x}, {out}, {token}, {position}, {best}, {counter})"
    return [
        Kernel(
            name="argmax",
            header="movement.cuh",
            call=call,
            arguments=printing.take(),
            grid=(blocks, rows, 1),
            block=_ARGMAX_THREADS,
        )
    ]


PRINTERS: Printers = {
    GatherOp: print_gather,
    SetRowOp: print_set_row,
    SliceOp: print_slice,
    JoinOp: print_join,
    ArgMaxOp: print_argmax,
}

FOLDS: Folds = {(GatherOp, NormOp): print_gather_norm}
"""How folds are printed, by the classes of their launches."""
