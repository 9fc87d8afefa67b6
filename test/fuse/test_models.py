"""The tiny models of every family: with all rules, none, and each held in turn, a step computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects import tg
from lane_mlir.eval import CheckpointWeights, run_step
from lane_mlir.eval.inputs import StepInputs
from lane_mlir.eval.step import the_step
from lane_mlir.importers import import_step
from lane_mlir.passes.fuse import FusePass, rule_names
from lane_mlir.universe import GRAPH_RULES

Equal = Callable[..., None]
MODELS = sorted(path.stem for path in (Path(__file__).parents[1] / "data" / "models").glob("*.gguf"))
# Between them they fire every rule that a family fires; of these, each is held in turn.
REPRESENTATIVES = ("deepseek2-moe-Q4_K_M", "gemma2-Q5_K_M", "gpt-oss-moe-Q4_K_M", "qwen2-Q8_0", "qwen3next-moe-Q4_K_M")
CONTEXT = 32


def lifted(checkpoint: Checkpoint, rows: int, numerics: str) -> ModuleOp:
    target = tg.TargetAttr("h200", tg.Numerics(numerics), tg.Precision.F16, tg.Precision.F32)
    return import_step(checkpoint, rows=rows, context=CONTEXT, logits="all", target=target)


@pytest.mark.parametrize("name", MODELS)
def test_rules_held(name: str, models: Path):
    checkpoint = Checkpoint.open(models / f"{name}.gguf")
    step, weights = lifted(checkpoint, 1, "int8"), CheckpointWeights(checkpoint)
    inputs = StepInputs.of(the_step(step))

    def run(module: ModuleOp) -> list[NDArray[Any]]:
        arguments = inputs.at(9, tg.target_of(module))
        return [*run_step(module, weights, arguments), *arguments]

    want = run(step)
    assert np.isfinite(want[0]).all()
    every = step.clone()
    (all_rules,) = FusePass().run(every)
    firing = dict.fromkeys(fired.rule for fired in all_rules.fired if fired.rule != "advance")
    assert len(firing) >= 4
    one_held = [(rule,) for rule in firing] if name in REPRESENTATIVES else []
    for held in [(), tuple(rule_names()), *one_held]:
        module = step.clone()
        (optimized,) = FusePass(held=held).run(module)
        assert not {fired.rule for fired in optimized.fired} & set(held)
        # A fused op computes by the same functions of numpy as its parts.
        for a, b in zip(want, run(module), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_a_chunk_and_its_launches(name: str, models: Path, equal: Equal):
    checkpoint = Checkpoint.open(models / f"{name}.gguf")
    module = lifted(checkpoint, 5, ("dequant", "two_pass_int8")[MODELS.index(name) % 2])
    fused = module.clone()
    FusePass().run(fused)
    equal(module, fused, positions=1)


def test_between_them_the_representatives_fire_what_any_family_fires(models: Path):
    fired = {name: _fired(models / f"{name}.gguf") for name in MODELS}
    every = set[str]().union(*fired.values())
    assert set[str]().union(*(fired[name] for name in REPRESENTATIVES)) == every
    # Steps of several sequences have mixtures of rows; small products before the gates are plain in no such file.
    assert every & set(GRAPH_RULES) == set(GRAPH_RULES) - {"moe_rows", "gate_projections"}


def _fired(path: Path) -> set[str]:
    (optimized,) = FusePass(numerics="int8").run(lifted(Checkpoint.open(path), 1, "int8"))
    return {fired.rule for fired in optimized.fired}
