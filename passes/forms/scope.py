"""What an op of a step is made of, whether lifted or fused: its leaves, and which of their values are which results."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from xdsl.ir import Operation, SSAValue

from lane_mlir.dialects.tg import FusedOp, LiftedOperation, QuantizeOp, ViewOp, shape_of, size_of


class Scope:
    """
    The inside of one op of a step.

    A fused op yields values of its parts as its results, and so on outwards: all of these are one value, whose
    `canonical` name is the outermost. A value that no result names is internal.
    """

    def __init__(self, op: Operation):
        self.op = op
        self._canonical: dict[SSAValue, SSAValue] = {}
        leaves: list[LiftedOperation] = []
        self.leaves: Sequence[LiftedOperation] = leaves
        """The lifted ops, in the order they run."""
        self._look_into(op, leaves)

    def _look_into(self, op: Operation, leaves: list[LiftedOperation]) -> None:
        if isinstance(op, FusedOp):
            *parts, terminator = op.body.block.ops
            for inner, result in zip(terminator.operands, op.results, strict=True):
                self._canonical.setdefault(inner, self.canonical(result))
            for part in parts:
                self._look_into(part, leaves)
        elif isinstance(op, LiftedOperation):
            leaves.append(op)

    def canonical(self, value: SSAValue) -> SSAValue:
        """The outermost name of a value."""
        return self._canonical.get(value, value)

    def of(self, leaves: Sequence[LiftedOperation]) -> Scope:
        """The same inside, of which only some leaves are looked at."""
        part = copy(self)
        part.leaves = leaves
        return part

    def escapes(self, value: SSAValue) -> bool:
        """Whether a value is a result of the op."""
        return self.canonical(value).owner is self.op

    def same(self, a: SSAValue, b: SSAValue) -> bool:
        """Whether two values are one."""
        return self.canonical(a) == self.canonical(b)


def is_reshape(view: ViewOp) -> bool:
    """Whether a view has all elements of what it is a view of."""
    return size_of(view.result) == size_of(view.x)


def leaves(op: Operation) -> Sequence[LiftedOperation]:
    """The lifted ops that an op of a step computes, in the order they run."""
    if isinstance(op, FusedOp):
        return tuple(op.leaves())
    return (op,) if isinstance(op, LiftedOperation) else ()


def covers(op: Operation) -> tuple[int, ...]:
    """The numbers of the lifted ops that an op computes, in the order they run."""
    return tuple(leaf.number.value.data for leaf in leaves(op) if leaf.number is not None)


def is_quantization(quantized: SSAValue, x: SSAValue) -> bool:
    """Whether a value is another one quantized: by an op of the step, in a fused one, or as a view of such a value."""
    match quantized.owner:
        case QuantizeOp() as op:
            return op.x is x
        case FusedOp() as op:
            scope = Scope(op)
            inner = (leaf for leaf in scope.leaves if isinstance(leaf, QuantizeOp))
            return any(scope.same(leaf.result, quantized) and scope.same(leaf.x, x) for leaf in inner)
        case ViewOp() as view:
            plain = x.owner
            return (
                isinstance(plain, ViewOp)
                and (plain.offset, shape_of(plain.result)) == (view.offset, shape_of(view.result))
                and is_quantization(view.x, plain.x)
            )
        case _:
            return False
