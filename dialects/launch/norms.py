"""Launches that normalize or quantize rows."""

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

from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.dialects.launch.attributes import DstAttr, NumberAttr, Part, PartAttr, RealAttr
from lane_mlir.dialects.launch.directives import OptionalInto
from lane_mlir.dialects.launch.multiplying import expect_squares
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
    origin,
    plain,
    present,
    produced,
    sizes,
    target_of,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import Numerics


@irdl_op_definition
class NormOp(LaunchOp):
    """
    A norm of every row. With s = x, or x + add, or rms_norm(x, pre_w, pre_eps) + add where `pre_eps`:

        y[r] = s[r]/√(mean(s[r]²) + eps)·w          (RMS norm)
        y[r] = (s[r] - mean(s[r]))/√(var(s[r]) + eps)·w + b   (layer norm, where `center`)

    x, add, sum and y have `rows` rows of `cols`; w, b, pre_w [cols], w and pre_w 1 if there are none. x is read whole
    or in a part of wider units. `sum`: where s is written. The f32 result goes to `y`, in part of another buffer, if
    there is one, else to `out`; the quantized one always to `out`.

    `squares` [rows, cols/32]: the result is s[r]·w, and the sum of s² over each 32 columns is written there: whoever
    reads the result divides by √(mean(s[r]²) + eps).

    Example: `launch.norm %x add %r sum %s weight %w out %o (rows = 1, cols = 576) eps = 1.0e-05 quant by [add_norm]`
    """

    name = "launch.norm"
    KIND: ClassVar[str] = "rmsnorm"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    add = opt_operand_def(BUFFER)
    pre_w = opt_operand_def(BUFFER)
    sum = opt_operand_def(BUFFER)
    squares = opt_operand_def(BUFFER)
    w = opt_operand_def(BUFFER)
    b = opt_operand_def(BUFFER)
    out = opt_operand_def(BUFFER)
    y = opt_operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    part = opt_prop_def(PartAttr)
    pre_eps = opt_prop_def(RealAttr)
    """Epsilon of the norm of x that is taken before `add` is added."""
    dst = opt_prop_def(DstAttr)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)
    center = opt_prop_def(UnitAttr)
    rows = prop_def(NumberAttr)
    cols = prop_def(NumberAttr)
    eps = prop_def(RealAttr)

    custom_directives = (OptionalInto,)
    assembly_format = (
        "$x (`every` $part^)? (`pre` $pre_eps^)? (`pre_weight` $pre_w^)? (`add` $add^)? (`sum` $sum^)?"
        " (`squares` $squares^)? (`weight` $w^)? (`bias` $b^)? (`out` $out^)? custom<OptionalInto>($y, $param, $dst)"
        + sizes("rows", "cols")
        + "`eps` `=` $eps"
        + flags("center")
        + FORMS
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        out: SSAValue | None,
        *,
        rows: int,
        cols: int,
        eps: float,
        w: SSAValue | None = None,
        b: SSAValue | None = None,
        center: bool = False,
        part: Part | None = None,
        add: SSAValue | None = None,
        pre: tuple[SSAValue | None, float] | None = None,
        sum: SSAValue | None = None,
        squares: SSAValue | None = None,
        into: Target | None = None,
        f32: bool = True,
        quant: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        pre_w, pre_eps = pre if pre is not None else (None, None)
        y, param, dst = (into.buffer, into.param, into.dst) if into is not None else (None, None, None)
        super().__init__(
            operands=[x, add, pre_w, sum, squares, w, b, out, y, param],
            properties=fields(
                part=part,
                pre_eps=pre_eps,
                dst=dst,
                f32=f32,
                quant=quant,
                center=center,
                rows=rows,
                cols=cols,
                eps=eps,
            )
            | origin(covers, rules),
        )

    @property
    def into(self) -> Target | None:
        """Where the f32 result lands, if not in `out`."""
        return target_of(self.y, self.param, self.dst) if self.y is not None and self.dst is not None else None

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.add, self.w, self.b, self.pre_w, self.param)

    def writes(self) -> Sequence[SSAValue]:
        written = present(self.out if self.y is None else self.y, self.sum, self.squares)
        return written if self.quant is None or self.y is None else present(*written, self.out)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return present(self.y)

    def touched_writes(self) -> Touched:
        f32_result = self.out if self.y is None else self.y
        written = produced(f32_result, self.f32, None) if f32_result is not None else []
        if self.out is not None:
            written += produced(self.out, None, self.quant)
        return [*written, *plain(present(self.sum, self.squares))]

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        if self.squares is t:
            return self.rows.data * (self.cols.data // QBLOCK)
        if touch is Touch.QUANT:
            whole = self.out is t
        else:
            into = self.into
            whole = self.sum is t or (self.out if into is None else into.own) is t
        return self.rows.data * self.cols.data if whole else None

    def result(self) -> SSAValue | None:
        return self.out if self.y is None else None

    def unit_target(self) -> Target | None:
        return self.into

    def unit_output(self) -> tuple[int, int] | None:
        return (self.rows.data, self.cols.data) if self.f32 is not None and self.quant is None else None

    def verify_(self) -> None:
        rows, cols, what = self.rows.data, self.cols.data, f"rows = {self.rows.data} by cols = {self.cols.data}"
        self.expect_positive("rows", "cols")
        self.expect_form(self.f32, self.quant)
        if (self.y is None) != (self.dst is None):
            raise self.refuse("has a place for its result if and only if it has a buffer for it there")
        if self.out is None and (self.y is None or self.quant is not None):
            raise self.refuse("has no out for its result")
        if self.pre_eps is not None and self.add is None:
            raise self.refuse("norms x beforehand but adds nothing to it")
        if self.pre_w is not None and self.pre_eps is None:
            raise self.refuse("has a weight for a norm beforehand that it does not take")
        if self.squares is not None and (self.center is not None or self.y is not None or cols % QBLOCK):
            raise self.refuse(
                f"leaves its division to its readers, but is no RMS norm of whole blocks of {QBLOCK} columns into out"
            )
        if self.b is not None and self.center is None:
            raise self.refuse("has a bias but does not center: only a layer norm has one")
        self.expect_units("x", self.x, rows, cols, self.part.data if self.part is not None else None, what)
        for name, value in (("add", self.add), ("sum", self.sum), ("out", self.out)):
            self.expect_length(name, value, rows * cols, what)
        expect_squares(self, self.squares, rows, cols)
        for name, value in (("weight", self.w), ("bias", self.b), ("pre_weight", self.pre_w)):
            self.expect_length(name, value, cols, f"cols = {cols}")
        if (into := self.into) is not None:
            self.expect_target("y", into, rows, cols)


@irdl_op_definition
class QuantOp(LaunchOp):
    """
    Writes the quantized form of a buffer from its plain one: each block of 32 values as int8 with one f32 scale, the
    largest magnitude over 127 (as two such words under two_pass_int8, the second of what the first leaves).

    Example: `launch.quant %x (n = 576)`
    """

    name = "launch.quant"
    KIND: ClassVar[str] = "quant"

    x = operand_def(BUFFER)
    n = prop_def(NumberAttr)

    assembly_format = "$x" + sizes("n") + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(self, x: SSAValue, *, n: int, covers: Sequence[int] = (), rules: Sequence[str] = ()):
        super().__init__(operands=[x], properties=fields(n=n) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return (self.x,)

    def writes(self) -> Sequence[SSAValue]:
        return (self.x,)

    def touched_writes(self) -> Touched:
        return [(self.x, Touch.QUANT)]

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def result(self) -> SSAValue | None:
        return None

    def verify_(self) -> None:
        self.expect_positive("n")
        self.expect_length("x", self.x, self.n.data, f"n = {self.n.data}")
        if self.n.data % QBLOCK:
            raise self.refuse(f"quantizes {self.n.data} values, no whole number of blocks of {QBLOCK}")


@irdl_op_definition
class L2NormOp(LaunchOp):
    """
    y[r] = x[r]/max(√(Σᵢ x[r, i]²), eps), rows of `cols`.

    Example: `launch.l2_norm %x into %y (rows = 16, cols = 128) eps = 1.0e-06`
    """

    name = "launch.l2_norm"
    KIND: ClassVar[str] = "l2norm"

    x = operand_def(BUFFER)
    y = operand_def(BUFFER)
    rows = prop_def(NumberAttr)
    cols = prop_def(NumberAttr)
    eps = prop_def(RealAttr)

    assembly_format = "$x `into` $y" + sizes("rows", "cols") + "`eps` `=` $eps" + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        y: SSAValue,
        *,
        rows: int,
        cols: int,
        eps: float,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(operands=[x, y], properties=fields(rows=rows, cols=cols, eps=eps) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return (self.x,)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.rows.data * self.cols.data

    def verify_(self) -> None:
        rows, cols = self.rows.data, self.cols.data
        self.expect_positive("rows", "cols")
        for name, value in (("x", self.x), ("y", self.y)):
            self.expect_length(name, value, rows * cols, f"rows = {rows} by cols = {cols}")
