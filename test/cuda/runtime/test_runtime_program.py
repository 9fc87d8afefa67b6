"""Programs of the CUDA runtime on an emulated card: the same as the CPU target, step after step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.cpu import CpuProgram
from lane_mlir.cuda.runtime import CudaDevice, CudaProgram, KernelFault, Options
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import ArgumentKind

CONTEXT = 24
RELATIVE = 1e-5
"""Of the largest logit: sums of 256 f32 products in another order."""


def close(got: NDArray[Any], want: NDArray[Any]) -> bool:
    return bool(np.abs(got - want).max() <= RELATIVE * np.abs(want).max())


@pytest.fixture
def greedy(schedule: Any, memory: Any) -> Callable[[int], list[int]]:
    """`greedy(n)`: the tokens that the CPU target makes after token 3."""

    def make(steps: int) -> list[int]:
        program = CpuProgram(schedule(), memory())
        program.set_tokens([3])
        made: list[int] = []
        for _ in range(steps):
            program.run()
            made.append(int(program.output(1)[0]))
        return made

    return make


@pytest.mark.parametrize("numerics", ["dequant", "int8", "two_pass_int8"])
def test_a_chunk_and_then_steps_equal_the_cpu_target(schedule: Any, memory: Any, new_device: Any, numerics: str):
    device, shared = new_device(), memory()
    steps = [
        (device.compile(schedule(rows, numerics)), CpuProgram(schedule(rows, numerics), shared)) for rows in (5, 1)
    ]
    tokens = np.array([7, 1, 95, 0, 7], np.int32)
    for program in steps[0]:
        program.set_tokens(tokens)
        program.set_position(2)
        program.run()
    mine, theirs = steps[0]
    assert close(mine.output(0), theirs.output(0))
    for program in steps[1]:
        program.set_tokens([11])
        program.set_position(7)
        program.run()
        program.run()
    mine, theirs = steps[1]
    assert close(mine.output(0), theirs.output(0))
    assert mine.output(1).tolist() == theirs.output(1).tolist()
    assert mine.position == theirs.position == 9
    assert state_of(device, mine) == pytest.approx(caches(theirs), abs=2e-3)  # f16 rounds to 11 bits
    device.gpu.check()


def state_of(device: CudaDevice, program: CudaProgram) -> NDArray[Any]:
    (array,) = (array for array in program.executable.state if array.kind == "kv_cache")
    rows = np.zeros(array.shape, array.dtype)
    assert rows.dtype == np.float16
    device.gpu.compute.download(rows, device.state.address(array, 0))
    return rows.astype(np.float32).reshape(-1)


def caches(program: CpuProgram) -> NDArray[Any]:
    (array,) = (a for op, a in program.arguments if op.role is not None and op.role.kind.data is ArgumentKind.KV_CACHE)
    return array.astype(np.float32).reshape(-1)


def test_programs_share_weights_and_state(schedule: Any, new_device: Any):
    device = new_device()
    first = device.compile(schedule(5))
    blocks, sources = len(device.gpu.blocks), len(device.gpu.sources)
    sizes = [block.size for block in device.gpu.blocks]
    second = device.compile(schedule(1))
    # New are the arena, scratch, and the tokens of another number of rows; of weights nothing.
    assert sum(block.size for block in device.gpu.blocks[blocks:]) < max(sizes)
    assert [source.name for source in device.gpu.sources[sources:]] == ["step.cu"]
    first.set_position(3)
    assert second.position == 3
    device.reset()
    assert first.position == 0


def test_a_step_runs_as_one_graph(schedule: Any, new_device: Any):
    program = new_device().compile(schedule())
    program.set_tokens([3])
    program.run()
    program.run()
    assert program.gpu.graph_sizes == [len(program.launches)] * 2
    assert all(bound.launch.pdl for bound in program.launches)


def test_without_programmatic_launches(schedule: Any, new_device: Any):
    program = new_device(Options(pdl=False)).compile(schedule())
    assert not any(bound.launch.pdl for bound in program.launches)


@pytest.mark.parametrize(
    "options",
    [Options(), Options(steps=3, ahead=2), Options(steps=1, ahead=1), Options(graphs=False), Options(checked=True)],
)
@pytest.mark.parametrize("count", [1, 11])
def test_tokens_ahead_of_the_host(schedule: Any, greedy: Any, new_device: Any, options: Options, count: int):
    program = new_device(options).compile(schedule())
    want = greedy(count)
    for _ in range(2):  # again, with the ring somewhere in its middle
        program.set_tokens([3])
        program.set_position(0)
        assert [token for (token,) in program.continued(count)] == want
        assert program.position == count


def test_steps_are_queued_in_graphs_of_several(schedule: Any, new_device: Any):
    program = new_device(Options(steps=4, ahead=2)).compile(schedule())
    program.set_tokens([3])
    made = program.continued(CONTEXT)
    next(made)
    a_step = len(program.launches) + 1
    assert program.gpu.graph_sizes == [4 * a_step] * 2
    assert program.position == 8
    for _ in range(4):
        next(made)
    assert program.gpu.graph_sizes == [4 * a_step] * 3


def test_the_context_ends_a_continuation(schedule: Any, new_device: Any):
    program = new_device().compile(schedule())
    program.set_tokens([3])
    program.set_position(CONTEXT - 6)
    assert len(list(program.continued(100))) == 6
    assert program.position == CONTEXT
    with pytest.raises(LaneError, match="position 24 with 1 row is not within the context of 24 positions"):
        program.run()


def test_a_continuation_that_was_left_is_begun_anew(schedule: Any, greedy: Any, new_device: Any):
    program = new_device().compile(schedule())
    want = greedy(6)
    for _ in range(3):
        program.set_tokens([3])
        program.set_position(0)
        made = program.continued(12)
        assert [next(made)[0] for _ in range(6)] == want
        made.close()


def test_what_a_step_does_not_take(schedule: Any, new_device: Any):
    device = new_device()
    program, chunk = device.compile(schedule()), device.compile(schedule(5))
    for tokens, message in (
        ([1, 2], "2 tokens are given to a step of 1 rows"),
        ([96], "token 96 of row 0 is not within the vocabulary of 96 tokens"),
        ([-1], "token -1 of row 0 is not within"),
        ([0.5], "tokens are given as float64"),
    ):
        with pytest.raises(LaneError, match=message):
            program.set_tokens(tokens)
    with pytest.raises(LaneError, match="position 20 with 5 rows is not within the context of 24 positions"):
        chunk.set_position(20)
    with pytest.raises(LaneError, match="position -1 with 1 row is not"):
        program.set_position(-1)
    with pytest.raises(LaneError, match="no position of sequence 1"):
        program.set_position(0, 1)
    with pytest.raises(LaneError, match="the step @step does not move token and position on by itself"):
        chunk.continued(1)


def test_what_does_not_fit_says_what_for(schedule: Any, new_device: Any):
    with pytest.raises(
        LaneError,
        match=r"does not fit into the memory of an emulated card: it needs 1\d\d\.\d\d KiB more \(1\d\d\.\d\d KiB for weights, "
        r"[\d.]+ KiB for cache and state, [\d.]+ KiB for the arena\), and 100\.00 KiB of 100\.00 KiB are free",
    ):
        new_device(capacity=100 << 10).compile(schedule())


def test_a_kernel_that_fails_is_named_with_its_launch_and_buffers(schedule: Any, new_device: Any):
    symbol = next(
        bound.call.kernel for bound in new_device().compile(schedule()).launches if "gemv" in bound.call.kernel
    )
    program = new_device(Options(checked=True), failing=symbol).compile(schedule())
    program.set_tokens([3])
    with pytest.raises(KernelFault) as raised:
        program.run()
    message = str(raised.value)
    assert message.startswith(f"CUDA_ERROR_ILLEGAL_ADDRESS in the kernel {symbol} of @step, which runs launch.")
    assert '"k.weight" f32[128x256] at 0x' in message or '"o.weight" f32[256x256] at 0x' in message
    assert "\n" not in message


def test_a_schedule_without_a_plan_is_refused(schedule: Any, new_device: Any):
    planned = schedule().clone()
    planned.arena = None
    with pytest.raises(LaneError, match="schedule @step has no arena: run plan before"):
        new_device().compile(planned)


def test_debug_options(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LANE_CUDA_DEBUG", "no-pdl,checked")
    assert Options.from_environment() == Options(pdl=False, checked=True)
    monkeypatch.setenv("LANE_CUDA_DEBUG", "no-pld")
    with pytest.raises(LaneError, match="LANE_CUDA_DEBUG: unknown option 'no-pld'; did you mean 'no-pdl'"):
        Options.from_environment()


def test_weights_are_loaded_while_kernels_are_compiled(schedule: Any, new_device: Any, monkeypatch: pytest.MonkeyPatch):
    device, events = new_device(), list[str]()
    begin, load = device.gpu.begin, device.weights.load

    def begun(source: Any) -> Any:
        events.append("begin")
        loaded = begin(source)

        def wait() -> Any:
            events.append("wait")
            return loaded()

        return wait

    def loading(arrival: Any) -> Any:
        events.append("weights")
        yield from load(arrival)

    monkeypatch.setattr(device.gpu, "begin", begun)
    monkeypatch.setattr(device.weights, "load", loading)
    device.compile(schedule())
    assert events == ["begin", "weights", "wait"]
