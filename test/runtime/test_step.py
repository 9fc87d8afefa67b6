"""What a step asks of its device: chunks, positions, tokens; on a device that counts up and records all that it is told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lane_mlir
from lane_mlir import LaneError, Sampler, Step
from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects.launch import BufferOp, ScheduleOp
from lane_mlir.dialects.tg import ArgumentKind
from lane_mlir.runtime import Device, Program
from lane_mlir.runtime.device import has_driver

VOCABULARY = 128


def rows_of(schedule: ScheduleOp) -> int:
    (tokens,) = (op for op in schedule.buffers() if op.role is not None and op.role.kind.data is ArgumentKind.TOKEN)
    return tokens.length


class CountingProgram:
    """The token that follows t is t + 1; after it, a decode step goes on by itself."""

    def __init__(self, device: CountingDevice, schedule: ScheduleOp):
        self.device = device
        self.rows = rows_of(schedule)
        returned = schedule.outputs()[0].owner
        assert isinstance(returned, BufferOp)
        self.logit_rows = returned.length // VOCABULARY
        self.tokens = np.zeros(self.rows, np.int32)
        self.position = -1
        self.read = self.tokens

    def set_tokens(self, tokens: NDArray[np.int32]) -> None:
        assert tokens.shape == (self.rows,)
        assert tokens.dtype == np.int32
        self.device.events.append(f"tokens {tokens.tolist()}")
        self.tokens = tokens.copy()

    def set_position(self, position: int, sequence: int = 0) -> None:
        self.device.events.append(f"position {position}")
        self.position = position

    def run(self) -> None:
        self.device.events.append("run")
        assert self.position == self.device.position, "state of positions before this one is missing"
        self.device.position += self.rows
        self.read = self.tokens
        if self.rows == 1:
            self.position += 1
            self.tokens = (self.tokens + 1) % VOCABULARY

    def output(self, index: int) -> NDArray[Any]:
        following = (self.read[-self.logit_rows :] + 1) % VOCABULARY
        if index == 1:
            return following[-1:]
        return np.eye(VOCABULARY, dtype=np.float32)[following]


class CountingDevice:
    name = "counting"

    def __init__(self, checkpoint: Checkpoint):
        self.events: list[str] = []
        self.position = 0
        self.compiled: list[int] = []

    def compile(self, schedule: ScheduleOp) -> Program:
        program = CountingProgram(self, schedule)
        self.compiled.append(program.rows)
        return program

    def reset(self) -> None:
        self.events.append("reset")
        self.position = 0


@pytest.fixture
def model(models: Path) -> Path:
    return models / "llama-f32.gguf"


def load(model: Path, **options: Any) -> tuple[Step, CountingDevice]:
    step = lane_mlir.load(model, device=CountingDevice, **options)
    device: Device = step.device
    assert isinstance(device, CountingDevice)
    return step, device


def test_prompt_in_chunks_then_the_device_goes_on_by_itself(model: Path):
    step, device = load(model, chunk=3)
    assert list(step.generate_ids([1, 2, 3, 4, 5, 6, 7, 8], 4)) == [9, 10, 11, 12]
    assert device.events == [
        *("reset", "tokens [1, 2, 3]", "position 0", "run", "tokens [4, 5, 6]", "position 3", "run"),
        *("tokens [7, 8]", "position 6", "run", "tokens [9]", "position 8", "run", "run", "run"),
    ]
    assert sorted(device.compiled) == [1, 2, 3]
    assert step.position == 11


@pytest.mark.parametrize(("whole", "compiled"), [(True, [1, 3]), (False, [1, 2, 3])])
def test_what_is_left_beyond_whole_chunks(
    model: Path, monkeypatch: pytest.MonkeyPatch, whole: bool, compiled: list[int]
):
    monkeypatch.setattr(CountingDevice, "whole_chunks", whole, raising=False)
    step, device = load(model, chunk=3)
    assert list(step.generate_ids([1, 2, 3, 4, 5, 6, 7, 8], 2)) == [9, 10]
    assert sorted(device.compiled) == compiled


def test_programs_are_kept(model: Path):
    step, device = load(model, chunk=3)
    for _ in range(2):
        assert list(step.generate_ids([1, 2, 3, 4], 2)) == [5, 6]
    assert sorted(device.compiled) == [1, 3]


def test_token_by_token(model: Path):
    step, device = load(model, chunk=1)
    assert list(step.generate_ids([1, 2], 2)) == [3, 4]
    assert device.compiled == [1]
    assert device.events.count("run") == 3


def test_a_sampler_sets_every_token(model: Path):
    step, device = load(model)
    assert list(step.generate_ids([1, 2], 3, sampler=Sampler(temperature=1e-6))) == [3, 4, 5]
    assert device.events[-4:] == ["tokens [3]", "run", "tokens [4]", "run"]


def test_one_token_needs_no_decode(model: Path):
    step, device = load(model)
    assert list(step.generate_ids([1, 2], 1)) == [3]
    assert device.events.count("run") == 1


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_logits_of_all_rows(model: Path, chunk: int):
    step, _ = load(model, chunk=chunk)
    logits = step.logits([5, 9, 2, 7, 127])
    assert logits.shape == (5, VOCABULARY)
    assert logits.dtype == np.float32
    assert logits.argmax(1).tolist() == [6, 10, 3, 8, 0]


def test_the_context_fills_to_the_last_position(model: Path):
    step, device = load(model, context=6)
    assert list(step.generate_ids([1, 2, 3, 4], 3)) == [5, 6, 7]
    assert device.position == 6
    assert list(step.generate_ids([1, 2, 3, 4, 5, 6], 1)) == [7]
    with pytest.raises(LaneError, match=r"4 tokens and 4 new ones do not fit the context of 6 positions"):
        step.generate_ids([1, 2, 3, 4], 4)


def test_the_context_of_the_file(model: Path):
    assert load(model)[0].context == 256
    assert load(model, context=300)[0].context == 300


def test_chunks_fit_the_context(model: Path):
    step, _ = load(model, context=4, chunk=64)
    assert list(step.generate_ids([1, 2, 3], 2)) == [4, 5]


def test_another_generation_ends_the_one_before(model: Path):
    step, _ = load(model)
    first = step.generate_ids([1, 2], 5)
    assert next(first) == 3
    assert list(step.generate_ids([7], 2)) == [8, 9]
    with pytest.raises(LaneError, match="ended by another one"):
        next(first)
    blocks = step.logit_blocks([1])
    assert next(blocks).shape == (1, VOCABULARY)


def test_logits_are_ended_by_a_generation(model: Path):
    step, _ = load(model, chunk=1)
    blocks = step.logit_blocks([1, 2])
    next(blocks)
    step.reset()
    with pytest.raises(LaneError, match="ended by another one"):
        next(blocks)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "the prompt is empty"),
        ([1, 128], "token id 128 is outside the vocabulary of 128 tokens"),
        ([-1], "token id -1 is outside the vocabulary of 128 tokens"),
        ([1 << 40], f"token id {1 << 40} is outside the vocabulary"),
        ([1] * 9, "the prompt has 9 tokens, more than the context of 8 positions"),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(model: Path, ids: list[int], message: str):
    step, device = load(model, context=8)
    for call in (lambda: step.generate_ids(ids, 1), lambda: step.generate(ids), lambda: step.logit_blocks(ids)):
        with pytest.raises(LaneError, match=message):
            call()
    assert device.events == []
    assert device.compiled == []


@pytest.mark.parametrize("n", [0, -3])
def test_bad_counts(model: Path, n: int):
    step, _ = load(model)
    with pytest.raises(LaneError, match=f"n is {n}, expected at least 1"):
        step.generate_ids([1], n)
    with pytest.raises(LaneError, match=f"max_tokens is {n}, expected at least 1"):
        step.generate([1], max_tokens=n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "int9"}, r"unknown numerics 'int9'; did you mean 'int8'\? valid: dequant, int8, two_pass_int8"),
        ({"chip": "h201"}, r"unknown chip 'h201'; did you mean 'h200'"),
        ({"cache": "bf16"}, r"unknown precision of the cache 'bf16'.* valid: f16, f32"),
        ({"state": "f16"}, r"unknown precision of the state 'f16'.* valid: bf16, f32"),
        ({"held": ["add_nrom"]}, r"unknown rule 'add_nrom'; did you mean 'add_norm'"),
        ({"context": 0}, "context is 0, expected at least 1"),
        ({"chunk": 0}, "chunk is 0, expected at least 1"),
    ],
)
def test_bad_options(model: Path, options: dict[str, Any], message: str):
    with pytest.raises(LaneError, match=message):
        load(model, **options)


def test_devices_that_cannot_be_used(model: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LaneError, match=r"unknown device 'gpu'; .*valid: auto, cpu, cuda"):
        lane_mlir.load(model, device="gpu")
    # Whether it is cuda-python that is missing or only a driver.
    monkeypatch.setattr("lane_mlir.runtime.device.has_driver", lambda: False)
    with pytest.raises(
        LaneError, match=r"no driver for NVIDIA GPUs is installed|needs cuda\.core, which is not installed"
    ):
        lane_mlir.load(model, device="cuda")


@pytest.mark.parametrize(("error", "found"), [(None, True), (RuntimeError("no such library"), False)])
def test_a_driver_is_looked_for_by_its_library(error: Exception | None, found: bool, monkeypatch: pytest.MonkeyPatch):
    def load_nvidia_dynamic_lib(name: str) -> None:
        assert name == "cuda"
        if error is not None:
            raise error

    pathfinder = ModuleType("cuda.pathfinder")
    setattr(pathfinder, "load_nvidia_dynamic_lib", load_nvidia_dynamic_lib)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    assert has_driver() is found


def test_no_driver_without_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    assert has_driver() is False


def test_no_text_without_a_tokenizer(model: Path):
    step, _ = load(model)
    with pytest.raises(LaneError, match="no text for tokenizer model 'test'"):
        step.generate("Once")


def test_what_was_compiled(model: Path):
    step, _ = load(model, held=["add_norm"])
    assert list(step.modules) == ["lifted", "fused", "linked", "planned"]
    fused = str(step.modules["fused"])
    assert "tg.fused" in fused
    assert '"add_norm"' not in fused
    assert step.schedule.arena is not None
    assert str(step.module) == str(step.modules["planned"])
    assert {str(d.outcome) for d in step.report.of("add_norm")} == {"held"}
    assert sum(step.schedule.census().values()) > 10
    assert rows_of(step.compiled(5).schedule) == 5


def test_stages_are_what_the_passes_make(model: Path):
    from xdsl.context import Context
    from xdsl.passes import PassPipeline

    from lane_mlir.passes.fuse import FusePass
    from lane_mlir.passes.link import LinkPass
    from lane_mlir.passes.plan import PlanPass

    step, _ = load(model, numerics="int8")
    module = step.modules["lifted"].clone()
    PassPipeline((FusePass(), LinkPass(), PlanPass())).apply(Context(), module)
    assert str(module) == str(step.module)


def test_progress_is_told(model: Path):
    told: list[tuple[str, int, int | None]] = []

    def progress(what: str, done: int = 0, total: int | None = None) -> None:
        told.append((what, done, total))

    step, _ = load(model, chunk=2, progress=progress)
    list(step.generate_ids([1, 2, 3], 1))
    assert [entry for entry in told if entry[2]] == [("reading the prompt", 0, 3), ("reading the prompt", 2, 3)]
    assert ("compiling the step", 0, None) in told


def test_timing(model: Path):
    step, _ = load(model)
    list(step.generate_ids([1, 2, 3], 3))
    assert (step.timing.prefill_tokens, step.timing.decode_tokens) == (3, 2)
    assert step.timing.decode_seconds > 0
