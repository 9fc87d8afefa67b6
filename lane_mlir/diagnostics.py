"""
Errors for people, and what every command does with them.

A failure that its user can act on is a `LaneError`: one line that says what, where, expected and found. `run_tool`
turns it into that line on the standard error and an exit status; whatever else is raised is a fault of ours and keeps
its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import gc
import io
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import IO, Any, Literal, overload

from xdsl.utils.exceptions import DiagnosticException

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT."""
PIPE_CLOSED = 141
"""Exit status when the reader of our output has gone: 128 + SIGPIPE."""


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What the system says when it cannot take what is written."""


class LaneError(DiagnosticException):
    """
    A failure that the user can act on. The message is one line; `status` is the exit status of a command.

    It is a diagnostic of xDSL's too, for its tools when they run our frontends and passes.
    """

    status = 1

    def report(self, tool: str) -> str:
        """What the command `tool` prints about it."""
        return f"{tool}: error: {one_line(str(self))}"


class UsageError(LaneError):
    """The command line asks for something that does not exist or is malformed."""

    status = 2


class SourceError(LaneError):
    """
    An error at a place in a file: `place` as file:line:column (or whatever is known of it), the cause in one line, and
    the source line with a mark under the place, if there is one to show.
    """

    def __init__(self, place: str, cause: str, excerpt: str = "") -> None:
        super().__init__(f"{place}: error: {one_line(cause)}")
        self.excerpt = excerpt

    def report(self, tool: str) -> str:
        return f"{self}\n{self.excerpt}" if self.excerpt else str(self)


def one_line(text: str) -> str:
    """The text on one line, with characters that could move a terminal's cursor escaped."""
    joined = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)


def nearest(name: str, valid: Iterable[str]) -> str:
    """
    The end of a message about an unknown name: the nearest valid names, and all of them if they are few.

    Example: `did you mean 'fuse'? valid: fuse, link, plan`.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    meant = f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    if len(names) <= 30:
        return f"{meant} valid: {', '.join(names)}".strip() if names else "there are none"
    return meant or f"none of the {len(names)} valid names is like it"


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The whole message about an unknown name. Example: `unknown pass 'fues'; did you mean 'fuse'? valid: …`."""
    return f"unknown {kind} {name!r}; {nearest(name, valid)}"


def reason(error: OSError) -> str:
    """Why the system refused, without Python's decoration: `No such file or directory`."""
    return error.strerror or str(error) or type(error).__name__


def read_text(path: str | Path) -> str:
    """
    The text of a file, or of the standard input where the path is '-'.

    Raises: LaneError if it cannot be read, or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except OSError as error:
        raise LaneError(f"cannot read {path}: {reason(error)}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "the standard input" if str(path) == "-" else path
        raise LaneError(f"{name} is not text: byte {error.start} is not UTF-8") from None


@overload
def atomic_write(path: str | Path, mode: Literal["w"] = "w") -> contextlib.AbstractContextManager[IO[str]]: ...


@overload
def atomic_write(path: str | Path, mode: Literal["wb"]) -> contextlib.AbstractContextManager[IO[bytes]]: ...


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: Literal["w", "wb"] = "w") -> Generator[IO[Any]]:
    """
    Open `path` for writing so that it appears whole or not at all.

    The body writes to a file of another name in the same folder, which replaces `path` at the end; after an exception
    it is removed and `path` is as it was. Devices and pipes are written directly.

    Raises: LaneError if the file cannot be written.
    """
    if not os.fspath(path):
        raise LaneError("cannot write a file whose name is empty")
    target = Path(os.path.realpath(path))
    encoding = "utf-8" if mode == "w" else None
    if target.exists() and not target.is_file() and not target.is_dir():
        try:
            with open(target, mode, encoding=encoding) as device:
                yield device
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.filename in (None, str(target)):
                raise LaneError(f"cannot write {path}: {reason(error)}") from error
            raise
        return
    part = target.with_name(f".lane-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        file = open(part, "x" + mode[1:], encoding=encoding)
    except OSError as error:
        raise LaneError(f"cannot write {path}: {reason(error)}") from error
    try:
        with file:
            yield file
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        # Only what is raised by writing itself (a full disk) names no file.
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            raise LaneError(f"cannot write {path}: {reason(error)}") from error
        raise


def run_tool(tool: str, body: Callable[[], int | None]) -> int:
    """
    Run the body of a command and return its exit status (None from the body is 0).

    LaneError, xDSL's diagnostics and refusals of the operating system become one line on the standard error; Ctrl-C and
    a closed pipe end quietly. `SystemExit` (argparse) passes through.

    Example: `def main(argv=None): return run_tool("lane-run", lambda: generate(parse_arguments(argv)))`.
    """
    _open_closed_streams()
    # IR lives until the command ends. By default all of it is searched for garbage after every 70,000 objects, which
    # takes time as the square of the IR up to some 300,000; so it is after every 1.4 million.
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 200)
    try:
        status = body() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        _discard_output()
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except LaneError as error:
        return _report(error, tool)
    except DiagnosticException as error:
        return _report(LaneError(str(error)), tool)
    except MemoryError as error:
        return _report(
            LaneError(f"out of memory: {error}" if str(error) else "out of memory"),
            tool,
        )
    except OSError as error:
        if error.filename is None and (error.errno in _UNWRITABLE or isinstance(error, io.UnsupportedOperation)):
            _discard_output()
            return _report(LaneError(f"cannot write the standard output: {reason(error)}"), tool)
        named = f"{error.filename}: " if error.filename is not None else ""
        return _report(LaneError(f"{named}{reason(error)}"), tool)


def _report(error: LaneError, tool: str) -> int:
    # What was printed so far comes first where both streams are one.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    print(error.report(tool), file=sys.stderr)
    return error.status


def _open_closed_streams() -> None:
    """
    Give streams that were closed when the command began (`>&-`), for which Python has None, something to be: an empty
    input, an output that refuses whatever is written, and nothing for messages.
    """
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


def _discard_output() -> None:
    """Point the standard output at nothing, so that flushing it at exit cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
