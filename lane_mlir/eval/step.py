"""Evaluating a step: its arguments, and one run of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray
from xdsl.dialects.builtin import IntegerType, MemRefType, ModuleOp, NameLoc, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import (
    Interpreter,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.interpreters.func import FuncFunctions
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import InterpretationError

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import (
    ArgumentKind,
    FusedOp,
    LiftedOperation,
    Numerics,
    Precision,
    TargetAttr,
    YieldOp,
    target_of,
)
from lane_mlir.dialects.tg import arguments as step_arguments
from lane_mlir.dialects.tg.operation import dimensions
from lane_mlir.eval.attention import AttentionFunctions
from lane_mlir.eval.elementwise import ElementwiseFunctions
from lane_mlir.eval.norms import NormFunctions
from lane_mlir.eval.products import ProductFunctions
from lane_mlir.eval.recurrent import RecurrentFunctions
from lane_mlir.eval.sampling import SamplingFunctions
from lane_mlir.eval.storage import StorageFunctions
from lane_mlir.eval.weights import Weights
from lane_mlir.locations import OpFailedException

DTYPES: Mapping[Precision, DTypeLike] = MappingProxyType(
    {Precision.F32: np.float32, Precision.F16: np.float16, Precision.BF16: ml_dtypes.bfloat16}
)
"""The dtype of an array of state of each precision."""


@register_impls
class TensorGraphFunctions(
    StorageFunctions,
    ProductFunctions,
    NormFunctions,
    ElementwiseFunctions,
    AttentionFunctions,
    RecurrentFunctions,
    SamplingFunctions,
):
    """
    The meaning of every op of `tg` in numpy, for xDSL's interpreter.

    A tensor is a float32 array of its shape, of values already rounded if it is quantized; a memref an array whose
    dtype says how it is stored; token, position and the result of an argmax are int32 arrays.

    Example: `interpreter.register_implementations(TensorGraphFunctions(weights, Numerics.DEQUANT))`.
    """

    @impl(FusedOp)
    def run_fused(self, interpreter: Interpreter, op: FusedOp, args: PythonValues) -> PythonValues:
        return interpreter.run_ssacfg_region(op.body, (), op.fusion_class.data)

    @impl_terminator(YieldOp)
    def run_yield(
        self, interpreter: Interpreter, op: YieldOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(args), ()


class _CurrentOp(Interpreter.Listener):
    """Remembers the op that is interpreted, for messages."""

    op: Operation | None = None

    def will_interpret_op(self, op: Operation, args: PythonValues) -> None:
        self.op = op


def run_step(
    step: ModuleOp | FuncOp,
    weights: Weights,
    arguments: Sequence[NDArray[Any]],
    numerics: Numerics | None = None,
    listeners: Sequence[Interpreter.Listener] = (),
) -> list[NDArray[Any]]:
    """
    Evaluate a step once. Arrays of state, token and position among the arguments are written in place.

    `step` is the function, or a module with one function. `numerics` overrides the module's. Infinities and NaN follow
    IEEE arithmetic without a warning.

    Raises: LaneError for arguments of other shapes than the function's, and for whatever an op refuses, naming it.
    """
    func = step if isinstance(step, FuncOp) else the_step(step)
    _check_arguments(func, arguments)
    module = func.get_toplevel_object()
    current = _CurrentOp()
    interpreter = Interpreter(module if isinstance(module, ModuleOp) else ModuleOp([]), listeners=(current, *listeners))
    numerics = target_of(func).numerics.data if numerics is None else numerics
    interpreter.register_implementations(TensorGraphFunctions(weights, numerics))
    interpreter.register_implementations(FuncFunctions())
    try:
        with np.errstate(all="ignore"):
            return list(interpreter.call_op(func, tuple(arguments)))
    except LaneError as error:
        where = "" if current.op is None else f"{describe(current.op)}: "
        raise LaneError(f"{where}{error}") from error
    except RecursionError as error:
        raise OpFailedException(func, f'step "{func.sym_name.data}" calls itself without end') from error
    except InterpretationError as error:
        raise OpFailedException(current.op or func, str(error)) from error


def the_step(module: ModuleOp) -> FuncOp:
    """
    The one function of a module.

    Raises: LaneError if there is none, or several.
    """
    functions = list(functions_of(module))
    if len(functions) != 1:
        raise LaneError(f"the module has {len(functions)} functions with a body, expected 1")
    return functions[0]


def _check_arguments(func: FuncOp, arrays: Sequence[NDArray[Any]]) -> None:
    expected = func.function_type.inputs.data
    name = func.sym_name.data
    if len(arrays) != len(expected):
        raise LaneError(f'step "{name}" takes {len(expected)} arguments, not {len(arrays)}')
    for i, (array, type_) in enumerate(zip(arrays, expected, strict=True)):
        if isinstance(type_, MemRefType | TensorType) and array.shape != type_.get_shape():
            shapes = f"{dimensions(array.shape)}, expected {dimensions(type_.get_shape())}"
            raise LaneError(f'argument {i} of step "{name}" is {shapes}')


def describe(op: Operation) -> str:
    """An op as a message names it: `tg.matmul[12] (blk.0.attn_q.weight)`."""
    number = f"[{op.number.value.data}]" if isinstance(op, LiftedOperation) and op.number is not None else ""
    name = f" ({op.location.desc.data})" if isinstance(op.location, NameLoc) else ""
    kind = f'{op.name} "{op.fusion_class.data}"' if isinstance(op, FusedOp) else op.name
    return f"{kind}{number}{name}"


def make_arguments(func: FuncOp, target: TargetAttr | None = None) -> list[NDArray[Any]]:
    """
    The arguments of a step as it starts: zeros, stored as the target says. Tokens and position are 0.

    Raises: VerifyException if an argument's type is not that of its kind.
    """
    target = target_of(func) if target is None else target
    kinds = {argument.value: argument.kind for argument in step_arguments(func)}
    return [np.zeros(_shape(value.type), dtype_of(kinds.get(value), value.type, target)) for value in func.args]


def _shape(type_: Attribute) -> tuple[int, ...]:
    assert isinstance(type_, MemRefType | TensorType)
    return type_.get_shape()


def dtype_of(kind: ArgumentKind | None, type_: Attribute, target: TargetAttr) -> DTypeLike:
    """How an argument is stored: caches and the delta rule's state as the target says, other state as f32."""
    match kind:
        case ArgumentKind.KV_CACHE:
            return DTYPES[target.cache.data]
        case ArgumentKind.DELTA_STATE:
            return DTYPES[target.state.data]
        case _:
            return np.int32 if _is_integer(type_) else np.float32


def _is_integer(type_: Attribute) -> bool:
    return isinstance(type_, MemRefType | TensorType) and isinstance(type_.get_element_type(), IntegerType)


def functions_of(module: ModuleOp) -> Iterator[FuncOp]:
    """The functions of a module that have a body."""
    return (op for op in module.walk() if isinstance(op, FuncOp) and not op.is_declaration)
