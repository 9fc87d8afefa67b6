"""What other xDSL tools find of us is there, under its own name."""

from __future__ import annotations

import pytest
from xdsl.universe import Universe

from lane_mlir.passes.fuse import ON_LAUNCHES, rule_names
from lane_mlir.universe import GRAPH_RULES, LANE_UNIVERSE


@pytest.mark.parametrize("name", sorted(LANE_UNIVERSE.all_passes))
def test_passes(name: str):
    assert LANE_UNIVERSE.all_passes[name]().name == name


@pytest.mark.parametrize("name", sorted(LANE_UNIVERSE.all_dialects))
def test_dialects(name: str):
    assert LANE_UNIVERSE.all_dialects[name]().name == name


@pytest.mark.parametrize("name", sorted(LANE_UNIVERSE.all_frontends))
def test_frontends(name: str):
    assert LANE_UNIVERSE.all_frontends[name]().name == name


@pytest.mark.parametrize("name", sorted(LANE_UNIVERSE.all_targets))
def test_targets(name: str):
    assert LANE_UNIVERSE.all_targets[name]().name == name


def test_every_rule_of_the_graph_is_a_pass():
    """In the table's order. The fold of the numerics is a step of the optimizer and no pass; some rules act in plan."""
    elsewhere = {"fused_quant", *ON_LAUNCHES}
    table = [rule for rule in rule_names() if rule not in elsewhere]
    assert [rule for rule in GRAPH_RULES if rule in table] == table


def test_plugin_is_installed():
    multiverse = Universe.get_multiverse()
    assert LANE_UNIVERSE.all_passes.keys() <= multiverse.all_passes.keys()
    assert LANE_UNIVERSE.all_dialects.keys() <= multiverse.all_dialects.keys()
