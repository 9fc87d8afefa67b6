"""docs/rules.md, and what it counts: every rule fires in the model of a family, and layers are few launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from lane_mlir.passes.fuse import OWN, RULES, steps
from lane_mlir.tools.document_rules import DECODE, Compiled, compile_all, document, launches_of_layers, rules

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.fixture(scope="module")
def found(models: Path) -> list[Compiled]:
    return compile_all(models)


def test_the_page_is_current(found: list[Compiled]):
    """`make docs` writes it."""
    assert PAGE.read_text() == document(found)


def test_every_rule_fires_in_a_family(found: list[Compiled]):
    assert set(rules()) == {*RULES, *steps(), *OWN}
    assert [rule for rule in rules() if not any(one.counts[rule] for one in found)] == []


def test_launches_of_a_layer(found: list[Compiled]):
    """Under int8: a fold of q, k and v, attention, its product with a norm, the gated pair, its product with a norm."""
    decode = {one.model: launches_of_layers(one) for one in found if one.kind is DECODE}
    # In the Q4_K_M files v is stored in another format than q and k in some layers.
    for model in ("llama-f32", "llama-Q8_0", "llama-Q4_K_M", "llama-moe-Q4_K_M", "qwen3-Q8_0", "qwen3moe-moe-Q4_K_M"):
        assert len(decode[model]) == 2
        assert max(decode[model]) <= 5


def test_a_small_gate_in_f32_has_a_kernel_of_its_own(found: list[Compiled]):
    (one,) = (one for one in found if one.model == "qwen3next-moe-Q4_K_M-f32-gates")
    assert one.schedule.census()["gemv_f32"] == 1
