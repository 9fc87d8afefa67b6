"""The process that does again what ended in a fault: `python -m lane_mlir.cuda.runtime.replay history.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cuda.runtime.device import CudaDevice
from lane_mlir.cuda.runtime.errors import KernelFault
from lane_mlir.cuda.runtime.executable import executable_of
from lane_mlir.cuda.runtime.faults import FOUND, Ran
from lane_mlir.cuda.runtime.options import Options


def replay(record: Mapping[str, Any]) -> None:
    """Raises KernelFault if a kernel fails."""
    device = CudaDevice(Checkpoint.open(record["checkpoint"]), options=Options(checked=True))
    programs = [device.prepare(executable_of(text)) for text in record["steps"]]
    for ran in (Ran(**entry) for entry in record["history"]):
        program = programs[ran.program]
        if ran.selected is not None:
            program.select(ran.selected)
        if ran.tokens is not None:
            program.set_tokens(np.array(ran.tokens, np.int32))
        if ran.position is not None:
            program.set_position(ran.position, ran.sequence)
        for _ in range(ran.steps):
            program.run()


def main() -> int:
    try:
        replay(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except KernelFault as error:
        print(error)
        return FOUND
    return 0


if __name__ == "__main__":
    sys.exit(main())
