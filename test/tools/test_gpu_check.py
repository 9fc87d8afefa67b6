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
