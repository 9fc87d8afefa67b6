"""Programs as a whole: tokens, positions, places in the arena, constants and shared state."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from lane_mlir.cpu import CpuProgram, Memory, run_schedule
from lane_mlir.cpu.launches import BINDERS
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import LAUNCH, FoldOp, LaunchOp, ScheduleOp
from lane_mlir.dialects.tg import TG

Random = Callable[..., NDArray[np.float32]]

# A toy step: the embedding of a token is set in a cache, and the cache's mean under attention chooses the next token.
STEP = """
launch.schedule @toy target<h200, dequant, cache = f32, state = f32> arena 1024 {
  %token = launch.buffer "token" i32[ROWS] param #tg.arg<token, 0, "token"> plain
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0, "pos"> plain
  %c = launch.buffer "c" f32[8x4] zero #tg.arg<kv_cache, 0, "c"> plain
  %e = launch.buffer "e" f32[6x4] constant #launch.tensor<"e", f32> plain
  %x = launch.buffer "x" f32[ROWSx4] computed plain at 0
  %a = launch.buffer "a" f32[ROWSx4] computed plain at 64
  %l = launch.buffer "l" f32[1x6] computed plain at 128
  %id = launch.buffer "id" i32[1] computed plain at 192
  launch.gather %e at %token into %x (rows = ROWS, cols = 4) covers [0]
  launch.set_row %x into %c at row %pos pitch 4 (cols = 4, count = ROWS) f32
  launch.attention %x, %c, %c at %pos into %a (heads = 1, group = 1, hd = 4, vd = 4, len = 8, rows = ROWS)
    values 4 + 0 scale = 1.0 (per_block = 1, splits = 1) f32
  launch.gemv %a by %e<f32> into %l (k = 4, n = 6, m = 1) tail LAST of ROWS f32
  launch.argmax %l into %id (n = 6, rows = 1) ADVANCE
  launch.yield %l, %id
}
"""


def parse(text: str) -> ScheduleOp:
    context = Context()
    for dialect in (Builtin, TG, LAUNCH):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    schedule = module.body.block.first_op
    assert isinstance(schedule, ScheduleOp)
    return schedule


def toy(rows: int = 1) -> ScheduleOp:
    advance = "advance %token, %pos item 0" if rows == 1 else ""
    text = STEP.replace("ROWS", str(rows)).replace("LAST", str(rows - 1)).replace("ADVANCE", advance)
    return parse(text)


@pytest.fixture
def embedding(random: Random) -> NDArray[np.float32]:
    return random(6, 4)


@pytest.fixture
def memory(embedding: NDArray[np.float32]) -> Memory:
    return Memory({"e": embedding})


def expected_logits(embedding: NDArray[np.float32], tokens: list[int]) -> NDArray[np.float64]:
    """After the last of the tokens."""
    rows = embedding[tokens].astype(np.float64)
    weight = np.exp(rows @ rows[-1])
    return (weight / weight.sum() @ rows) @ embedding.T


def test_every_launch_has_a_binder():
    launches = {op for op in LAUNCH.operations if issubclass(op, LaunchOp)}
    assert set(BINDERS) | {FoldOp} == launches


def test_a_step_moves_on_by_itself(memory: Memory, embedding: NDArray[np.float32]):
    program = CpuProgram(toy(), memory)
    program.set_tokens([3])
    tokens = [3]
    for position in range(8):
        assert program.position == position
        program.run()
        logits = program.output(0)
        # Sums of at most 8 terms in f32.
        np.testing.assert_allclose(logits[0], expected_logits(embedding, tokens), rtol=1e-5, atol=1e-6)
        assert program.output(1).tolist() == [int(np.argmax(logits))]
        tokens.append(int(program.output(1)[0]))
    with pytest.raises(LaneError, match="position 8 with 1 row is not within the context of 8 positions"):
        program.run()


def test_programs_of_different_rows_share_state_and_position(memory: Memory, embedding: NDArray[np.float32]):
    tokens = [1, 5, 2, 2]
    chunk, decode = CpuProgram(toy(3), memory), CpuProgram(toy(), memory)
    chunk.set_tokens(tokens[:3])
    chunk.set_position(0)
    chunk.run()
    np.testing.assert_allclose(chunk.output(0)[0], expected_logits(embedding, tokens[:3]), rtol=1e-5, atol=1e-6)
    decode.set_tokens(tokens[3:])
    decode.set_position(3)
    assert chunk.position == 3
    decode.run()
    np.testing.assert_allclose(decode.output(0)[0], expected_logits(embedding, tokens), rtol=1e-5, atol=1e-6)
    memory.reset()
    assert decode.position == 0
    assert not any(array.any() for _, array in decode.arguments)


def test_a_position_set_back_and_forward_again(memory: Memory):
    program = CpuProgram(toy(), memory)
    logits: list[bytes] = []
    for position in (0, 1, 2, 1, 2):
        program.set_tokens([position + 1])
        program.set_position(position)
        program.run()
        logits.append(program.output(0).tobytes())
    assert logits[3:] == logits[1:3]


def test_memory_of_computed_buffers_does_not_matter(memory: Memory):
    program = CpuProgram(toy(), memory)
    results: list[bytes] = []
    for _ in range(100):
        program.buffers.poison()
        program.set_tokens([4])
        program.set_position(0)
        program.run()
        results.append(program.output(0).tobytes())
    assert set(results) == {results[0]}


@pytest.mark.parametrize(
    "tokens, message",
    [
        ([6], "token 6 of row 0 is not within the vocabulary of 6 tokens"),
        ([-1], "token -1 of row 0 is not within the vocabulary of 6 tokens"),
        ([2**40], f"token {2**40} of row 0 is not within the vocabulary of 6 tokens"),
        ([0.5], "tokens are given as float64, expected whole numbers"),
        ([1, 2], "2 tokens are given to a step of 1 rows"),
        ([], "0 tokens are given to a step of 1 rows"),
    ],
)
def test_wrong_tokens_are_refused_and_not_set(memory: Memory, tokens: list[float], message: str):
    program = CpuProgram(toy(), memory)
    program.set_tokens([5])
    with pytest.raises(LaneError, match=re.escape(message)):
        program.set_tokens(tokens)
    assert program.arguments[0][1].tolist() == [5]


@pytest.mark.parametrize("position", [-1, 6, 2**40])
def test_wrong_positions_are_refused_and_not_set(memory: Memory, position: int):
    program = CpuProgram(toy(3), memory)
    program.set_position(5)
    with pytest.raises(LaneError, match=f"position {position} with 3 rows is not within the context of 8 positions"):
        program.set_position(position)
    assert program.position == 5


def test_a_position_of_a_sequence_that_there_is_not(memory: Memory):
    with pytest.raises(LaneError, match="the step has no position of sequence 1"):
        CpuProgram(toy(), memory).set_position(0, sequence=1)


def test_traced_runs_are_runs(memory: Memory):
    program, names = CpuProgram(toy(), memory), list[str]()
    program.set_tokens([2])
    program.run()
    logits = program.output(0).copy()
    program.set_tokens([2])
    program.set_position(0)

    def note(op: LaunchOp, seconds: float) -> None:
        assert seconds >= 0
        names.append(op.kind())

    program.run_traced(note)
    assert names == ["gather", "set_row", "attention", "gemv_q8", "argmax"]
    np.testing.assert_array_equal(program.output(0), logits)


def test_run_schedule_writes_its_arguments_in_place(embedding: NDArray[np.float32]):
    token, position, cache = np.array([2], np.int32), np.array([1], np.int32), np.zeros((8, 4), np.float32)
    cache[0] = embedding[5]
    logits, chosen = run_schedule(toy(), {"e": embedding}, [token, position, cache])
    np.testing.assert_allclose(logits[0], expected_logits(embedding, [5, 2]), rtol=1e-5, atol=1e-6)
    assert token.tolist() == chosen.tolist()
    assert position.tolist() == [2]
    np.testing.assert_array_equal(cache[:2], embedding[[5, 2]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([np.zeros(1, np.int32)], "schedule @toy takes 3 arguments, not 1"),
        (
            [np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros((4, 4), np.float32)],
            'argument "c" of @toy is 4x4, expected 8x4',
        ),
    ],
)
def test_run_schedule_refuses_other_arguments(
    embedding: NDArray[np.float32], arguments: list[NDArray[Any]], message: str
):
    with pytest.raises(LaneError, match=message):
        run_schedule(toy(), {"e": embedding}, arguments)


def test_a_missing_tensor_is_named():
    with pytest.raises(LaneError, match=r"launch\.gather of ops 0: unknown tensor 'e'"):
        CpuProgram(toy(), Memory({"f": np.zeros((6, 4), np.float32)}))


def test_a_tensor_of_another_shape_is_named():
    with pytest.raises(LaneError, match='tensor "e" is 5x4, expected 6x4'):
        CpuProgram(toy(), Memory({"e": np.zeros((5, 4), np.float32)}))


def broken(old: str, new: str) -> ScheduleOp:
    text = STEP.replace("ROWS", "1").replace("LAST", "0").replace("ADVANCE", "")
    assert old in text
    return parse(text.replace(old, new))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("computed plain at 64", "computed plain", 'the plain form of buffer "a" has no place in the arena of @toy'),
        ("at 64", "at 1020", 'the plain form of buffer "a" lies at bytes 1020 to 1036 of an arena of 1024'),
        ("at 64", "at 66", 'the plain form of buffer "a" lies at bytes 66 to 82 of an arena of 1024'),
        ('"x" f32', '"x" f16', 'buffer "x" is stored as float16, but a launch takes it as float32'),
        ('#launch.tensor<"e", f32>', '{table = "cos"}', "cannot make the constant"),
    ],
)
def test_plans_that_cannot_be_run_are_refused(memory: Memory, old: str, new: str, message: str):
    with pytest.raises(LaneError, match=re.escape(message)):
        CpuProgram(broken(old, new), memory)


def test_a_schedule_without_an_arena_runs_in_memory_of_its_own(memory: Memory, embedding: NDArray[np.float32]):
    text = re.sub(r" arena \d+", "", re.sub(r" at \d+$", "", str(toy()), flags=re.MULTILINE))
    program = CpuProgram(parse(text), memory)
    program.set_tokens([3])
    program.run()
    np.testing.assert_allclose(program.output(0)[0], expected_logits(embedding, [3]), rtol=1e-5, atol=1e-6)


def test_buffers_that_share_bytes_overwrite_each_other(memory: Memory):
    program = CpuProgram(broken("plain at 128", "plain at 0"), memory)
    x, logits = (op for op in program.schedule.buffers() if op.label.data in ("x", "l"))
    program.run()
    np.testing.assert_array_equal(program.buffers.plain(x.buffer), program.buffers.plain(logits.buffer)[: x.length])


@pytest.mark.parametrize("factors", [None, (1.0, 2.0)])
def test_rotation_tables(factors: tuple[float, ...] | None):
    of_factors = "" if factors is None else ', factors = #launch.tensor<"f", f32>'
    fields = "base = 100.0 : f64, freq_scale = 0.5 : f64, attn_factor = 2.0 : f64, original_context = 0 : i64"
    schedule = parse(
        f"""launch.schedule @s {{
        %cos = launch.buffer "cos" f32[5x2] constant {{rope_table = "cos", {fields}{of_factors}}} plain
        %sin = launch.buffer "sin" f32[5x2] constant {{rope_table = "sin", {fields}{of_factors}}} plain
        launch.yield %cos, %sin
        }}"""
    )
    program = CpuProgram(schedule, Memory({"f": np.array(factors or (1, 1), np.float32)}))
    rates = np.array([1, 0.1]) * 0.5 / np.array(factors or (1, 1))
    angles = np.outer(np.arange(5), rates)
    np.testing.assert_allclose(program.output(0), 2 * np.cos(angles), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(program.output(1), 2 * np.sin(angles), rtol=1e-6, atol=1e-6)


def test_a_constant_is_made_once(memory: Memory):
    first, second = CpuProgram(toy(), memory), CpuProgram(toy(3), memory)
    tables = [
        program.buffers.plain(op.buffer)
        for program in (first, second)
        for op in program.schedule.buffers()
        if op.label.data == "e"
    ]
    assert np.shares_memory(tables[0], tables[1])
