"""Printing of the recurrent layers: causal convolutions, the gates of the delta rule, the delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.delta import DELTA_CHUNK
from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.cuda.printer.kernel import Kernel, Printers, Printing, constant, element_type, refuse, struct
from lane_mlir.cuda.printer.vectors import WARP, quantize_apart
from lane_mlir.dialects.launch import (
    Convolution,
    ConvOp,
    ConvPartsOp,
    DecayOp,
    DeltaOp,
    GateProjOp,
    GatesOp,
    buffer_of,
)
from lane_mlir.dialects.launch.operation import LaunchOp, ceil_div
from lane_mlir.dialects.tg import KeyHeadOrder

_CONV_WIDTH = 128
"""Channels of a block where no norm says how many belong together."""

_CONV_ROWS = 16
"""Rows of a block of a convolution."""

_MAX_THREADS = 1024

_GATE_THREADS = 128

_GATE_HEADS = 32
"""Heads of a block of gate_proj, as in gates.cuh."""

_GATE_BLOCK = 256
"""Threads of a block of gate_proj, as in gates.cuh."""

_DELTA_ROWS = 8
"""Rows of the state, 4 columns of each, that a thread holds at most."""

_MIN_COLUMNS = 32
"""Columns of the state that a block takes at least: 128 bytes of each row."""

_CHUNK_THREADS = 256
"""Threads of a block that takes rows in chunks, as in delta_chunks.cuh."""

_FINISH_THREADS = 128
"""Threads of a block that norms what was read out."""


# Convolutions.


def _print_conv(
    launch: LaunchOp,
    printing: Printing,
    parts: Sequence[Convolution],
    *,
    taps: int,
    rows: int,
    seqs: int,
    silu: bool,
    l2: tuple[int, float] | None,
) -> Sequence[Kernel]:
    width = l2[0] if l2 is not None else min(_CONV_WIDTH, max(part.chan for part in parts))
    threads = ceil_div(width, WARP) * WARP
    if threads > _MAX_THREADS:
        raise refuse(launch, f"its L2 norm takes {width} channels together, more than {_MAX_THREADS}")
    rows_a_block = max(_CONV_ROWS, taps - 1)
    shape = struct(
        "ConvShape",
        taps=taps,
        rows=rows,
        rows_a_block=rows_a_block,
        width=width,
        threads=threads,
        silu=silu or None,
        eps=l2[1] if l2 is not None else None,
    )
    made = ", ".join(_convolution(part, printing, str(i) if len(parts) > 1 else "") for i, part in enumerate(parts))
    blocks = sum(ceil_div(part.chan, width) for part in parts)
    return [
        Kernel(
            name="conv",
            header="conv.cuh",
            call=f"conv<{shape}>({made})",
            arguments=printing.take(),
            grid=(blocks, ceil_div(rows, rows_a_block), seqs),
            block=threads,
        )
    ]


def _convolution(part: Convolution, printing: Printing, suffix: str) -> str:
    x, w = printing.reads(f"x{suffix}", part.x), printing.reads(f"w{suffix}", part.w)
    ring, y = printing.writes(f"ring{suffix}", part.ring), printing.writes(f"y{suffix}", part.y)
    return f"Convolution<{part.chan}, {constant(part.l2)}>{{{x}, {w}, {ring}, {y}}}"


def print_conv(launch: ConvOp, printing: Printing) -> Sequence[Kernel]:
    part = Convolution(launch.x, launch.w, launch.ring, launch.y, launch.chan.data, launch.l2 is not None)
    taps, rows = launch.taps.data, launch.rows.data
    silu = launch.silu is not None
    return _print_conv(launch, printing, [part], taps=taps, rows=rows, seqs=1, silu=silu, l2=launch.l2)


def print_conv_parts(launch: ConvPartsOp, printing: Printing) -> Sequence[Kernel]:
    l2 = (launch.block.data, launch.eps.data) if launch.eps is not None else None
    seqs = launch.seqs.data
    return _print_conv(launch, printing, launch.each(), taps=launch.taps.data, rows=1, seqs=seqs, silu=True, l2=l2)


# Gates.


def _print_gates(
    name: str,
    printing: Printing,
    n: int,
    heads: int,
    beta: tuple[SSAValue, SSAValue] | None,
    decay: tuple[SSAValue, SSAValue, SSAValue, SSAValue],
) -> Sequence[Kernel]:
    ar, dt, al, y = decay
    br, beta_out = beta if beta is not None else (None, None)
    read = [printing.reads(of, v) for of, v in (("br", br), ("ar", ar), ("dt", dt), ("al", al))]
    written = [printing.writes("beta", beta_out), printing.writes("decay", y)]
    return [
        Kernel(
            name=name,
            header="gates.cuh",
            call=f"gates<{n}, {heads}>({', '.join([*read, *written])})",
            arguments=printing.take(),
            grid=(ceil_div(n, _GATE_THREADS), 1, 1),
            block=_GATE_THREADS,
        )
    ]


def print_decay(launch: DecayOp, printing: Printing) -> Sequence[Kernel]:
    decay = (launch.ar, launch.dt, launch.al, launch.y)
    return _print_gates("decay", printing, launch.n.data, launch.heads.data, None, decay)


def print_gates(launch: GatesOp, printing: Printing) -> Sequence[Kernel]:
    beta, decay = (launch.br, launch.beta), (launch.ar, launch.dt, launch.al, launch.decay)
    return _print_gates("gates", printing, launch.n.data, launch.heads.data, beta, decay)


def print_gate_proj(launch: GateProjOp, printing: Printing) -> Sequence[Kernel]:
    k, heads, split = launch.k.data, launch.heads.data, launch.split.data
    transposed = {buffer_of(w).transposed is not None for w in (launch.wb, launch.wa)}
    if len(transposed) > 1:
        raise refuse(launch, "one of its weights is stored column by column, the other row by row")
    blocks = ceil_div(heads, _GATE_HEADS)
    read = [
        printing.reads(name, value)
        for name, value in (
            ("x", launch.x),
            ("wb", launch.wb),
            ("wa", launch.wa),
            ("dt", launch.dt),
            ("al", launch.al),
        )
    ]
    written = [printing.writes("beta", launch.beta), printing.writes("decay", launch.decay)]
    scratch = ["nullptr", "nullptr"]
    if split > 1:
        scratch = [
            printing.scratch("partial", "float", 4 * blocks * split * 2 * _GATE_HEADS),
            printing.scratch("counter", "u32", 4 * blocks, zeroed=True),
        ]
    constants = f"{heads}, {k}, {split}, {constant(transposed.pop())}"
    return [
        Kernel(
            name="gate_proj",
            header="gates.cuh",
            call=f"gate_proj<{constants}>({', '.join([*read, *written, *scratch])})",
            arguments=printing.take(),
            grid=(blocks, split, 1),
            block=_GATE_BLOCK,
        )
    ]


# The delta rule.


def print_delta(launch: DeltaOp, printing: Printing) -> Sequence[Kernel]:
    d, n = launch.d.data, buffer_of(launch.out).length
    whole = d % QBLOCK == 0
    made = _Delta(launch, printing.words if launch.quant is not None and whole else 0)
    kernels = made.in_chunks(printing) if launch.delta_in_chunks(printing.numerics) else made.by_rows(printing)
    if made.quantized_apart:
        own = launch.f32 is not None
        values = printing.reads("x", launch.out) if own else printing.scratch("values", "const float", 4 * n)
        kernels.append(quantize_apart(printing, values, launch.out, n))
    return kernels


@dataclass(frozen=True)
class _Delta:
    """A launch of the delta rule; `words`: of the quantized result that the kernel writes itself."""

    launch: DeltaOp
    words: int

    @property
    def quantized_apart(self) -> bool:
        return self.launch.quant is not None and not self.words

    def by_rows(self, printing: Printing) -> list[Kernel]:
        """One row after the other; of several slices of a head, the last block norms it."""
        launch = self.launch
        slices, threads = _delta_blocks(launch, printing.chip.multiprocessors)
        partial, counter = "nullptr", "nullptr"
        if slices > 1:
            partial = printing.scratch("partial", "float", 4 * buffer_of(launch.out).length)
            counter = printing.scratch("counter", "u32", 4 * launch.seqs.data * launch.hv.data, zeroed=True)
        shape = self._shape(slices=slices if slices > 1 else None, threads=threads)
        call = f"delta<{shape}>({self._operands(printing, partial, counter)})"
        grid = (slices, launch.hv.data, launch.seqs.data)
        return [self._kernel("delta", "delta.cuh", call, printing, grid, threads)]

    def in_chunks(self, printing: Printing) -> list[Kernel]:
        """32 rows at a time; then the norm of all that was read out."""
        launch = self.launch
        d, hv, seqs = launch.d.data, launch.hv.data, launch.seqs.data
        columns = 32 if d % 32 == 0 else 16
        partial = printing.scratch("partial", "float", 4 * buffer_of(launch.out).length)
        call = f"delta_chunks<{self._shape()}, {columns}>({self._operands(printing, partial)})"
        shared = 4 * (2 * DELTA_CHUNK * (d + 4) + (d + DELTA_CHUNK) * columns + 3 * DELTA_CHUNK * (DELTA_CHUNK + 2))
        grid = (d // columns, hv, seqs)
        header = "delta_chunks.cuh"
        chunks = self._kernel("delta_chunks", header, call, printing, grid, _CHUNK_THREADS, shared)
        partial = printing.scratch("partial", "float", 4 * buffer_of(launch.out).length)
        warps = _FINISH_THREADS // WARP
        call = f"delta_finish<{self._shape()}, {seqs}, {warps}>({self._operands(printing, partial)})"
        grid = (ceil_div(launch.rows.data * seqs * hv, warps), 1, 1)
        return [chunks, self._kernel("delta_finish", header, call, printing, grid, _FINISH_THREADS)]

    def _kernel(
        self,
        name: str,
        header: str,
        call: str,
        printing: Printing,
        grid: tuple[int, int, int],
        block: int,
        shared: int = 0,
    ) -> Kernel:
        return Kernel(
            name=name, header=header, call=call, arguments=printing.take(), grid=grid, block=block, shared=shared
        )

    def _shape(self, **blocks: int | None) -> str:
        launch = self.launch
        return struct(
            "DeltaShape",
            hv=launch.hv.data,
            hk=launch.hk.data,
            d=launch.d.data,
            rows=launch.rows.data,
            cyclic=True if launch.order.data is KeyHeadOrder.CYCLIC else None,
            eps=launch.eps.data,
            f32=None if launch.f32 is not None or self.quantized_apart else False,
            words=self.words or None,
            **blocks,
        )

    def _operands(self, printing: Printing, partial: str, counter: str = "nullptr") -> str:
        launch = self.launch
        read = [
            printing.reads(name, value)
            for name, value in (
                ("q", launch.q),
                ("k", launch.k),
                ("v", launch.v),
                ("z", launch.z),
                ("b", launch.b),
                ("a", launch.a),
            )
        ]
        state, norm = printing.writes("state", launch.st), printing.reads("norm", launch.gn)
        if self.quantized_apart and launch.f32 is None:
            out = printing.scratch("values", "float", 4 * buffer_of(launch.out).length)
        else:
            out = printing.writes("y", launch.out if launch.f32 is not None else None)
        quantized = printing.writes_quantized("y", launch.out) if self.words else "nullptr, nullptr"
        operands = ", ".join([*read, state, norm, out, quantized, partial, counter])
        return f"DeltaOperands<{element_type(launch.st)}>{{{operands}}}"


def _delta_blocks(launch: DeltaOp, multiprocessors: int) -> tuple[int, int]:
    """Slices of a head's columns, so that the heads fill the chip once, and threads of a block."""
    d, heads = launch.d.data, launch.hv.data * launch.seqs.data
    fitting = [
        slices
        for slices in range(1, d // 4 + 1)
        if d % (4 * slices) == 0 and _is_power_of_two(d // (4 * slices)) and d // (4 * slices) <= _MAX_THREADS // 2
    ]
    if not fitting:
        raise refuse(launch, f"its heads of {d} columns are no whole number of power-of-two runs of vectors of 4")
    wanted = [s for s in fitting if heads * s <= multiprocessors and d // s >= _MIN_COLUMNS]
    slices = max(wanted, default=fitting[0])
    lanes = d // slices // 4
    threads = max(ceil_div(d, _DELTA_ROWS) * lanes, 4 * WARP)
    return slices, min(1 << (threads - 1).bit_length(), _MAX_THREADS // 2)


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


PRINTERS: Printers = {
    ConvOp: print_conv,
    ConvPartsOp: print_conv_parts,
    DecayOp: print_decay,
    GatesOp: print_gates,
    GateProjOp: print_gate_proj,
    DeltaOp: print_delta,
}
