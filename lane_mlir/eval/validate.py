"""
Checking rewrites by evaluation: after each pass and each rule, every step must compute what it did before.

A step is run on random inputs at several positions; all its results and all that it leaves in its state are compared.
The first rewrite that changed a value is named, with the ops it changed, and written out to be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import Interpreter, PythonValues
from xdsl.ir import Operation
from xdsl.passes import ModulePass, PassPipelineCallbackType
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from lane_mlir.cpu import run_schedule
from lane_mlir.diagnostics import LaneError, atomic_write, one_line
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.dialects.tg import FusedOp, LiftedOperation, Numerics, Precision, TargetAttr, target_of
from lane_mlir.dialects.tg.step import TARGET
from lane_mlir.eval.inputs import StepInputs
from lane_mlir.eval.step import describe, functions_of, run_step
from lane_mlir.eval.weights import RandomWeights, Weights
from lane_mlir.passes.plan import PlanPass
from lane_mlir.passes.plan.norms import DEFERRED_NORM
from lane_mlir.passes.prepare import number_ops
from lane_mlir.universe import GRAPH_RULES

TOLERANCES: Mapping[Numerics, float] = MappingProxyType(
    {Numerics.DEQUANT: 1e-5, Numerics.INT8: 5e-3, Numerics.TWO_PASS_INT8: 5e-5}
)
"""
The relative L2 difference up to which two results are equal.

dequant: sums of f32 in another order differ by about 1e-7 for each of the ten to a hundred products in a row. Under the
others such a difference moves an activation over the edge between two integers, one in thousands of the first word, a
few in a thousand of the second: a step of int8 is 1/127 of the largest of its block, which is 1e-3 of a row of 256, a
step of the second word 1/254 of that.
"""

DEFERRED: Mapping[Numerics, float] = MappingProxyType({Numerics.DEQUANT: 1e-5, Numerics.INT8: 2e-2})
"""
The same where norms leave their last division to the products that read them (deferred_norm, which two_pass_int8 has
not): every sum then differs, and what follows an activation that is moved makes it up to ten times as large. At most
9e-3 on the tiny models.
"""

SPACINGS: Mapping[Precision, float] = MappingProxyType(
    {Precision.F32: 2.0**-23, Precision.F16: 2.0**-10, Precision.BF16: 2.0**-7}
)
"""
How far apart neighbouring values of a precision are, relative to them, at most: a sum that differs in its last bits may
be kept as the neighbour.
"""


@runtime_checkable
class ObservedPass(Protocol):
    """A pass of several rules: it calls back with the name of each when the module is as the rule leaves it."""

    def apply_observed(self, ctx: Context, op: ModuleOp, after_rule: Callable[[str], None]) -> None: ...


class StepExecutor(Protocol):
    """Runs the steps of a module in one of the forms that they have on their way through the passes."""

    def steps(self, module: ModuleOp) -> Mapping[str, Operation]:
        """The steps in this form, by name."""
        ...

    def run(self, step: Operation, weights: Weights, arguments: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """The results of a step; what it writes among its arguments is written in place."""
        ...


class FunctionExecutor:
    """Evaluates functions of `tg`."""

    def steps(self, module: ModuleOp) -> Mapping[str, Operation]:
        return {func.sym_name.data: func for func in functions_of(module)}

    def run(self, step: Operation, weights: Weights, arguments: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        assert isinstance(step, FuncOp)
        return run_step(step, weights, arguments)


class ScheduleExecutor:
    """Runs planned schedules on the CPU target."""

    def steps(self, module: ModuleOp) -> Mapping[str, Operation]:
        schedules = (op for op in module.walk() if isinstance(op, ScheduleOp) and op.arena is not None)
        return {schedule.sym_name.data: schedule for schedule in schedules}

    def run(self, step: Operation, weights: Weights, arguments: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        assert isinstance(step, ScheduleOp)
        return run_schedule(step, weights, arguments)


EXECUTORS: Sequence[StepExecutor] = (FunctionExecutor(), ScheduleExecutor())


@dataclass(frozen=True)
class Unit:
    """One rewrite: a pass, or a rule that a pass has applied."""

    pass_: ModulePass
    rule: str | None = None
    unchecked: tuple[ModulePass, ...] = ()
    """Passes before it whose results nothing could run: the fault may be theirs."""

    def __str__(self) -> str:
        names = ", ".join(pass_.name for pass_ in (*self.unchecked, self.pass_))
        name = f"passes {names}" if self.unchecked else f"pass {names}"
        return name if self.rule is None else f"rule {self.rule} of {name}"

    @property
    def pipeline(self) -> str:
        """What to run to have this rewrite alone."""
        if self.rule in GRAPH_RULES:
            return f"fuse-{self.rule.replace('_', '-')}"
        return ",".join(map(str, (*self.unchecked, self.pass_)))


@dataclass(frozen=True)
class Difference:
    """An array that a rewrite changed: which, by how much (relative L2), and where most."""

    what: str
    relative: float
    largest: float
    index: tuple[int, ...]

    def __str__(self) -> str:
        at = f" at {list(self.index)}" if self.index else ""
        return f"{self.what} differs by {self.relative:.1e} relative L2, most by {self.largest:.3g}{at}"


class ValidationError(LaneError):
    """A rewrite changed a value."""

    def __init__(self, unit: Unit, differences: Sequence[Difference], message: str, reproducer: Path) -> None:
        super().__init__(message)
        self.unit = unit
        self.differences = differences
        self.reproducer = reproducer


def difference(what: str, before: NDArray[Any], after: NDArray[Any], tolerance: float) -> Difference | None:
    """
    How an array has changed, if by more than the tolerance: relative L2, or anything for integers. NaN equal NaN.
    """
    if before.shape != after.shape:
        return Difference(f"{what} (shape {after.shape}, not {before.shape})", np.inf, np.inf, ())
    same = (before == after) | ((before != before) & (after != after))
    if same.all():
        return None
    a, b = before.astype(np.float64), after.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.where(same, 0, np.abs(a - b))
    error[np.isnan(error)] = np.inf
    norm = float(np.linalg.norm(a[np.isfinite(a)]))
    relative = float(np.linalg.norm(error)) / norm if norm else np.inf
    if relative <= (0 if before.dtype.kind == "i" else tolerance):
        return None
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    return Difference(what, relative, float(error.max()), tuple(map(int, index)))


@dataclass
class Validator:
    """
    Compares each form of a module with the one before.

    Call `check` after each rewrite. `folder` is where a reproducer is written.
    """

    module: ModuleOp
    folder: Path = Path()
    seed: int = 0
    executors: Sequence[StepExecutor] = EXECUTORS
    tolerance: float | None = None
    """None: that of the module's numerics."""
    _inputs: dict[str, StepInputs] = field(init=False, repr=False)
    _weights: Weights = field(init=False, repr=False)
    _before: ModuleOp = field(init=False, repr=False)
    _values: dict[tuple[str, int], list[NDArray[Any]]] | None = field(default=None, init=False, repr=False)
    _unchecked: tuple[ModulePass, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        self._inputs = {func.sym_name.data: StepInputs.of(func) for func in functions_of(self.module)}
        self._weights = RandomWeights.of(self.module, self.seed)
        self._before = self.module.clone()

    def check(self, unit: Unit) -> None:
        """
        Compare what the module computes now with what it did at the last check. A step in a form that no executor runs
        is compared when the next rewrite has given it another.

        Raises: ValidationError if a value has changed, or the module does not verify any more; LaneError if it cannot
        be evaluated.
        """
        unit = replace(unit, unchecked=self._unchecked)
        if self._before.is_structurally_equivalent(self.module):
            return
        try:
            self.module.verify()
        except VerifyException as error:
            raise self._failure(unit, (), f"left invalid IR: {one_line(str(error)).rpartition('^')[2]}") from error
        self._retarget()
        before = self._evaluate(self._before) if self._values is None else self._values
        after = self._evaluate(self.module)
        if missing := {step for step, _ in before} - {step for step, _ in after}:
            if gone := missing - _symbols(self.module):
                raise self._failure(unit, (), f'took step "{min(gone)}" away')
            self._unchecked = (*self._unchecked, unit.pass_)
            return
        tolerance = self.tolerance or self._tolerance()
        for (step, position), arrays in before.items():
            names = self._names(step, len(arrays))
            pairs = zip(names, arrays, after[step, position], strict=True)
            found = [d for name, a, b in pairs if (d := difference(name, a, b, tolerance)) is not None]
            if found:
                raise self._changed(unit, step, position, found, tolerance)
        self._before, self._values, self._unchecked = self.module.clone(), after, ()

    def finish(self) -> None:
        """
        Compare the last form, if it is one that nothing runs (a schedule that is not planned): a planned copy of it
        runs in its place. Raises as `check`, and what the planner refuses.
        """
        if not self._unchecked:
            return
        linked, self.module = self.module, self.module.clone()
        try:
            planner = PlanPass()
            planner.apply(Context(), self.module)
            self.check(Unit(planner))
        finally:
            self.module = linked

    def _tolerance(self) -> float:
        schedules = [op for op in self.module.ops if isinstance(op, ScheduleOp)]
        deferred = any(schedule.fired(DEFERRED_NORM) for schedule in schedules)
        numerics = self._target.numerics.data
        if not deferred:
            return TOLERANCES[numerics]
        kept = (self._target.cache.data, self._target.state.data)
        return max(DEFERRED[numerics], *(SPACINGS[precision] for precision in kept))

    @property
    def _target(self) -> TargetAttr:
        return target_of(self.module)

    def _retarget(self) -> None:
        """A pass may say anew what the step is compiled for: evaluate the form before for that, too."""
        if target_of(self._before) != self._target:
            self._before.attributes[TARGET] = self._target
            self._values = None

    def _evaluate(self, module: ModuleOp) -> dict[tuple[str, int], list[NDArray[Any]]]:
        """The results of each step at each position, and then all its arguments as it leaves them."""
        values: dict[tuple[str, int], list[NDArray[Any]]] = {}
        for executor in self.executors:
            for name, step in executor.steps(module).items():
                inputs = self._inputs.get(name)
                for position in inputs.positions if inputs is not None else ():
                    assert inputs is not None
                    arguments = inputs.at(position, self._target, self.seed)
                    values[name, position] = [*executor.run(step, self._weights, arguments), *arguments]
        return values

    def _names(self, step: str, count: int) -> list[str]:
        arguments = self._inputs[step].arguments
        results = [f"result {i}" for i in range(count - len(arguments))]
        kinds = [" ".join(filter(None, (a.kind, a.name))) for a in arguments]
        return results + [f"argument {i}" + (f" ({kind})" if kind else "") for i, kind in enumerate(kinds)]

    def _changed(
        self, unit: Unit, step: str, position: int, found: Sequence[Difference], tolerance: float
    ) -> ValidationError:
        worst = max(found, key=lambda d: d.relative)
        others = [d.what for d in found if d is not worst]
        also = f", and so do {', '.join(others)}" if others else ""
        first = self._first_op(step, position, tolerance)
        where = f"; first at {first}" if first else ""
        what = f'changed step "{step}" at position {position} (seed {self.seed}): {worst} (tolerance {tolerance:.0e})'
        return self._failure(unit, found, f"{what}{also}{where}")

    def _failure(self, unit: Unit, found: Sequence[Difference], what: str) -> ValidationError:
        path = self.folder / f"lane-validate-{unit.rule or unit.pass_.name}.mlir"
        with atomic_write(path) as file:
            file.write(f"// lane-opt --validate --pass-pipeline='{unit.pipeline}' {path.name}\n// {unit} {what}\n")
            Printer(stream=file).print_op(self._before)
            file.write("\n")
        return ValidationError(unit, found, f"{unit} {what}; reproducer: {path}", path)

    def _first_op(self, step: str, position: int, tolerance: float) -> str:
        """
        The first lifted op that has other values than before, if both forms are functions of `tg` and the ops have
        numbers. Before the first rule they have none: it is given them in their order.
        """
        before = self._record(self._before, step, position, number_ops)
        after = self._record(self.module, step, position)
        for number, (op, values) in after.items():
            if number not in before or len(before[number][1]) != len(values):
                continue
            pairs = zip(before[number][1], values, strict=True)
            changed = [d for a, b in pairs if (d := difference(_place(op), a, b, tolerance)) is not None]
            if changed:
                return str(changed[0])
        return ""

    def _record(
        self, module: ModuleOp, step: str, position: int, prepare: Callable[[FuncOp], None] | None = None
    ) -> dict[int, tuple[Operation, list[NDArray[Any]]]]:
        func = next((func for func in functions_of(module.clone()) if func.sym_name.data == step), None)
        if func is None:
            return {}
        if prepare is not None:
            prepare(func)
        recorder = _Recorder()
        arguments = self._inputs[step].at(position, self._target, self.seed)
        run_step(func, self._weights, arguments, listeners=(recorder,))
        return recorder.values


def _symbols(module: ModuleOp) -> set[str]:
    return {name.data for op in module.ops if isinstance(name := op.get_attr_or_prop("sym_name"), StringAttr)}


class _Recorder(Interpreter.Listener):
    """The values of each lifted op by its number: its results, or what it writes to state."""

    def __init__(self) -> None:
        self.values: dict[int, tuple[Operation, list[NDArray[Any]]]] = {}
        self._inputs: PythonValues = ()

    def will_interpret_op(self, op: Operation, args: PythonValues) -> None:
        self._inputs = args

    def did_interpret_op(self, op: Operation, results: PythonValues) -> None:
        if not isinstance(op, LiftedOperation) or op.number is None:
            return
        written = zip(op.operands, self._inputs, strict=False)
        values = list(results) or [value for operand, value in written if isinstance(operand.type, TensorType)]
        # A view that quantizing has doubled bears the number of the first.
        self.values.setdefault(op.number.value.data, (op, values))


def _place(op: Operation) -> str:
    """An op and the fused ops around it."""
    return " within ".join(describe(part) for part in (op, *_fused_around(op)))


def _fused_around(op: Operation) -> Iterator[FusedOp]:
    parent = op.parent_op()
    while isinstance(parent, FusedOp):
        yield parent
        parent = parent.parent_op()


def validate_pipeline(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    between_passes: PassPipelineCallbackType | None = None,
    *,
    folder: Path | None = None,
    seed: int = 0,
    executors: Sequence[StepExecutor] = EXECUTORS,
) -> None:
    """
    Run passes over a module in place, and check after each of them, and after each rule of those that call back, that
    all steps compute what they did; where the last form is one that nothing runs, in a planned copy of it.
    `between_passes` is called as xDSL's `PassPipeline` does.

    Raises: ValidationError for the first that changed a value, after writing its input to `folder` (the current one
    unless given), with a line that says what to run; LaneError for a step that is linked already, of which nothing says
    what its inputs are.
    """
    linked = [op.sym_name.data for op in module.ops if isinstance(op, ScheduleOp)]
    if linked and passes:
        raise LaneError(f'step "{linked[0]}" is linked already: validation begins at a step of tg')
    around = (None, *passes, None)
    if between_passes is not None:
        between_passes(None, module, around[1])
    # Only of a module that verifies can it be said what its inputs are.
    validator = Validator(module, folder or Path(), seed, executors)
    for pass_, following in zip(passes, around[2:], strict=True):
        _apply(ctx, module, pass_, validator)
        validator.check(Unit(pass_))
        if between_passes is not None:
            between_passes(pass_, module, following)
    validator.finish()


def _apply(ctx: Context, module: ModuleOp, pass_: ModulePass, validator: Validator) -> None:
    if isinstance(pass_, ObservedPass):
        pass_.apply_observed(ctx, module, lambda rule: validator.check(Unit(pass_, rule)))
    else:
        pass_.apply(ctx, module)
