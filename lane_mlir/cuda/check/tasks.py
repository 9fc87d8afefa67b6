"""The tasks of a check, each done by processes of its own, several at a time."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lane_mlir.cuda.check.finding import AGAIN, Finding, Verdict, finding_of, read_message

PATIENCE = 150.0
"""Seconds without a word after which a process is taken for hanging: a unit of many kernels takes long to compile."""

UNSOUND = 70
"""Exit status of a process in which compute-sanitizer has found something."""

_LINES = 40
"""Lines of what a process prints that may say why it ended."""

_TAIL = 4000
"""Characters of a process's errors that a finding keeps."""


@dataclass(frozen=True)
class Task:
    """
    What one process after the other does: `fields` for `worker`, or `tests` of kernels (a folder or one test) and which
    `shard` of them, if not all; under a tool of compute-sanitizer, if one is named.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tests: Path | None = None
    shard: str = "0/1"
    sanitizer: str = ""

    def command(self, done: Sequence[str], only: str, folder: Path) -> tuple[list[str], dict[str, str]]:
        """What to run, and in which environment, when some cases are done."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if self.tests is None:
            task = {**self.fields, "name": self.name, "done": list(done), "only": only}
            return [sys.executable, "-m", "lane_mlir.cuda.check.worker", json.dumps(task)], environment
        file = folder / f"done-{self.name}-{self.shard}".replace("/", "-")
        file.write_text("\n".join(done), encoding="utf-8")
        environment |= {"LANE_CHECK_SHARD": self.shard, "LANE_CHECK_DONE": str(file), "LANE_CHECK_ONLY": only}
        options = ["-q", "-W", "ignore", "-p", "no:cacheprovider", "-p", "lane_mlir.cuda.check.kernel_tests", "-s"]
        return [*self._wrapper(), sys.executable, "-m", "pytest", *options, "--tb=short", str(self.tests)], environment

    def _wrapper(self) -> list[str]:
        if not self.sanitizer:
            return []
        return ["compute-sanitizer", "--tool", self.sanitizer, "--error-exitcode", str(UNSOUND)]


class Tasks:
    """
    Runs tasks, some at a time, and hands over what they find as it comes.

    A process that a kernel's fault ended, that crashed or that says nothing for long has its case recorded as failed;
    the rest of the task is done by another. `deadline`: when (of time.monotonic) no more is begun.
    """

    def __init__(self, jobs: int, only: str, deadline: float):
        self._jobs, self._only, self._deadline = jobs, only, deadline
        self._found: queue.Queue[Finding | None] = queue.Queue()

    def run(self, tasks: Sequence[Task]) -> Iterator[Finding]:
        with ThreadPoolExecutor(self._jobs) as pool, tempfile.TemporaryDirectory() as folder:
            for task in tasks:
                pool.submit(self._guarded, lambda task=task: self._do(task, Path(folder)))
            for _ in tasks:
                while (finding := self._found.get()) is not None:
                    yield finding

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        finally:
            self._found.put(None)

    def _do(self, task: Task, folder: Path) -> None:
        done: list[str] = []
        while True:
            if time.monotonic() > self._deadline:
                self._found.put(Finding(task.name, "the rest", Verdict.FAILED, detail="not begun: the time was up"))
                return
            begun, status, errors = self._process(task, done, folder)
            # pytest: 1 some tests failed, 5 none were collected.
            if status in ((0,) if task.tests is None else (0, 1, 5)):
                return
            if status != AGAIN or begun is not None:
                detail = f"the process ended with status {status}: {errors[-_TAIL:].strip()}"
                self._found.put(Finding(task.name, begun or "begin", Verdict.FAILED, detail=detail))
                if begun is None:
                    return
                done.append(begun)

    def _process(self, task: Task, done: list[str], folder: Path) -> tuple[str | None, int, str]:
        """Run a process to its end: the case that it left unfinished, its exit status and its errors."""
        command, environment = task.command(done, self._only, folder)
        begun: str | None = None
        said = deque[str](maxlen=_LINES)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            ) as process:
                watch = _Watch(process, self._deadline)
                assert process.stdout is not None
                for line in process.stdout:
                    watch.heard()
                    begun = self._take(line, done, begun, said)
            watch.stop()
            errors.seek(0)
            tail = "".join(said) + errors.read()
        if watch.killed:
            tail += f"\nit was killed: {watch.killed}"
        return begun, process.returncode, tail

    def _take(self, line: str, done: list[str], begun: str | None, said: deque[str]) -> str | None:
        """What a line of a process says; the case that runs after it."""
        message = read_message(line)
        if message is None:
            said.append(line)
            return begun
        if "begins" in message:
            return message["begins"]
        finding = finding_of(message["finding"])
        done.append(finding.case)
        self._found.put(finding)
        return None


class _Watch:
    """Kills a process that says nothing for long, or that is still there when the time is up."""

    def __init__(self, process: subprocess.Popen[str], deadline: float):
        self._process, self._deadline = process, deadline
        self._last = time.monotonic()
        self._stopped = threading.Event()
        self.killed = ""
        threading.Thread(target=self._watch, daemon=True).start()

    def heard(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(1.0):
            now = time.monotonic()
            if now - self._last > PATIENCE:
                self.killed = f"it said nothing for {PATIENCE:.0f} s"
            elif now > self._deadline:
                self.killed = "the time was up"
            if self.killed:
                self._process.kill()
                return
