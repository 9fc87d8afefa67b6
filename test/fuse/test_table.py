"""The table: its order, rules held, limits, the report, and rules as passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import PassPipeline
from xdsl.universe import Universe
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.dialects import tg
from lane_mlir.dialects.tg.operation import integer
from lane_mlir.eval.step import the_step
from lane_mlir.passes.forms import covers, leaves, rules_of
from lane_mlir.passes.fuse import (
    LATE,
    ON_LAUNCHES,
    OWN,
    RULES,
    FusePass,
    Outcome,
    classes_built,
    optimize,
    rule_names,
    rule_pass,
    steps,
)
from lane_mlir.universe import GRAPH_RULES

Build = Callable[[Any], Any]


class Fuse(Protocol):
    """See the fixture."""

    def __call__(self, build: Build, *only: str, **how: Any) -> Any: ...


Lift = Callable[..., ModuleOp]


def decoder(s: Any) -> Any:
    """A layer of attention with biases and a gated pair, the norms around, and the choice of the next token."""
    x, k, v = s.scale(s.embedding()), s.cache(64, "k"), s.cache(64, "v")
    y = s.norm(x)
    q = s.whole(s.rope(s.norm(s.heads(s.bias(s.matmul(y))))))
    s.set_row(s.whole(s.rope(s.norm(s.heads(s.bias(s.matmul(y)))))), k)
    s.set_row(s.bias(s.matmul(y)), v)
    x = s.add(x, s.matmul(s.attention(q, k, v)))
    y = s.norm(x)
    x = s.add(x, s.norm(s.matmul(s.mul(s.silu(s.matmul(y, 96)), s.matmul(y, 96)))))
    logits = s.matmul(s.norm(x, 1e-4), s.VOCABULARY)
    token = s.add_op(tg.ArgmaxOp(s.view(logits, 1, s.VOCABULARY, (s.rows - 1) * s.VOCABULARY)))
    if s.rows == 1:
        s.add_op(tg.AdvanceOp(token, s.token, s.pos))
    return logits, token


def test_the_order_of_the_table():
    assert [rule for rule in RULES if rule in GRAPH_RULES] == list(GRAPH_RULES)
    assert {*RULES, *OWN} == {*GRAPH_RULES, *ON_LAUNCHES}
    early = [rule for rule in RULES if rule not in (*LATE, *ON_LAUNCHES)]
    assert list(steps()) == [*early, "fused_quant", *LATE, "advance"]
    assert list(rule_names()) == [*RULES, "fused_quant", *OWN]


def test_every_rule_says_what_it_builds():
    built = classes_built()
    assert set(built) == set(steps())
    assert all(built.values())
    names = [name for classes in built.values() for name in classes]
    assert len(set(names)) == len(names)


def test_a_rule_held_is_reported_as_it_would_have_fired(fuse: Fuse):
    every = fuse(decoder, numerics="int8")
    for rule in every.fired:
        if rule == "advance":
            continue
        # What comes before does not depend on it.
        before = [name for name in steps() if name != rule][: steps().index(rule)]
        alone = fuse(decoder, *before, rule, numerics="int8", launches=False, positions=1)
        held = fuse(decoder, numerics="int8", held=(rule,), positions=1)
        assert held.count(rule) == 0
        assert held.count(rule, Outcome.HELD) == alone.count(rule) > 0
        assert {d.reason for d in held.report.of(rule) if d.outcome is Outcome.HELD} == {f"{rule} is held"}
        assert [d.covers for d in held.report.of(rule)] == [d.covers for d in alone.report.of(rule)]
        assert rule not in {name for op in held.ops for name in rules_of(op)}


def test_all_rules_held(fuse: Fuse):
    rewrite = fuse(decoder, held=tuple(rule_names()))
    assert rewrite.fired == {"advance": 1}
    assert rewrite.count("add_norm", Outcome.HELD) == 2
    assert rewrite.classes == ["advance"]


def test_holding_all_steps_from_one_on_leaves_the_graph_as_the_steps_before_make_it(fuse: Fuse):
    for i in (3, 9, len(steps()) - 3):
        held = fuse(decoder, held=[rule for rule in steps()[i:] if rule != "advance"])
        only = fuse(decoder, *steps()[:i], "advance", launches=False)
        assert str(held.fused) == str(only.fused)


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
def test_limit_stops_after_as_many_firings(fuse: Fuse, numerics: str):
    every = fuse(decoder, numerics=numerics)
    total = len(every.report.fired()) - 1
    for limit in range(total + 2):
        rewrite = fuse(decoder, numerics=numerics, limit=limit, positions=1)
        fired = rewrite.report.fired()
        assert fired[-1].rule == "advance"
        assert fired[:-1] == every.report.fired()[: min(limit, total)]


def test_the_report_is_data_and_the_same_every_time(fuse: Fuse):
    first, second = (json.dumps(fuse(decoder, numerics="int8").report.json()) for _ in range(2))
    assert first == second
    decisions = json.loads(first)
    assert {frozenset(decision) for decision in decisions} == {
        frozenset(("rule", "class", "covers", "outcome", "reason", "where"))
    }
    for decision in decisions:
        assert (decision["outcome"] == "fired") == (decision["reason"] == "")
        assert decision["covers"]
        # One sentence, without the end of it.
        assert not decision["reason"].endswith(".")
        assert "\n" not in decision["reason"]
        assert decision["where"]


def test_decisions_come_in_the_order_of_the_table(fuse: Fuse):
    rules = [decision.rule for decision in fuse(decoder, numerics="int8").report]
    assert [steps().index(rule) for rule in rules] == sorted(steps().index(rule) for rule in rules)


def test_every_lifted_op_is_covered_once(fuse: Fuse):
    rewrite = fuse(decoder, numerics="int8")
    lifted = [op for op in the_step(rewrite.lifted).walk() if isinstance(op, tg.LiftedOperation)]
    covering = [leaf for op in rewrite.ops for leaf in leaves(op)]
    added = [leaf for leaf in covering if isinstance(leaf, tg.QuantizeOp)]
    numbers = [number for op in rewrite.ops for number in covers(op)]
    assert sorted(numbers) == list(range(len(lifted) + len(added)))
    assert min(number for leaf in added for number in covers(leaf)) == len(lifted)
    firings = rewrite.report.fired()
    made = [rule for op in rewrite.ops for rule in rules_of(op)]
    assert sorted(made) == sorted(firing.rule for firing in firings)


def test_numbers_that_ops_have_stay_theirs(lift: Lift):
    module = lift(decoder)
    ops = [op for op in the_step(module).body.block.ops if isinstance(op, tg.LiftedOperation)]
    ops[3].number = integer(100)
    FusePass().run(module)
    numbers = [number for op in the_step(module).body.block.ops for number in covers(op)]
    assert 100 in numbers
    assert max(numbers) == 100 + len(ops) - 1


def test_fuse_twice_is_fuse_once(lift: Lift):
    for numerics in ("dequant", "int8"):
        module = lift(decoder, 1, numerics)
        FusePass().run(module)
        once = str(module)
        (again,) = FusePass().run(module)
        assert not again.fired
        assert str(module) == once


def test_fuse_goes_on_where_it_was_held(lift: Lift, equal: Callable[..., None]):
    module = lift(decoder, 1, "int8")
    lifted = module.clone()
    FusePass(held=("add_norm", "glu_pair", "fused_quant", "gemv_parts", "row_write")).run(module)
    FusePass().run(module)
    equal(lifted, module)


def test_each_rule_is_a_pass(lift: Lift, fuse: Fuse):
    every = Universe.get_multiverse().all_passes
    for rule in GRAPH_RULES:
        name = f"fuse-{rule.replace('_', '-')}"
        assert every[name]().name == name
        module, expected = lift(decoder), fuse(decoder, rule, launches=False, positions=1)
        rule_pass(rule)().apply(Context(), module)
        assert str(module) == str(expected.fused)


def test_rules_as_a_pipeline(lift: Lift, equal: Callable[..., None]):
    module = lift(decoder)
    lifted = module.clone()
    spec = "canonicalize,fuse-add-norm,fuse-sandwich-norm,cse,fuse-gemv-norm-epilogue,dce"
    PassPipeline.parse_spec(Universe.get_multiverse().all_passes, spec).apply(Context(), module)
    equal(lifted, module, launches=False)
    classes = [op.fusion_class.data for op in the_step(module).body.block.ops if isinstance(op, tg.FusedOp)]
    assert classes == ["gemv_norm_epilogue", "gemv_norm_epilogue"]


def test_what_a_pass_is_asked_for_overrides_the_module(lift: Lift):
    module = lift(decoder)
    FusePass(numerics="int8").run(module)
    assert tg.target_of(module).numerics.data is tg.Numerics.INT8
    assert any(isinstance(op, tg.QuantizeOp) for op in module.walk())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held": ("add_nrom",)}, r"^unknown rule 'add_nrom'; did you mean 'add_norm'\?"),
        ({"held": ("advance",)}, r"^unknown rule 'advance'"),
        ({"chip": "h300"}, r"^unknown chip 'h300'; did you mean 'h200' or 'h100'"),
        ({"limit": -1}, r"^limit is -1, expected 0 or more"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(PassFailedException, match=message):
        FusePass(**options)


def test_several_steps_of_a_module(lift: Lift, equal: Callable[..., None]):
    module, other = lift(decoder), lift(decoder, 3)
    func = the_step(other)
    func.detach()
    func.sym_name = type(func.sym_name)("prefill")
    module.body.block.add_op(func)
    reports = FusePass().run(module)
    assert [len(optimized.fired) > 5 for optimized in reports] == [True, True]
    module.verify()


def test_a_module_without_steps_is_left(lift: Lift):
    empty = ModuleOp([])
    assert FusePass().run(empty) == []
    from xdsl.dialects.func import FuncOp

    declared = ModuleOp([FuncOp.external("extern", [], [])])
    assert FusePass().run(declared) == []


def test_a_held_copy_leaves_no_use_behind(lift: Lift):
    """What is tried on a copy or refused reads nothing of the step when it is done."""
    module = lift(decoder, 1, "int8")
    func = the_step(module)
    optimize(func, tg.target_of(module), held=tuple(rule_names()))
    block = func.body.block
    for value in [*block.args, *(result for op in block.ops for result in op.results)]:
        for use in value.uses:
            assert func.is_ancestor(use.operation)


def test_values_do_not_change_bit_by_bit(lift: Lift):
    """The same functions of numpy compute both sides: rewriting only groups them."""
    from lane_mlir.eval import RandomWeights, run_step
    from lane_mlir.eval.inputs import StepInputs

    module = lift(decoder, 2, "int8")
    fused = module.clone()
    FusePass().run(fused)
    inputs, weights = StepInputs.of(the_step(module)), RandomWeights()
    first, second = (run_step(m, weights, inputs.at(3, tg.target_of(module))) for m in (module, fused))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
