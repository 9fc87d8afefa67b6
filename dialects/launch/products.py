"""Launches of one product by a weight: in rows of a format, of plain values, one a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
)

from lane_mlir.cuda.kernels.gemm import gemm_blk_rows
from lane_mlir.cuda.kernels.gemv import GEMV_MMA_MIN_ROWS, GEMV_ROWS
from lane_mlir.dialects.launch.attributes import (
    DstAttr,
    NumberAttr,
    Part,
    PartAttr,
    RealAttr,
    Tail,
    TailAttr,
)
from lane_mlir.dialects.launch.directives import Into
from lane_mlir.dialects.launch.multiplying import (
    AFFINE,
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
    fields,
    flags,
    optional,
    origin,
    present,
    produced,
    sizes,
    target_of,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import Numerics, RowsAttr
from lane_mlir.formats import Format


@irdl_op_definition
class GemvOp(LaunchOp):
    """
    A product by a weight in rows of a format: y[r, j] = Σᵢ x[r, i]·w[j, i], times `scale` and plus `bias` (`Affine`).

    x [m, k], w [n, k], bias [n], y [m, n]. `tail`: x has the rows of a whole chunk, of which m are computed.
    `per_warp`: output rows a warp of the matrix-vector kernel. `batch`: the rows are sequences. The result is written
    as f32, quantized or both.

    `squares` [m, k/32]: x is what a norm left undivided, and y[r, j] = Σᵢ x[r, i]·w[j, i]/√(Σ squares[r]/k + norm_eps).

    Example: `launch.gemv %x by %w<q4_k> bias %b into %y (k = 576, n = 192, m = 1) f32 covers [4, 5] by [gemv_bias]`
    """

    name = "launch.gemv"
    KIND: ClassVar[str] = "gemv_q8"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    squares = opt_operand_def(BUFFER)
    w = operand_def(BUFFER)
    scale = opt_operand_def(BUFFER)
    bias = opt_operand_def(BUFFER)
    y = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    format = prop_def(RowsAttr)
    dst = prop_def(DstAttr)
    k = prop_def(NumberAttr)
    n = prop_def(NumberAttr)
    m = prop_def(NumberAttr)
    scaled_bias = opt_prop_def(UnitAttr)
    per_warp = opt_prop_def(NumberAttr, default_value=ONE)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)
    tail = opt_prop_def(TailAttr)
    batch = opt_prop_def(UnitAttr)
    norm_eps = opt_prop_def(RealAttr)

    custom_directives = (Into,)
    assembly_format = (
        "$x"
        + NORMED
        + " `by` $w `` $format"
        + AFFINE
        + " `into` custom<Into>($y, $param, $dst)"
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
        w: SSAValue,
        y: Target,
        *,
        format: Format,
        k: int,
        n: int,
        m: int,
        affine: Affine = PLAIN,
        per_warp: int = 1,
        f32: bool = True,
        quant: bool = False,
        tail: Tail | None = None,
        batch: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[x, None, w, affine.scale, affine.bias, y.buffer, y.param],
            properties=fields(
                format=format,
                dst=y.dst,
                k=k,
                n=n,
                m=m,
                scaled_bias=affine.scaled_bias,
                per_warp=per_warp,
                f32=f32,
                quant=quant,
                tail=tail,
                batch=batch,
            )
            | origin(covers, rules),
        )

    @property
    def affine(self) -> Affine:
        return Affine(self.scale, self.bias, self.scaled_bias is not None)

    @property
    def target(self) -> Target:
        return target_of(self.y, self.param, self.dst)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.squares, self.w, self.scale, self.bias, self.param)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.y,)

    def touched_writes(self) -> Touched:
        return produced(self.y, self.f32, self.quant)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data * self.m.data if self.target.own is t else None

    def projected_input(self) -> SSAValue | None:
        return self.x if self.format.data.is_block else None

    def result(self) -> SSAValue | None:
        return self.target.own

    def is_batch(self) -> bool:
        return self.batch is not None

    def on_tensor_cores(self, numerics: Numerics) -> bool:
        return multiplies_in_int8(numerics, self.format.data) and not self.batch and self.m.data > GEMV_ROWS

    def batch_on_tensor_cores(self, numerics: Numerics) -> bool:
        return (
            numerics is not Numerics.DEQUANT
            and self.format.data is Format.Q8_0
            and self.batch is not None
            and self.f32 is not None
            and self.quant is None
            and self.m.data >= GEMV_MMA_MIN_ROWS
            and self.n.data % 8 == 0
            and self.k.data % 32 == 0
        )

    def gemm_cols(self) -> int:
        return self.n.data

    def gemm_rows(self, numerics: Numerics) -> int:
        return gemm_blk_rows(self.format.data, numerics is Numerics.TWO_PASS_INT8)

    def verify_(self) -> None:
        k, n, m = self.k.data, self.n.data, self.m.data
        self.expect_positive("k", "n", "m", "per_warp")
        self.expect_form(self.f32, self.quant)
        expect_rows(self, self.x, m, k, self.tail.data if self.tail else None)
        expect_division(self, self.squares, self.norm_eps, self.tail.data.rows if self.tail else m, k)
        self.expect_length("w", self.w, n * k, f"n = {n} by k = {k}")
        expect_affine(self, self.affine, n)
        self.expect_target("y", self.target, m, n)


@irdl_op_definition
class GemvF32Op(LaunchOp):
    """
    A product by a weight of plain f32 values: y[r, j] = Σᵢ x[r, i]·w[j, i], times `scale` and plus `bias` (`Affine`).
    The activation is read as f32.

    x [m, k], w [n, k] (stored transposed, [k, n], by the plan), bias [n], y [m, n]. `split`: parts into which the sum
    over i is split.

    Example: `launch.gemv_f32 %x by %w into %y (k = 576, n = 8, m = 1) split = 2`
    """

    name = "launch.gemv_f32"
    KIND: ClassVar[str] = "gemv_f32"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    w = operand_def(BUFFER)
    scale = opt_operand_def(BUFFER)
    bias = opt_operand_def(BUFFER)
    y = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    dst = prop_def(DstAttr)
    k = prop_def(NumberAttr)
    n = prop_def(NumberAttr)
    m = prop_def(NumberAttr)
    scaled_bias = opt_prop_def(UnitAttr)
    split = opt_prop_def(NumberAttr, default_value=ONE)
    batch = opt_prop_def(UnitAttr)

    custom_directives = (Into,)
    assembly_format = (
        "$x `by` $w"
        + AFFINE
        + " `into` custom<Into>($y, $param, $dst)"
        + sizes("k", "n", "m")
        + optional("split")
        + flags("batch")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        y: Target,
        *,
        k: int,
        n: int,
        m: int,
        affine: Affine = PLAIN,
        split: int = 1,
        batch: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[x, w, affine.scale, affine.bias, y.buffer, y.param],
            properties=fields(
                dst=y.dst,
                k=k,
                n=n,
                m=m,
                scaled_bias=affine.scaled_bias,
                split=split,
                batch=batch,
            )
            | origin(covers, rules),
        )

    @property
    def affine(self) -> Affine:
        return Affine(self.scale, self.bias, self.scaled_bias is not None)

    @property
    def target(self) -> Target:
        return target_of(self.y, self.param, self.dst)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.w, self.scale, self.bias, self.param)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data * self.m.data if self.target.own is t else None

    def result(self) -> SSAValue | None:
        return self.target.own

    def is_batch(self) -> bool:
        return self.batch is not None

    def multiplies_in_tiles(self, numerics: Numerics) -> bool:
        return (
            numerics is not Numerics.DEQUANT
            and self.batch is None
            and self.m.data > GEMV_ROWS
            and self.k.data % 4 == 0
            and self.dst.data.own
        )

    def verify_(self) -> None:
        k, n, m = self.k.data, self.n.data, self.m.data
        self.expect_positive("k", "n", "m", "split")
        self.expect_length("x", self.x, m * k, f"m = {m} by k = {k}")
        self.expect_length("w", self.w, n * k, f"n = {n} by k = {k}")
        expect_affine(self, self.affine, n)
        self.expect_target("y", self.target, m, n)


@irdl_op_definition
class HeadGemvOp(LaunchOp):
    """
    A product by each head's own weight: y[r, h, j] = Σᵢ x[r, h, i]·w[h, j, i]; where `shared`, x[r, i] for all heads;
    where `transposed`, w[h, i, j].

    x [m·heads, a] ([m, a] where `shared`), its units side by side or in a part of wider ones; w [heads, b, a];
    y [m·heads, b], or, for its place in a table, m rows of heads·b where `rows_out`. The activation is read as f32.
    `step`: x has a row for each position, and rows past the position `upto` plus the step's rows are not computed.

    Example:
        `launch.head_gemv %q every 192 from 0 by %w<q8_0> into %y every 576 from 0 (m = 1, heads = 8, a = 128, b = 512)`
    """

    name = "launch.head_gemv"
    KIND: ClassVar[str] = "head_gemv"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    w = operand_def(BUFFER)
    y = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    upto = opt_operand_def(BUFFER)
    """The position of the step's first row."""
    part = opt_prop_def(PartAttr)
    format = prop_def(RowsAttr)
    dst = prop_def(DstAttr)
    m = prop_def(NumberAttr)
    heads = prop_def(NumberAttr)
    a = prop_def(NumberAttr)
    b = prop_def(NumberAttr)
    rows_out = opt_prop_def(UnitAttr)
    shared = opt_prop_def(UnitAttr)
    transposed = opt_prop_def(UnitAttr)
    step = opt_prop_def(NumberAttr)
    """The step's rows."""
    batch = opt_prop_def(UnitAttr)

    custom_directives = (Into,)
    assembly_format = (
        "$x (`every` $part^)? `by` $w `` $format `into` custom<Into>($y, $param, $dst)"
        + sizes("m", "heads", "a", "b")
        + " (`upto` $upto^ `step` $step)?"
        + flags("rows_out", "shared", "transposed", "batch")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        y: Target,
        *,
        format: Format,
        m: int,
        heads: int,
        a: int,
        b: int,
        part: Part | None = None,
        rows_out: bool = False,
        shared: bool = False,
        transposed: bool = False,
        upto: tuple[SSAValue, int] | None = None,
        batch: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        position, step = upto if upto is not None else (None, None)
        super().__init__(
            operands=[x, w, y.buffer, y.param, position],
            properties=fields(
                part=part,
                format=format,
                dst=y.dst,
                m=m,
                heads=heads,
                a=a,
                b=b,
                rows_out=rows_out,
                shared=shared,
                transposed=transposed,
                step=step,
                batch=batch,
            )
            | origin(covers, rules),
        )

    @property
    def target(self) -> Target:
        return target_of(self.y, self.param, self.dst)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.w, self.param, self.upto)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.x, self.y) if self.heads_in_tiles(numerics) else (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.m.data * self.heads.data * self.b.data if self.target.own is t else None

    def unit_target(self) -> Target | None:
        return self.target

    def unit_output(self) -> tuple[int, int] | None:
        return self.m.data * self.heads.data, self.b.data

    def result(self) -> SSAValue | None:
        return self.target.own

    def is_batch(self) -> bool:
        return self.batch is not None

    def heads_in_tiles(self, numerics: Numerics) -> bool:
        part = self.part.data if self.part is not None else Part(self.a.data, 0)
        return (
            numerics is not Numerics.DEQUANT
            and self.batch is None
            and self.m.data > GEMV_ROWS
            and self.a.data % 4 == 0
            and part.pitch % 4 == 0
            and part.offset % 4 == 0
        )

    def verify_(self) -> None:
        m, heads, a, b = self.m.data, self.heads.data, self.a.data, self.b.data
        self.expect_positive("m", "heads", "a", "b", "step")
        if (self.upto is None) != (self.step is None):
            raise self.refuse("names a position if and only if it says how many rows the step has")
        units, what = (m, f"m = {m} rows") if self.shared is not None else (m * heads, f"m = {m} by heads = {heads}")
        self.expect_units("x", self.x, units, a, self.part.data if self.part else None, f"{what} of a = {a}")
        self.expect_length("w", self.w, heads * b * a, f"heads = {heads} by b = {b} by a = {a}")
        self.expect_target("y", self.target, m * heads, b)
