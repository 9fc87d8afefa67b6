"""The whole repository is formatted, linted and typed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "format", "--check", "--quiet", "."], id="format"),
        pytest.param(["ruff", "check", "--quiet", "."], id="lint"),
        pytest.param(["basedpyright", "--pythonpath", sys.executable], id="types"),
    ],
)
def test_style(command: list[str]):
    # The tool beside this Python, not another one on the path.
    tool = shutil.which(command[0], path=str(Path(sys.executable).parent))
    assert tool is not None, f"{command[0]} is not installed: pip install -e .[dev]"
    result = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
