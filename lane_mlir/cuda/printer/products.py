"""Printing of products by weights, and of the quantization of what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemm import GEMM_TILE_N
from lane_mlir.cuda.kernels.gemv import GEMV_MMA_MIN_ROWS, GEMV_ROWS, read_alike, unit_values
from lane_mlir.cuda.printer.few_rows import FewRows
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
from lane_mlir.cuda.printer.multiplying import (
    WARP,
    F32Tiles,
    Multiplication,
    Rows,
    Tiles,
    affine_of,
    product_of,
    type_of,
)
from lane_mlir.cuda.printer.vectors import quantize_apart, vector_width
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
    Target,
    buffer_of,
)
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.dialects.tg import Activation, Numerics
from lane_mlir.formats import Format

_HEAD_SUM_THREADS = 256
"""Threads of a block of head_sum in gemv.cuh."""

_HEAD_SUM_ROWS = 2
"""Rows of the activation that it takes: their sums, 32 columns each, are in registers."""

_F32_COLUMNS = 8
"""Output columns of a block of gemv_f32.cuh."""


def print_quant(launch: QuantOp, printing: Printing) -> Sequence[Kernel]:
    return [quantize_apart(printing, printing.reads("x", launch.x), launch.x, launch.n.data)]


After: TypeAlias = Callable[[Printing], str]
"""How what blocks do with their results, a struct of gemv_fold.cuh with its buffers, is written."""


@dataclass(frozen=True)
class Products:
    """Products of one activation, side by side, and the forms of the result of one alone."""

    of: Multiplication
    products: Sequence[Product]
    per_warp: int
    f32: bool = True
    quant: bool = False

    @staticmethod
    def of_launch(launch: GemvOp | GemmPartsOp) -> Products:
        tail = launch.tail.data if launch.tail is not None else None
        f32, quant = True, False
        if isinstance(launch, GemmPartsOp):
            products = launch.each()
        else:
            products = [Product(launch.w, launch.format.data, launch.target, launch.n.data, launch.affine)]
            f32, quant = launch.f32 is not None, launch.quant is not None
            if quant and not launch.target.dst.own:
                raise refuse(launch, "it quantizes a result that is part of a buffer")
        refuse_batched_rows(launch, *(product.y for product in products))
        # The lanes of a block share the widest format's rows, and have as much of it on their way as they can.
        widest = max((product.format for product in products), key=lambda f: f.bytes / f.values)
        of = Multiplication(launch, widest, launch.x, launch.k.data, launch.m.data, tail)
        for product in products:
            replace(of, format=product.format).check()
        return Products(of, products, launch.per_warp.data, f32, quant)

    @property
    def formats(self) -> Sequence[Format]:
        """Those of the weights, each once."""
        return list(dict.fromkeys(product.format for product in self.products))

    def by_format(self) -> Iterator[Products]:
        """The products of each format."""
        for format in self.formats:
            products = [product for product in self.products if product.format is format]
            yield replace(self, of=replace(self.of, format=format), products=products)

    @property
    def parts(self) -> str:
        """The end of the kernel's name that says that there are several."""
        return "_parts" if len(self.products) > 1 else ""

    def arguments(self, printing: Printing) -> str:
        suffixes = [str(i) for i in range(len(self.products))] if self.parts else [""]
        return ", ".join(product_of(printing, p, s) for p, s in zip(self.products, suffixes, strict=True))

    def quantized(self, printing: Printing) -> str:
        written = printing.writes_quantized("y", self.products[0].y.buffer) if self.quant else ""
        return f"QuantizedResult{{{written}}}"

    def in_rows(self, printing: Printing, after: After | None = None) -> Kernel:
        """On a matrix-vector kernel, for up to 16 rows."""
        columns = sum(p.n for p in self.products)
        held = after is not None
        rows = Rows.choose(self.of, printing, columns, self.per_warp, f32=self.f32, quant=self.quant, held=held)
        x, quantized = self.of.input(printing), self.quantized(printing)
        then = after(printing) if after is not None else "NothingAfter{}"
        call = f"gemv<{rows.shape}>({x}, {quantized}, {then}, {self.arguments(printing)})"
        blocks = sum(ceil_div(p.n, rows.split.columns) for p in self.products)
        others = "".join(f"_{format}" for format in self.formats if format is not self.of.format)
        return rows.kernel(f"gemv{self.parts}{others}", call, printing, blocks, "gemv_fold.cuh" if held else "gemv.cuh")

    def in_few_rows(self, printing: Printing) -> Kernel | None:
        """On tensor cores, for 8 to 16 rows; None where no such kernel takes them."""
        widths = [p.n for p in self.products]
        rows = FewRows.choose(self.of, printing, widths, f32=self.f32, quant=self.quant)
        if rows is None:
            return None
        x, quantized = self.of.input(printing), self.quantized(printing)
        call = f"gemm_rows<{rows.shape}>({x}, {quantized}, {self.arguments(printing)})"
        blocks = sum(ceil_div(n, rows.columns) for n in widths)
        return rows.kernel(f"gemm_rows{self.parts}", call, printing, blocks)

    def in_tiles(self, printing: Printing) -> Kernel:
        """On tensor cores."""
        tiles = Tiles.choose(self.of, printing, f32=self.f32, quant=self.quant)
        x, quantized = self.of.input(printing), self.quantized(printing)
        call = f"gemm<{tiles.shape}>({x}, {quantized}, {self.arguments(printing)})"
        return tiles.kernel(f"gemm{self.parts}", call, printing, sum(ceil_div(p.n, GEMM_TILE_N) for p in self.products))

    def in_f32_tiles(self, printing: Printing) -> list[Kernel]:
        """In f32; a quantized result by a kernel of its own."""
        tiles = F32Tiles.choose(self.of, printing, [p.n for p in self.products])
        values, size = None, self.of.m * self.products[0].n
        if not self.f32:
            values = printing.scratch("values", "float", 4 * size)
        made = self.arguments(printing) if values is None else product_of(printing, self.products[0], y=values)
        x, scratch = tiles.input(printing), tiles.scratch(printing)
        call = f"gemm_f32<{tiles.shape}>({x}, {scratch}, {made})"
        kernels = [tiles.kernel(f"gemm{self.parts}_f32", call, printing)]
        if self.quant:
            kernels.append(quantize_made(printing, self.products[0].y.buffer, size, self.f32))
        return kernels

    def kernels(self, printing: Printing) -> Sequence[Kernel]:
        """One for all formats where the rows are fewer than tensor cores take; every other kernel takes one format."""
        if self.of.launch.on_tensor_cores(printing.numerics):
            return [one.in_tiles(printing) for one in self.by_format()]
        if self.of.m < GEMV_MMA_MIN_ROWS:
            return [self.in_rows(printing)]
        if self.of.m <= GEMV_ROWS:
            return [one.in_few_rows(printing) or one.in_rows(printing) for one in self.by_format()]
        if self.of.words(printing):
            raise refuse(self.of.launch, f"it is a batch of {self.of.m} sequences, of which kernels take {GEMV_ROWS}")
        return [kernel for one in self.by_format() for kernel in one.in_f32_tiles(printing)]


def refuse_batched_rows(launch: LaunchOp, *targets: Target) -> None:
    """Rows of sequences would each land at a position of their own, which no product states."""
    if launch.is_batch() and any(target.dst.takes_param for target in targets):
        raise refuse(launch, "it sets the rows of several sequences at the position of one")


def quantize_made(printing: Printing, out: SSAValue, size: int, f32: bool) -> Kernel:
    """A kernel that quantizes what one before it left in the buffer, or, if not `f32`, in the scratch `values`."""
    if f32:
        return quantize_apart(printing, printing.reads("x", out), out, size)
    return quantize_apart(printing, printing.scratch("values", "const float", 4 * size), out, size)


def print_products(launch: GemvOp | GemmPartsOp, printing: Printing) -> Sequence[Kernel]:
    return Products.of_launch(launch).kernels(printing)


def print_gemv_glu(launch: GemvGluOp, printing: Printing) -> Sequence[Kernel]:
    gate, up = launch.formats.data
    n, m = launch.n.data, launch.m.data
    f32, quant = launch.f32 is not None, launch.quant is not None
    tail = launch.tail.data if launch.tail is not None else None
    of = Multiplication(launch, gate, launch.x, launch.k.data, m, tail)
    replace(of, format=up).check()
    if not read_alike(gate, up):
        raise refuse(launch, f"its weights are stored in formats read in different units, {gate} and {up}")
    if launch.on_tensor_cores(printing.numerics):
        made = Tiles.choose(of, printing, up=up, f32=f32, quant=quant)
        template, columns = "gemm_glu", made.columns
    elif (few := FewRows.choose(of, printing, [n], up=up, f32=f32, quant=quant)) is not None:
        made = few
        template, columns = "gemm_rows_glu", made.columns
    elif m <= GEMV_ROWS:
        made = Rows.choose(of, printing, n, launch.per_warp.data, f32=f32, quant=quant, weights=2)
        template, columns = "gemv_glu", made.split.columns
    else:
        return _gated_in_f32(launch, printing, of)
    types = type_of(gate) if isinstance(made, FewRows) else f"{type_of(gate)}, {type_of(up)}"
    constants = f"{types}, {made.shape}, {constant(n)}, {_gate_activation(launch)}"
    x, weights = of.input(printing), _glu_weights(launch, printing)
    y = printing.writes("y", launch.out if f32 else None)
    quantized = printing.writes_quantized("y", launch.out) if quant else ""
    call = f"{template}<{constants}>({x}, {weights}, {y}, QuantizedResult{{{quantized}}})"
    return [made.kernel(template, call, printing, ceil_div(n, columns))]


def _gate_activation(launch: GemvGluOp) -> str:
    return activation_of(launch.act.data if launch.act is not None else Activation.SILU)


def _glu_weights(launch: GemvGluOp, printing: Printing) -> str:
    weights = f"{printing.weight('w_gate', launch.wg)}, {printing.weight('w_up', launch.wu)}"
    gate, up = affine_of(printing, launch.gate, "_gate"), affine_of(printing, launch.up, "_up")
    return f"{weights}, Affine{gate}, Affine{up}"


def _gated_in_f32(launch: GemvGluOp, printing: Printing, of: Multiplication) -> Sequence[Kernel]:
    gate, up = launch.formats.data
    n, m, f32 = launch.n.data, launch.m.data, launch.f32 is not None
    if gate is not up:
        raise refuse(launch, f"its weights of {m} rows are stored in two formats, {gate} and {up}")
    if of.words(printing):
        raise refuse(launch, f"it is a batch of {m} sequences, of which kernels take {GEMV_ROWS}")
    tiles = F32Tiles.choose(of, printing, [n], glu=True)
    x, weights = tiles.input(printing), _glu_weights(launch, printing)
    y = printing.writes("y", launch.out) if f32 else printing.scratch("values", "float", 4 * m * n)
    constants = f"{type_of(gate)}, {tiles.shape}, {n}, {_gate_activation(launch)}"
    kernels = [tiles.kernel("gemm_glu_f32", f"gemm_f32_glu<{constants}>({x}, {weights}, {y})", printing)]
    if launch.quant is not None:
        kernels.append(quantize_made(printing, launch.out, m * n, f32))
    return kernels


def print_gemv_f32(launch: GemvF32Op, printing: Printing) -> Sequence[Kernel]:
    n, k, m = launch.n.data, launch.k.data, launch.m.data
    refuse_batched_rows(launch, launch.target)
    product = Product(launch.w, Format.F32, launch.target, n, launch.affine)
    of = Multiplication(launch, Format.F32, launch.x, k, m)
    if buffer_of(launch.w).transposed is None:
        return Products(of, [product], per_warp=1).kernels(printing)
    if m > GEMV_ROWS:
        tiles = F32Tiles.choose(of, printing, [n], transposed=True)
        x, scratch = tiles.input(printing), tiles.scratch(printing)
        call = f"gemm_f32<{tiles.shape}>({x}, {scratch}, {product_of(printing, product)})"
        return [tiles.kernel("gemm_f32", call, printing)]
    shape = struct("GemvF32Shape", k=k, m=m, warps=launch.split.data)
    x = printing.reads("x", launch.x)
    return [
        Kernel(
            name="gemv_f32",
            header="gemv_f32.cuh",
            call=f"gemv_f32<{shape}>({x}, {product_of(printing, product)})",
            arguments=printing.take(),
            grid=(ceil_div(n, _F32_COLUMNS), 1, 1),
            block=launch.split.data * WARP,
        )
    ]


def _head_constants(launch: HeadGemvOp, rows: int | None = None) -> str:
    """The end of the constants of products by each head's weight, which differ in their first."""
    shape = struct(
        "HeadShape",
        k=launch.a.data,
        n=launch.b.data,
        m=launch.m.data,
        heads=launch.heads.data,
        shared=True if launch.shared is not None else None,
        rows_out=True if launch.rows_out is not None else None,
        rows=rows,
    )
    part = part_of(launch.part.data if launch.part is not None else None)
    return f"{shape}, {part}, {dst_of(launch.dst.data)}, {element_type(launch.x)}, {element_type(launch.y)}"


def _head_arguments(launch: HeadGemvOp, printing: Printing) -> str:
    x, weight = printing.reads("x", launch.x), printing.weight("w", launch.w)
    y, param = printing.writes("y", launch.y), printing.reads("row", launch.param)
    upto = printing.reads("upto", launch.upto)
    return f"{x}, {weight}, {y}, {param}, {upto}, {launch.step.data if launch.step is not None else 0}"


def print_head_sum(launch: HeadGemvOp, printing: Printing) -> Sequence[Kernel]:
    """Where a head's weight is stored by the columns of its input, a block takes a head and a few rows."""
    format, k, n, m = launch.format.data, launch.a.data, launch.b.data, launch.m.data
    Multiplication(launch, format, launch.x, n, m).check()
    units = n // unit_values(format)
    if units > _HEAD_SUM_THREADS:
        raise refuse(launch, f"its heads have {n} columns, more than a block takes")
    rows = min(m, _HEAD_SUM_ROWS)
    call = f"head_sum<{type_of(format)}, {_head_constants(launch, rows)}>({_head_arguments(launch, printing)})"
    return [
        Kernel(
            name=f"head_sum_{format}",
            header="gemv.cuh",
            call=call,
            arguments=printing.take(),
            grid=(launch.heads.data, ceil_div(m, rows), 1),
            block=_HEAD_SUM_THREADS,
            shared=4 * (rows * k + _HEAD_SUM_THREADS // units * n),
        )
    ]


def print_head_gemv(launch: HeadGemvOp, printing: Printing) -> Sequence[Kernel]:
    """A block takes some columns of one head for as many rows as fit; more rows are more blocks."""
    refuse_batched_rows(launch, launch.target)
    if launch.transposed is not None:
        return print_head_sum(launch, printing)
    m, n = launch.m.data, launch.b.data
    part = launch.part.data if launch.part is not None else Part(launch.a.data, 0)
    of = Multiplication(launch, launch.format.data, launch.x, launch.a.data, min(m, GEMV_ROWS))
    rows = Rows.choose(of, replace(printing, numerics=Numerics.DEQUANT), n, per_warp=1)
    rows = replace(rows, aligned=vector_width((launch.x,), (part.pitch, part.offset)) == 4)
    constants = f"{type_of(of.format)}, {rows.shape}, {_head_constants(launch)}"
    call = f"head_gemv<{constants}>({_head_arguments(launch, printing)})"
    kernel = rows.kernel("head_gemv", call, printing, launch.heads.data * ceil_div(n, rows.split.columns))
    return [replace(kernel, grid=(kernel.grid[0], ceil_div(m, of.m), 1))]


PRINTERS: Printers = {
    QuantOp: print_quant,
    GemvOp: print_products,
    GemmPartsOp: print_products,
    GemvGluOp: print_gemv_glu,
    GemvF32Op: print_gemv_f32,
    HeadGemvOp: print_head_gemv,
}
