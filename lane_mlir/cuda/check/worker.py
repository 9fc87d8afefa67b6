"""The process that does one task of a check: `python -m lane_mlir.cuda.check.worker '{"kind": "repack", …}'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lane_mlir.cuda.check.models import CHUNKS, ModelCheck, check_real
from lane_mlir.cuda.check.repacking import check_repacking
from lane_mlir.cuda.check.reporter import Reporter
from lane_mlir.cuda.runtime.cuda_gpu import open_gpu


def work(task: dict[str, Any]) -> None:
    """Do a task, as `lane_mlir.cuda.check.tasks.Task` describes it."""
    reporter = Reporter(task["name"], task["done"], task["only"])
    gpu = open_gpu()
    match task["kind"]:
        case "repack":
            check_repacking(reporter, gpu)
        case "model":
            chunks = task.get("chunks", CHUNKS)
            ModelCheck(gpu, Path(task["path"]), task["numerics"], chunks, task.get("cache", "f32")).run(reporter)
        case "real":
            check_real(reporter, gpu, Path(task["path"]), Path(task["expected"]), task["numerics"])
        case kind:
            raise ValueError(f"no task is of kind {kind!r}")


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
