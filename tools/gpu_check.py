"""
gpu_check: check everything that runs on a GPU, on the card that is there: weights, kernels, whole models.

`python -m lane_mlir.tools.gpu_check` from the repository's folder. Prints a table at the end, writes the details to a
file, and exits with 0 if everything held.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which
from typing import Any

from lane_mlir.cuda.check.finding import KERNEL_TESTS, Finding, Verdict, case_of
from lane_mlir.cuda.check.reporter import matches
from lane_mlir.cuda.check.tasks import Task, Tasks
from lane_mlir.diagnostics import LaneError, UsageError, read_text, run_tool
from lane_mlir.tools.arguments import ArgumentParser
from lane_mlir.tools.get_models import GEMMA3, SMOLLM2, models_folder

ROOT = Path(__file__).resolve().parents[1]
NUMERICS = ("dequant", "int8", "two_pass_int8")
FAST_CHUNKS = (1, 17)
KINDS = ("repack", KERNEL_TESTS, "models", "real")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
SHARDS = 6
"""Processes between which the tests of kernels are split."""

_EXPECTED = {SMOLLM2.file: "smollm2-135m-instruct-Q4_1-greedy.json", GEMMA3.file: "gemma-3-270m-Q4_K_M-greedy.json"}
"""For each real model the file with the tokens that are expected of it."""


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="gpu_check", description="Check weights, kernels and whole models on a GPU.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--only", default="", metavar="PATTERN", help="only cases whose name contains this; * stands for anything")
    add("--fast", action="store_true", help="fewer numbers of rows, fewer numerics")
    add("--jobs", type=int, default=min(12, max(1, (os.cpu_count() or 1) - 2)), metavar="N", help="processes at a time")
    add("--budget", type=float, default=450.0, metavar="SECONDS", help="begin nothing after this long (default: 450)")
    add("--models", type=Path, default=ROOT / "test/data/models", metavar="DIR", help="tiny models with logits")
    add("--tests", type=Path, default=ROOT / "test/cuda", metavar="DIR", help="tests of kernels")
    add("--oracles", type=Path, default=ROOT / "test/text/data", metavar="DIR", help="expected tokens of real models")
    add("--sanitize", choices=SANITIZERS, help="instead, tests of sanitized.txt under compute-sanitizer")
    add("--real", type=Path, default=models_folder(), metavar="DIR", help="where the real models are, if they are")
    add("--skip", action="append", default=[], choices=KINDS, help="what not to check")
    add("--details", type=Path, default=Path("gpu_check.jsonl"), metavar="FILE", help="all findings, one a line")
    add("--all", action="store_true", help="list what held, too")
    return parser


def tasks(arguments: Namespace) -> list[Task]:
    """
    What is to be done, the longest first.

    Raises: LaneError for options that name nothing to do, or exclude each other.
    """
    if arguments.jobs < 1:
        raise UsageError(f"--jobs is {arguments.jobs}, expected at least 1")
    if not arguments.budget > 0:
        raise UsageError(f"--budget is {arguments.budget:g}, expected more than 0")
    if arguments.sanitize is not None:
        if arguments.fast or arguments.skip:
            raise UsageError(f"--sanitize and {'--fast' if arguments.fast else '--skip'} exclude each other")
        return list(_sanitized(arguments))
    numerics = NUMERICS[:2] if arguments.fast else NUMERICS
    found: list[Task] = []
    if "repack" not in arguments.skip:
        found.append(Task("repack", {"kind": "repack"}))
    if "real" not in arguments.skip:
        found += _real_models(arguments)
    if KERNEL_TESTS not in arguments.skip:
        found += [Task(KERNEL_TESTS, tests=arguments.tests, shard=f"{i}/{SHARDS}") for i in range(SHARDS)]
    if "models" not in arguments.skip:
        found += _tiny_models(arguments, numerics)
    if not found:
        raise UsageError("--skip leaves nothing to check")
    # A pattern that names tasks spares the others their start.
    named = [task for task in found if task.name in arguments.only]
    return named or [task for task in found if task.name.split()[0] in arguments.only] or found


def _sanitized(arguments: Namespace) -> Iterator[Task]:
    """Tests that together run every kernel template."""
    if which("compute-sanitizer") is None:
        raise LaneError("--sanitize needs compute-sanitizer, which is not on the PATH: it comes with the CUDA toolkit")
    selection: Path = arguments.tests / "sanitized.txt"
    lines = [line for line in read_text(selection).splitlines() if line.strip() and not line.startswith("#")]
    # As the processes match their cases; one that would run none is not begun.
    wanted = [line for line in lines if matches(f"{KERNEL_TESTS} {case_of(line)}", arguments.only or "*")]
    if not wanted:
        raise LaneError(
            f"no test of {selection} is named like --only {arguments.only!r}" if lines else f"{selection} names no test"
        )
    for line in wanted:
        yield Task(f"{arguments.sanitize} {line}", tests=arguments.tests / line, sanitizer=arguments.sanitize)


def _real_models(arguments: Namespace) -> Iterator[Task]:
    for model, expected in _EXPECTED.items():
        for numerics in ("dequant", "int8"):
            fields = {"kind": "real", "path": str(arguments.real / model), "numerics": numerics}
            yield Task(f"{model} {numerics}", {**fields, "expected": str(arguments.oracles / expected)})


def _tiny_models(arguments: Namespace, numerics: Sequence[str]) -> Iterator[Task]:
    paths = [path for path in sorted(arguments.models.glob("*.gguf")) if path.with_suffix(".npz").is_file()]
    if not paths:
        raise LaneError(f"no models with logits beside them are in {arguments.models}")
    chunks = {"chunks": FAST_CHUNKS} if arguments.fast else {}
    for how in numerics:
        for path in paths:
            yield Task(f"{path.stem} {how}", {"kind": "model", "path": str(path), "numerics": how, **chunks})
    if not arguments.fast:
        for path in paths:
            fields = {"kind": "model", "path": str(path), "numerics": "int8", "cache": "f16", "chunks": FAST_CHUNKS}
            yield Task(f"{path.stem} int8 f16", fields)


def run(arguments: Namespace) -> int:
    from lane_mlir.cuda.runtime.cuda_gpu import open_gpu

    wanted = tasks(arguments)
    # Asked in this process once, so that a missing card is one line and not one a task.
    card = open_gpu()
    print(f"{card.name} ({card.chip.arch}, {card.chip.multiprocessors} multiprocessors), {_versions()}", flush=True)
    started = time.monotonic()
    found: list[Finding] = []
    # What the last run found is lost only where this one begins.
    with open(arguments.details, "w", encoding="utf-8") as details:
        running = Tasks(arguments.jobs, arguments.only or "*", started + arguments.budget)
        for finding in running.run(wanted):
            found.append(finding)
            details.write(json.dumps(vars(finding)) + "\n")
            details.flush()
            if finding.verdict is Verdict.FAILED:
                print(_line(finding), flush=True)
    print()
    _print_table(found, arguments.all)
    failed = sum(finding.verdict is Verdict.FAILED for finding in found)
    skipped = sum(finding.verdict is Verdict.SKIPPED for finding in found)
    held = len(found) - failed - skipped
    print(f"{held} held, {failed} failed, {skipped} skipped, in {time.monotonic() - started:.0f} s")
    print(f"details: {arguments.details}")
    return int(bool(failed) or not held)


def _versions() -> str:
    driver: Any = import_module("cuda.bindings.driver")
    nvrtc: Any = import_module("cuda.bindings.nvrtc")
    _, number = driver.cuDriverGetVersion()
    _, major, minor = nvrtc.nvrtcVersion()
    try:
        core = version("cuda-core")
    except PackageNotFoundError:
        core = "unknown"
    return f"driver for CUDA {number // 1000}.{number % 1000 // 10}, NVRTC {major}.{minor}, cuda.core {core}"


def _line(finding: Finding) -> str:
    """A finding on one line."""
    error = "" if finding.error is None else f"{finding.error:.1e} of {finding.tolerance:.0e}"
    return f"{finding.verdict:<7} {finding.name:<60} {error:<18} {_gist(finding.detail)}".rstrip()


def _gist(detail: str) -> str:
    """The line of a finding's detail that says the most: of a traceback the last one."""
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1 if "Traceback" in detail or lines[0].startswith("the process") else 0][:160]


def _print_table(found: Sequence[Finding], everything: bool) -> None:
    """A line a group of cases that differ only in where and when they ran, with the worst error of each."""
    groups: dict[str, list[Finding]] = {}
    for finding in found:
        groups.setdefault(_group(finding), []).append(finding)
    print(f"{'':<48} {'held':>5} {'failed':>6} {'worst':>9} {'allowed':>9}")
    for name, findings in sorted(groups.items()):
        failed = sum(finding.verdict is Verdict.FAILED for finding in findings)
        if not failed and not everything and len(groups) > 400:
            continue
        errors = [(finding.error, finding.tolerance or 0.0) for finding in findings if finding.error is not None]
        worst, allowed = max(errors, default=(None, None), key=lambda pair: pair[0] or 0.0)
        numbers = "" if worst is None or allowed is None else f"{worst:9.1e} {allowed:9.0e}"
        held = sum(finding.verdict is Verdict.HELD for finding in findings)
        print(f"{name:<48} {held:>5} {failed or '':>6} {numbers}".rstrip())


def _group(finding: Finding) -> str:
    """A kernel, a test file, or what else a case is one of many of."""
    last = finding.case.split()[-1]
    kernel, _, number = last.rpartition(".")
    if finding.task == KERNEL_TESTS:
        return f"tests of {finding.case.split('.')[0]}"
    if kernel and number.isdecimal():
        return f"launches {kernel} {finding.task.split()[1]}"
    if finding.task == "repack":
        return "repack"
    words = finding.task.split()
    return f"{' '.join(words[1:])} {last}" if last in ("logits", "greedy", "compiles") else finding.task


def main(argv: Sequence[str] | None = None) -> int:
    """The command `gpu_check`."""
    return run_tool("gpu_check", lambda: run(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
