"""lane-bench: how fast a GGUF checkpoint runs on a GPU, and where the time goes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from lane_mlir.diagnostics import UsageError, atomic_write, run_tool
from lane_mlir.tools.arguments import ArgumentParser, names
from lane_mlir.tools.progress import ProgressLine

if TYPE_CHECKING:
    from lane_mlir.checkpoint import Checkpoint
    from lane_mlir.cuda.bench.figures import Figures
    from lane_mlir.cuda.runtime import CudaDevice, CudaProgram
    from lane_mlir.runtime import Step

REPEATS = 7
"""Times that a step, a prompt and each launch are timed; medians are reported."""

_EPILOG = """
Times are the device's own, by events. The table times each launch by itself; in a step they overlap. Weights and state
count as what a step must move; its rate is compared with that of a plain read of memory in the same run.
"""


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lane-bench",
        description="Measure a GGUF checkpoint on a GPU.",
        epilog=_EPILOG,
        usage="%(prog)s MODEL.gguf [options]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL.gguf", help="the checkpoint")
    add("--depth", type=int, default=0, metavar="N", help="tokens before the steps that are timed (default: 0)")
    add("--sequences", type=int, default=1, metavar="N", help="sequences that decode together (default: 1)")
    add("--steps", type=int, default=128, metavar="N", help="decode steps in each repeat (default: %(default)s)")
    add("--repeats", type=int, default=REPEATS, metavar="N", help="repeats, of which medians (default: %(default)s)")
    add("--prompt", type=int, default=512, metavar="N", help="tokens of the prompt; 0 for none (default: %(default)s)")
    add("--chunk", type=int, default=512, metavar="N", help="rows of its chunks (default: %(default)s)")
    add("--numerics", default="int8", help="dequant, int8 (default), two_pass_int8")
    add("--cache", default="f16", help="how keys and values are stored: f32, f16 (default)")
    add("--state", default="f32", help="how recurrent state is stored: f32 (default), bf16")
    add("--held", default="", metavar="RULES", help="rules not to apply: add_norm,act_gate")
    add("--chip", default="h200", help="the chip that launches are planned for (default: %(default)s)")
    add("--a-graph", type=int, default=1, metavar="N", help="decode steps in each graph that is timed (default: 1)")
    add(
        "--json",
        type=Path,
        metavar="OUT.json",
        help="write all figures ('-': to the standard output, and nothing else)",
    )
    add("--trace", type=Path, metavar="OUT.json", help="write a trace of a step, which Perfetto opens")
    add("--plot", type=Path, metavar="OUT.svg", help="draw a roofline")
    add("--version", action="version", version=f"lane-bench {_version()}")
    return parser


def _version() -> str:
    try:
        return version("lane-mlir")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def run(arguments: argparse.Namespace) -> None:
    _refuse_wrong(arguments)
    from lane_mlir.cuda.bench.pictures import roofline, trace

    with ProgressLine() as progress:
        figures, arch = measure(arguments, progress)
    if str(arguments.json) == "-":
        print(json.dumps(figures.json(), indent=1))
    else:
        print("\n".join(figures.lines()))
        if arguments.json is not None:
            _write(arguments.json, json.dumps(figures.json(), indent=1) + "\n")
    if arguments.trace is not None:
        _write(arguments.trace, trace(figures))
    if arguments.plot is not None:
        _write(arguments.plot, roofline(figures, arch))


def _refuse_wrong(arguments: argparse.Namespace) -> None:
    at_least = {
        "--sequences": 1,
        "--steps": 1,
        "--repeats": 1,
        "--chunk": 1,
        "--a-graph": 1,
        "--depth": 0,
        "--prompt": 0,
    }
    for option, least in at_least.items():
        value: int = getattr(arguments, option.strip("-").replace("-", "_"))
        if value < least:
            raise UsageError(f"{option} is {value}, expected at least {least}")
    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        raise UsageError(f"--plot: the picture is an SVG, and {arguments.plot} is not named so")


def measure(arguments: argparse.Namespace, progress: ProgressLine) -> tuple[Figures, str]:
    """Everything that is asked for, and the architecture of the card."""
    from lane_mlir.cuda.bench.figures import Figures, launch_times
    from lane_mlir.cuda.bench.measure import generated_seconds, prompt_seconds, read_bandwidth, step_seconds

    a = arguments
    started = time.perf_counter()
    step, device = _load(a, progress)
    decode = _program(step, 1, a.sequences)
    ready, loaded = time.perf_counter() - started, (device.loaded_bytes, device.loading_seconds)
    was_kept = not device.planned_steps
    # Of a step that was kept it is compiled only now.
    schedule = step.compiled(sequences=a.sequences).schedule
    progress("measuring memory")
    bandwidth = read_bandwidth(device.gpu)
    progress("timing steps")
    for address, size in device.state.regions:
        # Keys, values and state that are not zeros, whose products may take less power.
        device.gpu.compute.fill(address, size, 0x35)
    decode.set_tokens([0] * a.sequences)
    steps = step_seconds(decode, a.depth, a.steps, a.repeats, a_graph=a.a_graph)
    generated = generated_seconds(decode, 0, a.depth, a.steps) if a.steps > 1 else None
    progress("timing launches")
    launches = launch_times(decode, schedule, a.depth, a.repeats)
    progress("timing a prompt")
    chunks = [min(a.chunk, a.prompt - start) for start in range(0, a.prompt, a.chunk)]
    programs = [_program(step, rows) for rows in chunks]
    for program, rows in zip(programs, chunks, strict=True):
        program.set_tokens([0] * rows)
    prompt = prompt_seconds(programs, a.repeats) if programs else []
    assert schedule.target is not None
    figures = Figures(
        model=Path(a.model).name,
        card=device.name,
        target=schedule.target,
        depth=a.depth,
        sequences=a.sequences,
        steps=steps,
        generated=generated,
        launches=launches,
        prompt_tokens=a.prompt,
        chunk=a.chunk,
        prompt=prompt,
        bandwidth=bandwidth,
        loaded=loaded,
        ready=ready,
        was_kept=was_kept,
    )
    return figures, device.gpu.chip.arch


def _load(arguments: argparse.Namespace, progress: ProgressLine) -> tuple[Step, CudaDevice]:
    from lane_mlir.cuda.runtime import CudaDevice
    from lane_mlir.runtime import load

    def on_card(checkpoint: Checkpoint) -> CudaDevice:
        return CudaDevice(checkpoint, progress=progress)

    a = arguments
    # The longest of what is run, and what runs ahead.
    context = max(a.depth + a.steps + a.a_graph + 16, a.prompt + 1)
    step = load(
        a.model,
        numerics=a.numerics,
        device=on_card,
        chip=a.chip,
        held=names(a.held),
        context=context,
        chunk=min(a.chunk, context),
        cache=a.cache,
        state=a.state,
        progress=progress,
    )
    device = step.device
    assert isinstance(device, CudaDevice)
    return step, device


def _program(step: Step, rows: int, sequences: int = 1) -> CudaProgram:
    from lane_mlir.cuda.runtime import CudaProgram

    program = step.compiled(rows, sequences=sequences).program
    assert isinstance(program, CudaProgram)
    return program


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lane-bench`."""
    return run_tool("lane-bench", lambda: run(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
