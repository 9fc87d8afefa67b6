"""The command gpu_check: which tasks it does, and how it says what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lane_mlir.cuda.check.finding import Finding, Verdict
from lane_mlir.cuda.check.tasks import Task
from lane_mlir.tools import gpu_check


def names(*options: str) -> list[str]:
    arguments = gpu_check.argument_parser().parse_args(options)
    return [task.name for task in gpu_check.tasks(arguments)]


def test_all_tasks():
    found = names()
    assert found.count("kernels") == gpu_check.SHARDS
    for name in ("repack", "llama-f32 dequant", "llama-f32 int8", "llama-f32 two_pass_int8", "llama-f32 int8 f16"):
        assert found.count(name) == 1
    assert len(names("--fast")) < len(found)


def test_a_pattern_spares_what_it_does_not_name():
    assert names("--only", "llama-f32 int8 1 row logits") == ["llama-f32 int8"]
    assert names("--only", "repack q4_k") == ["repack"]
    assert set(names("--only", "llama-f32")) == {
        "llama-f32 dequant",
        "llama-f32 int8",
        "llama-f32 two_pass_int8",
        "llama-f32 int8 f16",
    }
    assert names("--only", "rope") == names()
    assert set(names("--skip", "models", "--skip", "real", "--skip", "kernels")) == {"repack"}


def test_a_folder_without_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], card: Callable[..., int]):
    assert card([], "--models", str(tmp_path)) == 1
    assert f"gpu_check: error: no models with logits beside them are in {tmp_path}" in capsys.readouterr().err


@pytest.fixture
def sanitized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a list of tests for a sanitizer, which is there."""

    def which(name: str) -> str:
        return name

    monkeypatch.setattr(gpu_check, "which", which)
    text = "# Some tests.\nlaunches/test_norms.py::test_l2_norm[64]\n\nlaunches/test_rope.py::test_rope\n"
    (tmp_path / "sanitized.txt").write_text(text)
    return tmp_path


def test_a_pattern_spares_tests_under_a_sanitizer(sanitized: Path):
    options = ("--sanitize", "racecheck", "--tests", str(sanitized))
    norm, rope = "racecheck launches/test_norms.py::test_l2_norm[64]", "racecheck launches/test_rope.py::test_rope"
    assert names(*options) == [norm, rope]
    assert names(*options, "--only", "norms.test_l2_norm[64]") == [norm]
    assert names(*options, "--only", "kernels*rope") == [rope]


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (("--jobs", "0"), "--jobs is 0, expected at least 1", 2),
        (("--budget", "nan"), "--budget is nan, expected more than 0", 2),
        (("--budget", "-1"), "--budget is -1, expected more than 0", 2),
        (
            ("--skip", "repack", "--skip", "kernels", "--skip", "models", "--skip", "real"),
            "--skip leaves nothing to check",
            2,
        ),
        (("--sanitize", "racecheck", "--fast"), "--sanitize and --fast exclude each other", 2),
        (("--sanitize", "racecheck", "--skip", "real"), "--sanitize and --skip exclude each other", 2),
        (("--sanitize", "racecheck", "--only", "conv"), "sanitized.txt is named like --only 'conv'", 1),
    ],
)
def test_refused_options_leave_the_last_details(
    card: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    sanitized: Path,
    options: Sequence[str],
    message: str,
    status: int,
):
    details = sanitized / "details.jsonl"
    details.write_text("of the last run")
    assert card(HELD, "--tests", str(sanitized), *options) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert details.read_text() == "of the last run"


@pytest.mark.parametrize(
    ("data", "message"), [(b"\xff", "is not text: byte 0 is not UTF-8"), (b"# none", "names no test")]
)
def test_a_list_of_tests_that_is_none(
    card: Callable[..., int], capsys: pytest.CaptureFixture[str], sanitized: Path, data: bytes, message: str
):
    (sanitized / "sanitized.txt").write_bytes(data)
    assert card(HELD, "--tests", str(sanitized), "--sanitize", "memcheck") == 1
    assert f"gpu_check: error: {sanitized / 'sanitized.txt'} {message}" in capsys.readouterr().err


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs the command on a card on which the tasks find what is given."""

    def run(found: Sequence[Finding], *options: str) -> int:
        class Found:
            def __init__(self, *how: Any):
                pass

            def run(self, tasks: Sequence[Task]) -> Iterator[Finding]:
                yield from found

        def open_gpu() -> Any:
            return SimpleNamespace(name="a card", chip=SimpleNamespace(arch="sm_90a", multiprocessors=132))

        monkeypatch.setattr(gpu_check, "Tasks", Found)
        monkeypatch.setattr(gpu_check, "_versions", lambda: "versions")
        monkeypatch.setattr("lane_mlir.cuda.runtime.cuda_gpu.open_gpu", open_gpu)
        return gpu_check.main([*options, "--details", str(tmp_path / "details.jsonl")])

    return run


HELD = [
    Finding("llama-f32 int8", "1 row at 0 gemv_q4_k.0", Verdict.HELD, 1e-7, 1e-5),
    Finding("llama-f32 int8", "1 row at 47 gemv_q4_k.1", Verdict.HELD, 3e-7, 1e-5),
    Finding("qwen2-Q8_0 int8", "1 row at 0 gemv_q4_k.0", Verdict.HELD, 2e-7, 1e-5),
    Finding("kernels", "norms.test_l2_norm[64]", Verdict.HELD),
]


def test_what_held(card: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert card([*HELD, Finding("m int8", "greedy", Verdict.SKIPPED, detail="no tokens")]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["launches", "gemv_q4_k", "int8", "3", "3.0e-07", "1e-05"] in lines
    assert ["tests", "of", "norms", "1"] in lines
    assert "4 held, 0 failed, 1 skipped" in out
    assert len((tmp_path / "details.jsonl").read_text().splitlines()) == 5


def test_what_failed(card: Callable[..., int], capsys: pytest.CaptureFixture[str]):
    failed = [
        Finding("llama-f32 int8", "1 row at 0 gemv_q4_k.0", Verdict.FAILED, 1e-2, 1e-5, detail='gemv writes "h.3 (plain)"'),
        Finding("kernels", "norms.test_l2_norm[64]", Verdict.FAILED, detail="AssertionError: ('y', 0.1)\nmore\nlines"),
        Finding("m int8", "begin", Verdict.FAILED, detail="the process ended with status 1: Traceback\n  File\nKeyError: 'x'"),
    ]  # fmt: skip
    assert card([*HELD, *failed]) == 1
    out = capsys.readouterr().out
    assert "FAILED  llama-f32 int8 1 row at 0 gemv_q4_k.0" in out
    assert 'gemv writes "h.3 (plain)"' in out
    assert "AssertionError: ('y', 0.1)\n" in out
    assert "KeyError: 'x'\n" in out
    assert "4 held, 3 failed, 0 skipped" in out


def test_nothing_is_no_success(card: Callable[..., int]):
    assert card([]) == 1
