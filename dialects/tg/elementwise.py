"""Elementwise ops."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lane_mlir.dialects.tg.attributes import Activation, ActivationAttr, BinaryOperator, BinaryOperatorAttr
from lane_mlir.dialects.tg.operation import F64, NUMBER, VALUES, LiftedOperation, dimensions, real, shape_of


@irdl_op_definition
class BinaryOp(LiftedOperation):
    """
    y = a ∘ b, elementwise, ∘ one of add, sub, mul, div.

    a, y [rows, columns]; b the same, or one row for all ([columns] or [1, columns]), or one value a row ([rows, 1]),
    or one value for all ([1]).
    """

    name = "tg.binary"

    operator = prop_def(BinaryOperatorAttr)
    a = operand_def(VALUES)
    b = operand_def(VALUES)
    result = result_def(VALUES)

    assembly_format = NUMBER + " $operator $a `,` $b attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, operator: BinaryOperator, a: SSAValue, b: SSAValue):
        super().__init__(operands=[a, b], properties={"operator": BinaryOperatorAttr(operator)}, result_types=[a.type])

    @property
    def row_broadcast(self) -> bool:
        """Whether b is one row for all of several rows of a, or has one dimension."""
        return shape_of(self.b) != shape_of(self.a) and shape_of(self.b)[-1] == shape_of(self.a)[1]

    @property
    def single(self) -> bool:
        """Whether b is one value for all of a."""
        return shape_of(self.b) == (1,)

    @property
    def column_broadcast(self) -> bool:
        """Whether b is one value a row of a."""
        return shape_of(self.b) != shape_of(self.a) and not (self.row_broadcast or self.single)

    def verify_(self) -> None:
        self.expect_rank(2, a=self.a)
        rows, columns = shape_of(self.a)
        if shape_of(self.b) not in ((rows, columns), (columns,), (1, columns), (rows, 1), (1,)):
            expected = f"the shape of a ({rows}x{columns}), a row or a column of it, or one value"
            raise self.refuse(f"b is {dimensions(shape_of(self.b))}, expected {expected}")
        self.expect_shape("result", self.result, (rows, columns), "the shape of a")


@irdl_op_definition
class UnaryOp(LiftedOperation):
    """y = f(x), elementwise, f an activation. x, y [rows, columns]."""

    name = "tg.unary"

    activation = prop_def(ActivationAttr)
    x = operand_def(VALUES)
    result = result_def(VALUES)

    assembly_format = NUMBER + " $activation $x attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, activation: Activation, x: SSAValue):
        super().__init__(operands=[x], properties={"activation": ActivationAttr(activation)}, result_types=[x.type])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")


@irdl_op_definition
class ScaleOp(LiftedOperation):
    """y = factor·x, elementwise. x, y [rows, columns]."""

    name = "tg.scale"

    x = operand_def(VALUES)
    factor = prop_def(F64)
    result = result_def(VALUES)

    assembly_format = NUMBER + " $x `by` custom<Real>($factor) attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, factor: float | F64):
        super().__init__(operands=[x], properties={"factor": real(factor)}, result_types=[x.type])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")
