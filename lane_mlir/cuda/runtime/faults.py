"""
Which launch a kernel that failed was.

A step is one graph, and of a failure in it the driver says only what went wrong, and takes the GPU away from the
process. So another process does the same again, one kernel at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lane_mlir.cuda.runtime.errors import DriverError, KernelFault
from lane_mlir.cuda.runtime.executable import Call, Executable
from lane_mlir.cuda.runtime.gpu import KernelLaunch

SECONDS = 120
"""How long the other process may take."""


def fault(step: str, call: Call, launch: KernelLaunch, error: DriverError) -> KernelFault:
    """The error for a kernel of a step that failed: its launch, what that was made from, and its buffers."""
    shape = " x ".join(map(str, launch.grid))
    arguments = ", ".join(_argument(name, address) for name, address in zip(call.names, launch.arguments, strict=True))
    return KernelFault(
        f"{error.code} in the kernel {call.kernel} of @{step}, which runs {call.origin} in {shape} blocks of "
        f"{launch.block} threads with {launch.shared} bytes of shared memory; its buffers: {arguments}"
    )


def _argument(name: str, address: object) -> str:
    return f"{name} at {address:#x}" if isinstance(address, int) else f"{name} {address}"


@dataclass
class Ran:
    """Something done to a program: a sequence selected, tokens or a position set, or steps run."""

    program: int
    tokens: Sequence[int] | None = None
    position: int | None = None
    sequence: int = 0
    selected: int | None = None
    steps: int = 0


class History:
    """What was done on a device since its state was zero."""

    def __init__(self) -> None:
        self.done: list[Ran] = []

    def add(self, ran: Ran) -> None:
        last = self.done[-1] if self.done else None
        if ran.steps and last is not None and last.steps and last.program == ran.program:
            last.steps += ran.steps
        else:
            self.done.append(ran)

    def clear(self) -> None:
        self.done.clear()


def find(checkpoint: str, steps: Sequence[Executable], history: History) -> str | None:
    """
    Do in another process, one kernel at a time, what was done with the programs of some steps; the message of the fault
    that it meets, None if it meets none.
    """
    record = {
        "checkpoint": checkpoint,
        "steps": [step.json() for step in steps],
        "history": [asdict(ran) for ran in history.done],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.json"
        path.write_text(json.dumps(record), encoding="utf-8")
        try:
            replayed = subprocess.run(
                [sys.executable, "-m", "lane_mlir.cuda.runtime.replay", str(path)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    lines = replayed.stdout.splitlines()
    return lines[-1] if replayed.returncode == FOUND and lines else None


FOUND = 3
"""Exit status of the other process when a kernel failed; the last line of what it prints is the message."""
