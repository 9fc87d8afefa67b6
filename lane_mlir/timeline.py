"""
What a process spends its time on until it runs: with LANE_TIMELINE=1 every phase is printed to the standard error when
the process ends, with the seconds from the process's start on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "LANE_TIMELINE"
"""The environment variable that asks for it: 1, or nothing for none."""


@dataclass(frozen=True)
class Phase:
    """Something that took time: seconds from the process's start on, and of which thread. `depth`: phases around it."""

    what: str
    begin: float
    end: float
    thread: str
    depth: int


# Linux counts the starts of processes by the first one.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_IMPORTED = time.clock_gettime(_CLOCK)

_phases: list[Phase] = []
_depth = threading.local()


def is_wanted() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


@contextmanager
def phase(what: str) -> Generator[None]:
    """A phase of the timeline; phases of one thread may be in each other."""
    if not is_wanted():
        yield
        return
    if not _phases:
        atexit.register(_print)
    depth: int = getattr(_depth, "value", 0)
    _depth.value, begin = depth + 1, time.clock_gettime(_CLOCK)
    try:
        yield
    finally:
        _depth.value = depth
        end, started = time.clock_gettime(_CLOCK), _process_start()
        _phases.append(Phase(what, begin - started, end - started, threading.current_thread().name, depth))


def mark(what: str) -> None:
    """A point of the timeline."""
    with phase(what):
        pass


def lines(phases: Sequence[Phase]) -> list[str]:
    """Phases as a table, in the order in which they began; those of other threads than the main one are marked."""
    shown = [f"{'begin':>8} {'end':>8} {'seconds':>8}  phase"]
    for one in sorted(phases, key=lambda each: (each.begin, each.depth)):
        thread = "" if one.thread == "MainThread" else f"  [{one.thread}]"
        seconds = one.end - one.begin
        shown.append(f"{one.begin:8.3f} {one.end:8.3f} {seconds:8.3f}  {'  ' * one.depth}{one.what}{thread}")
    return shown


def _process_start() -> float:
    """When the process was started, to a hundredth of a second, as Linux says; elsewhere, when this was imported."""
    try:
        # Behind the name, which may have spaces, in brackets.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return _IMPORTED


def _print() -> None:
    print("\n".join(lines(_phases)), file=sys.stderr)
