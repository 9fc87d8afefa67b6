"""Random schedules: the planner places them, the checker accepts them, and each planted fault is named."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.dialects.launch import (
    BinaryOp,
    BufferOp,
    Dst,
    Fill,
    FoldOp,
    GemvOp,
    LaunchOp,
    NumberAttr,
    QuantOp,
    Row,
    ScheduleOp,
    SetRowOp,
    SliceOp,
    StoredTensor,
    Target,
    TensorAttr,
    Touch,
    UnaryOp,
    ViewOp,
    YieldOp,
)
from lane_mlir.dialects.tg import Activation, BinaryOperator, Numerics, TargetAttr
from lane_mlir.formats import Format
from lane_mlir.passes.plan import check, plan
from lane_mlir.passes.plan.arena import ALIGNMENT, Arena

WIDTHS = (32, 64, 96)
PLANNED = settings(max_examples=60, deadline=None)


@dataclass
class Steps:
    """A schedule in the making. What has been made and not yet read becomes an output."""

    buffers: list[BufferOp] = field(default_factory=list[BufferOp])
    launches: list[LaunchOp] = field(default_factory=list[LaunchOp])
    made: dict[int, list[SSAValue]] = field(default_factory=lambda: defaultdict(list))
    unread: dict[SSAValue, None] = field(default_factory=dict[SSAValue, None])
    quantized: set[SSAValue] = field(default_factory=set[SSAValue])

    def buffer(self, width: int, fill: Fill = Fill.COMPUTED, rows: int = 1) -> SSAValue:
        constant = TensorAttr(StoredTensor("w", Format.Q8_0)) if fill is Fill.CONSTANT else None
        self.buffers.append(BufferOp(f"b{len(self.buffers)}", (rows, width), fill, constant=constant))
        return self.buffers[-1].buffer

    def result(self, width: int) -> SSAValue:
        value = self.buffer(width)
        self.made[width].append(value)
        self.unread[value] = None
        return value

    def read(self, value: SSAValue) -> SSAValue:
        self.unread.pop(value, None)
        return value

    def schedule(self, numerics: Numerics) -> ScheduleOp:
        end = YieldOp(*self.unread)
        return ScheduleOp("s", [*self.buffers, *self.launches, end], target=TargetAttr(numerics=numerics))


@dataclass(frozen=True)
class Recipe:
    """A random schedule: for each step what it does, and numbers that choose its inputs among what there is."""

    steps: tuple[tuple[str, int, int, int], ...]
    numerics: Numerics

    def schedule(self) -> ScheduleOp:
        steps = Steps()
        state = steps.buffer(WIDTHS[0], Fill.ZERO)
        steps.launches.append(UnaryOp(Activation.SILU, state, steps.result(WIDTHS[0]), n=WIDTHS[0]))
        for kind, width_choice, first, second in self.steps:
            width = choose([w for w in WIDTHS if steps.made[w]], width_choice)
            x = steps.read(choose(steps.made[width], first))
            another = choose(steps.made[width], second)
            add_step(steps, kind, width, x, another)
        return steps.schedule(self.numerics)

    def planned(self) -> ScheduleOp:
        schedule = self.schedule()
        plan(schedule)
        return schedule


T = TypeVar("T")


def choose(values: Sequence[T], choice: int) -> T:
    return values[choice % len(values)]


CHOICE = st.integers(0, 1000)
KINDS = st.sampled_from(["unary", "binary", "gemv", "slice", "view", "rows", "fold"])
RECIPES = st.builds(
    Recipe,
    st.lists(st.tuples(KINDS, CHOICE, CHOICE, CHOICE), max_size=25).map(tuple),
    st.sampled_from(list(Numerics)),
)


def add_step(steps: Steps, kind: str, width: int, x: SSAValue, another: SSAValue) -> None:
    launches = steps.launches
    match kind:
        case "unary":
            launches.append(UnaryOp(Activation.SILU, x, steps.result(width), n=width))
        case "binary":
            launches.append(BinaryOp(BinaryOperator.ADD, x, steps.read(another), steps.result(width), n=width))
        case "gemv":
            w = steps.buffer(width, Fill.CONSTANT, rows=64)
            # Once: what is written again before anything reads it may be overwritten in between.
            if x not in steps.quantized:
                steps.quantized.add(x)
                launches.append(QuantOp(x, n=width))
            launches.append(GemvOp(x, w, Target(steps.result(64)), format=Format.Q8_0, k=width, n=64, m=1))
        case "slice":
            launches.append(SliceOp(x, steps.result(32), groups=1, every=width, start=width - 32, width=32))
        case "view":
            half = BufferOp(f"b{len(steps.buffers)}", (32,), Fill.ALIAS, of=x, offset=width - 32)
            steps.buffers.append(half)
            launches.append(ViewOp(x, half.buffer, offset=width - 32))
            launches.append(UnaryOp(Activation.SILU, half.buffer, steps.result(32), n=32))
        case "rows":
            table = steps.buffer(width, rows=2)
            for row, src in enumerate((x, steps.read(another))):
                launches.append(SetRowOp(src, Target(table, None, Dst(Row(width, row))), cols=width, count=1))
            launches.append(SliceOp(table, steps.result(width), groups=1, every=2 * width, start=3, width=width))
        case _:
            between = steps.buffer(width)
            first = UnaryOp(Activation.SILU, x, between, n=width)
            launches.append(FoldOp(first, UnaryOp(Activation.TANH, between, steps.result(width), n=width)))


def places(schedule: ScheduleOp) -> list[tuple[BufferOp, Touch, int, int]]:
    numerics = schedule.target.numerics.data if schedule.target is not None else Numerics.DEQUANT
    found: list[tuple[BufferOp, Touch, int, int]] = []
    for buffer in schedule.buffers():
        for form in Touch:
            if (at := buffer.place(form)) is not None:
                found.append((buffer, form, at, at + buffer.bytes(form, numerics)))
    return found


def live(schedule: ScheduleOp) -> dict[tuple[BufferOp, Touch], tuple[int, int]]:
    """First and last launch that touches what a form is stored in, found by looking at every launch for each."""
    numerics = schedule.target.numerics.data if schedule.target is not None else Numerics.DEQUANT
    spans: dict[tuple[BufferOp, Touch], tuple[int, int]] = {}
    launches = schedule.launches()
    for buffer, form, _, _ in places(schedule):
        at = [
            index
            for index, launch in enumerate(launches)
            for touched in launch.touches(numerics)
            for value, touch in touched
            if touch is form and isinstance(value.owner, BufferOp) and value.owner.holder(form)[0] is buffer
        ]
        if form is Touch.PLAIN and any(
            isinstance(o.owner, BufferOp) and o.owner.holder(form)[0] is buffer for o in schedule.outputs()
        ):
            at.append(len(launches))
        spans[(buffer, form)] = (min(at), max(at))
    return spans


def together(schedule: ScheduleOp) -> list[tuple[tuple[BufferOp, Touch], tuple[BufferOp, Touch]]]:
    """Pairs of forms that are live at once."""
    spans = list(live(schedule).items())
    return [(a, b) for i, (a, (a0, a1)) in enumerate(spans) for b, (b0, b1) in spans[i + 1 :] if a0 <= b1 and b0 <= a1]


@PLANNED
@given(RECIPES)
def test_planned_schedules_share_no_live_bytes(recipe: Recipe) -> None:
    schedule = recipe.planned()
    schedule.verify()
    at = {(buffer, form): (start, end) for buffer, form, start, end in places(schedule)}
    for a, b in together(schedule):
        assert at[a][1] <= at[b][0] or at[b][1] <= at[a][0]
    assert schedule.arena is not None
    assert all(start % ALIGNMENT == 0 and end <= schedule.arena.data for start, end in at.values())


@PLANNED
@given(RECIPES)
def test_planning_twice_changes_nothing(recipe: Recipe) -> None:
    schedule = recipe.planned()
    once = str(schedule)
    plan(schedule)
    assert str(schedule) == once


def refused(schedule: ScheduleOp, sentence: str) -> None:
    with pytest.raises(PassFailedException, match=sentence):
        check(schedule)


def move(buffer: BufferOp, form: Touch, at: int) -> None:
    if form is Touch.PLAIN:
        buffer.at = NumberAttr(at)
    else:
        buffer.quantized_at = NumberAttr(at)


@PLANNED
@given(RECIPES, CHOICE, CHOICE)
def test_shared_live_bytes_are_refused(recipe: Recipe, pair: int, byte: int) -> None:
    schedule = recipe.planned()
    pairs = together(schedule)
    assume(pairs)
    (a, a_form), (b, b_form) = choose(pairs, pair)
    assert schedule.arena is not None
    schedule.arena = NumberAttr(schedule.arena.data + 4096)
    place = a.place(a_form)
    assert place is not None
    # Anywhere on the other's bytes, aligned or not.
    move(b, b_form, place + byte % a.bytes(a_form, recipe.numerics))
    refused(schedule, "has written over|writes over")


@PLANNED
@given(RECIPES, CHOICE)
def test_a_missing_writer_is_refused(recipe: Recipe, choice: int) -> None:
    schedule = recipe.planned()
    # What is quantized may be so twice, or for nothing.
    writers = [op for op in schedule.launches() if not isinstance(op, ViewOp | SetRowOp | QuantOp)]
    writer = choose(writers, choice)
    writer.detach()
    writer.erase()
    refused(schedule, "which nothing before has written")


@PLANNED
@given(RECIPES, CHOICE, st.sampled_from(["form", "place", "arena"]))
def test_other_faults_are_refused(recipe: Recipe, choice: int, fault: str) -> None:
    schedule = recipe.planned()
    buffer, form, _, end = choose(places(schedule), choice)
    if fault == "form":
        if form is Touch.PLAIN:
            buffer.plain = None
        else:
            buffer.quantized = None
        refused(schedule, re.escape(f'the {form.value} form of "') + ".*is touched, but the buffer has no such form")
    elif fault == "place":
        if form is Touch.PLAIN:
            buffer.at = None
        else:
            buffer.quantized_at = None
        refused(schedule, "has no place in the arena")
    else:
        schedule.arena = NumberAttr(end - 1)
        refused(schedule, r"ends at byte \d+, beyond the arena of")


def chain(length: int) -> ScheduleOp:
    steps = Steps()
    value = steps.buffer(1024, Fill.ZERO)
    for _ in range(length):
        made = steps.buffer(1024)
        steps.launches.append(UnaryOp(Activation.SILU, value, made, n=1024))
        value = made
    steps.unread[value] = None
    return steps.schedule(Numerics.DEQUANT)


@pytest.mark.parametrize("length", [2, 3, 50])
def test_a_chain_takes_two_buffers(length: int) -> None:
    schedule = chain(length)
    plan(schedule)
    assert schedule.arena == NumberAttr(2 * 4096)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=80))
def test_arena(steps: list[tuple[bool, int]]) -> None:
    arena = Arena()
    held: list[tuple[int, int]] = []
    most = 0
    for give, size in steps:
        if give and held:
            arena.give(*held.pop(size % len(held)))
            continue
        at = arena.take(size)
        assert at % ALIGNMENT == 0
        assert all(at + size <= other or other + taken <= at for other, taken in held)
        held.append((at, size))
        most = max(most, sum(-(-taken // ALIGNMENT) * ALIGNMENT for _, taken in held))
        assert at + size <= arena.size
    assert arena.size >= most
    for at, size in held:
        arena.give(at, size)
    # All free again is one block.
    assert held == [] or arena.take(arena.size) == 0
