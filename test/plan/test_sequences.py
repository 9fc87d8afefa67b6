"""The rule sequences: values with it and without, what it merges, and that the checker sees faults in the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cpu import Memory, run_schedule
from lane_mlir.dialects.launch import DType, LaunchOp, NumberAttr, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import Numerics, TargetAttr
from lane_mlir.eval import CheckpointWeights, run_step
from lane_mlir.eval.inputs import StepInputs
from lane_mlir.eval.step import the_step
from lane_mlir.locations import OpFailedException
from lane_mlir.passes.plan import check, plan, sequences
from lane_mlir.passes.plan.spans import Spans
from lane_mlir.runtime.compilation import schedules
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.target import make_target

MODELS = Path(__file__).parent.parent / "data" / "models"
CONTEXT = 16


@cache
def checkpoint(name: str) -> Checkpoint:
    return Checkpoint.open(MODELS / f"{name}.gguf")


@cache
def compiled(
    name: str, count: int, numerics: str = "dequant", held: tuple[str, ...] = (), cache: str = "f32"
) -> ScheduleOp:
    recipe = Recipe(make_target(numerics, cache=cache), held, CONTEXT)
    module = recipe.lift(checkpoint(name), 1, "last", count)
    recipe.lower(module)
    (schedule,) = schedules(module)
    return schedule


@pytest.mark.parametrize("held", [(), ("sequences",), ("rope_parts", "moe_rows"), ("row_write", "slice_read", "gates")])
@pytest.mark.parametrize(
    ("name", "count", "numerics"),
    [
        ("llama-f32", 16, "dequant"),
        ("qwen3-Q8_0", 3, "int8"),
        ("gemma3-Q4_K_M", 2, "int8"),
        ("gpt-oss-moe-Q4_K_M", 2, "two_pass_int8"),
        ("deepseek2-moe-Q4_K_M", 3, "int8"),
        ("lfm2-Q4_K_M", 3, "int8"),
        ("qwen3next-moe-Q4_K_M", 2, "int8"),
        ("qwen35moe-moe-Q4_K_M", 2, "dequant"),
    ],
)
def test_values_are_those_of_the_lifted_step(name: str, count: int, numerics: str, held: tuple[str, ...]):
    """
    Outputs and all state, to the bit, at positions of their own, caches beyond them poisoned; where no norm leaves its
    division to the products that read it, which is another sum.
    """
    target = TargetAttr(numerics=Numerics(numerics))
    func = the_step(Recipe(make_target(numerics), (), CONTEXT).lift(checkpoint(name), 1, "last", count))
    schedule = compiled(name, count, numerics, ("deferred_norm", *held))
    assert (schedule.fired("sequences") > 0) == ("sequences" not in held)
    memory, inputs = Memory(checkpoint(name)), StepInputs.of(func)
    for position in inputs.positions[:2]:
        evaluated, executed = inputs.at(position, target), inputs.at(position, target)
        want = run_step(func, CheckpointWeights(checkpoint(name)), evaluated)
        got = run_schedule(schedule, memory, executed)
        assert len(got) == len(want) == 1 + count
        for a, b in zip([*got, *executed], [*want, *evaluated], strict=True):
            np.testing.assert_array_equal(a, b)


# Of every layer of a kind, what has state or a position is one launch.
CENSUS: dict[str, dict[str, int]] = {
    # Two layers of attention; their rotations set the keys, a copy the values.
    "llama-f32": {"rope_attention": 2, "set_row": 2, "argmax": 1},
    "gemma3-Q4_K_M": {"rope_attention": 6, "set_row": 6, "argmax": 1},
    # Queries and cached rows are joined of a part that is rotated and one that is not.
    "deepseek2-moe-Q4_K_M": {"attention": 2, "rope": 2, "join": 4, "argmax": 1, "moe_norm": 1},
    # The convolution has no SiLU, without which no kernel takes several.
    "lfm2-Q4_K_M": {"rope_attention": 1, "set_row": 1, "argmax": 1, "conv": 3},
    "qwen3next-moe-Q4_K_M": {
        **{"rope_attention": 1, "set_row": 1, "argmax": 1, "moe_norm": 2},
        **{"conv": 1, "gates": 1, "delta": 1},
    },
}


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
@pytest.mark.parametrize("name", CENSUS)
def test_launches_of_three_sequences_become_one(name: str, numerics: str):
    merged, apart = compiled(name, 3, numerics).census(), compiled(name, 3, numerics, ("sequences",)).census()
    assert {kind: merged.get(kind, 0) for kind in CENSUS[name]} == CENSUS[name]
    once = {"attention", "rope", "rope_attention", "delta", "gates", "argmax", "join"} & CENSUS[name].keys()
    assert {kind: apart[kind] for kind in once} == {kind: 3 * CENSUS[name][kind] for kind in once}
    # All others are the same, but for the row sets that put rows together.
    others = merged.keys() - CENSUS[name].keys()
    assert {kind: merged[kind] for kind in others} == {kind: apart[kind] for kind in others - {"set_row"}}


def test_launches_say_what_they_merged():
    schedule, apart = compiled("qwen3-Q8_0", 3), compiled("qwen3-Q8_0", 3, held=("sequences",))
    # Rotations, values and attention of two layers, and the arg-max.
    assert schedule.fired("sequences") == 7
    assert schedule.fired("row_write") == apart.fired("row_write") == 6
    assert covered(schedule) == covered(apart)


def covered(schedule: ScheduleOp) -> list[int]:
    return sorted({number for launch in schedule.launches() for number in launch.covers.data})


def test_state_of_all_sequences_is_one_array_whose_parts_are_the_arguments():
    schedule = compiled("qwen3next-moe-Q4_K_M", 3, cache="f16")
    apart = compiled("qwen3next-moe-Q4_K_M", 3, cache="f16", held=("sequences",))
    arguments = [b for b in schedule.buffers() if b.is_argument]
    assert [b.role for b in arguments] == [b.role for b in apart.buffers() if b.is_argument]
    for buffer in arguments[1:]:
        array, start, _ = buffer.holder(Touch.PLAIN)
        assert buffer.role is not None
        assert array.length == 3 * buffer.length
        assert start == buffer.role.sequence.data * buffer.length
        assert array.parts()[buffer.role.sequence.data] is buffer
        stored = DType.F16 if str(buffer.role.kind.data) == "kv_cache" else buffer.dtype.data
        assert array.dtype.data == buffer.dtype.data == stored


def test_planning_twice_changes_nothing():
    schedule = compiled("qwen3-Q8_0", 2, "int8").clone()
    census, rules = schedule.census(), schedule.fired("sequences")
    plan(schedule, ("rows_a_warp",))
    assert (schedule.census(), schedule.fired("sequences")) == (census, rules)


# Faults that a planner could make here.


def of_kind(schedule: ScheduleOp, kind: str) -> list[LaunchOp]:
    return [launch for launch in schedule.launches() if launch.kind() == kind]


def run_before_its_rows(schedule: ScheduleOp) -> None:
    """The attention of all sequences stands before the rotation of their queries."""
    attention, rope = of_kind(schedule, "attention")[0], of_kind(schedule, "rope")[0]
    attention.detach()
    schedule.body.block.insert_op_before(attention, rope)


def lose_a_row(schedule: ScheduleOp) -> None:
    """The attention of the second sequence writes the row of the first one, too."""
    first, second = of_kind(schedule, "attention")[:2]
    (row,), (lost,) = first.writes(), second.writes()
    second.operands = [row if value is lost else value for value in second.operands]


def overlap(schedule: ScheduleOp) -> None:
    """The rows of two sequences are one row of the table."""
    (row,) = of_kind(schedule, "attention")[1].writes()
    buffer_of(row).offset = NumberAttr(0)


@pytest.mark.parametrize(("fault", "apart"), [(run_before_its_rows, False), (lose_a_row, True), (overlap, True)])
def test_faults_that_the_checker_sees(
    fault: Callable[[ScheduleOp], None], apart: bool, monkeypatch: pytest.MonkeyPatch
):
    if apart:
        # The attention of each sequence for itself still lands in its row of one table.
        monkeypatch.setattr(sequences, "_KINDS", ())
    recipe = Recipe(make_target(), ("deferred_rope",), CONTEXT)
    module = recipe.lift(checkpoint("qwen3-Q8_0"), 1, "last", 2)
    recipe.lower(module)
    (schedule,) = schedules(module)
    check(schedule)
    fault(schedule)
    with pytest.raises(OpFailedException, match="which nothing before has written"):
        check(schedule)


def test_spans():
    spans = Spans()
    for start, stop in ((10, 20), (30, 40), (18, 25)):
        spans.add(start, stop)
    assert list(spans) == [(10, 25), (30, 40)]
    assert [spans.meet(*span) for span in ((0, 10), (25, 30), (40, 50))] == [False, False, False]
    assert [spans.meet(*span) for span in ((0, 11), (24, 26), (0, 100), (12, 13), (39, 90))] == [True] * 5
    assert spans.cover(11, 25)
    assert not spans.cover(11, 26)
