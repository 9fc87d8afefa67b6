"""The one judge of what a kernel can do: an op as the launch that runs it whole, or the reason why none does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from xdsl.dialects.builtin import DictionaryAttr, IntegerType, MemRefType, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue

from lane_mlir.chips import Chip, chip
from lane_mlir.dialects.launch import (
    BufferOp,
    DType,
    Fill,
    FoldOp,
    LaunchOp,
    NamesAttr,
    NumbersAttr,
    StoredTensor,
    Target,
    TensorAttr,
    holder,
)
from lane_mlir.dialects.tg import (
    ArgAttr,
    ArgumentKind,
    ConstantOp,
    EmptyOp,
    FusedOp,
    Numerics,
    RopeTableOp,
    TargetAttr,
    TensorGraphOperation,
    format_of_weight,
    shape_of,
)
from lane_mlir.dialects.tg.step import StepArgument, arguments
from lane_mlir.passes.forms import Landing, Scope, covers, describe, leaves, op_name, rules_of


class Refusal(Exception):
    """No kernel runs an op whole. The message says why, in a sentence."""


Linker: TypeAlias = "Callable[[Judge, Operation, Scope], LaunchOp]"
"""Makes the launch of an op; raises Refusal."""


class Judge:
    """
    Links the ops of one step for what it is compiled for.

    `fuse` asks it before it commits a fusion (`check`); the pass `link` asks it again to lower (`link`).
    """

    def __init__(self, func: FuncOp, target: TargetAttr):
        self.target = target
        self.chip: Chip = chip(target.chip.data)
        self.numerics: Numerics = target.numerics.data
        self.rows: int = 1
        """Tokens of each sequence: the rows of its activations."""
        self.sequences: int = 1
        """Sequences of the step, each with a position of its own."""
        self.buffers: list[BufferOp] = []
        """The buffers made so far, in order."""
        self._of: dict[SSAValue, SSAValue] = {}
        self._own: list[SSAValue] = []
        """The values that the op that is being linked computes and that have a buffer."""
        self._names: dict[str, int] = {}
        self._scope = Scope(func)
        self._arguments: Mapping[SSAValue, StepArgument] = {a.value: a for a in arguments(func)}
        for argument in self._arguments.values():
            if argument.kind is ArgumentKind.TOKEN:
                self.rows = shape_of(argument.value)[0]
            elif argument.kind is ArgumentKind.POSITION:
                self.sequences = max(self.sequences, argument.sequence + 1)
        self.rows = max(1, self.rows // self.sequences)

    def check(self, op: Operation) -> None:
        """Raises Refusal if no kernel runs an op whole."""
        known = len(self.buffers)
        try:
            self.link(op).erase()
        finally:
            # What others compute has a buffer for the next op that reads it.
            del self.buffers[known:]
            for value in self._own:
                self._of.pop(value, None)

    def link(self, op: Operation) -> LaunchOp:
        """The launch that runs an op whole. Raises Refusal if there is none."""
        from lane_mlir.passes.link.table import linker_of

        self._scope = scope = Scope(op)
        self._own.clear()
        launch = linker_of(op)(self, op, scope)
        if isinstance(op, FusedOp):
            self._check_whole(op, launch)
        launch.properties["covers"] = NumbersAttr(covers(op))
        launch.properties["rules"] = NamesAttr(rules_of(op))
        if isinstance(launch, FoldOp) and (of_second := launch.then.covers.data):
            # What goes with the second should plan take it out again.
            launch.then.properties["rules"] = NamesAttr(rules_of(op, of_second))
        launch.location = op.location
        return launch

    def _check_whole(self, op: FusedOp, launch: LaunchOp) -> None:
        """Refuse a launch that leaves out a result of the op, or that reads what only the op itself computes."""
        written = {holder(buffer) for buffer in launch.writes()}
        for result in (*op.outputs, *op.memory_writes()):
            if result not in self._of or holder(self._of[result]) not in written:
                raise Refusal(f"the launch would leave out {_origin(result)}")
        read = set(launch.reads())
        for value in self._own:
            if self._of[value] in read and not self._is_of_another(self._of[value], op):
                raise Refusal(f"the launch would read the result of {_origin(value)}, which it computes itself")

    def _is_of_another(self, buffer: SSAValue, op: FusedOp) -> bool:
        """Whether a buffer is that of a value which an op reads from outside: the result of an insert is in such."""
        operands = (operand for leaf in op.leaves() for operand in leaf.operands)
        return any(self._of.get(value) is buffer for value in operands if value not in self._own)

    def link_part(self, part: Operation, scope: Scope) -> LaunchOp:
        """The launch of one part of the op that is being linked, in a fold with others. Raises Refusal."""
        from lane_mlir.passes.link.table import linker_of

        return linker_of(part)(self, part, scope.of(leaves(part)))

    def inside_only(self, scope: Scope, values: Iterable[SSAValue]) -> None:
        """Refuse if a value that the launch does not write is read by another op."""
        for value in values:
            if scope.escapes(value):
                raise Refusal(f"{_origin(value)} has another reader, and the launch would not write its result")

    def side_by_side(self, op: FusedOp) -> None:
        """Refuse parts of a launch that it may not run at once: one needs what another computes, or leaves in state."""
        results: dict[SSAValue, Operation] = {}
        for i, part in enumerate(op.parts):
            for other in op.parts[:i]:
                if shared := _touched_by_both(part, other):
                    raise Refusal(
                        f"{describe(other)} and {describe(part)} both touch {shared}, and the launch runs them at once"
                    )
            for inner in part.walk():
                if needed := next((results[value] for value in inner.operands if value in results), None):
                    raise Refusal(f"{describe(part)} needs {describe(needed)}, and the launch runs them at once")
            results.update(dict.fromkeys(part.results, part))

    # Buffers.

    def buffer(self, value: SSAValue) -> SSAValue:
        """The buffer of a value of the step, or of one inside the op that is being linked."""
        value = self._scope.canonical(value)
        if value not in self._of:
            made = self._make_buffer(value)
            self._put(value, self._keep(made))
        return self._of[value]

    def _keep(self, made: BufferOp) -> SSAValue:
        self.buffers.append(made)
        return made.buffer

    def _put(self, value: SSAValue, buffer: SSAValue) -> None:
        self._of[value] = buffer
        if isinstance(value.owner, Operation) and self._scope.op.is_ancestor(value.owner):
            self._own.append(value)

    def optional_buffer(self, value: SSAValue | None) -> SSAValue | None:
        return None if value is None else self.buffer(value)

    def share(self, value: SSAValue, of: SSAValue) -> None:
        """Let a value be in the buffer of another: a tensor and its quantized form are two forms of one buffer."""
        self._put(self._scope.canonical(value), self.buffer(of))

    def insert(self, value: SSAValue, into: SSAValue) -> None:
        """
        Let a value be in the buffer of the tensor that it is with a part replaced; in a new one if that is empty.
        Refuses to write over what is no result of the step, or has another reader.
        """
        if not isinstance(into.owner, EmptyOp):
            self._check_overwritten(into)
            self.share(value, into)
            return
        # Inserts into one empty tensor are as many tensors.
        made = BufferOp(self._name(value.name_hint or "t"), shape_of(value), Fill.COMPUTED)
        self._put(self._scope.canonical(value), self._keep(made))

    def _check_overwritten(self, value: SSAValue) -> None:
        op = self._scope.op
        if isinstance(value.owner, Block | ConstantOp):
            raise Refusal("it would write over a tensor that the step does not compute")
        others = [use.operation for use in value.uses if not op.is_ancestor(use.operation)]
        if op.parent is not None and others:
            raise Refusal(f"{describe(others[0])} reads the tensor that it would write over")

    def is_batch(self, rows: int) -> bool:
        """Whether so many rows are one of each sequence, not positions of one."""
        return self.sequences > 1 and rows == self.sequences

    def landing(self, place: Landing) -> Target:
        """Where a launch's result lands."""
        if place.into is not None:
            self.insert(place.value, place.into)
        return Target(self.buffer(place.value), self.optional_buffer(place.param), place.dst)

    def _make_buffer(self, value: SSAValue) -> BufferOp:
        owner, shape = value.owner, shape_of(value)
        if isinstance(owner, ConstantOp):
            tensor = StoredTensor(owner.tensor.data, format_of_weight(value))
            return BufferOp(self._name(owner.tensor.data), shape, Fill.CONSTANT, constant=TensorAttr(tensor))
        if isinstance(owner, RopeTableOp):
            return BufferOp(self._name(f"rope.{_table(value)}"), shape, Fill.CONSTANT, constant=_rope_table(value))
        if not isinstance(owner, Operation):
            return self._argument_buffer(value)
        if not isinstance(owner, TensorGraphOperation):
            raise Refusal(f"%{value.name_hint or '?'} is computed by '{op_name(owner)}', which is no op of tg")
        dtype = DType.I32 if _is_integer(value.type) else DType.F32
        return BufferOp(self._name(value.name_hint or "t"), shape, Fill.COMPUTED, dtype=dtype)

    def _argument_buffer(self, value: SSAValue) -> BufferOp:
        """An argument of the step; one that does not say what it is (tg.arg) is judged by its type."""
        argument = self._arguments.get(value)
        is_memref = isinstance(value.type, MemRefType)
        integers = is_memref and _is_integer(value.type)
        fill = Fill.ZERO if is_memref and not integers else Fill.PARAM
        dtype = DType.I32 if integers else DType.F32
        if argument is None:
            return BufferOp(self._name(value.name_hint or "argument"), shape_of(value), fill, dtype=dtype)
        role = ArgAttr(argument.kind, argument.sequence, argument.name)
        return BufferOp(self._name(argument.name or str(argument.kind)), shape_of(value), fill, dtype=dtype, role=role)

    def _name(self, wanted: str) -> str:
        count = self._names.get(wanted, 0)
        self._names[wanted] = count + 1
        return wanted if count == 0 else self._name(f"{wanted}_{count}")

    def alias(self, value: SSAValue, of: SSAValue, offset: int) -> SSAValue:
        """The buffer of a value that is some of another's elements."""
        made = BufferOp(
            self._name(value.name_hint or "view"), shape_of(value), Fill.ALIAS, of=self.buffer(of), offset=offset
        )
        self._put(self._scope.canonical(value), self._keep(made))
        return made.buffer


def _is_integer(type_: Attribute) -> bool:
    # What xDSL's isa would ask, which makes a constraint for each call.
    return isinstance(type_, TensorType | MemRefType) and isinstance(type_.get_element_type(), IntegerType)


def _touched_by_both(a: Operation, b: Operation) -> str:
    """The state that one op writes and another touches, by its name; empty if there is none."""
    if not isinstance(a, TensorGraphOperation) or not isinstance(b, TensorGraphOperation):
        return ""
    shared = {*a.memory_writes()} & {*b.memory_reads(), *b.memory_writes()}
    shared |= {*b.memory_writes()} & {*a.memory_reads()}
    return ", ".join(sorted(f"%{value.name_hint or '?'}" for value in shared))


def _origin(value: SSAValue) -> str:
    """What computes a value, or which argument it is, as a reason names it."""
    if not isinstance(value, OpResult):
        return f"argument %{value.name_hint or '?'}"
    op = value.owner
    while isinstance(op, FusedOp):
        inner = op.yielded[op.results.index(value)]
        assert isinstance(inner, OpResult)
        value, op = inner, inner.owner
    return describe(op)


def _table(value: SSAValue) -> str:
    assert isinstance(value.owner, RopeTableOp)
    return "cos" if value is value.owner.cos else "sin"


def _rope_table(value: SSAValue) -> Attribute:
    """A rotation table as the constant of a buffer: the fields of `tg.rope_table`, and which of its results it is."""
    table = value.owner
    assert isinstance(table, RopeTableOp)
    fields: dict[str, Attribute] = {"rope_table": StringAttr(_table(value)), **table.properties}
    if table.factors is not None:
        factors = table.factors.owner
        if not isinstance(factors, ConstantOp):
            raise Refusal("the factors of a rope_table are no tensor of the checkpoint")
        fields["factors"] = TensorAttr(StoredTensor(factors.tensor.data, format_of_weight(table.factors)))
    return DictionaryAttr(fields)
