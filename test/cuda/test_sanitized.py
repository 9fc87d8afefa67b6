"""The tests that gpu_check runs under compute-sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_selection_runs_every_kernel_template_with_each_set_of_flags(tmp_path: Path):
    """Every test of kernels prints its units, which takes a moment, and runs none."""
    record = tmp_path / "record"
    record.touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tests = [str(HERE / "launches"), str(HERE / "test_products.py")]
    subprocess.run([*command, *tests], env={**os.environ, "LANE_RECORD": str(record)}, check=True, capture_output=True)
    lines = [line.split("\t") for line in record.read_text(encoding="utf-8").splitlines()]
    recorded = {(test.removeprefix("test/cuda/"), tuple(kernel)) for test, *kernel in lines}
    selected = (HERE / "sanitized.txt").read_text(encoding="utf-8").splitlines()
    covered = {kernel for test, kernel in recorded if test in selected}
    assert len({template for template, *_ in covered}) >= 44
    assert {kernel for _, kernel in recorded} - covered == set()
    unknown = {line for line in selected if not line.startswith("#")} - {test for test, _ in recorded}
    assert unknown == set()
