"""Tiny models through the whole pipeline, on the CPU target."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cpu import CpuProgram, Memory, run_schedule
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import ScheduleOp, TensorAttr
from lane_mlir.dialects.tg import TargetAttr
from lane_mlir.eval import CheckpointWeights, make_arguments, run_step
from lane_mlir.eval.step import the_step
from lane_mlir.formats import StoredTensor
from lane_mlir.runtime.compilation import schedules
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.target import make_target

CONTEXT = 96
NAMES = ("llama-f32", "llama-Q4_K_M", "qwen3-Q8_0")

# f32 against f32 in another order of summation.
ORACLE = 1e-4


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(name: str, models: Path) -> Checkpoint:
    return Checkpoint.open(models / f"{name}.gguf")


@pytest.fixture(scope="module")
def oracle(name: str, models: Path) -> dict[str, NDArray[Any]]:
    return dict(np.load(models / f"{name}.npz"))


def recipe(numerics: str = "dequant", precision: str = "f32") -> Recipe:
    return Recipe(make_target(numerics, cache=precision), (), CONTEXT)


@cache
def compile_step(how: Recipe, checkpoint: Checkpoint, rows: int) -> ScheduleOp:
    module = how.lift(checkpoint, rows, "all")
    how.lower(module)
    (schedule,) = schedules(module)
    return schedule


def worst_row(got: NDArray[Any], want: NDArray[Any]) -> float:
    """The largest relative L2 error of a row."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())


def read(
    how: Recipe, checkpoint: Checkpoint, tokens: list[int], chunk: int, poison: bool = False
) -> NDArray[np.float32]:
    """The logits after every token, read in chunks, the last one shorter."""
    memory, logits = Memory(checkpoint), list[NDArray[np.float32]]()
    programs: dict[int, CpuProgram] = {}
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        if len(part) not in programs:
            programs[len(part)] = CpuProgram(compile_step(how, checkpoint, len(part)), memory)
        program = programs[len(part)]
        if poison:
            program.buffers.poison()
            poison_future(program, start)
        program.set_tokens(part)
        program.set_position(start)
        program.run()
        logits.append(program.output(0).copy())
    return np.concatenate(logits)


def poison_future(program: CpuProgram, position: int) -> None:
    """Fill the rows of caches that have not been written yet with NaN."""
    for op, array in program.arguments:
        if op.role is not None and str(op.role.kind.data) == "kv_cache":
            array.reshape(op.shape.data)[position:] = np.nan


def reference(oracle: dict[str, NDArray[Any]], long: bool) -> tuple[list[int], NDArray[np.float32]]:
    suffix = "_long" if long else ""
    exact = f"logits_dequant{suffix}"
    return oracle[f"tokens{suffix}"].tolist(), oracle[exact if exact in oracle else f"logits_step{suffix}"]


def test_rows_of_a_table_are_dequantized_alone(checkpoint: Checkpoint):
    tensor = checkpoint.tensor("token_embd.weight")
    table = TensorAttr(StoredTensor(tensor.name, tensor.format))
    rows = Memory(checkpoint).rows(table, tensor.shape)
    index = np.array([5, 127, 0, 5], np.int32)
    np.testing.assert_array_equal(rows(index), tensor.values()[index])
    for wrong in (-1, 128):
        with pytest.raises(LaneError, match=f"index {wrong} of row 1 is not one of the table's 128 rows"):
            rows(np.array([0, wrong], np.int32))


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 64])
def test_logits_of_every_token(checkpoint: Checkpoint, oracle: dict[str, NDArray[Any]], chunk: int):
    tokens, want = reference(oracle, long=chunk > 1)
    assert worst_row(read(recipe(), checkpoint, tokens, chunk), want) < ORACLE


@pytest.mark.parametrize("chunk", [1, 7])
def test_whatever_must_not_be_read_is_not(checkpoint: Checkpoint, oracle: dict[str, NDArray[Any]], chunk: int):
    tokens, _ = reference(oracle, long=False)
    clean = read(recipe(), checkpoint, tokens, chunk)
    np.testing.assert_array_equal(read(recipe(), checkpoint, tokens, chunk, poison=True), clean)


@pytest.mark.parametrize(
    "numerics, precision", [("dequant", "f32"), ("dequant", "f16"), ("int8", "f16"), ("two_pass_int8", "f32")]
)
@pytest.mark.parametrize("rows", [1, 5])
def test_equals_the_evaluated_step(checkpoint: Checkpoint, numerics: str, precision: str, rows: int):
    """To the bit, where no norm leaves its division to the products that read it."""
    how = Recipe(make_target(numerics, cache=precision), ("deferred_norm",), CONTEXT)
    func = the_step(how.lift(checkpoint, rows, "all"))
    weights, target = CheckpointWeights(checkpoint), TargetAttr.of(how.target)
    evaluated, executed = (make_arguments(func, target) for _ in range(2))
    schedule, memory = compile_step(how, checkpoint, rows), Memory(checkpoint)
    for step, tokens in enumerate(np.random.default_rng(3).integers(0, 128, (3, rows))):
        for arguments in (evaluated, executed):
            arguments[0][:], arguments[1][:] = tokens, step * rows
        want = run_step(func, weights, evaluated)
        got = run_schedule(schedule, memory, executed)
        for mine, theirs in zip([*got, *executed], [*want, *evaluated], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_f16_cache_and_int8_are_near_the_reference(checkpoint: Checkpoint, oracle: dict[str, NDArray[Any]]):
    tokens, want = reference(oracle, long=False)
    # Activations of 127 steps a block, and keys of 11 bits: the reference engine's own int8 runs differ by 3e-2.
    assert 1e-5 < worst_row(read(recipe("dequant", "f16"), checkpoint, tokens, 1), want) < 1e-2
    assert worst_row(read(recipe("two_pass_int8"), checkpoint, tokens, 1), want) < 1e-3
