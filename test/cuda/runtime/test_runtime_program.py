"""Programs of the CUDA runtime on an emulated card: the same as the CPU target, step after step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray
from xdsl.parser import Parser

from lane_mlir.checkpoint import Tensor
from lane_mlir.cpu import CpuProgram, Memory
from lane_mlir.cuda.runtime import CudaDevice, CudaProgram, KernelFault, Options
from lane_mlir.cuda.runtime.weights import GivenTensors
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import Fill, ScheduleOp
from lane_mlir.dialects.tg import ArgumentKind
from lane_mlir.formats import Format
from lane_mlir.runtime.compilation import Recipe, module_context, schedules

CONTEXT, VOCABULARY, WIDTH = 24, 96, 256
RELATIVE = 1e-5
"""Of the largest logit: sums of 256 f32 products in another order."""


def step_text(rows: int, numerics: str) -> str:
    """A step without attention: an embedding, keys rotated into a cache, a residual, tied logits."""
    x, tail = f"tensor<{rows}x{WIDTH}xf32>", f"tensor<1x{WIDTH}xf32>"
    table, wk, wo = (
        f"tensor<{n}x{WIDTH}xf32, #tg.rows<{f}>>" for n, f in ((VOCABULARY, "q8_0"), (128, "q4_1"), (WIDTH, "q8_0"))
    )
    advance = "tg.advance %id to %token, %position : tensor<1xi32>, memref<1xi32>, memref<1xi32>" if rows == 1 else ""
    return f"""builtin.module attributes {{tg.target = #tg.target<h200, {numerics}, cache = f16, state = f32>}} {{
  func.func @step(%token: memref<{rows}xi32> {{tg.arg = #tg.arg<token, 0, "token">}},
                  %position: memref<1xi32> {{tg.arg = #tg.arg<position, 0, "position">}},
                  %cache: memref<{CONTEXT}x128xf32> {{tg.arg = #tg.arg<kv_cache, 0, "blk.0.k">}})
      -> (tensor<1x{VOCABULARY}xf32>, tensor<1xi32>) {{
    %cos, %sin = tg.rope_table base 1.0e+04 freq_scale 1.0 ext_factor 0.0 attn_factor 1.0 beta 32.0, 1.0
      original_context 0 -> tensor<{CONTEXT}x32xf32>, tensor<{CONTEXT}x32xf32>
    %table = tg.constant "token_embd.weight" : {table}
    %x = tg.gather %table[%token] : ({table}, memref<{rows}xi32>) -> {x}
    %w = tg.constant "norm.weight" : tensor<{WIDTH}xf32>
    %n = tg.rms_norm %x weight %w eps 1.0e-05 : ({x}, tensor<{WIDTH}xf32>) -> {x}
    %wk = tg.constant "k.weight" : {wk}
    %k = tg.matmul %n, %wk : ({x}, {wk}) -> tensor<{rows}x128xf32>
    %heads = tg.view %k from 0 : (tensor<{rows}x128xf32>) -> tensor<{2 * rows}x64xf32>
    %rotated = tg.rope %heads by %cos, %sin at %position heads 2 half : (tensor<{2 * rows}x64xf32>, tensor<{CONTEXT}x32xf32>, tensor<{CONTEXT}x32xf32>, memref<1xi32>) -> tensor<{2 * rows}x64xf32>
    %flat = tg.view %rotated from 0 : (tensor<{2 * rows}x64xf32>) -> tensor<{rows}x128xf32>
    tg.set_row %flat into %cache[%position] : tensor<{rows}x128xf32>, memref<{CONTEXT}x128xf32>, memref<1xi32>
    %wo = tg.constant "o.weight" : {wo}
    %o = tg.matmul %n, %wo : ({x}, {wo}) -> {x}
    %y = tg.binary add %x, %o : ({x}, {x}) -> {x}
    %last = tg.slice %y every {rows * WIDTH} from {(rows - 1) * WIDTH} width {WIDTH} : ({x}) -> {tail}
    %m = tg.rms_norm %last weight %w eps 1.0e-05 : ({tail}, tensor<{WIDTH}xf32>) -> {tail}
    %logits = tg.matmul %m, %table : ({tail}, {table}) -> tensor<1x{VOCABULARY}xf32>
    %id = tg.argmax %logits : (tensor<1x{VOCABULARY}xf32>) -> tensor<1xi32>
    {advance}
    func.return %logits, %id : tensor<1x{VOCABULARY}xf32>, tensor<1xi32>
  }}
}}
"""


@cache
def schedule(rows: int = 1, numerics: str = "int8") -> ScheduleOp:
    module = Parser(module_context(), step_text(rows, numerics)).parse_module()
    module.verify()
    Recipe(held=("qkv_head_epilogue",)).lower(module)
    (found,) = schedules(module)
    return found


@cache
def tensors() -> dict[str, Tensor]:
    rng = np.random.default_rng(5)
    shapes = {
        "token_embd.weight": ((VOCABULARY, WIDTH), Format.Q8_0),
        "norm.weight": ((WIDTH,), Format.F32),
        "k.weight": ((128, WIDTH), Format.Q4_1),
        "o.weight": ((WIDTH, WIDTH), Format.Q8_0),
    }
    found: dict[str, Tensor] = {}
    for offset, (name, (shape, fmt)) in enumerate(shapes.items()):
        values = rng.standard_normal(shape).astype(np.float32) / np.float32(8)
        data = values if fmt is Format.F32 else quants.quantize(values, GGMLQuantizationType[str(fmt).upper()])
        found[name] = Tensor(name, shape, fmt, offset, data.view(np.uint8).reshape(int(np.prod(shape[:-1])), -1))
    return found


def memory() -> Memory:
    return Memory({name: tensor.values() for name, tensor in tensors().items()})


@pytest.fixture
def new_device(new_gpu: Callable[..., Any]) -> Callable[..., CudaDevice]:
    def make(options: Options | None = None, **fields: Any) -> CudaDevice:
        return CudaDevice(GivenTensors(tensors()), new_gpu(**fields), options=options or Options())

    return make


def close(got: NDArray[Any], want: NDArray[Any]) -> bool:
    return bool(np.abs(got - want).max() <= RELATIVE * np.abs(want).max())


def greedy(steps: int, token: int = 3) -> tuple[list[int], NDArray[np.float32]]:
    """The tokens that the CPU target makes after a token, and the logits of the last."""
    program = CpuProgram(schedule(), memory())
    program.set_tokens([token])
    made: list[int] = []
    for _ in range(steps):
        program.run()
        made.append(int(program.output(1)[0]))
    return made, program.output(0).copy()


@pytest.mark.parametrize("numerics", ["dequant", "int8", "two_pass_int8"])
def test_a_chunk_and_then_steps_equal_the_cpu_target(new_device: Any, numerics: str):
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
    (buffer,) = (op for op in program.schedule.buffers() if op.fill.data is Fill.ZERO)
    rows = np.zeros(buffer.shape.data, np.float16)
    device.gpu.compute.download(rows, device.state.address(buffer))
    return rows.astype(np.float32).reshape(-1)


def caches(program: CpuProgram) -> NDArray[Any]:
    (array,) = (a for op, a in program.arguments if op.role is not None and op.role.kind.data is ArgumentKind.KV_CACHE)
    return array.astype(np.float32).reshape(-1)


def test_programs_share_weights_and_state(new_device: Any):
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


def test_a_step_runs_as_one_graph(new_device: Any):
    program = new_device().compile(schedule())
    program.set_tokens([3])
    program.run()
    program.run()
    assert program.gpu.graph_sizes == [len(program.launches)] * 2
    assert all(bound.launch.pdl for bound in program.launches)


def test_without_programmatic_launches(new_device: Any):
    program = new_device(Options(pdl=False)).compile(schedule())
    assert not any(bound.launch.pdl for bound in program.launches)


@pytest.mark.parametrize(
    "options",
    [Options(), Options(steps=3, ahead=2), Options(steps=1, ahead=1), Options(graphs=False), Options(checked=True)],
)
@pytest.mark.parametrize("count", [1, 11])
def test_tokens_ahead_of_the_host(new_device: Any, options: Options, count: int):
    program = new_device(options).compile(schedule())
    want, _ = greedy(count)
    for _ in range(2):  # again, with the ring somewhere in its middle
        program.set_tokens([3])
        program.set_position(0)
        assert list(program.continued(count)) == want
        assert program.position == count


def test_steps_are_queued_in_graphs_of_several(new_device: Any):
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


def test_the_context_ends_a_continuation(new_device: Any):
    program = new_device().compile(schedule())
    program.set_tokens([3])
    program.set_position(CONTEXT - 6)
    assert len(list(program.continued(100))) == 6
    assert program.position == CONTEXT
    with pytest.raises(LaneError, match="position 24 with 1 row is not within the context of 24 positions"):
        program.run()


def test_a_continuation_that_was_left_is_begun_anew(new_device: Any):
    program = new_device().compile(schedule())
    want, _ = greedy(6)
    for _ in range(3):
        program.set_tokens([3])
        program.set_position(0)
        made = program.continued(12)
        assert [next(made) for _ in range(6)] == want
        made.close()


def test_what_a_step_does_not_take(new_device: Any):
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
    with pytest.raises(LaneError, match="the step @step does not continue one sequence by itself"):
        chunk.continued(1)


def test_what_does_not_fit_says_what_for(new_device: Any):
    with pytest.raises(
        LaneError,
        match=r"does not fit into the memory of an emulated card: it needs 1\d\d\.\d\d KiB more \(1\d\d\.\d\d KiB for weights, "
        r"[\d.]+ KiB for cache and state, [\d.]+ KiB for the arena\), and 100\.00 KiB of 100\.00 KiB are free",
    ):
        new_device(capacity=100 << 10).compile(schedule())


def test_a_kernel_that_fails_is_named_with_its_launch_and_buffers(new_device: Any):
    symbol = next(
        bound.use.symbol
        for bound in new_device().compile(schedule()).launches
        if "gemv_parts" in bound.use.symbol or "gemv" in bound.use.symbol
    )
    program = new_device(Options(checked=True), failing=symbol).compile(schedule())
    program.set_tokens([3])
    with pytest.raises(KernelFault) as raised:
        program.run()
    message = str(raised.value)
    assert message.startswith(f"CUDA_ERROR_ILLEGAL_ADDRESS in the kernel {symbol} of @step, which runs launch.")
    assert '"k.weight" f32[128x256] at 0x' in message or '"o.weight" f32[256x256] at 0x' in message
    assert "\n" not in message


def test_a_schedule_without_a_plan_is_refused(new_device: Any):
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
