"""The line that says what takes long."""

from __future__ import annotations

import io
import sys
import time

import pytest

from lane_mlir.tools import progress
from lane_mlir.tools.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as standard error. (Not a fixture: pytest puts its own there before a test is called.)"""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def wait_for(terminal: Terminal, text: str) -> None:
    end = time.monotonic() + 30
    while text not in terminal.getvalue():
        assert time.monotonic() < end, f"{text!r} never came"
        time.sleep(0.01)


def test_appears_when_something_takes_long(monkeypatch: pytest.MonkeyPatch):
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with ProgressLine() as line:
        line("compiling")
        wait_for(terminal, "compiling")
        line("reading", 1, 2)
        wait_for(terminal, "reading")
    # The cursor is shown again and the line erased.
    assert terminal.getvalue().endswith("\x1b[2K")
    assert "\x1b[?25h" in terminal.getvalue()


def test_says_nothing_of_what_is_quick(monkeypatch: pytest.MonkeyPatch):
    terminal = on_terminal(monkeypatch)
    with ProgressLine() as line:
        line("compiling")
        line.clear()
        line("reading", 1, 2)
    assert terminal.getvalue() == ""


def test_says_nothing_where_nobody_looks(monkeypatch: pytest.MonkeyPatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with ProgressLine() as line:
        line("compiling")
        time.sleep(0.1)
    assert file.getvalue() == ""
