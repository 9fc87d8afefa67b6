"""The side of a process that checks."""

from __future__ import annotations

import fnmatch
import glob
import math
import os
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lane_mlir.cuda.check.finding import AGAIN, Finding, Verdict, begins
from lane_mlir.cuda.runtime.errors import DriverError, KernelFault
from lane_mlir.diagnostics import LaneError


@dataclass(frozen=True)
class Measured:
    """What a case measured: it holds if the error is no larger than the tolerance, which `why` explains."""

    error: float
    tolerance: float
    why: str
    detail: str = ""


class NotChecked(Exception):
    """Says why a case cannot be checked here."""


class Reporter:
    """
    Runs cases one after the other and prints what they found. A case that fails does not end the others; one that takes
    the GPU away ends the process, and another does the rest: `done` are the cases that need not be done again.

    `only`: a pattern, as of files, of the cases that are wanted.
    """

    def __init__(self, task: str, done: Collection[str] = (), only: str = "*"):
        self.task, self._done, self._only = task, frozenset(done), only

    def wants(self, case: str) -> bool:
        return case not in self._done and matches(f"{self.task} {case}", self._only)

    def run(self, case: str, check: Callable[[], Measured | None]) -> None:
        """Run a case, if it is wanted. None from it says that it holds exactly."""
        if not self.wants(case):
            return
        print(begins(case), flush=True)
        try:
            self.report(case, check())
        except NotChecked as reason:
            self.emit(Finding(self.task, case, Verdict.SKIPPED, detail=str(reason)))
        except (KernelFault, DriverError) as error:
            self.fail(case, str(error))
            if isinstance(error, KernelFault) or error.is_fault:
                os._exit(AGAIN)
        except LaneError as error:
            self.fail(case, str(error))
        except Exception:
            self.fail(case, traceback.format_exc(limit=-6))

    def report(self, case: str, measured: Measured | None) -> None:
        if measured is None:
            self.emit(Finding(self.task, case, Verdict.HELD, 0.0, 0.0))
            return
        holds = math.isfinite(measured.error) and measured.error <= measured.tolerance
        verdict = Verdict.HELD if holds else Verdict.FAILED
        self.emit(Finding(self.task, case, verdict, measured.error, measured.tolerance, measured.why, measured.detail))

    def fail(self, case: str, detail: str) -> None:
        self.emit(Finding(self.task, case, Verdict.FAILED, detail=detail))

    def emit(self, finding: Finding) -> None:
        print(finding.message(), flush=True)


def matches(name: str, pattern: str) -> bool:
    """Whether a name contains a pattern, in which * stands for anything."""
    # A case's brackets are its own.
    escaped = "*".join(map(glob.escape, pattern.split("*")))
    return fnmatch.fnmatchcase(name, f"*{escaped}*")
