"""A step as a whole: what its function's arguments are, and what its module is compiled for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import DictionaryAttr, MemRefType, ModuleOp, f32, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation
from xdsl.utils.exceptions import VerifyException

from lane_mlir.dialects.tg.attributes import ArgAttr, ArgumentKind, Numerics, Precision, TargetAttr
from lane_mlir.dialects.tg.fused import used_before_defined
from lane_mlir.dialects.tg.operation import LiftedOperation

ARGUMENT = "tg.arg"
"""The argument attribute that says what an argument of a step is."""

TARGET = "tg.target"
"""The attribute of the module that says what its steps are compiled for."""


@dataclass(frozen=True)
class StepArgument:
    """An argument of a step: its value, what it is, of which sequence, and its name (empty if it has none)."""

    value: BlockArgument
    kind: ArgumentKind
    sequence: int
    name: str

    @property
    def is_state(self) -> bool:
        """Whether it lives from step to step, starting as zeros: neither the token nor the position."""
        return self.kind not in (ArgumentKind.TOKEN, ArgumentKind.POSITION)


def arguments(func: FuncOp) -> list[StepArgument]:
    """
    The arguments that say what they are, in order; those without the attribute `tg.arg` are left out.

    Raises: VerifyException if such an argument does not have the type of its kind: a token is memref<R x i32>, a
    position memref<1 x i32>, an array of state memref<L x W x f32>.
    """
    return list(_arguments(func))


def _arguments(func: FuncOp) -> Iterator[StepArgument]:
    if func.is_declaration or func.arg_attrs is None:
        return
    for i, (value, attributes) in enumerate(zip(func.body.block.args, func.arg_attrs, strict=True)):
        attribute = attributes.data.get(ARGUMENT)
        if attribute is None:
            continue
        if not isinstance(attribute, ArgAttr):
            raise _refusal(func, f"argument {i} has {ARGUMENT} = {attribute}, expected #tg.arg")
        kind, sequence = attribute.kind.data, attribute.sequence.data
        if not _is_type_of(kind, value.type):
            raise _refusal(func, f"argument {i} is a {kind} of type {value.type}, expected {_EXPECTED_TYPES[kind]}")
        yield StepArgument(value, kind, sequence, attribute.label.data)


_EXPECTED_TYPES = {
    ArgumentKind.TOKEN: "memref<Rxi32>",
    ArgumentKind.POSITION: "memref<1xi32>",
    ArgumentKind.KV_CACHE: "memref<LxWxf32>",
    ArgumentKind.CONV_RING: "memref<LxWxf32>",
    ArgumentKind.DELTA_STATE: "memref<LxWxf32>",
}


def _is_type_of(kind: ArgumentKind, type_: Attribute) -> bool:
    if not isinstance(type_, MemRefType):
        return False
    shape, element = type_.get_shape(), cast(MemRefType[Attribute], type_).element_type
    if any(dimension < 1 for dimension in shape):
        return False
    match kind:
        case ArgumentKind.TOKEN:
            return element == i32 and len(shape) == 1
        case ArgumentKind.POSITION:
            return element == i32 and shape == (1,)
        case ArgumentKind.KV_CACHE | ArgumentKind.CONV_RING | ArgumentKind.DELTA_STATE:
            return element == f32 and len(shape) == 2


def verify_step(func: FuncOp) -> None:
    """
    Check that a function is a whole step: one block, values defined before they are used (which xDSL does not check).
    Each memref among its arguments says what it is; sequences count from 0; each sequence has one position and at most
    one token, the first exactly one; no two arguments of one sequence have one name, and those
    of several sequences that share one are alike.

    Raises: VerifyException naming the function, the argument, and what was expected.
    """
    if len(func.body.blocks) != 1:
        raise _refusal(func, f"has {len(func.body.blocks)} blocks, expected 1")
    if early := used_before_defined(func.body.block):
        raise _refusal(func, f"has an op '{early.name}' that uses a value before it is defined")
    found = arguments(func)
    known = {argument.value for argument in found}
    for i, value in enumerate(func.body.block.args):
        type_: Attribute = value.type
        if isinstance(type_, MemRefType) and value not in known:
            raise _refusal(func, f"argument {i} of type {type_} has no attribute {ARGUMENT}")
    sequences = sorted({argument.sequence for argument in found}) or [0]
    if sequences != list(range(len(sequences))):
        raise _refusal(func, f"has arguments of sequences {sequences}, expected to count from 0")
    for sequence in sequences:
        _verify_sequence(func, sequence, [argument for argument in found if argument.sequence == sequence])
    _verify_names(func, found)


def _verify_sequence(func: FuncOp, sequence: int, found: Sequence[StepArgument]) -> None:
    tokens = sum(argument.kind is ArgumentKind.TOKEN for argument in found)
    positions = sum(argument.kind is ArgumentKind.POSITION for argument in found)
    if positions != 1:
        raise _refusal(func, f"has {positions} positions of sequence {sequence}, expected 1")
    if tokens > 1 or (tokens == 0 and sequence == 0):
        expected = "1" if sequence == 0 else "1 or none"
        raise _refusal(func, f"has {tokens} tokens of sequence {sequence}, expected {expected}")


def _verify_names(func: FuncOp, found: Sequence[StepArgument]) -> None:
    names: dict[str, dict[int, StepArgument]] = {}
    for argument in found:
        if not argument.name:
            continue
        of_name = names.setdefault(argument.name, {})
        if argument.sequence in of_name:
            which = f" of sequence {argument.sequence}" if argument.sequence else ""
            raise _refusal(func, f'has two arguments named "{argument.name}"{which}')
        of_name[argument.sequence] = argument
    for name, of_name in names.items():
        first, *others = of_name.values()
        for other in others:
            if (other.kind, other.value.type) != (first.kind, first.value.type):
                raise _refusal(
                    func,
                    f'has "{name}" of sequence {first.sequence} as a {first.kind} of type {first.value.type}, '
                    f"and of sequence {other.sequence} as a {other.kind} of type {other.value.type}: expected alike",
                )


def _refusal(func: FuncOp, message: str) -> VerifyException:
    return VerifyException(f'step "{func.sym_name.data}" {message}')


def argument_attributes(kind: ArgumentKind, sequence: int = 0, name: str = "") -> DictionaryAttr:
    """The attributes of an argument of a step, for `FuncOp(arg_attrs=…)`."""
    return DictionaryAttr({ARGUMENT: ArgAttr(kind, sequence, name)})


def target_of(op: Operation) -> TargetAttr:
    """
    What the module around the op (or the op itself) is compiled for; the default `TargetAttr()` where nothing says.

    Raises: VerifyException if the attribute `tg.target` is something else.
    """
    at: Operation | None = op
    while at is not None:
        target = at.attributes.get(TARGET)
        if isinstance(target, TargetAttr):
            return target
        if target is not None:
            raise VerifyException(f"{TARGET} is {target}, expected #tg.target")
        at = at.parent_op()
    return TargetAttr()


def set_target(
    module: Operation,
    chip: str | None = None,
    numerics: Numerics | None = None,
    cache: Precision | None = None,
    state: Precision | None = None,
) -> TargetAttr:
    """
    Change what a module is compiled for, leaving what is None as it is. Returns the new target.

    Raises: VerifyException for an unknown chip, or a precision that caches or state are not stored in.
    """
    old = target_of(module)
    target = TargetAttr(
        old.chip.data if chip is None else chip,
        old.numerics.data if numerics is None else numerics,
        old.cache.data if cache is None else cache,
        old.state.data if state is None else state,
    )
    module.attributes[TARGET] = target
    return target


def step_functions(module: ModuleOp) -> list[FuncOp]:
    """The functions of a module that are steps: those in whose body lifted ops stand."""
    functions = (op for op in module.body.block.ops if isinstance(op, FuncOp) and not op.is_declaration)
    return [func for func in functions if any(isinstance(op, LiftedOperation) for op in func.walk())]
