"""Every tiny model under every numerics: no rule and no pass changes a value."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.context import Context

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.dialects.tg import Numerics, Precision, TargetAttr
from lane_mlir.eval.validate import validate_pipeline
from lane_mlir.importers import import_step
from lane_mlir.passes.fuse import FusePass
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass

MODELS = sorted((Path(__file__).parents[1] / "data" / "models").glob("*.gguf"))


@pytest.mark.parametrize("numerics", Numerics, ids=str)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_validate(path: Path, numerics: Numerics, tmp_path: Path):
    # Of the precisions of a cache, each with every other model.
    cache = (Precision.F32, Precision.F16)[MODELS.index(path) % 2]
    target = TargetAttr(numerics=numerics, cache=cache)
    module = import_step(Checkpoint.open(path), rows=1, context=32, target=target)
    validate_pipeline(Context(), module, [FusePass(), LinkPass(), PlanPass()], folder=tmp_path)
    (schedule,) = module.ops
    assert isinstance(schedule, ScheduleOp)
    assert schedule.arena is not None
    assert not list(tmp_path.iterdir())
