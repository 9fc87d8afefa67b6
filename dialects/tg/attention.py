"""Rotation and attention."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import MemRefType, TensorType, f32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)

from lane_mlir.dialects.tg.attributes import Pairing, PairingAttr
from lane_mlir.dialects.tg.operation import (
    F64,
    I64,
    INTEGERS,
    NUMBER,
    VALUES,
    VALUES_OR_STATE,
    LiftedOperation,
    OperandEffects,
    integer,
    real,
    shape_of,
)


@irdl_op_definition
class RopeOp(LiftedOperation):
    """
    Rotates the leading 2·half columns of every head by its row's position, and copies the rest.

    Head u of x stands in row u // per_row of the step, at position p = pos[0] + u // per_row. A pair (a, b) of columns
    becomes (a·cos[p, i] - b·sin[p, i], a·sin[p, i] + b·cos[p, i]); `half` pairs column i with i + half, `interleaved`
    column 2i with 2i + 1.

    x, y [rows·per_row, head width]; cos, sin [positions, half], half at most half the head width; pos [1].

    Source: Su et al., RoFormer (2021).
    """

    name = "tg.rope"

    x = operand_def(VALUES)
    cos = operand_def(VALUES)
    sin = operand_def(VALUES)
    pos = operand_def(INTEGERS)
    per_row = prop_def(I64)
    pairing = prop_def(PairingAttr)
    result = result_def(VALUES)

    assembly_format = (
        NUMBER
        + " $x `by` $cos `,` $sin `at` $pos `heads` $per_row $pairing attr-dict `:` functional-type(operands, results)"
    )
    traits = traits_def(OperandEffects())

    def __init__(
        self,
        x: SSAValue,
        cos: SSAValue,
        sin: SSAValue,
        pos: SSAValue,
        *,
        per_row: int | I64,
        pairing: Pairing,
    ):
        super().__init__(
            operands=[x, cos, sin, pos],
            properties={"per_row": integer(per_row), "pairing": PairingAttr(pairing)},
            result_types=[x.type],
        )

    @property
    def half(self) -> int:
        return shape_of(self.cos)[1]

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x, cos=self.cos, sin=self.sin)
        self.expect_position(self.pos)
        heads, width = shape_of(self.x)
        self.expect_multiple("the rows of x", heads, "the heads of a row", self.per_row.value.data)
        rows, positions = heads // self.per_row.value.data, shape_of(self.cos)[0]
        if rows > positions:
            x = f"{rows} rows of {self.per_row.value.data} heads"
            raise self.refuse(f"cos is {positions}x{self.half}, but x has {x}: fewer positions than rows")
        self.expect_shape("sin", self.sin, shape_of(self.cos), "the shape of cos")
        if 2 * self.half > width:
            raise self.disagree("cos", self.cos, "x", self.x, "more columns than half a head")
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")


@irdl_op_definition
class AttentionOp(LiftedOperation):
    """
    Causal attention of the step's rows over the rows of the key and value arrays.

    Row r stands at p = pos[0] + r and attends the positions j with p - window < j ≤ p (all up to p without a window).
    For head h of kv head g = h // (heads / kv_heads): s[j] = scale·(q[r, h]·k[j, g] + q_tail[r, h]·k_tail[j]); with
    a softcap c, s = c·tanh(s/c); the weights are the softmax of s, with a further logit sinks[h] that takes weight but
    adds nothing; y[r, h] = Σⱼ weight[j]·v[j, g].

    q [rows, heads·width]; k [length, kv_heads·width] and v [length, kv_heads·value width], arrays of state or tensors;
    sinks [heads]; q_tail [rows, heads·tail], k_tail [length, tail] (one for all heads); pos [1];
    y [rows, heads·value width]. Rows of k and v past p are not read.

    Sources: Vaswani et al. (2017); Ainslie et al., GQA (2023); Xiao et al., attention sinks (2023).
    """

    name = "tg.attention"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    q = operand_def(VALUES)
    k = operand_def(VALUES_OR_STATE)
    v = operand_def(VALUES_OR_STATE)
    pos = operand_def(INTEGERS)
    sinks = opt_operand_def(VALUES)
    q_tail = opt_operand_def(VALUES)
    k_tail = opt_operand_def(VALUES_OR_STATE)
    heads = prop_def(I64)
    kv_heads = prop_def(I64)
    scale = prop_def(F64)
    window = opt_prop_def(I64)
    softcap = opt_prop_def(F64)
    result = result_def(VALUES)

    assembly_format = (
        NUMBER + " $q `,` $k `,` $v `at` $pos (`sinks` $sinks^ `:` type($sinks))?"
        " (`tails` $q_tail^ `,` $k_tail `:` type($q_tail) `,` type($k_tail))? `heads` $heads `/` $kv_heads"
        " `scale` custom<Real>($scale) (`window` $window^)? (`softcap` custom<Real>($softcap)^)? attr-dict `:`"
        " type($q) `,` type($k) `,` type($v) `,` type($pos) `->` type($result)"
    )
    traits = traits_def(OperandEffects())

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        pos: SSAValue,
        *,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: SSAValue | None = None,
        tails: tuple[SSAValue, SSAValue] | None = None,
    ):
        value_width = shape_of(v)[1] // kv_heads
        super().__init__(
            operands=[q, k, v, pos, sinks, *(tails or (None, None))],
            properties={
                "heads": integer(heads),
                "kv_heads": integer(kv_heads),
                "scale": real(scale),
                "window": None if window is None else integer(window),
                "softcap": None if softcap is None else real(softcap),
            },
            result_types=[TensorType(f32, (shape_of(q)[0], heads * value_width))],
        )

    @property
    def length(self) -> int:
        """Rows of the key and value arrays."""
        return shape_of(self.k)[0]

    @property
    def width(self) -> int:
        """Columns of a key head."""
        return shape_of(self.k)[1] // self.kv_heads.value.data

    @property
    def value_width(self) -> int:
        return shape_of(self.v)[1] // self.kv_heads.value.data

    def memory_reads(self) -> Sequence[SSAValue]:
        return tuple(operand for operand in self.operands if isinstance(operand.type, MemRefType))

    def verify_(self) -> None:
        heads, kv_heads = self.heads.value.data, self.kv_heads.value.data
        self.expect_rank(2, q=self.q, k=self.k, v=self.v)
        self.expect_position(self.pos)
        self.expect_positive(heads=heads, kv_heads=kv_heads, scale=self.scale.value.data)
        self.expect_multiple("heads", heads, "kv_heads", kv_heads)
        self.expect_multiple("the columns of k", shape_of(self.k)[1], "kv_heads", kv_heads)
        self.expect_multiple("the columns of v", shape_of(self.v)[1], "kv_heads", kv_heads)
        rows = shape_of(self.q)[0]
        self.expect_shape("q", self.q, (rows, heads * self.width), "heads of the width of k's")
        if shape_of(self.v)[0] != self.length:
            raise self.disagree("k", self.k, "v", self.v, "they differ in rows")
        if rows > self.length:
            raise self.disagree("q", self.q, "k", self.k, "it has fewer rows")
        self.expect_shape("result", self.result, (rows, heads * self.value_width), "heads of the width of v's")
        if self.sinks is not None:
            self.expect_shape("sinks", self.sinks, (heads,), "one a head")
        if self.window is not None:
            self.expect_positive(window=self.window.value.data)
        if self.softcap is not None:
            self.expect_positive(softcap=self.softcap.value.data)
        self._verify_tails(rows, heads)

    def _verify_tails(self, rows: int, heads: int) -> None:
        if self.q_tail is None or self.k_tail is None:
            if self.q_tail is not self.k_tail:
                raise self.refuse("has a tail of only one of q and k")
            return
        self.expect_rank(2, k_tail=self.k_tail)
        tail = shape_of(self.k_tail)[1]
        self.expect_shape("k_tail", self.k_tail, (self.length, tail), "a row for each of k")
        self.expect_shape("q_tail", self.q_tail, (rows, heads * tail), "heads of the width of k_tail")
