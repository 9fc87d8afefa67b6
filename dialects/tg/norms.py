"""Norms of rows."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lane_mlir.dialects.tg.operation import F64, NUMBER, VALUES, LiftedOperation, real, shape_of


@irdl_op_definition
class RmsNormOp(LiftedOperation):
    """
    y[r, i] = x[r, i]·w[i] / √(mean over i of x[r, i]² + eps); w is 1 where absent.

    x, y [rows, columns], w [columns]. Per-head norms take a view with a row for each head.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """

    name = "tg.rms_norm"

    x = operand_def(VALUES)
    w = opt_operand_def(VALUES)
    eps = prop_def(F64)
    result = result_def(VALUES)

    assembly_format = (
        NUMBER + " $x (`weight` $w^)? `eps` custom<Real>($eps) attr-dict `:` functional-type(operands, results)"
    )
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, w: SSAValue | None, eps: float | F64):
        super().__init__(operands=[x, w], properties={"eps": real(eps)}, result_types=[x.type])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        if self.w is not None:
            self.expect_shape("weight", self.w, shape_of(self.x)[1:], f"x has rows of {shape_of(self.x)[1]}")
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")
        self.expect_not_negative(eps=self.eps.value.data)


@irdl_op_definition
class LayerNormOp(LiftedOperation):
    """
    y[r, i] = (x[r, i] - mean)·w[i] / √(variance + eps) + b[i], mean and variance over the row; b is 0 where absent.

    x, y [rows, columns], w and b [columns].

    Source: Ba et al., Layer Normalization (2016).
    """

    name = "tg.layer_norm"

    x = operand_def(VALUES)
    w = operand_def(VALUES)
    b = opt_operand_def(VALUES)
    eps = prop_def(F64)
    result = result_def(VALUES)

    assembly_format = (
        NUMBER + " $x `weight` $w (`bias` $b^)? `eps` custom<Real>($eps) attr-dict `:`"
        " functional-type(operands, results)"
    )
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, w: SSAValue, b: SSAValue | None, eps: float | F64):
        super().__init__(operands=[x, w, b], properties={"eps": real(eps)}, result_types=[x.type])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        because = f"x has rows of {shape_of(self.x)[1]}"
        self.expect_shape("weight", self.w, shape_of(self.x)[1:], because)
        if self.b is not None:
            self.expect_shape("bias", self.b, shape_of(self.x)[1:], because)
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")
        self.expect_not_negative(eps=self.eps.value.data)


@irdl_op_definition
class L2NormOp(LiftedOperation):
    """
    y[r, i] = x[r, i] / max(√(Σ over i of x[r, i]²), eps).

    x, y [rows, columns].
    """

    name = "tg.l2_norm"

    x = operand_def(VALUES)
    eps = prop_def(F64)
    result = result_def(VALUES)

    assembly_format = NUMBER + " $x `eps` custom<Real>($eps) attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, eps: float | F64):
        super().__init__(operands=[x], properties={"eps": real(eps)}, result_types=[x.type])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")
        self.expect_positive(eps=self.eps.value.data)
