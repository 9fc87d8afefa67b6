"""Printing of products by weights, and of the quantization of what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemm import GEMM_TILE_N, gemm_shared_bytes, has_minima, scales_halves, tile_rows
from lane_mlir.cuda.kernels.gemv import GEMV_ROWS, QBLOCK, GemvSplit, split_gemv, staged_bytes, unit_values
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.printer.kernel import (
    Kernel,
    Printers,
    Printing,
    activation_of,
    constant,
    dst_of,
    element_type,
    part_of,
    refuse,
    struct,
)
from lane_mlir.dialects.launch import (
    GemmPartsOp,
    GemvF32Op,
    GemvGluOp,
    GemvOp,
    HeadGemvOp,
    LaunchOp,
    Part,
    Product,
    QuantOp,
    Tail,
    buffer_of,
)
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.dialects.tg import Activation, Numerics
from lane_mlir.formats import Format

_QUANT_THREADS = 128

_WARP = 32

_F32_COLUMNS = 8
"""Output columns of a block of gemv_f32.cuh."""


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


@dataclass(frozen=True)
class Rows:
    """A product of a few rows: what its kernel's constants say, whichever launch it is part of."""

    format: Format
    k: int
    m: int
    words: int
    """int8 words of the activation as the kernel reads it; 0 for f32."""
    split: GemvSplit
    f32: bool
    quant: bool
    aligned: bool = True
    """Whether rows of an f32 activation begin at multiples of 16 bytes."""

    @property
    def shape(self) -> str:
        """The constants: `GemvShape{.k = 576, …}`."""
        split = self.split
        return struct(
            "GemvShape",
            k=self.k,
            m=self.m,
            words=self.words,
            lanes=split.lanes,
            rows=split.rows,
            warps=split.warps,
            depth=split.depth,
            tile=split.tile,
            quant=self.quant or None,
            f32=None if self.f32 else False,
            aligned=None if self.aligned else False,
        )

    @property
    def columns(self) -> int:
        """Output columns of a block."""
        return self.split.columns

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the activation, then in its place what is to be quantized."""
        result = 4 * self.m * self.split.columns if self.quant else 0
        return max(staged_bytes(self.split, self.format, self.m, self.words), result)

    def kernel(self, name: str, call: str, printing: Printing, blocks: int) -> Kernel:
        return Kernel(
            name=f"{name}_{self.format}",
            header="gemv.cuh",
            call=call,
            arguments=printing.take(),
            grid=(blocks, 1, 1),
            block=self.split.warps * _WARP,
            shared=self.shared,
        )


@dataclass(frozen=True)
class Tiles:
    """A product of many rows on tensor cores: what its kernel's constants say, whichever launch it is part of."""

    formats: tuple[Format, ...]
    """That of the weight, or those of the gate and the up weight of a gated pair."""
    k: int
    m: int
    words: int
    rows: int
    """Of a tile."""
    f32: bool
    quant: bool

    @property
    def glu(self) -> bool:
        return len(self.formats) > 1

    @property
    def columns(self) -> int:
        """Output columns of a tile."""
        return GEMM_TILE_N // len(self.formats)

    @property
    def shape(self) -> str:
        """The constants: `GemmShape{.k = 576, …}`."""
        return struct(
            "GemmShape",
            k=self.k,
            m=self.m,
            words=self.words,
            rows=self.rows,
            quant=self.quant or None,
            f32=None if self.f32 else False,
            glu=self.glu or None,
        )

    def kernel(self, name: str, call: str, printing: Printing, tiles: int) -> Kernel:
        halves = any(scales_halves(format) for format in self.formats)
        minima = any(has_minima(format) for format in self.formats)
        return Kernel(
            name=f"{name}_{self.formats[0]}",
            header="gemm.cuh",
            call=call,
            arguments=printing.take(),
            grid=(ceil_div(self.m, self.rows), tiles, 1),
            block=2 * self.rows,
            shared=gemm_shared_bytes(self.rows, self.words, halves, minima),
        )


def tiles_of(
    launch: LaunchOp,
    printing: Printing,
    formats: tuple[Format, ...],
    *,
    k: int,
    m: int,
    f32: bool = True,
    quant: bool = False,
) -> Tiles:
    """How the product of a launch runs in tiles on tensor cores."""
    for format in formats:
        layout(format)
    if k % QBLOCK:
        raise refuse(launch, f"its rows of {k} values are no whole number of blocks of {QBLOCK}")
    rows = tile_rows(m, launch.gemm_rows(printing.numerics))
    return Tiles(formats, k, m, printing.words, rows, f32, quant)


def rows_of(
    launch: LaunchOp,
    printing: Printing,
    *,
    format: Format,
    n: int,
    k: int,
    m: int,
    per_warp: int,
    f32: bool = True,
    quant: bool = False,
) -> Rows:
    """How the product of a launch runs on the matrix-vector kernels."""
    layout(format)
    if k % unit_values(format):
        raise refuse(launch, f"its rows of {k} values are no whole number of units of {unit_values(format)}")
    if quant and n % QBLOCK:
        raise refuse(launch, f"its result has rows of {n} values, no whole number of blocks of {QBLOCK} to quantize")
    words = printing.words if format.is_block else 0
    split = split_gemv(
        format,
        n,
        k,
        m,
        words=words,
        per_warp=per_warp,
        whole_blocks=quant,
        multiprocessors=printing.chip.multiprocessors,
    )
    return Rows(format, k, m, words, split, f32, quant)


def input_of(printing: Printing, x: SSAValue, words: int, k: int, tail: Tail | None) -> str:
    """The activation as the kernel takes it, from the first row that is computed on."""
    first = tail.first * k if tail is not None else 0
    if words:
        quantized = printing.reads_quantized("x", x)
        if first:
            quantized = f"x_words + {first * words}, x_scales + {first // QBLOCK * words}"
        return f"GemvInput{{{quantized}, nullptr}}"
    values = printing.reads("x", x)
    return f"GemvInput{{nullptr, nullptr, {values}{f' + {first}' if first else ''}}}"


def product_of(printing: Printing, product: Product, suffix: str = "") -> str:
    """A product of `gemv` with its buffers: `Product<192, Dst{…}>{w, bias, y, param}`."""
    weight, bias = printing.weight(f"w{suffix}", product.w), printing.reads(f"bias{suffix}", product.bias)
    y, param = printing.writes(f"y{suffix}", product.y.buffer), printing.reads(f"row{suffix}", product.y.param)
    arguments = f"{product.n}, {dst_of(product.y.dst)}, {element_type(product.y.buffer)}"
    return f"Product<{arguments}>{{{weight}, {bias}, {y}, {param}}}"


def type_of(format: Format) -> str:
    """The struct of formats.cuh that reads a format."""
    return str(format).upper()


def print_gemv(launch: GemvOp, printing: Printing) -> Sequence[Kernel]:
    format, n, k, m = launch.format.data, launch.n.data, launch.k.data, launch.m.data
    f32, quant = launch.f32 is not None, launch.quant is not None
    if quant and not launch.target.dst.own:
        raise refuse(launch, "it quantizes a result that is part of a buffer")
    if launch.on_tensor_cores(printing.numerics):
        tiles = tiles_of(launch, printing, (format,), k=k, m=m, f32=f32, quant=quant)
        x = input_of(printing, launch.x, printing.words, k, launch.tail.data if launch.tail is not None else None)
        product = product_of(printing, Product(launch.w, launch.target, n, launch.bias))
        quantized = printing.writes_quantized("y", launch.y) if quant else ""
        call = f"gemm<{type_of(format)}, {tiles.shape}>({x}, QuantizedResult{{{quantized}}}, {product})"
        return [tiles.kernel("gemm", call, printing, ceil_div(n, GEMM_TILE_N))]
    if m > GEMV_ROWS:
        raise refuse(launch, f"it has {m} rows")
    rows = rows_of(launch, printing, format=format, n=n, k=k, m=m, per_warp=launch.per_warp.data, f32=f32, quant=quant)
    x = input_of(printing, launch.x, rows.words, k, launch.tail.data if launch.tail is not None else None)
    product = product_of(printing, Product(launch.w, launch.target, n, launch.bias))
    quantized = printing.writes_quantized("y", launch.y) if quant else ""
    call = f"gemv<{type_of(format)}, {rows.shape}>({x}, QuantizedResult{{{quantized}}}, {product})"
    return [rows.kernel("gemv", call, printing, ceil_div(n, rows.split.columns))]


def print_gemm_parts(launch: GemmPartsOp, printing: Printing) -> Sequence[Kernel]:
    format, k, m = launch.format.data, launch.k.data, launch.m.data
    products, tail = launch.each(), launch.tail.data if launch.tail is not None else None
    if launch.on_tensor_cores(printing.numerics):
        tiles = tiles_of(launch, printing, (format,), k=k, m=m)
        x = input_of(printing, launch.x, printing.words, k, tail)
        made = ", ".join(product_of(printing, product, str(i)) for i, product in enumerate(products))
        call = f"gemm<{type_of(format)}, {tiles.shape}>({x}, QuantizedResult{{}}, {made})"
        return [tiles.kernel("gemm_parts", call, printing, sum(ceil_div(p.n, GEMM_TILE_N) for p in products))]
    if m > GEMV_ROWS:
        raise refuse(launch, f"it has {m} rows")
    rows = rows_of(launch, printing, format=format, n=launch.gemm_cols(), k=k, m=m, per_warp=launch.per_warp.data)
    x = input_of(printing, launch.x, rows.words, k, tail)
    made = ", ".join(product_of(printing, product, str(i)) for i, product in enumerate(products))
    call = f"gemv<{type_of(format)}, {rows.shape}>({x}, QuantizedResult{{}}, {made})"
    blocks = sum(ceil_div(product.n, rows.split.columns) for product in products)
    return [rows.kernel("gemv_parts", call, printing, blocks)]


def print_gemv_glu(launch: GemvGluOp, printing: Printing) -> Sequence[Kernel]:
    gate, up = launch.formats.data
    n, k, m = launch.n.data, launch.k.data, launch.m.data
    layout(up)
    if gate.is_block != up.is_block or unit_values(gate) != unit_values(up):
        raise refuse(launch, f"its weights are stored in formats read in different units, {gate} and {up}")
    f32, quant = launch.f32 is not None, launch.quant is not None
    in_tiles = launch.on_tensor_cores(printing.numerics)
    if in_tiles:
        made = tiles_of(launch, printing, (gate, up), k=k, m=m, f32=f32, quant=quant)
    elif m > GEMV_ROWS:
        raise refuse(launch, f"it has {m} rows")
    else:
        per_warp = launch.per_warp.data
        made = rows_of(launch, printing, format=gate, n=n, k=k, m=m, per_warp=per_warp, f32=f32, quant=quant)
    x = input_of(printing, launch.x, made.words, k, launch.tail.data if launch.tail is not None else None)
    act = activation_of(launch.act.data if launch.act is not None else Activation.SILU)
    weights = f"{printing.weight('w_gate', launch.wg)}, {printing.weight('w_up', launch.wu)}"
    biases = f"{printing.reads('bias_gate', launch.bg)}, {printing.reads('bias_up', launch.bu)}"
    y = printing.writes("y", launch.out if f32 else None)
    quantized = printing.writes_quantized("y", launch.out) if quant else ""
    template = "gemm_glu" if in_tiles else "gemv_glu"
    constants = f"{type_of(gate)}, {type_of(up)}, {made.shape}, {constant(n)}, {act}"
    call = f"{template}<{constants}>({x}, {weights}, {biases}, {y}, QuantizedResult{{{quantized}}})"
    return [made.kernel(template, call, printing, ceil_div(n, made.columns))]


def print_gemv_f32(launch: GemvF32Op, printing: Printing) -> Sequence[Kernel]:
    n, k, m = launch.n.data, launch.k.data, launch.m.data
    if m > GEMV_ROWS:
        raise refuse(launch, f"it has {m} rows")
    product = Product(launch.w, launch.target, n, launch.bias)
    if buffer_of(launch.w).transposed is None:
        rows = rows_of(launch, printing, format=Format.F32, n=n, k=k, m=m, per_warp=1)
        x = input_of(printing, launch.x, 0, k, None)
        call = f"gemv<F32, {rows.shape}>({x}, QuantizedResult{{}}, {product_of(printing, product)})"
        return [rows.kernel("gemv", call, printing, ceil_div(n, rows.split.columns))]
    shape = struct("GemvF32Shape", k=k, m=m, warps=launch.split.data)
    x = printing.reads("x", launch.x)
    return [
        Kernel(
            name="gemv_f32",
            header="gemv_f32.cuh",
            call=f"gemv_f32<{shape}>({x}, {product_of(printing, product)})",
            arguments=printing.take(),
            grid=(ceil_div(n, _F32_COLUMNS), 1, 1),
            block=launch.split.data * _WARP,
        )
    ]


def print_head_gemv(launch: HeadGemvOp, printing: Printing) -> Sequence[Kernel]:
    """A block takes some columns of one head for as many rows as fit; more rows are more blocks."""
    format, m, heads = launch.format.data, launch.m.data, launch.heads.data
    part = launch.part.data if launch.part is not None else Part(launch.a.data, 0)
    rows = rows_of(
        launch, replace(printing, numerics=Numerics.DEQUANT), format=format, n=launch.b.data, k=launch.a.data,
        m=min(m, GEMV_ROWS), per_warp=1,
    )  # fmt: skip
    rows = replace(rows, aligned=part.pitch % 4 == 0 and part.offset % 4 == 0)
    x, weight = printing.reads("x", launch.x), printing.weight("w", launch.w)
    y, param = printing.writes("y", launch.y), printing.reads("row", launch.param)
    upto = f"{printing.reads('upto', launch.upto)}, {launch.step.data if launch.step is not None else 0}"
    constants = (
        f"{type_of(format)}, {rows.shape}, {m}, {launch.b.data}, {heads}, {constant(launch.shared is not None)}, "
        f"{part_of(part)}, {dst_of(launch.dst.data)}, {element_type(launch.y)}"
    )
    call = f"head_gemv<{constants}>({x}, {weight}, {y}, {param}, {upto})"
    kernel = rows.kernel("head_gemv", call, printing, heads * ceil_div(launch.b.data, rows.split.columns))
    return [replace(kernel, grid=(kernel.grid[0], ceil_div(m, rows.m), 1))]


PRINTERS: Printers = {
    QuantOp: print_quant,
    GemvOp: print_gemv,
    GemmPartsOp: print_gemm_parts,
    GemvGluOp: print_gemv_glu,
    GemvF32Op: print_gemv_f32,
    HeadGemvOp: print_head_gemv,
}
