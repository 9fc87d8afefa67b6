"""Ops with recurrent state: causal convolution and the gated delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lane_mlir.dialects.tg.attributes import KeyHeadOrder, KeyHeadOrderAttr, RowsAttr
from lane_mlir.dialects.tg.operation import (
    F64,
    I64,
    NUMBER,
    STATE,
    VALUES,
    LiftedOperation,
    OperandEffects,
    integer,
    real,
    shape_of,
)


@irdl_op_definition
class ConvOp(LiftedOperation):
    """
    Causal convolution of each channel over the last taps inputs: y[r, c] = Σₜ w[c, t]·h[r + t, c], where h is the
    ring's rows 1 to taps - 1 (the inputs before, oldest first) followed by x. Afterwards the ring holds the last
    `taps` inputs, oldest first.

    x, y [rows, channels]; w [channels, taps]; ring [taps, channels], zero before the first input.
    """

    name = "tg.conv"

    x = operand_def(VALUES)
    w = operand_def(VALUES)
    ring = operand_def(STATE)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"w": (RowsAttr,)}
    assembly_format = NUMBER + " $x `,` $w `ring` $ring attr-dict `:` functional-type(operands, results)"
    traits = traits_def(OperandEffects())

    def __init__(self, x: SSAValue, w: SSAValue, ring: SSAValue):
        super().__init__(operands=[x, w, ring], result_types=[x.type])

    def memory_writes(self) -> Sequence[SSAValue]:
        return (self.ring,)

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x, w=self.w)
        channels, taps = shape_of(self.x)[1], shape_of(self.w)[1]
        self.expect_shape("w", self.w, (channels, taps), "taps for each channel of x")
        self.expect_shape("ring", self.ring, (taps, channels), "an input for each tap")
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")


@irdl_op_definition
class DecayOp(LiftedOperation):
    """
    The decay of the gated delta rule: y[r, h] = exp(al[h]·softplus(a[r, h] + dt[h])), al not positive.

    a, y [rows, heads]; dt, al [heads].
    """

    name = "tg.decay"

    a = operand_def(VALUES)
    dt = operand_def(VALUES)
    al = operand_def(VALUES)
    result = result_def(VALUES)

    assembly_format = NUMBER + " $a `dt` $dt `al` $al attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, a: SSAValue, dt: SSAValue, al: SSAValue):
        super().__init__(operands=[a, dt, al], result_types=[a.type])

    def verify_(self) -> None:
        self.expect_rank(2, a=self.a)
        heads = shape_of(self.a)[1]
        self.expect_shape("dt", self.dt, (heads,), "one a head of a")
        self.expect_shape("al", self.al, (heads,), "one a head of a")
        self.expect_shape("result", self.result, shape_of(self.a), "the shape of a")


@irdl_op_definition
class DeltaOp(LiftedOperation):
    """
    The gated delta rule, row by row, and the gated norm of what it reads out. For value head h with key head g(h),
    S the head's state [d, d] (key by value), q' = q[r, g]/√d, k' = k[r, g], per row:

        S ← decay[r, h]·S;  S ← S + k'·(beta[r, h]·(v[r, h] - Sᵀ·k'))ᵀ;  o = Sᵀ·q'
        y[r, h] = rms_norm(o, norm, eps)·silu(z[r, h])

    q, k [rows, key_heads·d]; v, z, y [rows, value_heads·d]; beta, decay [rows, value_heads]; norm [d];
    state [value_heads·d, d], zero before the first row.

    Source: Yang et al., Gated Delta Networks (2024).
    """

    name = "tg.delta"

    q = operand_def(VALUES)
    k = operand_def(VALUES)
    v = operand_def(VALUES)
    z = operand_def(VALUES)
    beta = operand_def(VALUES)
    decay = operand_def(VALUES)
    norm = operand_def(VALUES)
    state = operand_def(STATE)
    key_heads = prop_def(I64)
    value_heads = prop_def(I64)
    order = prop_def(KeyHeadOrderAttr)
    eps = prop_def(F64)
    result = result_def(VALUES)

    assembly_format = (
        NUMBER + " $q `,` $k `,` $v `gate` $z `beta` $beta `decay` $decay `norm` $norm `state` $state"
        " `heads` $value_heads `/` $key_heads $order `eps` custom<Real>($eps) attr-dict `:`"
        " functional-type(operands, results)"
    )
    traits = traits_def(OperandEffects())

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        z: SSAValue,
        beta: SSAValue,
        decay: SSAValue,
        norm: SSAValue,
        state: SSAValue,
        *,
        key_heads: int,
        value_heads: int,
        order: KeyHeadOrder,
        eps: float,
    ):
        super().__init__(
            operands=[q, k, v, z, beta, decay, norm, state],
            properties={
                "key_heads": integer(key_heads),
                "value_heads": integer(value_heads),
                "order": KeyHeadOrderAttr(order),
                "eps": real(eps),
            },
            result_types=[TensorType(f32, shape_of(v))],
        )

    def memory_writes(self) -> Sequence[SSAValue]:
        return (self.state,)

    def verify_(self) -> None:
        key_heads, value_heads = self.key_heads.value.data, self.value_heads.value.data
        self.expect_rank(2, q=self.q)
        self.expect_rank(1, norm=self.norm)
        self.expect_positive(key_heads=key_heads, value_heads=value_heads)
        self.expect_not_negative(eps=self.eps.value.data)
        self.expect_multiple("value_heads", value_heads, "key_heads", key_heads)
        rows, d = shape_of(self.q)[0], shape_of(self.norm)[0]
        for name, value, width in (
            ("q", self.q, key_heads * d),
            ("k", self.k, key_heads * d),
            ("v", self.v, value_heads * d),
            ("z", self.z, value_heads * d),
            ("beta", self.beta, value_heads),
            ("decay", self.decay, value_heads),
            ("result", self.result, value_heads * d),
        ):
            self.expect_shape(name, value, (rows, width))
        self.expect_shape("state", self.state, (value_heads * d, d), "a square for each value head")
