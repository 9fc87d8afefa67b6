"""Launches that move values: gathers, views, row sets, slices, joins; and the choice of the next token."""

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

from lane_mlir.dialects.launch.attributes import DstAttr, NumberAttr, RealAttr
from lane_mlir.dialects.launch.buffers import buffer_of
from lane_mlir.dialects.launch.directives import Into
from lane_mlir.dialects.launch.operation import (
    FORMS,
    ORIGIN,
    LaunchEffects,
    LaunchOp,
    Target,
    Touch,
    Touched,
    fields,
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
class GatherOp(LaunchOp):
    """
    Rows of a table, by index: out[r] = scale·table[index[r]], scale 1 if there is none.

    table has rows of `cols`, in a format or as plain f32 values; index [rows]; out [rows, cols].

    Example: `launch.gather %e rows<q8_0> at %token into %h (rows = 1, cols = 576) by [gather_scale]`
    """

    name = "launch.gather"
    KIND: ClassVar[str] = "gather"

    table = operand_def(BUFFER)
    index = operand_def(BUFFER)
    out = operand_def(BUFFER)
    rows = prop_def(NumberAttr)
    cols = prop_def(NumberAttr)
    format = opt_prop_def(RowsAttr)
    scale = opt_prop_def(RealAttr)

    assembly_format = (
        "$table (`rows` `` $format^)? `at` $index `into` $out" + sizes("rows", "cols") + optional("scale") + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        table: SSAValue,
        index: SSAValue,
        out: SSAValue,
        *,
        rows: int,
        cols: int,
        format: Format | None = None,
        scale: float | None = None,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[table, index, out],
            properties=fields(rows=rows, cols=cols, format=format, scale=scale) | origin(covers, rules),
        )

    def reads(self) -> Sequence[SSAValue]:
        return (self.table, self.index)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.rows.data * self.cols.data

    def verify_(self) -> None:
        rows, cols = self.rows.data, self.cols.data
        self.expect_positive("rows", "cols")
        if buffer_of(self.table).length % cols:
            raise self.refuse(
                f"{self.named('table', self.table)} has {buffer_of(self.table).length} elements, no whole number of "
                f"rows of {cols}"
            )
        self.expect_length("index", self.index, rows, f"rows = {rows}")
        self.expect_length("out", self.out, rows * cols, f"rows = {rows} by cols = {cols}")


@irdl_op_definition
class ViewOp(LaunchOp):
    """
    Another shape of some of a buffer's elements, from an offset on: nothing runs, out is an alias of src.

    Example: `launch.view %q from 0 into %heads`
    """

    name = "launch.view"
    KIND: ClassVar[str] = "view"

    src = operand_def(BUFFER)
    out = operand_def(BUFFER)
    offset = prop_def(NumberAttr)

    assembly_format = "$src `from` $offset `into` $out" + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self, src: SSAValue, out: SSAValue, *, offset: int, covers: Sequence[int] = (), rules: Sequence[str] = ()
    ):
        super().__init__(operands=[src, out], properties=fields(offset=offset) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return (self.src,)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.src, self.out)

    def touches(self, numerics: Numerics) -> tuple[Touched, Touched]:
        return [], []

    def verify_(self) -> None:
        out = buffer_of(self.out)
        if out.of is not self.src or out.offset is None or out.offset.data != self.offset.data:
            raise self.refuse(
                f"{self.named('out', self.out)} is no alias of {self.named('src', self.src)} + {self.offset.data}"
            )


@irdl_op_definition
class SetRowOp(LaunchOp):
    """
    Rows of a table: table[at + r] = src[r] for `count` rows of `cols`, at a fixed row or one that a parameter names.

    `seq`: each row is of another sequence, with a table of its own of `seq` elements and a row parameter of its own.
    Copied as f32 values, quantized or both.

    Example: `launch.set_row %k into %cache at row %pos pitch 192 (cols = 192, count = 1) f32`
    """

    name = "launch.set_row"
    KIND: ClassVar[str] = "set_row"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    src = operand_def(BUFFER)
    table = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    dst = prop_def(DstAttr)
    cols = prop_def(NumberAttr)
    count = prop_def(NumberAttr)
    seq = opt_prop_def(NumberAttr)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)

    custom_directives = (Into,)
    assembly_format = (
        "$src `into` custom<Into>($table, $param, $dst)" + sizes("cols", "count") + optional("seq") + FORMS + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        src: SSAValue,
        table: Target,
        *,
        cols: int,
        count: int,
        seq: int | None = None,
        f32: bool = True,
        quant: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[src, table.buffer, table.param],
            properties=fields(dst=table.dst, cols=cols, count=count, seq=seq, f32=f32, quant=quant)
            | origin(covers, rules),
        )

    @property
    def target(self) -> Target:
        return target_of(self.table, self.param, self.dst)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.table, self.param, self.src)

    def writes(self) -> Sequence[SSAValue]:
        return (self.table,)

    def updates(self) -> Sequence[SSAValue]:
        return (self.table,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.table,)

    def touches(self, numerics: Numerics) -> tuple[Touched, Touched]:
        moved = (self.table, self.src)
        reads: Touched = [(v, Touch.PLAIN) for v in self.reads() if self.f32 is not None or v not in moved]
        if self.quant is not None:
            reads.append((self.src, Touch.QUANT))
        return reads, produced(self.table, self.f32, self.quant)

    def result(self) -> SSAValue | None:
        return None

    def verify_(self) -> None:
        cols, count = self.cols.data, self.count.data
        self.expect_positive("cols", "count", "seq")
        self.expect_form(self.f32, self.quant)
        row = self.dst.data.row
        if row is None or row.pitch != cols or self.dst.data.unit is not None:
            raise self.refuse(f"sets whole rows: its place is a row of {cols}")
        self.expect_length("src", self.src, count * cols, f"count = {count} by cols = {cols}")
        if self.seq is None:
            self.expect_target("table", self.target, count, cols)
            return
        self.expect_length("table", self.table, count * self.seq.data, f"count = {count} by seq = {self.seq.data}")


@irdl_op_definition
class SliceOp(LaunchOp):
    """
    Part of every unit: y[g·width + i] = x[g·every + start + i] for `groups` units.

    Example: `launch.slice %x into %y (groups = 4, every = 192, start = 128, width = 64)`
    """

    name = "launch.slice"
    KIND: ClassVar[str] = "slice"

    x = operand_def(BUFFER)
    y = operand_def(BUFFER)
    groups = prop_def(NumberAttr)
    every = prop_def(NumberAttr)
    start = prop_def(NumberAttr)
    width = prop_def(NumberAttr)

    assembly_format = "$x `into` $y" + sizes("groups", "every", "start", "width") + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        y: SSAValue,
        *,
        groups: int,
        every: int,
        start: int,
        width: int,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[x, y],
            properties=fields(groups=groups, every=every, start=start, width=width) | origin(covers, rules),
        )

    def reads(self) -> Sequence[SSAValue]:
        return (self.x,)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.x,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.groups.data * self.width.data

    def verify_(self) -> None:
        groups, every, start, width = self.groups.data, self.every.data, self.start.data, self.width.data
        self.expect_positive("groups", "every", "width")
        if start + width > every:
            raise self.refuse(f"takes {width} values from {start} on of units of {every}")
        self.expect_length("x", self.x, groups * every, f"groups = {groups} by every = {every}")
        self.expect_length("y", self.y, groups * width, f"groups = {groups} by width = {width}")


@irdl_op_definition
class JoinOp(LaunchOp):
    """
    Two results side by side in every head: y[r, h] = a[r, h] then b[r, h].

    a [rows, heads·ha], b [rows, heads·hb], y [rows, heads·(ha + hb)]. `yz`: the rows are of sequences whose tables lie
    `yz` elements apart, each with a row parameter of its own.

    Example: `launch.join %nope, %rope into %k (rows = 1, heads = 16, ha = 128, hb = 64)`
    """

    name = "launch.join"
    KIND: ClassVar[str] = "join"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    a = operand_def(BUFFER)
    b = operand_def(BUFFER)
    y = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    dst = prop_def(DstAttr)
    rows = prop_def(NumberAttr)
    heads = prop_def(NumberAttr)
    ha = prop_def(NumberAttr)
    hb = prop_def(NumberAttr)
    yz = opt_prop_def(NumberAttr, default_value=NumberAttr(0))

    custom_directives = (Into,)
    assembly_format = (
        "$a `,` $b `into` custom<Into>($y, $param, $dst)" + sizes("rows", "heads", "ha", "hb") + optional("yz") + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        y: Target,
        *,
        rows: int,
        heads: int,
        ha: int,
        hb: int,
        yz: int = 0,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[a, b, y.buffer, y.param],
            properties=fields(dst=y.dst, rows=rows, heads=heads, ha=ha, hb=hb, yz=yz) | origin(covers, rules),
        )

    @property
    def target(self) -> Target:
        return target_of(self.y, self.param, self.dst)

    def reads(self) -> Sequence[SSAValue]:
        return present(self.a, self.b, self.param)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        whole = self.rows.data * self.heads.data * (self.ha.data + self.hb.data)
        return whole if self.target.own is t else None

    def result(self) -> SSAValue | None:
        return self.target.own

    def verify_(self) -> None:
        rows, heads, ha, hb = self.rows.data, self.heads.data, self.ha.data, self.hb.data
        self.expect_positive("rows", "heads", "ha", "hb")
        self.expect_length("a", self.a, rows * heads * ha, f"rows = {rows} by heads = {heads} by ha = {ha}")
        self.expect_length("b", self.b, rows * heads * hb, f"rows = {rows} by heads = {heads} by hb = {hb}")
        if self.yz.data:
            self.expect_length("y", self.y, rows * self.yz.data, f"rows = {rows} by yz = {self.yz.data}")
        else:
            self.expect_target("y", self.target, rows, heads * (ha + hb))


@irdl_op_definition
class ArgMaxOp(LaunchOp):
    """
    The column of each row's largest value, the first of equal ones; and, where `token`, the step moves on:
    token[item + r] = out[r], position[r] = position[r] + 1.

    x [rows, n] f32, out [rows] i32. `item`: this sequence's place among the tokens.

    Example: `launch.argmax %logits into %id (n = 49152, rows = 1) advance %token, %pos item 0`
    """

    name = "launch.argmax"
    KIND: ClassVar[str] = "argmax"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    out = operand_def(BUFFER)
    token = opt_operand_def(BUFFER)
    position = opt_operand_def(BUFFER)
    item = opt_prop_def(NumberAttr)
    n = prop_def(NumberAttr)
    rows = prop_def(NumberAttr)

    assembly_format = (
        "$x `into` $out" + sizes("n", "rows") + " (`advance` $token^ `,` $position `item` $item)?" + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        out: SSAValue,
        *,
        n: int,
        rows: int = 1,
        advance: tuple[SSAValue, SSAValue, int] | None = None,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        token, position, item = advance if advance is not None else (None, None, None)
        super().__init__(
            operands=[x, out, token, position],
            properties=fields(item=item, n=n, rows=rows) | origin(covers, rules),
        )

    @property
    def advance(self) -> tuple[SSAValue, SSAValue, int] | None:
        """The token and position that move on, and the sequence's place among the tokens."""
        if self.token is None or self.position is None or self.item is None:
            return None
        return self.token, self.position, self.item.data

    def reads(self) -> Sequence[SSAValue]:
        return (self.x,)

    def writes(self) -> Sequence[SSAValue]:
        return present(self.out, self.token, self.position)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.rows.data

    def verify_(self) -> None:
        n, rows = self.n.data, self.rows.data
        self.expect_positive("n", "rows")
        if (self.token is None) != (self.position is None) or (self.token is None) != (self.item is None):
            raise self.refuse("moves a step on by a token, a position and an item, all three")
        self.expect_length("x", self.x, rows * n, f"rows = {rows} by n = {n}")
        self.expect_length("out", self.out, rows, f"rows = {rows}")
        if (advance := self.advance) is not None:
            self.expect_at_least("token", advance[0], advance[2] + rows, f"item {advance[2]} and rows = {rows}")
            self.expect_at_least("position", advance[1], rows, f"rows = {rows}")
