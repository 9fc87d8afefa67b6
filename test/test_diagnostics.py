"""What commands do with failures, and files that appear whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.diagnostics import LaneError, SourceError, UsageError, atomic_write, nearest, one_line, run_tool, unknown


def raiser(error: BaseException):
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        pytest.param(LaneError("no tensor 'a'"), 1, "lane-x: error: no tensor 'a'\n", id="lane"),
        pytest.param(LaneError("two\n  lines\x1b[2J"), 1, "lane-x: error: two lines\\x1b[2J\n", id="control"),
        pytest.param(UsageError("unknown pass"), 2, "lane-x: error: unknown pass\n", id="usage"),
        pytest.param(SourceError("a.mlir:1:2", "bad", "x\n^"), 1, "a.mlir:1:2: error: bad\nx\n^\n", id="source"),
        pytest.param(PassFailedException("no"), 1, "lane-x: error: no\n", id="pass"),
        pytest.param(MemoryError(), 1, "lane-x: error: out of memory\n", id="memory"),
        pytest.param(
            FileNotFoundError(2, "No such file or directory", "a.gguf"),
            1,
            "lane-x: error: a.gguf: No such file or directory\n",
            id="os",
        ),
        pytest.param(KeyboardInterrupt(), 130, "", id="interrupt"),
        pytest.param(BrokenPipeError(), 141, "", id="pipe"),
    ],
)
def test_run_tool(
    error: BaseException,
    status: int,
    printed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    # pytest's own output must survive what is done to the standard output after an interruption.
    monkeypatch.setattr("lane_mlir.diagnostics._discard_output", lambda: None)
    assert run_tool("lane-x", raiser(error)) == status
    assert capsys.readouterr().err == printed


def test_run_tool_leaves_faults_of_ours_alone():
    with pytest.raises(ZeroDivisionError):
        run_tool("lane-x", raiser(ZeroDivisionError()))


def test_run_tool_status():
    assert run_tool("lane-x", lambda: None) == 0
    assert run_tool("lane-x", lambda: 3) == 3


def test_closed_pipe_is_quiet():
    code = (
        "import sys\n"
        "from lane_mlir.diagnostics import run_tool\n"
        "sys.exit(run_tool('lane-x', lambda: [print('x' * 1000) for _ in range(1000)] and None))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize(
    ("name", "valid", "message"),
    [
        ("fues", ["plan", "fuse", "link"], "did you mean 'fuse'? valid: fuse, link, plan"),
        ("zzz", ["plan", "fuse"], "valid: fuse, plan"),
        ("zzz", [], "there are none"),
        ("zero", ["zeros", *(f"name{i}" for i in range(40))], "did you mean 'zeros'?"),
        ("q", [f"name{i}" for i in range(40)], "none of the 40 valid names is like it"),
    ],
)
def test_nearest(name: str, valid: list[str], message: str):
    assert nearest(name, valid) == message


def test_unknown():
    assert (
        unknown("rule", "add_nrm", ["add_norm"]) == "unknown rule 'add_nrm'; did you mean 'add_norm'? valid: add_norm"
    )


def test_one_line_keeps_letters_of_all_scripts():
    assert one_line("größe ≠ 3\n\n  寸法\t4") == "größe ≠ 3 寸法\\t4"


def test_atomic_write(tmp_path: Path):
    path = tmp_path / "out.txt"
    with atomic_write(path) as file:
        file.write("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_atomic_write_keeps_what_was_there(tmp_path: Path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(path, "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_atomic_write_keeps_permissions_and_links(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with atomic_write(link) as file:
        file.write("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_atomic_write_to_a_device():
    with atomic_write("/dev/null") as file:
        file.write("gone")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(("place", "cause"), [("no/out", "No such file or directory"), (".", "Is a directory")])
def test_atomic_write_refused(tmp_path: Path, place: str, cause: str):
    path = tmp_path / place
    with pytest.raises(LaneError, match=f"cannot write {path}: {cause}"), atomic_write(path):
        pytest.fail("the body runs")


def test_full_disk_is_one_line(tmp_path: Path):
    error = OSError(28, "No space left on device")
    path = tmp_path / "out"
    with pytest.raises(LaneError, match=f"cannot write {path}: No space left"), atomic_write(path):
        raise error
    assert os.listdir(tmp_path) == []


def test_a_full_device_is_named():
    expected = pytest.raises(LaneError, match=r"^cannot write /dev/full: No space left on device$")
    with expected, atomic_write("/dev/full") as file:
        file.write("x")


def test_an_empty_name_is_refused():
    with pytest.raises(LaneError, match="name is empty"), atomic_write(""):
        pytest.fail("the body runs")


@pytest.mark.parametrize(
    ("closed", "body", "status", "printed"),
    [
        (">&-", "print('x')", 1, "lane-x: error: cannot write the standard output: not writable\n"),
        (">&-", "None", 0, ""),
        (">/dev/full", "print('x')", 1, "lane-x: error: cannot write the standard output: No space left on device\n"),
        ("<&-", "print(repr(sys.stdin.read()), file=sys.stderr)", 0, "''\n"),
        ("2>&-", "print('x', file=sys.stderr)", 0, ""),
    ],
)
def test_streams_that_cannot_be_used(closed: str, body: str, status: int, printed: str):
    code = f"import sys\nfrom lane_mlir.diagnostics import run_tool\nsys.exit(run_tool('lane-x', lambda: {body}))"
    command = ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (status, "", printed)
