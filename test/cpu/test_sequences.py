"""State of several sequences: one memory for steps of one of them and of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cpu import CpuProgram, Memory
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import DType, ScheduleOp
from lane_mlir.dialects.tg import ArgAttr, ArgumentKind
from lane_mlir.runtime.compilation import schedules
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.target import make_target

CONTEXT = 16


@pytest.fixture(scope="module")
def checkpoint(models: Path) -> Checkpoint:
    return Checkpoint.open(models / "lfm2-Q4_K_M.gguf")


def schedule(checkpoint: Checkpoint, sequences: int, held: tuple[str, ...] = ()) -> ScheduleOp:
    recipe = Recipe(make_target(), held, CONTEXT)
    module = recipe.lift(checkpoint, 1, "last", sequences)
    recipe.lower(module)
    return schedules(module)[0]


def state(program: CpuProgram, sequence: int) -> dict[str, list[float]]:
    """The state and position of a sequence, as a program finds them."""
    roles = ((op.role, array) for op, array in program.arguments)
    return {
        f"{role.kind.data} {role.label.data}": array.tolist()
        for role, array in roles
        if role is not None and role.kind.data is not ArgumentKind.TOKEN and role.sequence.data == sequence
    }


@pytest.mark.parametrize("held", [(), ("sequences",)])
def test_steps_of_one_and_of_all_share_their_state(checkpoint: Checkpoint, held: tuple[str, ...]):
    memory = Memory(checkpoint)
    one = CpuProgram(schedule(checkpoint, 1), memory)
    one.set_tokens([3])
    one.run()
    assert memory.sequences == 1
    # As the memory grows, what there is stays.
    kept = state(one, 0)
    three = CpuProgram(schedule(checkpoint, 3, held), memory)
    assert memory.sequences == 3
    assert state(one, 0) == state(three, 0) == kept
    for sequence in (1, 2):
        one.select(sequence)
        one.set_tokens([5 + sequence])
        one.set_position(2 * sequence)
        one.run()
    assert state(three, 0) == kept
    for sequence in (1, 2):
        one.select(sequence)
        assert state(one, 0) == state(three, sequence) != kept
        assert one.position == 2 * sequence + 1
    three.set_tokens([1, 2, 3])
    three.run()
    assert [state(three, s)["position position"] for s in range(3)] == [[2], [4], [6]]
    one.select(0)
    assert one.position == 2
    memory.reset()
    assert state(one, 0) == state(three, 2) != kept


def test_one_sequence_at_the_end_of_its_context(checkpoint: Checkpoint):
    three = CpuProgram(schedule(checkpoint, 3), Memory(checkpoint))
    three.set_position(CONTEXT - 1, 1)
    three.set_tokens([1, 2, 3])
    three.run()
    with pytest.raises(LaneError, match=f"position {CONTEXT} with 1 row is not within the context of {CONTEXT}"):
        three.run()
    three.set_position(0, 1)
    three.run()
    for sequence, position in ((0, CONTEXT), (2, -1)):
        with pytest.raises(LaneError, match="is not within the context"):
            three.set_position(position, sequence)
    with pytest.raises(LaneError, match="the step has no position of sequence 3"):
        three.set_position(0, 3)


def test_sequences_count_from_0(checkpoint: Checkpoint):
    with pytest.raises(LaneError, match="sequence -1 is selected, expected at least 0"):
        CpuProgram(schedule(checkpoint, 1), Memory(checkpoint)).select(-1)


def test_arrays_of_all_sequences_lie_together(checkpoint: Checkpoint):
    memory = Memory(checkpoint)
    memory.reserve(3)
    role = ArgAttr(ArgumentKind.KV_CACHE, 2, "k")
    arrays = memory.state(role, "blk.k", (4, 8), DType.F16)
    assert (arrays.shape, arrays.dtype) == ((3, 4, 8), np.dtype(np.float16))
    arrays[2] = 1
    memory.reserve(2)
    assert memory.state(ArgAttr(ArgumentKind.KV_CACHE, 0, "k"), "other", (4, 8), DType.F16) is arrays
    memory.reserve(5)
    moved = memory.state(role, "blk.k", (4, 8), DType.F16)
    assert moved.shape == (5, 4, 8)
    assert moved.reshape(5, -1).sum(axis=1).tolist() == [0, 0, 32, 0, 0]


def test_an_array_that_does_not_hold_all_in_order(checkpoint: Checkpoint):
    planned = schedule(checkpoint, 2)
    parts = [op for op in planned.buffers() if op.is_argument and op.of is not None]
    first, second = parts[:2]
    first.offset, second.offset = second.offset, first.offset
    with pytest.raises(LaneError, match=r'buffer "position\.sequences" does not hold one array of each sequence'):
        CpuProgram(planned, Memory(checkpoint))
