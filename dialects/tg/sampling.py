"""What closes a decode step: the choice of the next token, and the advance to it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType, i32
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, result_def, traits_def
from xdsl.traits import Pure

from lane_mlir.dialects.tg.operation import (
    I64,
    IDS,
    INTEGERS,
    NUMBER,
    VALUES,
    LiftedOperation,
    OperandEffects,
    integer,
    shape_of,
    size_of,
)


@irdl_op_definition
class ArgmaxOp(LiftedOperation):
    """
    The column of each row's largest value, the first of equal ones: y[r] = argmax over i of x[r, i].

    x [rows, columns], y [rows] of i32.
    """

    name = "tg.argmax"

    x = operand_def(VALUES)
    result = result_def(IDS)

    assembly_format = NUMBER + " $x attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue):
        super().__init__(operands=[x], result_types=[TensorType(i32, shape_of(x)[:1])])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        self.expect_shape("result", self.result, shape_of(self.x)[:1], "one a row of x")


@irdl_op_definition
class AdvanceOp(LiftedOperation):
    """
    Moves a sequence on: token[item] = id[0], pos[0] = pos[0] + 1; item is 0 if there is none.

    id [1], token [sequences], pos [1] of the sequence.
    """

    name = "tg.advance"

    id = operand_def(IDS)
    token = operand_def(INTEGERS)
    pos = operand_def(INTEGERS)
    item = opt_prop_def(I64)
    """The place of the sequence among the tokens."""

    assembly_format = (
        NUMBER + " $id `to` $token (`item` $item^)? `,` $pos attr-dict `:` type($id) `,` type($token) `,` type($pos)"
    )
    traits = traits_def(OperandEffects())

    def __init__(self, id: SSAValue, token: SSAValue, pos: SSAValue, item: int | I64 = 0):
        place = integer(item)
        super().__init__(operands=[id, token, pos], properties={"item": place if place.value.data else None})

    @property
    def place(self) -> int:
        """The place of the sequence among the tokens, 0 if none is said."""
        return 0 if self.item is None else self.item.value.data

    def memory_writes(self) -> Sequence[SSAValue]:
        return (self.token, self.pos)

    def memory_reads(self) -> Sequence[SSAValue]:
        return (self.pos,)

    def verify_(self) -> None:
        self.expect_shape("id", self.id, (1,))
        self.expect_rank(1, token=self.token)
        if not 0 <= self.place < size_of(self.token):
            raise self.refuse(f"moves on token {self.place} of {size_of(self.token)}")
        self.expect_position(self.pos)
        if self.token is self.pos:
            raise self.refuse("has one memref as token and as pos")
