"""What gpu_check is made of, on an emulated card: it finds what is wrong, and nothing where all is right."""

from __future__ import annotations

import ctypes
import json
import sys
import textwrap
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lane_mlir.cuda.check import tasks as check_tasks
from lane_mlir.cuda.check.finding import Finding, Verdict, finding_of, read_message
from lane_mlir.cuda.check.kernel_tests import CardRunner
from lane_mlir.cuda.check.launches import LaunchCheck
from lane_mlir.cuda.check.models import compared_ids, worst_row
from lane_mlir.cuda.check.reporter import Reporter
from lane_mlir.cuda.check.tasks import Task, Tasks
from lane_mlir.cuda.runtime import CudaDevice, Options
from lane_mlir.cuda.runtime.gpu import KernelLaunch

# --- the launches of a step, one by one ---

Found = dict[str, Finding]
Spoil = Callable[[Any, Any], None]


def findings(capsys: pytest.CaptureFixture[str]) -> Found:
    messages = (read_message(line) for line in capsys.readouterr().out.splitlines())
    found = [finding_of(message["finding"]) for message in messages if message is not None and "finding" in message]
    return {finding.case: finding for finding in found}


@pytest.fixture
def check_launches(
    new_device: Callable[..., CudaDevice], memory: Any, schedule: Any, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Found]:
    """Checks the launches of the test's step at a position; `spoil` gets each kernel launch before it runs."""

    def check(rows: int, numerics: str, position: int, spoil: Spoil | None = None) -> Found:
        device = new_device(Options())
        program = device.compile(schedule(rows, numerics))
        launch = device.gpu.compute.launch
        if spoil is not None:

            def spoiled(made: KernelLaunch) -> None:
                launch(made)
                spoil(program, made)

            setattr(device.gpu.compute, "launch", spoiled)
        LaunchCheck(program, schedule(rows, numerics), memory(), device.state.regions).run(
            Reporter("tiny"), "rows", position
        )
        return findings(capsys)

    return check


@pytest.mark.parametrize("rows, numerics, position", [(1, "int8", 0), (1, "dequant", 7), (5, "two_pass_int8", 7)])
def test_every_launch_holds(check_launches: Any, rows: int, numerics: str, position: int):
    found = check_launches(rows, numerics, position)
    assert len(found) >= 6
    assert {finding.verdict for finding in found.values()} == {Verdict.HELD}
    errors = [finding.error for finding in found.values() if finding.error is not None]
    assert 0 < max(errors) < 1e-5


def test_a_kernel_that_writes_something_else_is_found_and_no_other(check_launches: Any):
    """The argmax that reads what is wrong gets the right inputs."""

    def spoil(program: Any, made: Any) -> None:
        logits = program.placement.address(program.executable.outputs[0].place)
        if logits in made.arguments and "gemv" in made.kernel.symbol:
            ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))[5] += 1e-3

    found = check_launches(1, "int8", 3, spoil)
    (wrong,) = (finding for finding in found.values() if finding.verdict is Verdict.FAILED)
    assert wrong.case.startswith("rows gemv")
    assert wrong.error is not None
    assert 1e-5 < wrong.error < 1e-2


def test_runs_that_differ_are_found(check_launches: Any):
    runs = count()

    def spoil(program: Any, made: Any) -> None:
        token = program.placement.address(program.executable.outputs[1].place)
        if "argmax" in made.kernel.symbol and next(runs) == 1:
            ctypes.cast(token, ctypes.POINTER(ctypes.c_int32))[0] += 1

    found = check_launches(1, "int8", 3, spoil)
    (wrong,) = (finding for finding in found.values() if finding.verdict is Verdict.FAILED)
    assert "differs run 2: 1 bytes" in wrong.detail


def test_a_kernel_that_does_not_wait_is_found(check_launches: Any):
    """Seen as one that is done before its slow predecessor: what it wrote is written over."""

    def spoil(program: Any, made: Any) -> None:
        if "slow" in made.kernel.symbol:
            late.append(made)
        elif late:
            slow = late.pop()
            if "gemv_parts_q4_1_q8_0" in made.kernel.symbol:
                program.gpu.compute.launch(slow)
                late.clear()

    late: list[Any] = []
    found = check_launches(1, "dequant", 3, spoil)
    wrong = [finding for finding in found.values() if finding.verdict is Verdict.FAILED]
    assert [finding.case for finding in wrong] == ["rows gemv_parts_q4_1_q8_0.0"]
    assert "differs after a slow predecessor" in wrong[0].detail


# --- the tests of kernels, on a card ---


def test_the_tests_of_kernels_run_on_a_card(emulator: Any, new_gpu: Any, new_memory: Any, schedule: Any):
    """The stand-in for the emulator gives the arrays that the emulator gives."""
    planned = schedule(1, "int8")
    results: list[list[np.ndarray]] = []
    for runner in (emulator, CardRunner(new_gpu())):
        memory = new_memory(1)
        rng = np.random.default_rng(1)
        for buffer in planned.buffers():
            if buffer.of is None and buffer.constant is not None:
                memory.plain[buffer] = rng.standard_normal(buffer.length, np.float32)
            elif buffer.of is None:
                memory.plain_of(buffer)[:] = 0
        runner.run(planned, memory)
        results.append([array.copy() for array in (*memory.plain.values(), *memory.quantized.values())])
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one.view(np.uint8), other.view(np.uint8))


# --- tokens ---


def test_tokens_may_differ_at_a_near_tie_alone():
    ids, margins = [1, 2, 3], [1.0, 0.01, 1.0]
    assert compared_ids([1, 2, 3], ids, margins, 0.05).error == 0
    assert compared_ids([1, 9, 9], ids, margins, 0.05).error == 0
    wrong = compared_ids([9, 2, 3], ids, margins, 0.05)
    assert (wrong.error, wrong.detail) == (1, "token 0 is 9, expected 1, at a margin of 1.000")


# --- processes ---

WORKER = """
import json, os, sys, time
done, name = sys.argv[2].split(","), sys.argv[1]
def say(**message): print("@lane-check " + json.dumps(message), flush=True)
def found(case, verdict): say(finding={"task": name, "case": case, "verdict": verdict})
for case in ("good", "bad", "faulty", "crashing", "hanging", "last"):
    if case in done: continue
    say(begins=case)
    if case == "faulty":
        found(case, "FAILED")
        os._exit(75)
    if case == "crashing":
        print("about to", file=sys.stderr, flush=True)
        os.abort()
    if case == "hanging": time.sleep(60)
    found(case, "FAILED" if case == "bad" else "held")
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of tasks are those of WORKER."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))

    def command(self: Task, done: list[str], only: str, folder: Path) -> tuple[list[str], None]:
        return [sys.executable, str(script), self.name, ",".join(done)], None

    monkeypatch.setattr(Task, "command", command)


@pytest.mark.usefixtures("scripted")
def test_what_fails_does_not_end_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_tasks, "PATIENCE", 2.0)
    found = list(Tasks(2, "*", time.monotonic() + 60).run([Task("a"), Task("b")]))
    for task in "ab":
        mine = [finding for finding in found if finding.task == task]
        assert [finding.case for finding in mine] == ["good", "bad", "faulty", "crashing", "hanging", "last"]
        assert [str(finding.verdict) for finding in mine] == ["held", "FAILED", "FAILED", "FAILED", "FAILED", "held"]
        assert "ended with status -6: about to" in mine[3].detail
        assert "it was killed: it said nothing for 2 s" in mine[4].detail


@pytest.mark.usefixtures("scripted")
def test_the_time_ends(monkeypatch: pytest.MonkeyPatch):
    found = list(Tasks(1, "*", time.monotonic() + 1.5).run([Task("a"), Task("b")]))
    assert [(f.task, f.case) for f in found][-2:] == [("a", "the rest"), ("b", "the rest")]
    assert "the time was up" in found[-1].detail


def test_findings_travel_as_lines():
    finding = Finding("t", "c", Verdict.FAILED, 1.0, 0.5, "why", "two\nlines")
    message = read_message(finding.message())
    assert message is not None
    assert "\n" not in finding.message()
    assert finding_of(json.loads(json.dumps(message["finding"]))) == finding
    assert read_message("something else") is None


def test_a_row_of_other_experts_is_spared_and_said():
    want = np.ones((40, 8), np.float32)
    got = want + 1e-3
    got[7] = -1
    assert worst_row(got, want, 5e-2, "").error == pytest.approx(2)
    spared = worst_row(got, want, 5e-2, "", 1)
    assert spared.error == pytest.approx(1e-3, rel=1e-3)
    assert "1 rows of other experts, 2.0e+00" in spared.detail
    got[9] = -1
    assert worst_row(got, want, 5e-2, "", 1).error == pytest.approx(2)
    got[9], got[7] = 1, np.nan
    assert worst_row(got, want, 5e-2, "", 1).error == np.inf
