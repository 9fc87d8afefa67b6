"""Variants of the tiny models that hold the same values compute what the reference engine does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.formats import Format
from lane_mlir.tools.derive_models import VARIANTS, derive, main

# Float against float, in other orders of summation: see test_values.py.
TOLERANCE = 1e-4


@pytest.fixture
def variant(models: Path, tmp_path: Path) -> Callable[[str], Path]:
    """`variant(name)`: the file of a variant."""
    return lambda name: derive(next(v for v in VARIANTS if v.name == name), models, tmp_path)


@pytest.mark.parametrize(
    ("source", "gates"), [("qwen35moe-moe-Q4_K_M", ("alpha", "beta")), ("qwen3next-moe-Q4_K_M", ("ba",))]
)
def test_gates_in_f32(
    variant: Callable[[str], Path],
    logits: Callable[..., Any],
    reference: Callable[..., Any],
    source: str,
    gates: tuple[str, ...],
):
    path = variant(f"{source}-f32-gates")
    tensors = Checkpoint.open(path).tensors
    assert {tensors[f"blk.0.ssm_{name}.weight"].format for name in gates} == {Format.F32}
    tokens, want = reference(source, "")
    got = logits(path, tokens, 1)
    assert np.linalg.norm(got - want) < TOLERANCE * np.linalg.norm(want)


def test_the_command_names_what_it_writes(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "variants"
    assert main([str(models), str(folder)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [folder / f"{variant.name}.gguf" for variant in VARIANTS]
    assert sorted(written) == sorted(folder.iterdir())
    assert Checkpoint.open(written[-1]).tensor("output.weight").format is Format.Q8_0
