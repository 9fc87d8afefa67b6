"""How products run: on matrix-vector kernels, in tiles on tensor cores, or in tiles in f32; the constants of each."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemm import (
    GEMM_TILE_N,
    gemm_f32_splits,
    gemm_f32_tile,
    gemm_shared_bytes,
    has_minima,
    scales_halves,
    tile_rows,
)
from lane_mlir.cuda.kernels.gemv import QBLOCK, GemvSplit, split_gemv, staged_bytes, unit_values
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.printer.kernel import Kernel, Printing, dst_of, element_type, refuse, struct
from lane_mlir.cuda.printer.vectors import vector_width
from lane_mlir.dialects.launch import PLAIN, Affine, GemmPartsOp, GemvGluOp, GemvOp, LaunchOp, Product, Tail
from lane_mlir.dialects.launch.operation import ceil_div
from lane_mlir.formats import Format

WARP = 32

_F32_THREADS = 256


@dataclass(frozen=True)
class Multiplication:
    """An activation [m, k] and the format of what it is multiplied by, of which launch."""

    launch: LaunchOp
    format: Format
    x: SSAValue
    k: int
    m: int
    tail: Tail | None = None

    @property
    def first_row(self) -> int:
        return self.tail.first if self.tail is not None else 0

    def check(self) -> None:
        """Raises LaneError for a format, or rows of a length, that no kernel takes."""
        layout(self.format)
        whole = max(unit_values(self.format), self.format.values)
        if self.k % whole:
            raise refuse(self.launch, f"its rows of {self.k} values are no whole number of units of {whole}")

    def words(self, printing: Printing) -> int:
        """int8 words in which the kernels take the activation; 0 for f32."""
        return printing.words if self.format.is_block else 0

    @property
    def aligned(self) -> bool:
        """Whether rows of the activation in f32 begin at multiples of 16 bytes."""
        return vector_width((self.x,), (self.k,)) == 4

    @property
    def undivided(self) -> tuple[SSAValue, float] | None:
        """The sums of squares and the epsilon of an activation that a norm has left undivided."""
        launch = self.launch
        if not isinstance(launch, GemvOp | GemmPartsOp | GemvGluOp) or launch.squares is None:
            return None
        assert launch.norm_eps is not None
        return launch.squares, launch.norm_eps.data

    def check_divided(self) -> None:
        """Raises LaneError for an activation that a norm has left undivided: only the matrix-vector kernels divide."""
        if self.undivided is not None:
            raise refuse(self.launch, f"its activation of {self.m} rows is not divided by its root mean square")

    def input(self, printing: Printing) -> str:
        """The activation as kernels take it, from the first row that is computed on."""
        words, first = self.words(printing), self.first_row * self.k
        quantized, values = "nullptr, nullptr", "nullptr"
        if not words:
            values = printing.reads("x", self.x) + (f" + {first}" if first else "")
        else:
            quantized = printing.reads_quantized("x", self.x)
            if first:
                quantized = f"x_words + {first * words}, x_scales + {first // QBLOCK * words}"
        squares = ""
        if self.undivided is not None:
            squares = f", {printing.reads('x_squares', self.undivided[0])}"
        return f"GemvInput{{{quantized}, {values}{squares}}}"


def product_of(printing: Printing, product: Product, suffix: str = "", y: str | None = None) -> str:
    """
    A product with its buffers, `Product<Q8_0, 192, Dst{…}, float>{w, {bias}, y, row}`. `y`: where it lands instead of
    where the launch says.
    """
    weight, affine = printing.weight(f"w{suffix}", product.w), affine_of(printing, product.affine, suffix)
    if y is not None:
        return f"Product<{type_of(product.format)}, {product.n}>{{{weight}, {affine}, {y}, nullptr}}"
    y, param = printing.writes(f"y{suffix}", product.y.buffer), printing.reads(f"row{suffix}", product.y.param)
    arguments = f"{type_of(product.format)}, {product.n}, {dst_of(product.y.dst)}, {element_type(product.y.buffer)}"
    return f"Product<{arguments}>{{{weight}, {affine}, {y}, {param}}}"


def affine_of(printing: Printing, affine: Affine, suffix: str = "") -> str:
    """What is done to the sums of a product, `{bias, scale, true}`: the fields of Affine in gemv.cuh that say more."""
    if affine == PLAIN:
        return "{}"
    bias = printing.reads(f"bias{suffix}", affine.bias)
    if affine.scale is None:
        return f"{{{bias}}}"
    scale = printing.reads(f"scale{suffix}", affine.scale)
    return f"{{{bias}, {scale}{', true' if affine.scaled_bias else ''}}}"


def type_of(format: Format) -> str:
    """The struct of formats.cuh that reads a format."""
    return str(format).upper()


@dataclass(frozen=True)
class Rows:
    """Products of a few rows on a matrix-vector kernel."""

    of: Multiplication
    words: int
    split: GemvSplit
    f32: bool
    quant: bool
    held: bool
    aligned: bool

    @staticmethod
    def choose(
        of: Multiplication,
        printing: Printing,
        n: int,
        per_warp: int,
        *,
        f32: bool = True,
        quant: bool = False,
        held: bool = False,
        weights: int = 1,
    ) -> Rows:
        """
        For n outputs a row, each of one weight or of a gated pair. `held`: blocks keep their results, whole blocks of
        32 columns, for what they do after. Raises LaneError if the kernel does not take them.
        """
        of.check()
        if (quant or held) and n % QBLOCK:
            raise refuse(of.launch, f"its rows of {n} outputs are no whole number of blocks of {QBLOCK} to quantize")
        words = of.words(printing)
        split = split_gemv(
            of.format,
            n,
            of.k,
            of.m,
            words=words,
            per_warp=per_warp,
            whole_blocks=quant or held,
            multiprocessors=printing.chip.multiprocessors,
            weights=weights,
        )
        return Rows(of, words, split, f32, quant, held, of.aligned)

    @property
    def shape(self) -> str:
        """The constants: `GemvShape{.k = 576, …}`."""
        split = self.split
        return struct(
            "GemvShape",
            k=self.of.k,
            m=self.of.m,
            words=self.words,
            lanes=split.lanes,
            rows=split.rows,
            warps=split.warps,
            depth=split.depth,
            tile=split.tile,
            quant=self.quant or None,
            held=self.held or None,
            divides=True if self.of.undivided is not None else None,
            norm_eps=self.of.undivided[1] if self.of.undivided is not None else None,
            f32=None if self.f32 else False,
            aligned=None if self.words or self.aligned else False,
        )

    def kernel(self, name: str, call: str, printing: Printing, blocks: int, header: str = "gemv.cuh") -> Kernel:
        """Shared memory: the activation, then in its place what is to be quantized."""
        result = 4 * self.of.m * self.split.columns if self.quant or self.held else 0
        return Kernel(
            name=f"{name}_{self.of.format}",
            header=header,
            call=call,
            arguments=printing.take(),
            grid=(blocks, 1, 1),
            block=self.split.warps * WARP,
            shared=max(staged_bytes(self.split, self.of.format, self.of.m, self.words), result),
        )


@dataclass(frozen=True)
class Tiles:
    """Products of many rows in int8 on tensor cores."""

    of: Multiplication
    formats: tuple[Format, ...]
    """That of the weight, or those of the gate and the up weight of a gated pair."""
    words: int
    rows: int
    """Of a tile."""
    f32: bool
    quant: bool

    @staticmethod
    def choose(
        of: Multiplication,
        printing: Printing,
        *,
        up: Format | None = None,
        f32: bool = True,
        quant: bool = False,
    ) -> Tiles:
        """`up`: the format of the up weight of a gated pair."""
        of.check()
        of.check_divided()
        if up is not None:
            layout(up)
        rows = tile_rows(of.m, of.launch.gemm_rows(printing.numerics))
        return Tiles(of, (of.format,) if up is None else (of.format, up), printing.words, rows, f32, quant)

    @property
    def columns(self) -> int:
        """Output columns of a tile."""
        return GEMM_TILE_N // len(self.formats)

    @property
    def shape(self) -> str:
        """The constants: `GemmShape{.k = 576, …}`."""
        return struct(
            "GemmShape",
            k=self.of.k,
            m=self.of.m,
            words=self.words,
            rows=self.rows,
            quant=self.quant or None,
            f32=None if self.f32 else False,
            glu=True if len(self.formats) > 1 else None,
        )

    def kernel(self, name: str, call: str, printing: Printing, tiles: int) -> Kernel:
        halves = any(scales_halves(format) for format in self.formats)
        minima = any(has_minima(format) for format in self.formats)
        return Kernel(
            name=f"{name}_{self.of.format}",
            header="gemm.cuh",
            call=call,
            arguments=printing.take(),
            grid=(ceil_div(self.of.m, self.rows), tiles, 1),
            block=2 * self.rows,
            shared=gemm_shared_bytes(self.rows, self.words, halves, minima),
        )


@dataclass(frozen=True)
class F32Tiles:
    """Products of many rows in f32."""

    of: Multiplication
    rows: int
    columns: int
    """Rows of weights of a tile; of a gated pair half of them are the gate's."""
    tiles: int
    """Tiles over the columns."""
    splits: int
    transposed: bool
    glu: bool

    @staticmethod
    def choose(
        of: Multiplication,
        printing: Printing,
        widths: list[int],
        *,
        transposed: bool = False,
        glu: bool = False,
    ) -> F32Tiles:
        """For products of some widths, side by side."""
        if not transposed:
            of.check()
        of.check_divided()
        rows, columns = gemm_f32_tile(of.m, sum(widths), printing.chip.multiprocessors)
        columns = GEMM_TILE_N if glu else columns
        tiles = sum(ceil_div(n, columns // 2 if glu else columns) for n in widths)
        splits = gemm_f32_splits(ceil_div(of.m, rows) * tiles, printing.chip.multiprocessors, ceil_div(of.k, QBLOCK))
        return F32Tiles(of, rows, columns, tiles, 1 if glu else splits, transposed, glu)

    @property
    def shape(self) -> str:
        """The constants: `GemmF32Shape{.k = 576, …}`."""
        return struct(
            "GemmF32Shape",
            k=self.of.k,
            m=self.of.m,
            rows=self.rows,
            columns=self.columns,
            splits=self.splits,
            transposed=self.transposed or None,
            aligned=None if self.of.aligned else False,
            glu=self.glu or None,
        )

    def input(self, printing: Printing) -> str:
        """The activation in f32."""
        first = self.of.first_row * self.of.k
        values = printing.reads("x", self.of.x)
        return f"GemvInput{{nullptr, nullptr, {values}{f' + {first}' if first else ''}}}"

    def scratch(self, printing: Printing) -> str:
        """What the splits of a tile leave for the last of them."""
        if self.splits == 1:
            return "SplitScratch{}"
        tiles = self.tiles * ceil_div(self.of.m, self.rows)
        partial = printing.scratch("partial", "float", 4 * tiles * self.splits * self.rows * self.columns)
        return f"SplitScratch{{{partial}, {printing.scratch('counters', 'u32', 4 * tiles, zeroed=True)}}}"

    def kernel(self, name: str, call: str, printing: Printing) -> Kernel:
        return Kernel(
            name=f"{name}_{self.of.format}",
            header="gemm_f32.cuh",
            call=call,
            arguments=printing.take(),
            grid=(ceil_div(self.of.m, self.rows), self.tiles, self.splits),
            block=_F32_THREADS,
            shared=4 * QBLOCK * (self.rows + self.columns + 8),
        )
