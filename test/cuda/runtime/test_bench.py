"""What lane-bench counts, times and draws, on an emulated card; only the times mean nothing there."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from lane_mlir.cuda.bench.figures import Figures, by_kind, launch_times
from lane_mlir.cuda.bench.measure import generated_seconds, prompt_seconds, read_bandwidth, step_seconds
from lane_mlir.cuda.bench.pictures import roofline, trace
from lane_mlir.cuda.bench.traffic import operations, traffic
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.runtime import CudaProgram
from lane_mlir.dialects.launch import AttentionOp, MoeOp, ScheduleOp
from lane_mlir.dialects.tg import Numerics
from lane_mlir.formats import Format
from lane_mlir.runtime.compilation import module_context
from lane_mlir.tools.lane_bench import main


@pytest.fixture
def program(new_device: Callable[..., Any], schedule: Callable[..., ScheduleOp]) -> CudaProgram:
    return new_device().compile(schedule())


@pytest.fixture
def figures(program: CudaProgram, schedule: Any) -> Figures:
    program.set_tokens([3])
    target = schedule().target
    assert target is not None
    launches = launch_times(program, schedule(), 2, repeats=1)
    return Figures(
        "tiny <q8_0>.gguf", "a card", target, 2, 1, step_seconds(program, 2, 4, 2), 1e-4, launches, 5, 5, [1e-3], 4e12, (1000, 0.5), 2.0, False
    )  # fmt: skip


def test_weights_and_state_of_a_step(figures: Figures):
    """Each weight once, one row of the embedding, and the head again as a product."""
    planes = {fmt: layout(fmt).size for fmt in (Format.Q8_0, Format.Q4_1)}
    products = planes[Format.Q8_0](96, 256) + planes[Format.Q4_1](128, 256) + planes[Format.Q8_0](256, 256)
    row, norms, tables = planes[Format.Q8_0](96, 256) / 96, 2 * 4 * 256, 2 * 4 * 32
    assert figures.traffic.weights == pytest.approx(products + row + norms + tables)
    # A row of the f16 cache, the token and the position, read and moved on.
    assert 2 * 128 <= figures.traffic.state <= 2 * 128 + 32
    assert figures.traffic.operations == 2 * 256 * (96 + 128 + 256)
    assert figures.must_move == figures.traffic.weights + figures.traffic.state


def test_every_launch_is_timed_and_counted_once(figures: Figures, program: CudaProgram, schedule: Any):
    census = schedule().census()
    assert {kind.kind: kind.count for kind in by_kind(figures.launches)} == census
    assert sum(len(launch.kernels) for launch in figures.launches) == len(program.launches)
    assert len(figures.steps) == 2


def test_the_report(figures: Figures):
    data = json.loads(json.dumps(figures.json()))
    assert data["decode"]["tokens_per_second"] == pytest.approx(1 / figures.step)
    assert data["prefill"] == {"tokens": 5, "chunk": 5, "seconds": 1e-3, "tokens_per_second": 5000.0}
    assert sum(kind["bytes"] for kind in data["kinds"]) == pytest.approx(figures.traffic.bytes)
    assert data["load"] == {"bytes": 1000, "seconds": 0.5, "ready_seconds": 2.0, "was_kept": False}
    lines = figures.lines()
    assert lines[1] == "load      0.00 GB in 0.50 s (0.0 GB/s); 2.00 s from the file to a step, compiled"
    assert lines[0] == "tiny <q8_0>.gguf on a card: int8, cache f16, state f32"
    assert any(line.startswith("prefill   5000 tok/s") for line in lines)
    assert sum(line.startswith("gemv") for line in lines) == sum(
        kind.startswith("gemv") for kind in [k.kind for k in by_kind(figures.launches)]
    )


def test_a_trace_has_a_slice_a_launch_one_after_the_other(figures: Figures):
    events = json.loads(trace(figures))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(figures.launches)
    for before, after in pairwise(slices):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"])


def test_a_roofline_is_sound_svg(figures: Figures):
    for arch in ("sm_90a", "sm_120"):
        root = ElementTree.fromstring(roofline(figures, arch))
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        drawn = {kind.kind for kind in by_kind(figures.launches) if kind.traffic.operations and kind.seconds}
        assert {text.split(":")[0] for text in titles if text is not None} == drawn != set()


def test_times(program: Any, new_device: Any, schedule: Any):
    assert len(step_seconds(program, 0, 6, 3, a_graph=3)) == 3
    assert program.gpu.graph_sizes[-2:] == [3 * len(program.launches)] * 2
    assert generated_seconds(program, 3, 0, 9) > 0
    device = new_device()
    chunks = [device.compile(schedule(rows)) for rows in (5, 5, 1)]
    assert len(prompt_seconds(chunks, 2)) == 2
    assert chunks[0].position == 10
    assert read_bandwidth(new_device(capacity=1 << 20).gpu) > 0


MIXTURE = """
launch.schedule @test target<h200, int8, cache = f16, state = f32> {
  %x = launch.buffer "x" f32[1x256] computed plain quantized
  %wr = launch.buffer "wr" f32[8x256] constant #launch.tensor<"wr", f32> plain
  %wg = launch.buffer "wg" f32[8x64x256] constant #launch.tensor<"wg", q8_0> plain
  %wd = launch.buffer "wd" f32[8x256x64] constant #launch.tensor<"wd", q8_0> plain
  %y = launch.buffer "y" f32[1x256] computed plain
  %q = launch.buffer "q" f32[1x256] computed plain
  %kc = launch.buffer "kc" f16[100x128] zero #tg.arg<kv_cache, 0, "k"> plain
  %vc = launch.buffer "vc" f16[100x128] zero #tg.arg<kv_cache, 0, "v"> plain
  %pos = launch.buffer "pos" i32[1] param #tg.arg<position, 0> plain
  launch.moe %x router %wr experts %wg, %wg, %wd [q8_0, q8_0, q8_0] into %y score softmax act silu
    (d = 256, dff = 64, experts = 8, k = 2, rows = 1)
  launch.attention %q, %kc, %vc at %pos into %y (heads = 4, group = 2, hd = 64, vd = 64, len = 100, rows = 1)
    values 128 + 0 scale = 0.125 window = 32 (per_block = 1, splits = 1) f32
  launch.yield
}
"""


@pytest.fixture
def mixture() -> ScheduleOp:
    module = Parser(module_context(), MIXTURE).parse_module()
    assert isinstance(module, ModuleOp)
    (found,) = (op for op in module.body.block.ops if isinstance(op, ScheduleOp))
    return found


@pytest.mark.parametrize("position, rows", [(0, 1), (9, 10), (31, 32), (80, 32)])
def test_attention_reads_the_rows_up_to_its_position(mixture: ScheduleOp, position: int, rows: int):
    (attention,) = (op for op in mixture.launches() if isinstance(op, AttentionOp))
    uses: Any = [_Use(attention)]
    moved = traffic(uses, position, Numerics.INT8)
    assert moved.state == 2 * rows * 128 * 2 + 4
    assert operations(attention, position) == 2 * 4 * 128 * rows


def test_a_mixture_computes_its_chosen_experts(mixture: ScheduleOp):
    (moe,) = (op for op in mixture.launches() if isinstance(op, MoeOp))
    assert operations(moe, 0) == 2 * 256 * (2 * 3 * 64 + 8)


class _Use:
    """A launch without kernels: what it reads of weights is not counted."""

    arguments = ()

    def __init__(self, launch: Any):
        self.launch = launch


def test_what_the_command_refuses(capsys: pytest.CaptureFixture[str]):
    for arguments, status, message in (
        (["m.gguf", "--steps", "0"], 2, "--steps is 0, expected at least 1"),
        (["m.gguf", "--plot", "a.png"], 2, "--plot: the picture is an SVG, and a.png is not named so"),
        (["m.gguf", "--frobnicate"], 2, "unrecognized arguments: --frobnicate"),
        (["none.gguf"], 1, "none.gguf: no such file"),
    ):
        assert main(arguments) == status
        assert f"lane-bench: error: {message}" in capsys.readouterr().err
