"""What all commands have in common: usage errors of one line, and Ctrl-C from the first moment on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lane_mlir.tools import commands, lane_import, lane_opt, lane_report, lane_run

COMMANDS = {
    "lane-import": lane_import.main,
    "lane-opt": lane_opt.main,
    "lane-report": lane_report.main,
    "lane-run": lane_run.main,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_errors_are_one_line(command: str, capsys: pytest.CaptureFixture[str]):
    assert COMMANDS[command](["model.gguf", "--bogus"]) == 2
    expected = f"{command}: error: unrecognized arguments: --bogus ({command} --help lists the options)\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("command", "args", "named"),
    [
        ("lane-opt", ["-t", "nope", "step.mlir"], "invalid choice: 'nope'"),
        ("lane-opt", ["-f", "nope", "step.mlir"], "invalid choice: 'nope'"),
        ("lane-import", ["model.gguf", "--rows", "x"], "argument --rows: invalid int value: 'x'"),
        ("lane-import", [], "the following arguments are required: MODEL.gguf"),
        ("lane-run", ["model.gguf", "-n", "x"], "invalid int value: 'x'"),
    ],
)
def test_bad_values_are_one_line(command: str, args: list[str], named: str, capsys: pytest.CaptureFixture[str]):
    assert COMMANDS[command](args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{command}: error: ")
    assert named in line


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("lane-import", ["--rows", "0"]),
        ("lane-import", ["--context", "0"]),
        ("lane-import", ["--sequences", "17"]),
        ("lane-import", ["--rows", "9", "--context", "8"]),
        ("lane-import", ["--rows", "2", "--sequences", "2"]),
        ("lane-opt", ["-f", "gguf{rows=0}"]),
        ("lane-report", ["--rows", "0"]),
        ("lane-report", ["--context", "0"]),
        ("lane-run", ["--tokens", "1", "--context", "0"]),
        ("lane-run", ["--tokens", "1", "--chunk", "0"]),
        ("lane-run", ["--tokens", "1", "-n", "0"]),
    ],
)
def test_sizes_out_of_range_are_usage(command: str, args: list[str], models: Path, capsys: pytest.CaptureFixture[str]):
    assert COMMANDS[command]([str(models / "llama-f32.gguf"), *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"{command}: error: ")


ENTRIES: list[Callable[[], int]] = [
    commands.lane_bench,
    commands.lane_import,
    commands.lane_opt,
    commands.lane_report,
    commands.lane_run,
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_interrupted_while_importing(entry: Callable[[], int], monkeypatch: pytest.MonkeyPatch):
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "import_module", interrupted)
    assert entry() == 130


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_is_the_command_of_its_name(
    entry: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["command", "--version"])
    with pytest.raises(SystemExit):
        entry()
    assert capsys.readouterr().out.startswith(entry.__name__.replace("_", "-"))
