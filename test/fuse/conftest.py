"""Steps built op by op, and what their rewrites compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    MemRefType,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
    TensorType,
    f32,
    i32,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from lane_mlir.cpu import run_schedule
from lane_mlir.dialects import tg
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.dialects.tg.fused import used_before_defined
from lane_mlir.dialects.tg.step import TARGET, argument_attributes
from lane_mlir.eval import RandomWeights, run_step
from lane_mlir.eval.inputs import StepInputs
from lane_mlir.eval.step import the_step
from lane_mlir.eval.validate import difference
from lane_mlir.formats import Format
from lane_mlir.passes.fuse import Optimized, Outcome, Report, optimize
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass

Kind = tg.ArgumentKind
Values = list[NDArray[Any]]

TOLERANCE = 1e-5
"""Relative L2. A fused op computes by the same numpy functions as its parts, so most are equal to the last bit."""


class StepBuilder:
    """
    Builds a step of `rows` rows op by op; every op is named by the order it is built in.

    Activations have 64 columns unless said otherwise; a head has 32. Constants are named by what they are used for.
    """

    WIDTH = 64
    LENGTH = 32
    VOCABULARY = 50

    def __init__(self, rows: int = 1, numerics: str = "dequant", *, cache: str = "f32", state: str = "f32"):
        self.rows = rows
        precision = (tg.Precision(cache), tg.Precision(state))
        self.target = tg.TargetAttr("h200", tg.Numerics(numerics), *precision)
        self.block = Block()
        self._roles: list[DictionaryAttr] = []
        self._constants = 0
        self.token = self.argument(Kind.TOKEN, "token", MemRefType(i32, (rows,)))
        self.pos = self.argument(Kind.POSITION, "position", MemRefType(i32, (1,)))
        self._table: SSAValue | None = None
        self._rotation: dict[int, tuple[SSAValue, SSAValue]] = {}

    # What the step takes.

    def argument(self, kind: tg.ArgumentKind, name: str, type_: Attribute) -> SSAValue:
        value = self.block.insert_arg(type_, len(self.block.args))
        value.name_hint = name
        self._roles.append(argument_attributes(kind, 0, name))
        return value

    def cache(self, width: int, name: str) -> SSAValue:
        return self.argument(Kind.KV_CACHE, name, MemRefType(f32, (self.LENGTH, width)))

    def constant(self, *shape: int, stored: str | None = None, name: str = "") -> SSAValue:
        self._constants += 1
        encoding = NoneAttr() if stored is None else tg.RowsAttr(Format(stored))
        op = tg.ConstantOp(name or f"w{self._constants}", TensorType(f32, shape, encoding))
        return self.add_op(op)

    # Ops.

    def add_op(self, op: Operation) -> Any:
        """Append an op; its result, or its results if they are several."""
        count = sum(not isinstance(other, tg.ConstantOp) for other in self.block.ops)
        op.location = NameLoc(StringAttr(f"{op.name.removeprefix('tg.')}.{count}"), NoneAttr())
        self.block.add_op(op)
        for result in op.results:
            result.name_hint = f"{op.name.removeprefix('tg.')}_{count}"
        return op.results[0] if len(op.results) == 1 else op.results

    def embedding(self, stored: str | None = "q8_0") -> SSAValue:
        if self._table is None:
            self._table = self.constant(self.VOCABULARY, self.WIDTH, stored=stored, name="token_embd")
        return self.add_op(tg.GatherOp(self._table, self.token, TensorType(f32, (self.rows, self.WIDTH))))

    def matmul(self, x: SSAValue, n: int = WIDTH, stored: str | None = "q8_0") -> SSAValue:
        return self.add_op(tg.MatmulOp(x, self.constant(n, tg.shape_of(x)[1], stored=stored)))

    def norm(self, x: SSAValue, eps: float = 1e-5, weight: bool = True) -> SSAValue:
        w = self.constant(tg.shape_of(x)[1]) if weight else None
        return self.add_op(tg.RmsNormOp(x, w, eps))

    def layer_norm(self, x: SSAValue) -> SSAValue:
        return self.add_op(tg.LayerNormOp(x, self.constant(tg.shape_of(x)[1]), None, 1e-5))

    def binary(self, operator: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.add_op(tg.BinaryOp(tg.BinaryOperator(operator), a, b))

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.binary("add", a, b)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.binary("mul", a, b)

    def bias(self, x: SSAValue) -> SSAValue:
        return self.add(x, self.constant(tg.shape_of(x)[1]))

    def product_scale(self, x: SSAValue) -> SSAValue:
        """Times one value that a file has beside a weight."""
        return self.mul(x, self.constant(1))

    def unary(self, activation: str, x: SSAValue) -> SSAValue:
        return self.add_op(tg.UnaryOp(tg.Activation(activation), x))

    def silu(self, x: SSAValue) -> SSAValue:
        return self.unary("silu", x)

    def scale(self, x: SSAValue, factor: float = 2.0) -> SSAValue:
        return self.add_op(tg.ScaleOp(x, factor))

    def quantize(self, x: SSAValue, numerics: str | None = None) -> SSAValue:
        return self.add_op(tg.QuantizeOp(x, tg.Numerics(numerics or self.target.numerics.data)))

    def view(self, x: SSAValue, rows: int, columns: int, offset: int = 0) -> SSAValue:
        encoding = tg.encoding_of(x) or NoneAttr()
        return self.add_op(tg.ViewOp(x, TensorType(f32, (rows, columns), encoding), offset=offset))

    def heads(self, x: SSAValue, width: int = 32) -> SSAValue:
        return self.view(x, tg.size_of(x) // width, width)

    def whole(self, x: SSAValue) -> SSAValue:
        """Heads as rows of the step again."""
        return self.view(x, self.rows, tg.size_of(x) // self.rows)

    def slice(self, x: SSAValue, every: int, start: int, width: int, shape: tuple[int, int] | None = None) -> SSAValue:
        units = tg.size_of(x) // every
        type_ = TensorType(f32, shape or (units, width))
        return self.add_op(tg.SliceOp(x, type_, every=every, start=start, width=width))

    def tables(self, half: int = 16) -> tuple[SSAValue, SSAValue]:
        if half not in self._rotation:
            table = tg.RopeTableOp(TensorType(f32, (self.LENGTH, half)), base=10000.0)
            self.block.add_op(table)
            self._rotation[half] = (table.cos, table.sin)
        return self._rotation[half]

    def rope(self, x: SSAValue, half: int = 16, pairing: str = "half") -> SSAValue:
        per_row = tg.shape_of(x)[0] // self.rows
        cos, sin = self.tables(half)
        return self.add_op(tg.RopeOp(x, cos, sin, self.pos, per_row=per_row, pairing=tg.Pairing(pairing)))

    def set_row(self, x: SSAValue, table: SSAValue) -> None:
        self.add_op(tg.SetRowOp(x, table, self.pos))

    def attention(
        self, q: SSAValue, k: SSAValue, v: SSAValue, heads: int = 2, kv_heads: int = 2, window: int | None = None
    ) -> SSAValue:
        return self.add_op(tg.AttentionOp(q, k, v, self.pos, heads=heads, kv_heads=kv_heads, scale=0.2, window=window))

    def conv(self, x: SSAValue, taps: int = 4) -> SSAValue:
        channels = tg.shape_of(x)[1]
        ring = self.argument(Kind.CONV_RING, f"ring{len(self._roles)}", MemRefType(f32, (taps, channels)))
        return self.add_op(tg.ConvOp(x, self.constant(channels, taps), ring))

    def l2_norm(self, x: SSAValue, eps: float = 1e-6) -> SSAValue:
        return self.add_op(tg.L2NormOp(x, eps))

    def decay(self, a: SSAValue) -> SSAValue:
        heads = tg.shape_of(a)[1]
        return self.add_op(tg.DecayOp(a, self.constant(heads), self.constant(heads)))

    def delta(
        self, q: SSAValue, k: SSAValue, v: SSAValue, z: SSAValue, beta: SSAValue, decay: SSAValue, heads: int = 2
    ) -> SSAValue:
        d = tg.shape_of(q)[1] // heads
        state = self.argument(Kind.DELTA_STATE, f"state{len(self._roles)}", MemRefType(f32, (heads * d, d)))
        norm, order = self.constant(d), tg.KeyHeadOrder.BLOCKED
        op = tg.DeltaOp(
            *(q, k, v, z, beta, decay, norm, state), key_heads=heads, value_heads=heads, order=order, eps=1e-6
        )
        return self.add_op(op)

    def moe(
        self, x: SSAValue, experts: int = 4, used: int = 2, ff: int = 32, stored: str | None = "q8_0", **how: Any
    ) -> SSAValue:
        d = tg.shape_of(x)[1]
        gate, up = (self.constant(experts, ff, d, stored=stored) for _ in range(2))
        down = self.constant(experts, d, ff, stored=stored)
        router = self.constant(experts, d)
        how.setdefault("scoring", tg.Scoring.SOFTMAX)
        return self.add_op(tg.MoeOp(x, router, gate, up, down, used=used, **how))

    def head_matmul(self, x: SSAValue, heads: int, b: int, *, shared: bool = False) -> SSAValue:
        a = tg.shape_of(x)[1] // (1 if shared else heads)
        return self.add_op(tg.HeadMatmulOp(x, self.constant(heads, b, a), shared=shared))

    def join(self, a: SSAValue, b: SSAValue, heads: int = 1) -> SSAValue:
        (rows, left), right = tg.shape_of(a), tg.shape_of(b)[1]
        return self.add_op(tg.JoinOp(a, b, TensorType(f32, (rows, left + right)), heads=heads))

    def unknown(self, name: str, *operands: SSAValue, results: Sequence[Attribute] = ()) -> Any:
        """An op of a dialect that nobody knows."""
        from xdsl.dialects.builtin import UnregisteredOp

        op = UnregisteredOp.with_name(name).create(operands=operands, result_types=results)
        self.block.add_op(op)
        return op.results[0] if len(op.results) == 1 else op.results

    def module(self, *returned: SSAValue) -> ModuleOp:
        """The module of the step, which returns these values."""
        self.block.add_op(ReturnOp(*returned))
        types = ([value.type for value in self.block.args], [value.type for value in returned])
        func = FuncOp("step", types, Region(self.block), arg_attrs=ArrayAttr(self._roles))
        module = ModuleOp([func], {TARGET: self.target})
        module.verify()
        return module


class Rewrite:
    """A step before and after its rules, what was decided, and what both compute. `only`: no rules but these."""

    def __init__(
        self,
        module: ModuleOp,
        *,
        only: Sequence[str] | None = None,
        held: Sequence[str] = (),
        limit: int | None = None,
    ):
        self.lifted = module
        self.fused = module.clone()
        func, target = the_step(self.fused), tg.target_of(self.fused)
        self.optimized: Optimized = optimize(func, target, held, only=only, limit=limit)
        self.fused.verify()
        assert used_before_defined(func.body.block) is None

    @property
    def report(self) -> Report:
        return self.optimized.report

    @property
    def fired(self) -> dict[str, int]:
        """How often each rule fired."""
        return {rule: n[Outcome.FIRED] for rule, n in self.report.counts().items() if n[Outcome.FIRED]}

    def count(self, rule: str, outcome: Outcome = Outcome.FIRED) -> int:
        return sum(decision.outcome is outcome for decision in self.report.of(rule))

    def refusals(self, rule: str) -> list[str]:
        return [decision.reason for decision in self.report.of(rule) if decision.outcome is Outcome.REFUSED]

    @property
    def ops(self) -> list[Operation]:
        """The ops of the step as the rules leave it."""
        return list(the_step(self.fused).body.block.ops)

    @property
    def classes(self) -> list[str]:
        """The classes of the step's fused ops, in order."""
        return [op.fusion_class.data for op in self.ops if isinstance(op, tg.FusedOp)]

    def check(self, **how: Any) -> Rewrite:
        """Both forms, and the launches that the fused one becomes, compute the same."""
        check_equal(self.lifted, self.fused, **how)
        return self


def check_equal(before: ModuleOp, after: ModuleOp, *, launches: bool = True, positions: int = 3) -> None:
    """
    Two forms of a step compute the same values and state, and so do the launches of the second, at up to 3 positions:
    in the middle of the context, at its end and at its start.
    """
    schedule = planned(after) if launches else None
    for want, inputs in evaluated(before, positions):
        got = inputs()
        assert_same(want, [*run_step(the_step(after), weights_of(before), got), *got])
        if schedule is not None:
            check_schedule(schedule, before, want, inputs())


def check_launched(before: ModuleOp, after: ModuleOp) -> None:
    """A planned schedule computes what a step does."""
    (schedule,) = (op for op in after.ops if isinstance(op, ScheduleOp))
    for want, inputs in evaluated(before, 2):
        check_schedule(schedule, before, want, inputs())


def evaluated(module: ModuleOp, positions: int) -> Iterator[tuple[Values, Callable[[], Values]]]:
    """The results of a step and its arguments as it leaves them, at each position, and its arguments there."""
    func, target = the_step(module), tg.target_of(module)
    inputs = StepInputs.of(func)
    for position in (*inputs.positions[1:], inputs.positions[0])[:positions]:
        arguments = inputs.at(position, target)
        results = run_step(func, weights_of(module), arguments)
        assert all(np.isfinite(values).all() for values in results)
        yield [*results, *arguments], lambda position=position: inputs.at(position, target)


def check_schedule(schedule: ScheduleOp, module: ModuleOp, want: Values, arguments: Values) -> None:
    assert_same(want, [*run_launches(schedule, the_step(module), weights_of(module), arguments), *arguments])


def weights_of(module: ModuleOp) -> RandomWeights:
    return _shared(RandomWeights.of(module))


@cache
def _shared(weights: RandomWeights) -> RandomWeights:
    """One object for equal weights, which then draw their values once."""
    return weights


def run_launches(schedule: ScheduleOp, func: FuncOp, weights: RandomWeights, arguments: Values) -> Values:
    """Run a schedule on the arguments of its step. Those that no launch touches are no buffers of the schedule."""
    roles = [op.role for op in schedule.buffers() if op.role is not None]
    used = {(role.kind.data, role.sequence.data, role.label.data) for role in roles}
    stated = zip(tg.arguments(func), arguments, strict=True)
    return run_schedule(schedule, weights, [values for a, values in stated if (a.kind, a.sequence, a.name) in used])


def assert_same(want: Values, got: Values) -> None:
    assert len(want) == len(got)
    found = [difference(f"value {i}", a, b, TOLERANCE) for i, (a, b) in enumerate(zip(want, got, strict=True))]
    assert not [str(d) for d in found if d is not None]


def planned(module: ModuleOp) -> ScheduleOp:
    """
    The planned schedule of a step. Where anything is rounded to fewer bits than f32, norms divide themselves: a
    division elsewhere moves some values over the edge to the next.
    """
    module, target = module.clone(), tg.target_of(module)
    LinkPass().apply(Context(), module)
    module.verify()
    is_f32 = (target.numerics.data, target.cache.data) == (tg.Numerics.DEQUANT, tg.Precision.F32)
    PlanPass(() if is_f32 else ("deferred_norm",)).apply(Context(), module)
    module.verify()
    (schedule,) = (op for op in module.ops if isinstance(op, ScheduleOp))
    return schedule


Build: TypeAlias = Callable[[StepBuilder], SSAValue | Sequence[SSAValue]]
Fuse: TypeAlias = Callable[..., Rewrite]


def build_step(build: Build, rows: int = 1, numerics: str = "dequant", **precision: str) -> ModuleOp:
    """The module of a step that returns what `build` does."""
    step = StepBuilder(rows, numerics, **precision)
    returned = build(step)
    return step.module(*((returned,) if isinstance(returned, SSAValue) else returned))


@pytest.fixture(scope="session")
def step() -> type[StepBuilder]:
    """Begins a step: `step(rows, numerics)`."""
    return StepBuilder


@pytest.fixture(scope="session")
def rewrite() -> type[Rewrite]:
    """Rewrites a module: `rewrite(module, only=…, held=…, limit=…)`."""
    return Rewrite


@pytest.fixture(scope="session")
def lift() -> Callable[..., ModuleOp]:
    """`lift(build, rows, numerics)`: the module of a step."""
    return build_step


@pytest.fixture(scope="session")
def fuse() -> Fuse:
    """
    `fuse(build, *only, rows=…, numerics=…, held=…, limit=…)`: a step and its rewrite by the rules named (all if none),
    after checking that both, and the launches they become, compute the same.
    """

    def fuse(
        build: Build,
        *only: str,
        rows: int = 1,
        numerics: str = "dequant",
        held: Sequence[str] = (),
        limit: int | None = None,
        launches: bool = True,
        positions: int = 2,
        **precision: str,
    ) -> Rewrite:
        module = build_step(build, rows, numerics, **precision)
        rewrite = Rewrite(module, only=only or None, held=held, limit=limit)
        return rewrite.check(launches=launches, positions=positions)

    return fuse


@pytest.fixture(scope="session")
def launched() -> Callable[[ModuleOp, ModuleOp], None]:
    """`launched(before, after)`: checks that a planned schedule computes what a step does."""
    return check_launched


@pytest.fixture(scope="session")
def equal() -> Callable[..., None]:
    """`equal(before, after)`: checks that two forms of a step compute the same."""
    return check_equal
