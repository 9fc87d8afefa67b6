"""The timeline of a process: its phases, in order, and only if it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lane_mlir.timeline import Phase, lines

MODEL = Path(__file__).parent / "data" / "models" / "llama-f32.gguf"


def test_phases_are_shown_as_they_began():
    phases = [
        Phase("compiling", 1.0, 2.5, "nvrtc", 0),
        Phase("inside", 0.5, 0.75, "MainThread", 1),
        Phase("around", 0.5, 3.0, "MainThread", 0),
    ]
    assert lines(phases) == [
        "   begin      end  seconds  phase",
        "   0.500    3.000    2.500  around",
        "   0.500    0.750    0.250    inside",
        "   1.000    2.500    1.500  compiling  [nvrtc]",
    ]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_run_of_a_model(wanted: bool):
    command = [sys.executable, "-m", "lane_mlir.tools.lane_run", str(MODEL), "--tokens", "1,2", "--ids", "-n", "2"]
    environment = {**os.environ, "LANE_TIMELINE": "1" if wanted else "0"}
    ran = subprocess.run([*command, "--device", "cpu"], capture_output=True, text=True, env=environment, check=True)
    if not wanted:
        assert ran.stderr == ""
        return
    rows = [line.split(maxsplit=3) for line in ran.stderr.splitlines()[1:]]
    phases = [row[3] for row in rows]
    assert phases[:3] == ["importing the runtime", "opening the checkpoint", "opening the device"]
    assert phases[-1] == "the first text"
    assert "planning the step" in phases
    begins = [float(row[0]) for row in rows]
    assert begins == sorted(begins)
    # A process of Python takes longer than a millisecond to come to its first import, and this one not a minute.
    assert 0.001 < begins[0] < begins[-1] < 60
