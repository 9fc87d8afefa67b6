"""The passes among others: stock passes before, between and after ours, link without fuse, xDSL's own driver."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.parser import Parser
from xdsl.passes import PassPipeline
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.universe import Universe
from xdsl.utils.exceptions import PassFailedException
from xdsl.xdsl_opt_main import xDSLOptMain

from lane_mlir.dialects import tg
from lane_mlir.passes.fuse import FusePass
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass
from lane_mlir.runtime.compilation import module_context

Lift = Callable[..., ModuleOp]
Launched = Callable[[ModuleOp, ModuleOp], None]


def step_of(s: Any, close: bool = True) -> Any:
    """Equal ops that cse merges, dead ones that dce removes, reads of caches between writes of them, a mixture."""
    x, k = s.embedding(), s.cache(64, "k")
    s.silu(x)
    y = s.norm(x)
    w = s.constant(64, 64, stored="q8_0", name="w")
    first, second = (s.add_op(tg.MatmulOp(y, w)) for _ in range(2))
    s.set_row(s.whole(s.rope(s.norm(s.heads(first)))), k)
    before = s.attention(second, k, k)
    s.set_row(s.matmul(y), k)
    after = s.attention(second, k, k)
    x = s.add(s.add(x, s.matmul(before)), s.bias(s.matmul(after)))
    y = s.norm(x)
    x = s.add(x, s.moe(y))
    x = s.add(x, s.matmul(s.mul(s.silu(s.matmul(s.norm(x), 96)), s.matmul(s.norm(x), 96))))
    logits = s.matmul(s.norm(x), s.VOCABULARY)
    if not close:
        return logits, first, second
    token = s.add_op(tg.ArgmaxOp(logits))
    s.add_op(tg.AdvanceOp(token, s.token, s.pos))
    return logits, token, first, second


def run_pipeline(module: ModuleOp, passes: str) -> None:
    every = Universe.get_multiverse().all_passes
    PassPipeline.parse_spec(every, passes).apply(module_context(), module)
    module.verify()


@pytest.mark.parametrize("numerics", ["dequant", "int8", "two_pass_int8"])
@pytest.mark.parametrize(
    "passes",
    [
        "fuse,link,plan",
        "canonicalize,cse,fuse,dce,link,plan",
        "cse,fuse,cse,canonicalize,dce,link,plan",
        "fuse,fuse,link,plan",
        "fuse-add-norm,cse,fuse-row-write,canonicalize,fuse,cse,link,plan",
        "fuse,link,cse,dce,plan",
        "fuse,link,plan,dce,cse,check-plan",
    ],
)
def test_stock_passes_around_ours(lift: Lift, launched: Launched, passes: str, numerics: str):
    module = lift(step_of, 1, numerics)
    lifted = module.clone()
    run_pipeline(module, passes)
    launched(lifted, module)


@pytest.mark.parametrize("numerics", ["dequant", "int8", "two_pass_int8"])
def test_link_without_fuse(lift: Lift, launched: Launched, numerics: str):
    def build(s: Any) -> Any:
        return step_of(s, close=False)

    module = lift(build, 2, numerics)
    lifted = module.clone()
    run_pipeline(module, "link,plan")
    launched(lifted, module)


def test_advance_needs_its_argmax(lift: Lift):
    with pytest.raises(PassFailedException, match=r"advance\[\d+\].* runs only with its arg-max: run fuse first"):
        LinkPass().apply(Context(), lift(step_of))


@pytest.mark.parametrize(("first", "then"), [("dequant", "int8"), ("dequant", "two_pass_int8")])
def test_numerics_changed_between_fuse_and_link(lift: Lift, launched: Launched, first: str, then: str):
    """What was fused for f32 activations quantizes them before the fused ops that read them."""
    module = lift(step_of, 1, first)
    expected = lift(step_of, 1, then)
    run_pipeline(module, f"fuse,link{{numerics={then}}},plan")
    launched(expected, module)


@pytest.mark.parametrize(("first", "then"), [("int8", "dequant"), ("int8", "two_pass_int8"), ("two_pass_int8", "int8")])
def test_quantized_for_one_numerics_and_linked_for_another_is_refused(lift: Lift, first: str, then: str):
    module = lift(step_of, 1, first)
    with pytest.raises(PassFailedException, match=f"it quantizes to {first}, and the step is compiled for {then}"):
        run_pipeline(module, f"fuse,link{{numerics={then}}}")


def test_a_pass_failed_leaves_a_step_that_verifies(lift: Lift):
    module = lift(step_of)
    with pytest.raises(PassFailedException):
        LinkPass().apply(Context(), module)
    module.verify()


def test_embedded_in_a_pipeline(lift: Lift, launched: Launched):
    module = lift(step_of, 1, "int8")
    lifted = module.clone()
    passes = (
        CanonicalizePass(),
        CommonSubexpressionElimination(),
        FusePass(held=("add_norm", "gates")),
        LinkPass(),
        PlanPass(),
    )
    assert str(passes[2]) == 'fuse{held="add_norm","gates"}'
    PassPipeline(passes).apply(module_context(), module)
    launched(lifted, module)


@pytest.mark.parametrize("passes", ["fuse,link,plan", "canonicalize,cse,fuse,dce,link,plan"])
def test_in_the_driver_of_xdsl(
    lift: Lift, launched: Launched, passes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module = lift(step_of)
    path = tmp_path / "step.mlir"
    path.write_text(str(module))
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    xDSLOptMain(args=[str(path), "-p", passes]).run()
    monkeypatch.undo()
    launched(module, Parser(module_context(), output.getvalue()).parse_module())


def test_ops_of_other_dialects_are_refused_where_they_cannot_run(lift: Lift):
    def between(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        y = s.whole(s.rope(s.heads(x)))
        s.unknown("other.op", s.pos)
        s.set_row(y, k)
        return x

    module = lift(between)
    (optimized,) = FusePass().run(module)
    assert [d.reason for d in optimized.report.of("row_write")] == [
        "'other.op' stands between, and what it touches is not known"
    ]
    with pytest.raises(PassFailedException, match=r"'other\.op'"):
        LinkPass().apply(Context(), module)


def test_what_another_dialect_computes_has_no_buffer(lift: Lift):
    def build(s: Any) -> Any:
        x = s.embedding()
        y = s.unknown("other.op", x, results=[x.type])
        return s.norm(s.add(x, y))

    module = lift(build)
    (optimized,) = FusePass().run(module)
    assert ["'other.op'" in d.reason for d in optimized.report.of("add_norm")] == [True]
    assert not optimized.fired


def test_a_weight_that_another_dialect_makes_later_does_not_move(lift: Lift):
    def build(s: Any) -> Any:
        x = s.embedding()
        y = s.matmul(x, stored=None)
        w = s.unknown("other.weight", s.pos, results=[TensorType(f32, (64, 64))])
        return y, s.add_op(tg.MatmulOp(x, w))

    (optimized,) = FusePass().run(lift(build))
    (decision,) = optimized.report.of("gemv_parts")
    assert decision.reason.endswith("reads other.weight, which is computed after matmul[1] (matmul.1)")
