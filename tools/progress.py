"""A line on the terminal that says what takes long."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

PATIENCE = 1.0
"""Seconds after which a line appears."""


class ProgressLine:
    """
    Shows what is being done on the standard error, if that is a terminal and if it takes longer than a second; what is
    shown vanishes again when the next thing is done or everything is.

    Called as `lane_mlir.runtime.Progress` says.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown = sys.stderr.isatty()
        self._timer: threading.Timer | None = None
        self._what, self._done, self._total = "", 0, None
        self._bar: _Bar | None = None

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None:
        if not self._shown:
            return
        with self._lock:
            is_new = what != self._what
            self._what, self._done, self._total = what, done, total
            if self._bar is not None:
                self._bar.update(what, done, total)
            elif is_new:
                self._start_timer()

    def clear(self) -> None:
        """Take the line away; another call brings it back."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
            self._what = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        bar = _Bar()
        with self._lock:
            # Cleared while the bar was made.
            if self._what and self._bar is None:
                self._bar = bar
                bar.start()
                bar.update(self._what, self._done, self._total)


class _Bar:
    """The line itself."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        # What is printed meanwhile goes where it should, not through this.
        self._progress = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._progress.add_task("", total=None)

    def start(self) -> None:
        self._progress.start()

    def update(self, what: str, done: int, total: int | None) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total)

    def stop(self) -> None:
        self._progress.stop()
