"""Launches that work element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, traits_def

from lane_mlir.dialects.launch.attributes import NumberAttr, RealAttr
from lane_mlir.dialects.launch.operation import (
    FORMS,
    ORIGIN,
    LaunchEffects,
    LaunchOp,
    Touch,
    Touched,
    fields,
    optional,
    origin,
    present,
    produced,
    sizes,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import Activation, ActivationAttr, BinaryOperator, BinaryOperatorAttr


@irdl_op_definition
class BinaryOp(LaunchOp):
    """
    out[i] = a[i] ∘ b[i]; where `gate`, gate(a[i]) ∘ b[i].

    a, out [n]. b has n values; or `row`, one row for all: b[i mod row]; or n/column, one for every `column` values:
    b[i div column].

    Example: `launch.binary add %a, %b into %y (n = 576) f32`
    """

    name = "launch.binary"
    KIND: ClassVar[str] = "binary"

    a = operand_def(BUFFER)
    b = operand_def(BUFFER)
    out = operand_def(BUFFER)
    op = prop_def(BinaryOperatorAttr)
    gate = opt_prop_def(ActivationAttr)
    row = opt_prop_def(NumberAttr)
    column = opt_prop_def(NumberAttr)
    n = prop_def(NumberAttr)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)

    assembly_format = (
        "$op (`gate` $gate^)? $a `,` $b `into` $out" + sizes("n") + optional("row", "column") + FORMS + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        op: BinaryOperator,
        a: SSAValue,
        b: SSAValue,
        out: SSAValue,
        *,
        n: int,
        gate: Activation | None = None,
        row: int | None = None,
        column: int | None = None,
        f32: bool = True,
        quant: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[a, b, out],
            properties=fields(op=op, gate=gate, row=row, column=column, n=n, f32=f32, quant=quant)
            | origin(covers, rules),
        )

    def reads(self) -> Sequence[SSAValue]:
        return present(self.a, self.b)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out,)

    def updates(self) -> Sequence[SSAValue]:
        return (self.out,)

    def touched_writes(self) -> Touched:
        return produced(self.out, self.f32, self.quant)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def verify_(self) -> None:
        n = self.n.data
        self.expect_positive("n", "row", "column")
        self.expect_form(self.f32, self.quant)
        if self.row is not None and self.column is not None:
            raise self.refuse("takes b as one row for all and as one value for several at once")
        for name, value in (("a", self.a), ("out", self.out)):
            self.expect_length(name, value, n, f"n = {n}")
        for name, size in (("row", self.row), ("column", self.column)):
            if size is not None and n % size.data:
                raise self.refuse(f"n = {n} is no multiple of {name} = {size.data}")
        if self.row is not None:
            self.expect_length("b", self.b, self.row.data, f"row = {self.row.data}")
        elif self.column is not None:
            self.expect_length("b", self.b, n // self.column.data, f"n = {n} by column = {self.column.data}")
        else:
            self.expect_length("b", self.b, n, f"n = {n}")


@irdl_op_definition
class SwiGluOp(LaunchOp):
    """
    out[i] = silu(g[i])·u[i].

    Example: `launch.swiglu %g, %u into %h (n = 1536) quant`
    """

    name = "launch.swiglu"
    KIND: ClassVar[str] = "swiglu"

    g = operand_def(BUFFER)
    u = operand_def(BUFFER)
    out = operand_def(BUFFER)
    n = prop_def(NumberAttr)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)

    assembly_format = "$g `,` $u `into` $out" + sizes("n") + FORMS + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        g: SSAValue,
        u: SSAValue,
        out: SSAValue,
        *,
        n: int,
        f32: bool = True,
        quant: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(operands=[g, u, out], properties=fields(n=n, f32=f32, quant=quant) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return present(self.g, self.u)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out,)

    def updates(self) -> Sequence[SSAValue]:
        return (self.out,)

    def touched_writes(self) -> Touched:
        return produced(self.out, self.f32, self.quant)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def verify_(self) -> None:
        self.expect_positive("n")
        self.expect_form(self.f32, self.quant)
        for name, value in (("g", self.g), ("u", self.u), ("out", self.out)):
            self.expect_length(name, value, self.n.data, f"n = {self.n.data}")


@irdl_op_definition
class ScaleOp(LaunchOp):
    """
    y[i] = factor·x[i].

    Example: `launch.scale %x into %y (n = 576) factor = 2.4e+01`
    """

    name = "launch.scale"
    KIND: ClassVar[str] = "scale"

    x = operand_def(BUFFER)
    y = operand_def(BUFFER)
    n = prop_def(NumberAttr)
    factor = prop_def(RealAttr)

    assembly_format = "$x `into` $y" + sizes("n") + "`factor` `=` $factor" + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self, x: SSAValue, y: SSAValue, *, n: int, factor: float, covers: Sequence[int] = (), rules: Sequence[str] = ()
    ):
        super().__init__(operands=[x, y], properties=fields(n=n, factor=factor) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return (self.x,)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def updates(self) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def verify_(self) -> None:
        self.expect_positive("n")
        for name, value in (("x", self.x), ("y", self.y)):
            self.expect_length(name, value, self.n.data, f"n = {self.n.data}")


@irdl_op_definition
class UnaryOp(LaunchOp):
    """
    y[i] = act(x[i]).

    Example: `launch.unary silu %x into %y (n = 576)`
    """

    name = "launch.unary"
    KIND: ClassVar[str] = "unary"

    x = operand_def(BUFFER)
    y = operand_def(BUFFER)
    act = prop_def(ActivationAttr)
    n = prop_def(NumberAttr)

    assembly_format = "$act $x `into` $y" + sizes("n") + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        act: Activation,
        x: SSAValue,
        y: SSAValue,
        *,
        n: int,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(operands=[x, y], properties=fields(act=act, n=n) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return (self.x,)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def updates(self) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def verify_(self) -> None:
        self.expect_positive("n")
        for name, value in (("x", self.x), ("y", self.y)):
            self.expect_length(name, value, self.n.data, f"n = {self.n.data}")
