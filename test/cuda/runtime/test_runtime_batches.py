"""Sequences that decode together on an emulated card: the tokens of each alone on the CPU target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lane_mlir
from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cuda.runtime import CudaDevice, Options

PROMPTS = ([9, 1, 100, 3], [50, 2], [77, 2, 5])
FAMILIES = ("gemma2-Q5_K_M", "qwen3next-moe-Q4_K_M")
"""Windows and soft caps; short convolutions, the delta rule and mixtures."""


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_together(models: Path, new_gpu: Callable[..., Any], family: str):
    """Under dequant, where no value is rounded to the other side."""

    def emulated(checkpoint: Checkpoint) -> CudaDevice:
        return CudaDevice(checkpoint, new_gpu(), options=Options(steps=2, ahead=2))

    def load(device: Any) -> lane_mlir.Step:
        return lane_mlir.load(models / f"{family}.gguf", device=device, numerics="dequant", chunk=4, context=32)

    alone = [list(load("cpu").generate_ids(prompt, 4)) for prompt in PROMPTS]
    assert [list(made) for made in load(emulated).generate_ids_batch(PROMPTS, 4)] == alone
