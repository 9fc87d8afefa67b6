"""Ops that hold, move and rearrange values: constants, gathers, row sets, slices, joins, views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lane_mlir.dialects.tg.attributes import QuantizedAttr, RowsAttr
from lane_mlir.dialects.tg.operation import (
    F64,
    I64,
    INTEGERS,
    NUMBER,
    STATE,
    VALUES,
    VALUES_OR_STATE,
    LiftedOperation,
    OperandEffects,
    TensorGraphOperation,
    Values,
    dimensions,
    encoding_of,
    integer,
    real,
    shape_of,
    size_of,
)


@irdl_op_definition
class ConstantOp(TensorGraphOperation):
    """
    A tensor of the checkpoint, by its name there.

    The type's values are f32 whatever the encoding: the encoding says how they are stored. A row (the last dimension)
    is a whole number of blocks.

    Example: `%w = tg.constant "blk.0.attn_q.weight" : tensor<576x576xf32, #tg.rows<q4_1>>`
    """

    name = "tg.constant"

    tensor = prop_def(StringAttr)
    """The tensor's name in the checkpoint."""
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"result": (RowsAttr,)}
    assembly_format = "$tensor attr-dict `:` type($result)"
    traits = traits_def(Pure())

    def __init__(self, tensor: str, result_type: Values):
        super().__init__(properties={"tensor": StringAttr(tensor)}, result_types=[result_type])

    def verify_(self) -> None:
        if not self.tensor.data:
            raise self.refuse("names no tensor")
        if len(shape_of(self.result)) > 3:
            raise self.refuse(
                f'"{self.tensor.data}" is {dimensions(shape_of(self.result))}, expected 1 to 3 dimensions'
            )


@irdl_op_definition
class RopeTableOp(TensorGraphOperation):
    """
    The cosines and sines that rotations read: row p, column i of each is mscale·cos(θ) and mscale·sin(θ) of

        θ = θ_inter·(1 - m) + θ_extra·m,  θ_extra = p·base^(-2i/(2·half))/factors[i],  θ_inter = freq_scale·θ_extra

    m is 0 and mscale = attn_factor unless ext_factor is not 0. Then m = ext_factor·(1 - ramp(i)), the ramp of YaRN
    between the dimensions that turn beta_fast and beta_slow times over the original context, and
    mscale = attn_factor·(1 + 0.1·log(1/freq_scale)).

    Plain rotary: freq_scale 1, ext_factor 0, attn_factor 1. Linear scaling: freq_scale 1/factor. Llama 3 and long rope:
    factors.

    Sources: Su et al., RoFormer (2021); Peng et al., YaRN (2023).
    """

    name = "tg.rope_table"

    factors = opt_operand_def(VALUES)
    """Divisors of the frequencies, [half]."""
    base = prop_def(F64)
    freq_scale = prop_def(F64)
    ext_factor = prop_def(F64)
    attn_factor = prop_def(F64)
    beta_fast = prop_def(F64)
    beta_slow = prop_def(F64)
    original_context = prop_def(I64)
    cos = result_def(VALUES)
    sin = result_def(VALUES)

    assembly_format = (
        "`base` custom<Real>($base) `freq_scale` custom<Real>($freq_scale)"
        " `ext_factor` custom<Real>($ext_factor) `attn_factor` custom<Real>($attn_factor)"
        " `beta` custom<Real>($beta_fast) `,` custom<Real>($beta_slow) `original_context` $original_context"
        " (`factors` $factors^ `:` type($factors))? attr-dict `->` type($cos) `,` type($sin)"
    )
    traits = traits_def(Pure())

    def __init__(
        self,
        result_type: Values,
        *,
        base: float | F64,
        factors: SSAValue | None = None,
        freq_scale: float | F64 = 1.0,
        ext_factor: float | F64 = 0.0,
        attn_factor: float | F64 = 1.0,
        beta_fast: float | F64 = 32.0,
        beta_slow: float | F64 = 1.0,
        original_context: int | I64 = 0,
    ):
        super().__init__(
            operands=[factors],
            properties={
                "base": real(base),
                "freq_scale": real(freq_scale),
                "ext_factor": real(ext_factor),
                "attn_factor": real(attn_factor),
                "beta_fast": real(beta_fast),
                "beta_slow": real(beta_slow),
                "original_context": integer(original_context),
            },
            result_types=[result_type, result_type],
        )

    def verify_(self) -> None:
        self.expect_rank(2, cos=self.cos, sin=self.sin)
        self.expect_shape("sin", self.sin, shape_of(self.cos), "the shape of cos")
        if self.factors is not None:
            self.expect_shape("factors", self.factors, (shape_of(self.cos)[1],), "one a column of cos")
        base, ext_factor, original_context = (p.value.data for p in (self.base, self.ext_factor, self.original_context))
        self.expect_positive(base=base, freq_scale=self.freq_scale.value.data, attn_factor=self.attn_factor.value.data)
        self.expect_not_negative(ext_factor=ext_factor, original_context=original_context)
        if ext_factor:
            self._verify_ramp(base, original_context)

    def _verify_ramp(self, base: float, original_context: float) -> None:
        fast, slow = self.beta_fast.value.data, self.beta_slow.value.data
        if original_context == 0:
            raise self.refuse("has an ext_factor but no original_context")
        if base <= 1:
            raise self.refuse(f"has an ext_factor and base {base}, expected more than 1")
        if not fast >= slow > 0:
            raise self.refuse(f"turns beta {fast} to {slow} times, expected the first no less, both more than 0")


@irdl_op_definition
class EmptyOp(TensorGraphOperation):
    """A tensor whose values nobody may read before they are inserted."""

    name = "tg.empty"

    result = result_def(VALUES)

    STORED_AS: ClassVar = {"result": (QuantizedAttr,)}
    assembly_format = "attr-dict `:` type($result)"
    traits = traits_def(Pure())

    def __init__(self, result_type: Values):
        super().__init__(result_types=[result_type])

    def verify_(self) -> None:
        self.expect_rank(2, result=self.result)


@irdl_op_definition
class GatherOp(LiftedOperation):
    """
    Rows of a table: y[r, :] = table[index[r], :].

    table [n, k], index [rows] of integers below n, y [rows, k]. An index out of range is an error of the caller.
    """

    name = "tg.gather"

    table = operand_def(VALUES)
    index = operand_def(INTEGERS)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"table": (RowsAttr,)}
    assembly_format = NUMBER + " $table `[` $index `]` attr-dict `:` functional-type(operands, results)"
    traits = traits_def(OperandEffects())

    def __init__(self, table: SSAValue, index: SSAValue, result_type: Values):
        super().__init__(operands=[table, index], result_types=[result_type])

    def verify_(self) -> None:
        self.expect_rank(2, table=self.table)
        self.expect_rank(1, index=self.index)
        expected = (shape_of(self.index)[0], shape_of(self.table)[1])
        self.expect_shape("result", self.result, expected, "a row of the table for each index")


@irdl_op_definition
class SetRowOp(LiftedOperation):
    """
    Rows of a state table: table[pos[0] + i, :] = src[i, :].

    src [count, w], table [length, w], pos [1]. Rows past the table's end are an error of the caller.
    """

    name = "tg.set_row"

    src = operand_def(VALUES)
    table = operand_def(STATE)
    pos = operand_def(INTEGERS)

    assembly_format = (
        NUMBER + " $src `into` $table `[` $pos `]` attr-dict `:` type($src) `,` type($table) `,` type($pos)"
    )
    traits = traits_def(OperandEffects())

    def __init__(self, src: SSAValue, table: SSAValue, pos: SSAValue):
        super().__init__(operands=[src, table, pos])

    def memory_writes(self) -> Sequence[SSAValue]:
        return (self.table,)

    def memory_reads(self) -> Sequence[SSAValue]:
        return (self.pos,)

    def verify_(self) -> None:
        self.expect_rank(2, src=self.src, table=self.table)
        self.expect_position(self.pos)
        (count, width), (length, columns) = shape_of(self.src), shape_of(self.table)
        if width != columns:
            raise self.disagree("src", self.src, "table", self.table, "their rows differ in width")
        if count > length:
            raise self.disagree("src", self.src, "table", self.table, "it has fewer rows")


@irdl_op_definition
class InsertOp(LiftedOperation):
    """
    A tensor with part of every unit replaced: y = dst, then y[g·every + start + i] = src[g·width + i], both read flat.

    There are size(dst)/every units; width is size(src) over that. With every the size of dst it is a run of whole rows.
    src, dst and y are of any two dimensions, y of those of dst. All are stored alike; of quantized ones, start, width
    and every are whole numbers of blocks.
    """

    name = "tg.insert"

    src = operand_def(VALUES)
    dst = operand_def(VALUES)
    every = prop_def(I64)
    start = prop_def(I64)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"src": (QuantizedAttr,), "dst": (QuantizedAttr,), "result": (QuantizedAttr,)}
    assembly_format = (
        NUMBER + " $src `into` $dst `every` $every `from` $start attr-dict `:` functional-type(operands, results)"
    )
    traits = traits_def(Pure())

    def __init__(self, src: SSAValue, dst: SSAValue, *, every: int | I64, start: int | I64):
        super().__init__(
            operands=[src, dst],
            properties={"every": integer(every), "start": integer(start)},
            result_types=[dst.type],
        )

    @property
    def units(self) -> int:
        return size_of(self.dst) // self.every.value.data

    @property
    def width(self) -> int:
        return size_of(self.src) // self.units

    def verify_(self) -> None:
        every, start = self.every.value.data, self.start.value.data
        self.expect_rank(2, src=self.src, dst=self.dst)
        self.expect_multiple("the size of dst", size_of(self.dst), "every", every)
        self.expect_multiple("the size of src", size_of(self.src), "the number of units", self.units)
        self.expect_shape("result", self.result, shape_of(self.dst), "the shape of dst")
        if start < 0 or start + self.width > every:
            raise self.refuse(f"places {start} to {start + self.width} of a unit of {every}")
        encoding = encoding_of(self.dst)
        if encoding_of(self.src) != encoding or encoding_of(self.result) != encoding:
            stored = " and ".join(str(encoding_of(v) or "plain f32 values") for v in (self.src, self.dst))
            raise self.refuse(f"src and dst are stored as {stored}, expected alike")
        if encoding is not None and (start % encoding.block or self.width % encoding.block or every % encoding.block):
            raise self.refuse(
                f"places {self.width} values from {start} on of units of {every}, no whole {encoding.data} blocks of "
                f"{encoding.block}"
            )


@irdl_op_definition
class SliceOp(LiftedOperation):
    """
    Part of every unit: y[g·width + i] = x[g·every + start + i], x and y read flat.

    x is a tensor or an array of state of groups·every elements, y of groups·width, each in any two dimensions.
    """

    name = "tg.slice"

    x = operand_def(VALUES_OR_STATE)
    every = prop_def(I64)
    start = prop_def(I64)
    width = prop_def(I64)
    result = result_def(VALUES)

    assembly_format = (
        NUMBER + " $x `every` $every `from` $start `width` $width attr-dict `:` functional-type(operands, results)"
    )
    traits = traits_def(OperandEffects())

    def __init__(self, x: SSAValue, result_type: Values, *, every: int | I64, start: int | I64, width: int | I64):
        super().__init__(
            operands=[x],
            properties={"every": integer(every), "start": integer(start), "width": integer(width)},
            result_types=[result_type],
        )

    @property
    def groups(self) -> int:
        return size_of(self.x) // self.every.value.data

    def verify_(self) -> None:
        every, start, width = self.every.value.data, self.start.value.data, self.width.value.data
        self.expect_rank(2, x=self.x, result=self.result)
        self.expect_multiple("the size of x", size_of(self.x), "every", every)
        if start < 0 or width <= 0 or start + width > every:
            raise self.refuse(f"takes {start} to {start + width} of a unit of {every}")
        if size_of(self.result) != self.groups * width:
            result = f"{dimensions(shape_of(self.result))}, {size_of(self.result)} elements"
            raise self.refuse(f"result is {result}, expected {self.groups} units times {width}")


@irdl_op_definition
class JoinOp(LiftedOperation):
    """
    Two tensors side by side in every head: row r, head h of y is row r, head h of a, then of b.

    a [rows, heads·ha], b [rows, heads·hb], y [rows, heads·(ha + hb)].
    """

    name = "tg.join"

    a = operand_def(VALUES)
    b = operand_def(VALUES)
    heads = prop_def(I64)
    result = result_def(VALUES)

    assembly_format = NUMBER + " $a `,` $b `heads` $heads attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, a: SSAValue, b: SSAValue, result_type: Values, *, heads: int | I64 = 1):
        super().__init__(operands=[a, b], properties={"heads": integer(heads)}, result_types=[result_type])

    @property
    def widths(self) -> tuple[int, int]:
        """Columns a head of a and of b."""
        heads = self.heads.value.data
        return shape_of(self.a)[1] // heads, shape_of(self.b)[1] // heads

    def verify_(self) -> None:
        self.expect_rank(2, a=self.a, b=self.b)
        (rows, a), (rows_b, b), heads = shape_of(self.a), shape_of(self.b), self.heads.value.data
        self.expect_multiple("the columns of a", a, "heads", heads)
        self.expect_multiple("the columns of b", b, "heads", heads)
        if rows != rows_b:
            raise self.disagree("a", self.a, "b", self.b, "they differ in rows")
        self.expect_shape("result", self.result, (rows, a + b), "a and b side by side")


@irdl_op_definition
class ViewOp(LiftedOperation):
    """
    The same elements under another shape, or a run of them: y = x read flat from `offset`. Nothing moves.

    x and y of any two dimensions, size(y) ≤ size(x) - offset. Both are stored alike; rows and offset of an encoded one
    are whole numbers of blocks.
    """

    name = "tg.view"

    x = operand_def(VALUES)
    offset = prop_def(I64)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"x": (RowsAttr, QuantizedAttr), "result": (RowsAttr, QuantizedAttr)}
    assembly_format = NUMBER + " $x `from` $offset attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, result_type: Values, *, offset: int | I64 = 0):
        super().__init__(operands=[x], properties={"offset": integer(offset)}, result_types=[result_type])

    def verify_(self) -> None:
        offset = self.offset.value.data
        self.expect_rank(2, x=self.x, result=self.result)
        encoding = encoding_of(self.x)
        if encoding != encoding_of(self.result):
            x, result = (encoding_of(value) or "plain f32 values" for value in (self.x, self.result))
            raise self.refuse(f"x is stored as {x} and the result as {result}, expected alike")
        if encoding is not None and offset % encoding.block:
            raise self.refuse(f"offset is {offset}, no whole number of {encoding.data} blocks of {encoding.block}")
        if offset < 0 or offset + size_of(self.result) > size_of(self.x):
            end = offset + size_of(self.result)
            x = f"{size_of(self.x)} ({dimensions(shape_of(self.x))})"
            raise self.refuse(f"takes elements {offset} to {end} of x, which has {x}")
