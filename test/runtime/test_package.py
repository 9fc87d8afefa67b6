"""The package itself: importing it costs nothing, and what it offers is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lane_mlir


def test_importing_the_package_imports_nothing_else():
    code = "import sys, lane_mlir\nprint(*sorted({'numpy', 'xdsl', 'gguf', 'rich'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "\n"


def test_what_it_offers():
    assert {"LaneError", "Sampler", "Step", "load"} <= set(dir(lane_mlir))
    for name in lane_mlir.__all__:
        assert getattr(lane_mlir, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = getattr(lane_mlir, "nothing")
