"""Launches of several products of one activation, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from lane_mlir.cuda.kernels.gemm import GEMM_TILE_N, gemm_blk_rows
from lane_mlir.cuda.kernels.gemv import GEMV_MMA_MIN_ROWS, GEMV_ROWS, read_alike
from lane_mlir.dialects.launch.attributes import (
    FormatsAttr,
    GemmPart,
    GemmPartAttr,
    NumberAttr,
    RealAttr,
    Tail,
    TailAttr,
)
from lane_mlir.dialects.launch.directives import GemmParts
from lane_mlir.dialects.launch.multiplying import (
    NORMED,
    ONE,
    PLAIN,
    TAIL,
    Affine,
    expect_affine,
    expect_division,
    expect_rows,
    multiplies_in_int8,
)
from lane_mlir.dialects.launch.operation import (
    FORMS,
    ORIGIN,
    LaunchEffects,
    LaunchOp,
    Target,
    Touch,
    Touched,
    ceil_div,
    fields,
    flags,
    optional,
    origin,
    present,
    produced,
    sizes,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import Activation, ActivationAttr, Numerics
from lane_mlir.formats import Format


@dataclass(frozen=True)
class Product:
    """One product of several: its weight and the format of it, output columns, its scale and bias, where it lands."""

    w: SSAValue
    format: Format
    y: Target
    n: int
    affine: Affine = PLAIN

    def part(self) -> GemmPart:
        """What of it an attribute says: all but the operands."""
        scale, bias = self.affine.scale is not None, self.affine.bias is not None
        return GemmPart(self.n, scale, bias, self.affine.scaled_bias, self.y.dst)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.w, self.affine.scale, self.affine.bias, self.y.param)


@irdl_op_definition
class GemmPartsOp(LaunchOp):
    """
    Several products of one activation in one launch, side by side: y_p[r, j] = Σᵢ x[r, i]·w_p[j, i], times a scale and
    plus a bias of its own (`Affine`).

    x [m, k], w_p [n_p, k] each in a format of its own, all read in units of one size (blocks of any format are),
    bias_p [n_p], y_p [m, n_p]. `tail`, `per_warp`, `batch` and `squares` as in launch.gemv.

    Example:
        `launch.gemm_parts %x by [%wq into %q n = 64, %wv into %vc at row %pos pitch 32 n = 32] [q4_k, q6_k]
        (k = 256, m = 1)`
    """

    name = "launch.gemm_parts"
    KIND: ClassVar[str] = "gemm_parts"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    squares = opt_operand_def(BUFFER)
    w = var_operand_def(BUFFER)
    scale = var_operand_def(BUFFER)
    """The scales of the products that have one."""
    bias = var_operand_def(BUFFER)
    """The biases of the products that have one."""
    y = var_operand_def(BUFFER)
    param = var_operand_def(BUFFER)
    """The row parameters of the products that land at one."""
    products = prop_def(ArrayAttr[GemmPartAttr])
    formats = prop_def(FormatsAttr)
    k = prop_def(NumberAttr)
    m = prop_def(NumberAttr)
    tail = opt_prop_def(TailAttr)
    per_warp = opt_prop_def(NumberAttr, default_value=ONE)
    batch = opt_prop_def(UnitAttr)
    norm_eps = opt_prop_def(RealAttr)

    custom_directives = (GemmParts,)
    assembly_format = (
        "$x"
        + NORMED
        + " `by` custom<GemmParts>($w, $scale, $bias, $y, $param, $products) $formats"
        + sizes("k", "m")
        + optional("per_warp")
        + TAIL
        + flags("batch")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        products: Sequence[Product],
        *,
        k: int,
        m: int,
        tail: Tail | None = None,
        per_warp: int = 1,
        batch: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        parts = [GemmPartAttr(p.part()) for p in products]
        super().__init__(
            operands=[
                x,
                None,
                [p.w for p in products],
                [p.affine.scale for p in products if p.affine.scale is not None],
                [p.affine.bias for p in products if p.affine.bias is not None],
                [p.y.buffer for p in products],
                [p.y.param for p in products if p.y.param is not None],
            ],
            properties=fields(
                products=ArrayAttr(parts),
                formats=tuple(p.format for p in products),
                k=k,
                m=m,
                tail=tail,
                per_warp=per_warp,
                batch=batch,
            )
            | origin(covers, rules),
        )

    def each(self) -> list[Product]:
        """The products, each with its operands."""
        scales, biases, params = iter(self.scale), iter(self.bias), iter(self.param)
        made: list[Product] = []
        for w, y, attr, format in zip(self.w, self.y, self.products.data, self.formats.data, strict=True):
            part = attr.data
            scale, bias = next(scales) if part.scale else None, next(biases) if part.bias else None
            target = Target(y, next(params) if part.dst.takes_param else None, part.dst)
            made.append(Product(w, format, target, part.n, Affine(scale, bias, part.scaled_bias)))
        return made

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.squares, *(value for product in self.each() for value in product.reads()))

    def writes(self) -> Sequence[SSAValue]:
        return tuple(self.y)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return tuple(self.y)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return next((p.n * self.m.data for p in self.each() if p.y.own is t), None)

    def projected_input(self) -> SSAValue | None:
        return self.x if any(f.is_block for f in self.formats.data) else None

    def kind(self) -> str:
        return "gemv_parts" if self.m.data <= GEMV_ROWS or self.batch is not None else "gemm_parts"

    def is_batch(self) -> bool:
        return self.batch is not None

    def on_tensor_cores(self, numerics: Numerics) -> bool:
        return multiplies_in_int8(numerics, *self.formats.data) and not self.batch and self.m.data > GEMV_ROWS

    def batch_on_tensor_cores(self, numerics: Numerics) -> bool:
        return (
            numerics is not Numerics.DEQUANT
            and all(f is Format.Q8_0 for f in self.formats.data)
            and self.batch is not None
            and self.m.data >= GEMV_MMA_MIN_ROWS
            and self.k.data % 32 == 0
            and all(part.data.n % 8 == 0 for part in self.products)
        )

    def gemm_cols(self) -> int:
        return sum(part.data.n for part in self.products)

    def gemm_rows(self, numerics: Numerics) -> int:
        return min(gemm_blk_rows(f, numerics is Numerics.TWO_PASS_INT8) for f in self.formats.data)

    def verify_(self) -> None:
        k, m, parts = self.k.data, self.m.data, [part.data for part in self.products]
        self.expect_positive("k", "m", "per_warp")
        counts = (len(self.w), len(self.y), len(self.scale), len(self.bias), len(self.param))
        taken = (sum(p.scale for p in parts), sum(p.bias for p in parts), sum(p.dst.takes_param for p in parts))
        wanted = (len(parts), len(parts), *taken)
        if not parts or counts != wanted:
            expected = ", ".join(map(str, wanted[:-1]))
            raise self.refuse(
                f"has {counts[0]} weights, {counts[1]} results, {counts[2]} scales, {counts[3]} biases and {counts[4]} "
                f"row parameters, but its {len(parts)} products take {expected} and {wanted[-1]}"
            )
        if len(self.formats.data) != len(parts):
            raise self.refuse(f"has {len(self.formats.data)} formats, expected {len(parts)}: one for each product")
        if not read_alike(*self.formats.data):
            raise self.refuse(
                f"has weights that are read in different units ({', '.join(map(str, self.formats.data))})"
            )
        expect_rows(self, self.x, m, k, self.tail.data if self.tail else None)
        expect_division(self, self.squares, self.norm_eps, self.tail.data.rows if self.tail else m, k)
        for i, p in enumerate(self.each()):
            if p.n == 0:
                raise self.refuse(f"n of product {i} is 0, expected more")
            self.expect_length(f"w of product {i}", p.w, p.n * k, f"n = {p.n} by k = {k}")
            expect_affine(self, p.affine, p.n, f" of product {i}")
            self.expect_target(f"y of product {i}", p.y, m, p.n)


@irdl_op_definition
class GemvGluOp(LaunchOp):
    """
    A gate and an up product of one activation, and what is made of the two:
    y[r, j] = act(Σᵢ x[r, i]·wg[j, i])·(Σᵢ x[r, i]·wu[j, i]), act SiLU unless it says otherwise, each sum first times a
    scale (sg, su) and plus a bias (bg, bu) of its own (`Affine`).

    x [m, k]; wg, wu [n, k]; bg, bu [n]; out [m, n]. `tail`, `per_warp`, `batch`, `squares` as in launch.gemv.

    Example: `launch.gemv_glu %x by %wg, %wu [q4_k, q4_k] into %h (k = 576, n = 1536, m = 1) quant by [glu_pair]`
    """

    name = "launch.gemv_glu"
    KIND: ClassVar[str] = "gemv_glu"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    squares = opt_operand_def(BUFFER)
    wg = operand_def(BUFFER)
    wu = operand_def(BUFFER)
    sg = opt_operand_def(BUFFER)
    bg = opt_operand_def(BUFFER)
    su = opt_operand_def(BUFFER)
    bu = opt_operand_def(BUFFER)
    out = operand_def(BUFFER)
    formats = prop_def(FormatsAttr)
    act = opt_prop_def(ActivationAttr)
    """The gate's activation; SiLU if there is none."""
    gate_scaled_bias = opt_prop_def(UnitAttr)
    up_scaled_bias = opt_prop_def(UnitAttr)
    k = prop_def(NumberAttr)
    n = prop_def(NumberAttr)
    m = prop_def(NumberAttr)
    per_warp = opt_prop_def(NumberAttr, default_value=ONE)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)
    tail = opt_prop_def(TailAttr)
    batch = opt_prop_def(UnitAttr)
    norm_eps = opt_prop_def(RealAttr)

    assembly_format = (
        "$x"
        + NORMED
        + " `by` $wg `,` $wu $formats"
        + " (`gate_scale` $sg^)? (`gate_bias` $bg^)? (`gate_scaled_bias` $gate_scaled_bias^)?"
        + " (`up_scale` $su^)? (`up_bias` $bu^)? (`up_scaled_bias` $up_scaled_bias^)?"
        + " (`act` $act^)? `into` $out"
        + sizes("k", "n", "m")
        + optional("per_warp")
        + TAIL
        + FORMS
        + flags("batch")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        wg: SSAValue,
        wu: SSAValue,
        out: SSAValue,
        *,
        formats: tuple[Format, Format],
        k: int,
        n: int,
        m: int,
        gate: Affine = PLAIN,
        up: Affine = PLAIN,
        act: Activation | None = None,
        per_warp: int = 1,
        f32: bool = True,
        quant: bool = False,
        tail: Tail | None = None,
        batch: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[x, None, wg, wu, gate.scale, gate.bias, up.scale, up.bias, out],
            properties=fields(
                formats=formats,
                act=act,
                gate_scaled_bias=gate.scaled_bias,
                up_scaled_bias=up.scaled_bias,
                k=k,
                n=n,
                m=m,
                per_warp=per_warp,
                f32=f32,
                quant=quant,
                tail=tail,
                batch=batch,
            )
            | origin(covers, rules),
        )

    @property
    def gate(self) -> Affine:
        return Affine(self.sg, self.bg, self.gate_scaled_bias is not None)

    @property
    def up(self) -> Affine:
        return Affine(self.su, self.bu, self.up_scaled_bias is not None)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.squares, self.wg, self.wu, self.sg, self.bg, self.su, self.bu)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out,)

    def touched_writes(self) -> Touched:
        return produced(self.out, self.f32, self.quant)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data * self.m.data

    def projected_input(self) -> SSAValue | None:
        return self.x if any(f.is_block for f in self.formats.data) else None

    def reads_f32_input(self) -> bool:
        return not all(f.is_block for f in self.formats.data)

    def is_batch(self) -> bool:
        return self.batch is not None

    def on_tensor_cores(self, numerics: Numerics) -> bool:
        return multiplies_in_int8(numerics, *self.formats.data) and not self.batch and self.m.data > GEMV_ROWS

    def batch_on_tensor_cores(self, numerics: Numerics) -> bool:
        return (
            numerics is not Numerics.DEQUANT
            and all(f is Format.Q8_0 for f in self.formats.data)
            and self.batch is not None
            and self.m.data >= GEMV_MMA_MIN_ROWS
            and self.n.data % 32 == 0
            and self.k.data % 32 == 0
        )

    def gemm_rows(self, numerics: Numerics) -> int:
        return gemm_blk_rows(self.formats.data[0], numerics is Numerics.TWO_PASS_INT8)

    def gemm_tiles_wide(self) -> int:
        return ceil_div(self.n.data, GEMM_TILE_N // 2)

    def verify_(self) -> None:
        k, n, m = self.k.data, self.n.data, self.m.data
        self.expect_positive("k", "n", "m", "per_warp")
        self.expect_form(self.f32, self.quant)
        if len(self.formats.data) != 2:
            raise self.refuse(f"has {len(self.formats.data)} formats, expected 2: the gate's and the up weight's")
        expect_rows(self, self.x, m, k, self.tail.data if self.tail else None)
        expect_division(self, self.squares, self.norm_eps, self.tail.data.rows if self.tail else m, k)
        for name, w, affine in (("wg", self.wg, self.gate), ("wu", self.wu, self.up)):
            self.expect_length(name, w, n * k, f"n = {n} by k = {k}")
            expect_affine(self, affine, n, f" of {name}")
        self.expect_length("out", self.out, m * n, f"m = {m} by n = {n}")
