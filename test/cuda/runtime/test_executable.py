"""A compiled step as data: what it becomes as JSON is read back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.chips import chip
from lane_mlir.cuda.lowering import Lowering
from lane_mlir.cuda.runtime.executable import Executable, Region, executable_of
from lane_mlir.rope import RopeTable
from lane_mlir.runtime.compilation import schedules
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.target import make_target

MODELS = Path(__file__).parents[2] / "data" / "models"


def lowered(model: str, rows: int = 1, sequences: int = 1) -> Executable:
    recipe = Recipe(make_target("int8", cache="f16"), context=96)
    module = recipe.lift(Checkpoint.open(MODELS / f"{model}.gguf"), rows, "last", sequences)
    recipe.lower(module)
    (schedule,) = schedules(module)
    return Lowering(schedule, chip("h200")).executable


@pytest.mark.parametrize(
    "model, rows, sequences", [("qwen3-Q8_0", 1, 1), ("gpt-oss-moe-Q4_K_M", 17, 1), ("lfm2-Q4_K_M", 1, 3)]
)
def test_json_is_read_back(model: str, rows: int, sequences: int):
    """A plain step, one with a mixture and rotations scaled by YaRN, and one of several sequences."""
    made = lowered(model, rows, sequences)
    again = executable_of(made.json())
    assert again == made
    assert again.json() == made.json()
    assert again.rows == rows
    assert (again.positions, again.sequences) == (96, sequences)
    assert {place.region for call in made.calls for place in call.places} >= {Region.ARENA, Region.WEIGHT, Region.STATE}


def test_rotations_keep_their_scaling():
    tables = [weight.source for weight in executable_of(lowered("gpt-oss-moe-Q4_K_M").json()).weights]
    found = {table.which: table.scaling for table in tables if isinstance(table, RopeTable)}
    assert found["cos"] == found["sin"]
    assert found["cos"].ext_factor == 1.0
    assert found["cos"].original_context > 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "step"}'])
def test_what_is_no_step(text: str):
    with pytest.raises((KeyError, TypeError, ValueError)):
        executable_of(text)


def test_what_is_of_another_version():
    text = lowered("qwen3-Q8_0").json()
    for before, after in (('"rows":1,', ""), ('"region":"arena"', '"region":"heap"'), ('"pdl":', '"pld":')):
        assert before in text
        with pytest.raises((KeyError, TypeError, ValueError)):
            executable_of(text.replace(before, after))
