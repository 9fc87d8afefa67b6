"""
A test format for lit that forks commands instead of starting them.

Importing xDSL takes longer than most tests do. A worker of lit imports our commands once; each command of a RUN line is
then a fork of it, so that commands share nothing, pipes are pipes, and exit statuses are real. RUN lines that use more
of a shell than pipes, `not` and `2>&1` are left to lit's own shell.
"""

# lit has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportExplicitAny=false

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

import lit.formats
import lit.Test
import lit.TestRunner

SECONDS = 120
"""A command that runs longer is killed, and its test fails."""
PRELOADED = (
    "lane_mlir.dialects.tg",
    "lane_mlir.dialects.launch",
    "lane_mlir.passes.fuse",
    "lane_mlir.passes.link",
    "lane_mlir.tools.lane_opt",
    "lane_mlir.tools.lane_import",
    "lane_mlir.tools.lane_run",
    "lane_mlir.tools.lane_report",
)
COMMANDS = ("lane-opt", "lane-import", "lane-report", "lane-run", "filecheck", "xdsl-opt")


@dataclass(frozen=True)
class Stage:
    """One command of a pipeline."""

    words: tuple[str, ...]
    inverted: bool
    """`not` before it: it must fail."""
    merged: bool
    """`2>&1`: errors go where the output goes."""


def parse_line(line: str) -> list[Stage] | None:
    """The stages of a RUN line; None if it needs a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.commenters = ""
    lexer.whitespace_split = True
    words = list(lexer)
    stages: list[Stage] = []
    for command in _split(words, "|"):
        merged = command[-3:] == ["2", ">&", "1"]
        command = command[:-3] if merged else command
        inverted = command[:1] == ["not"]
        command = command[1:] if inverted else command
        if not command or any(re.fullmatch(r"[|&;<>()]+|[\w]+=.*|.*[*?$`].*", word, re.DOTALL) for word in command):
            return None
        stages.append(Stage(tuple(command), inverted, merged))
    return stages


def _split(words: list[str], separator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == separator:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


@cache
def commands() -> dict[str, Callable[[], object]]:
    """The commands that are forked, by name, with what most of them need imported."""
    for module in PRELOADED:
        # What cannot be imported fails in the tests that use it.
        with contextlib.suppress(ImportError):
            import_module(module)
    scripts = {point.name: point for point in entry_points(group="console_scripts")}
    found: dict[str, Callable[[], object]] = {}
    for name in COMMANDS:
        with contextlib.suppress(ImportError, KeyError):
            found[name] = scripts[name].load()
    return found


def run_line(stages: list[Stage], folder: str, environment: dict[str, str], log: IO[bytes]) -> bool:
    """Run a pipeline in `folder`, its last output and all errors going to `log`; whether every stage did as expected."""
    commands()
    children: list[int] = []
    source = os.open(os.devnull, os.O_RDONLY)
    for i, stage in enumerate(stages):
        following, sink = os.pipe() if i + 1 < len(stages) else (None, os.dup(log.fileno()))
        child = os.fork()
        if child == 0:
            if following is not None:
                os.close(following)
            _become(stage, source, sink, log.fileno(), folder, environment)
        children.append(child)
        os.close(source)
        os.close(sink)
        source = following if following is not None else -1
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for stage, status in zip(stages, statuses, strict=True):
        if (status != 0) != stage.inverted or status < 0:
            expected = "failure" if stage.inverted else "0"
            log.write(f"{shlex.join(stage.words)}: exit status {status}, expected {expected}\n".encode())
            return False
    return True


def _become(stage: Stage, source: int, sink: int, log: int, folder: str, environment: dict[str, str]) -> None:
    """In a fork: run the stage with its standard streams, and end the process."""
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.dup2(sink if stage.merged else log, 2)
        os.chdir(folder)
        os.environ.update(environment)
        command = commands().get(stage.words[0])
        if command is None:
            os.execvp(stage.words[0], stage.words)
        status = _call(command, list(stage.words))
    except OSError as error:
        os.write(2, f"{stage.words[0]}: {error}\n".encode())
        status = 127
    finally:
        os._exit(status)


def _call(command: Callable[[], object], words: list[str]) -> int:
    """Call the command as its script would; its exit status."""
    sys.argv = words
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    try:
        result = command()
        status = result if isinstance(result, int) else 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


class ForkedShTest(lit.formats.ShTest):
    """lit's ShTest, with commands forked where every RUN line allows it."""

    def execute(self, test: Any, litConfig: Any) -> Any:
        script = self._script(test)
        lines = [parse_line(line) for line in script]
        if not lines or test.config.unsupported or litConfig.noExecute or any(line is None for line in lines):
            return super().execute(test, litConfig)
        folder = Path(test.getExecPath()).parent
        (folder / "Output").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as log:
            for text, stages in zip(script, lines, strict=True):
                log.write(f"$ {text}\n".encode())
                log.flush()
                assert stages is not None
                if not run_line(stages, str(folder), dict(test.config.environment), log):
                    log.seek(0)
                    return lit.Test.Result(lit.Test.FAIL, log.read().decode("utf-8", "replace"))
        return lit.Test.Result(lit.Test.PASS)

    def _script(self, test: Any) -> list[str]:
        """The RUN lines with their substitutions made; empty for a test that only lit itself can judge."""
        parsed = lit.TestRunner.parseIntegratedTestScript(test, require_script=True)
        if isinstance(parsed, lit.Test.Result) or test.xfails or test.getMissingRequiredFeatures():
            return []
        folder, base = lit.TestRunner.getTempPaths(test)
        substitutions = lit.TestRunner.getDefaultSubstitutions(test, folder, base)
        limit = test.config.recursiveExpansionLimit
        lines = lit.TestRunner.applySubstitutions(parsed, substitutions, recursion_limit=limit)
        # lit marks each line with where it is written.
        return [re.sub(r"^%dbg\([^)]*\)\s*", "", line) for line in lines]
