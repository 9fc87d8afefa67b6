"""Validation: a rewrite that changes a value is caught and named, one that does not passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f64
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import LAUNCH, ScheduleOp, YieldOp
from lane_mlir.dialects.tg import (
    ArgumentKind,
    AttentionOp,
    Numerics,
    Precision,
    RmsNormOp,
    ScaleOp,
    SetRowOp,
    TargetAttr,
)
from lane_mlir.dialects.tg.step import set_target
from lane_mlir.eval.inputs import StepInputs
from lane_mlir.eval.step import the_step
from lane_mlir.eval.validate import Unit, ValidationError, Validator, difference, validate_pipeline
from lane_mlir.passes.fuse import FusePass
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass
from lane_mlir.passes.prepare import number_ops

Parse = Callable[[str], ModuleOp]

STEP = """
builtin.module attributes {tg.target = #tg.target<h200, dequant, cache = f16, state = f32>} {
  func.func @step(%token: memref<2xi32> {tg.arg = #tg.arg<token, 0>},
                  %pos: memref<1xi32> {tg.arg = #tg.arg<position, 0>},
                  %k: memref<16x64xf32> {tg.arg = #tg.arg<kv_cache, 0>},
                  %v: memref<16x64xf32> {tg.arg = #tg.arg<kv_cache, 0>}) -> (tensor<2x64xf32>, tensor<2xi32>) {
    %table = tg.constant "token_embd.weight" : tensor<50x64xf32, #tg.rows<q8_0>>
    %g = tg.constant "norm.weight" : tensor<64xf32>
    %w = tg.constant "proj.weight" : tensor<64x64xf32, #tg.rows<q8_0>>
    %cos, %sin = tg.rope_table base 10000.0 freq_scale 1.0 ext_factor 0.0 attn_factor 1.0 beta 32.0, 1.0
      original_context 0 -> tensor<16x16xf32>, tensor<16x16xf32>
    %x = tg.gather %table[%token] : (tensor<50x64xf32, #tg.rows<q8_0>>, memref<2xi32>) -> tensor<2x64xf32>
    %n = tg.rms_norm %x weight %g eps 1.0e-5 : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32>
    %p = tg.matmul %n, %w : (tensor<2x64xf32>, tensor<64x64xf32, #tg.rows<q8_0>>) -> tensor<2x64xf32>
    %u = tg.view %p from 0 : (tensor<2x64xf32>) -> tensor<4x32xf32>
    %r = tg.rope %u by %cos, %sin at %pos heads 2 half
      : (tensor<4x32xf32>, tensor<16x16xf32>, tensor<16x16xf32>, memref<1xi32>) -> tensor<4x32xf32>
    %q = tg.view %r from 0 : (tensor<4x32xf32>) -> tensor<2x64xf32>
    tg.set_row %q into %k[%pos] : tensor<2x64xf32>, memref<16x64xf32>, memref<1xi32>
    tg.set_row %p into %v[%pos] : tensor<2x64xf32>, memref<16x64xf32>, memref<1xi32>
    %y = tg.attention %q, %k, %v at %pos heads 2 / 2 scale 0.2
      : tensor<2x64xf32>, memref<16x64xf32>, memref<16x64xf32>, memref<1xi32> -> tensor<2x64xf32>
    %s = tg.scale %y by 2.0 : (tensor<2x64xf32>) -> tensor<2x64xf32>
    %id = tg.argmax %s : (tensor<2x64xf32>) -> tensor<2xi32>
    func.return %s, %id : tensor<2x64xf32>, tensor<2xi32>
  }
}
"""


def nothing(module: ModuleOp) -> None:
    pass


def wrong_epsilon(module: ModuleOp) -> None:
    """The fault of taking another norm's epsilon."""
    (norm,) = (op for op in module.walk() if isinstance(op, RmsNormOp))
    norm.eps = FloatAttr(1e-6, f64)


def values_of_keys(module: ModuleOp) -> None:
    """Writes keys where values belong: only state is wrong in the first place."""
    keys, values = (op for op in module.walk() if isinstance(op, SetRowOp))
    values.operands[0] = keys.src


def swapped_writes(module: ModuleOp) -> None:
    """Attention moved before the rows that it reads are written: right in SSA, wrong in memory."""
    (attention,) = (op for op in module.walk() if isinstance(op, AttentionOp))
    first = next(op for op in module.walk() if isinstance(op, SetRowOp))
    attention.detach()
    assert first.parent is not None
    first.parent.insert_op_before(attention, first)


def scale_twice(module: ModuleOp) -> None:
    (scale,) = (op for op in module.walk() if isinstance(op, ScaleOp))
    copy = ScaleOp(scale.x, 2.0)
    assert scale.parent is not None
    scale.parent.insert_op_before(copy, scale)
    scale.operands[0] = copy.result


def rewrite(function: Callable[[ModuleOp], None]) -> ModulePass:
    """A pass that does one thing."""

    class Rewrite(ModulePass):
        name = "rewrite"

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            function(op)

    return Rewrite()


def rules(*named: tuple[str, Callable[[ModuleOp], None]]) -> ModulePass:
    """A pass of several rules."""

    class Rules(ModulePass):
        name = "rules"

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            self.apply_observed(ctx, op, lambda rule: None)

        def apply_observed(self, ctx: Context, op: ModuleOp, after_rule: Callable[[str], None]) -> None:
            for name, function in named:
                function(op)
                after_rule(name)

    return Rules()


@pytest.mark.parametrize(
    "wrong, changed, first",
    [
        pytest.param(wrong_epsilon, "result 0", "tg.rms_norm[1]", id="epsilon"),
        pytest.param(values_of_keys, "argument 3 (kv_cache v)", "tg.set_row[7]", id="state"),
        pytest.param(swapped_writes, "result 0", "tg.attention[8]", id="order"),
        pytest.param(scale_twice, "result 0", "tg.scale[9]", id="scale"),
    ],
)
def test_a_wrong_rule_is_caught_and_named(
    ctx: Context, parse: Parse, tmp_path: Path, wrong: Callable[[ModuleOp], None], changed: str, first: str
):
    module = parse(STEP)
    number_ops(the_step(module))
    fuse = rules(("right", nothing), ("add_norm", wrong), ("never", nothing))
    with pytest.raises(ValidationError, match=r"^rule add_norm of pass rules changed step \"step\"") as caught:
        validate_pipeline(ctx, module, [rewrite(nothing), fuse], folder=tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert changed in [d.what for d in caught.value.differences]
    assert f"first at {first} differs by" in message


def test_the_reproducer_is_the_input_of_the_rule_and_says_what_to_run(ctx: Context, parse: Parse, tmp_path: Path):
    module = parse(STEP)
    before = module.clone()
    with pytest.raises(ValidationError) as caught:
        validate_pipeline(ctx, module, [rules(("add_norm", scale_twice))], folder=tmp_path)
    path = caught.value.reproducer
    assert [*tmp_path.iterdir()] == [path]
    assert str(path) in str(caught.value)
    text = path.read_text()
    first, second, *_ = text.splitlines()
    assert first == f"// lane-opt --validate --pass-pipeline='fuse-add-norm' {path.name}"
    assert second.startswith(
        '// rule add_norm of pass rules changed step "step" at position 0 (seed 0): result 0 differs'
    )
    assert Parser(ctx, text).parse_module().is_structurally_equivalent(before)


def test_a_wrong_pass_is_named(ctx: Context, parse: Parse, tmp_path: Path):
    with pytest.raises(ValidationError, match=r"^pass rewrite changed step"):
        validate_pipeline(ctx, parse(STEP), [rewrite(nothing), rewrite(scale_twice)], folder=tmp_path)


def test_right_rewrites_pass_and_stay(ctx: Context, parse: Parse, tmp_path: Path):
    """Scaling the values instead of the result: another graph of the same values."""

    def scale_first(module: ModuleOp) -> None:
        (scale,) = (op for op in module.walk() if isinstance(op, ScaleOp))
        scale.factor = FloatAttr(1.0, f64)
        again = ScaleOp(scale.result, 2.0)
        assert scale.parent is not None
        scale.parent.insert_op_after(again, scale)
        scale.result.replace_uses_with_if(again.result, lambda use: use.operation is not again)

    module = parse(STEP)
    seen: list[tuple[str | None, str | None]] = []

    def between(previous: ModulePass | None, _: ModuleOp, following: ModulePass | None) -> None:
        seen.append((previous and previous.name, following and following.name))

    validate_pipeline(ctx, module, [rewrite(scale_first), rules()], between, folder=tmp_path)
    assert len([op for op in module.walk() if isinstance(op, ScaleOp)]) == 2
    assert seen == [(None, "rewrite"), ("rewrite", "rules"), ("rules", None)]
    assert not [*tmp_path.iterdir()]


def test_no_passes(ctx: Context, parse: Parse):
    seen: list[object] = []
    validate_pipeline(ctx, parse(STEP), [], lambda previous, _, following: seen.append((previous, following)))
    assert seen == [(None, None)]


def test_invalid_ir_is_the_fault_of_its_rule(ctx: Context, parse: Parse, tmp_path: Path):
    def break_it(module: ModuleOp) -> None:
        (norm,) = (op for op in module.walk() if isinstance(op, RmsNormOp))
        norm.eps = FloatAttr(-1.0, f64)

    with pytest.raises(ValidationError, match=r"^rule bad of pass rules left invalid IR: .*eps"):
        validate_pipeline(ctx, parse(STEP), [rules(("bad", break_it))], folder=tmp_path)


def test_a_step_that_vanishes_is_the_fault_of_its_pass(ctx: Context, parse: Parse, tmp_path: Path):
    def erase(module: ModuleOp) -> None:
        the_step(module).detach()

    with pytest.raises(ValidationError, match=r'^pass rewrite took step "step" away'):
        validate_pipeline(ctx, parse(STEP), [rewrite(erase)], folder=tmp_path)


def test_other_numerics_are_no_change(ctx: Context, parse: Parse, tmp_path: Path):
    """A pass may say anew what the step is compiled for; both sides are then evaluated for that."""

    def to_int8(module: ModuleOp) -> None:
        set_target(module, numerics=Numerics.INT8, cache=Precision.F32)

    validate_pipeline(ctx, parse(STEP), [rewrite(nothing), rewrite(to_int8)], folder=tmp_path)
    with pytest.raises(ValidationError):
        validate_pipeline(ctx, parse(STEP), [rewrite(to_int8), rewrite(scale_twice)], folder=tmp_path)


def test_a_quantized_argument_has_its_words(ctx: Context, parse: Parse, tmp_path: Path):
    text = """
    builtin.module attributes {tg.target = #tg.target<h200, int8, cache = f32, state = f32>} {
      func.func @f(%x: tensor<1x64xf32, #tg.quantized<int8>>) -> tensor<1x32xf32> {
        %w = tg.constant "w" : tensor<32x64xf32, #tg.rows<q8_0>>
        %y = tg.matmul %x, %w : (tensor<1x64xf32, #tg.quantized<int8>>, tensor<32x64xf32, #tg.rows<q8_0>>)
          -> tensor<1x32xf32>
        func.return %y : tensor<1x32xf32>
      }
    }"""
    validate_pipeline(ctx, parse(text), [LinkPass(), PlanPass()], folder=tmp_path)


@dataclass
class Counting:
    """An executor that counts its runs."""

    runs: list[int] = field(default_factory=list[int])

    def steps(self, module: ModuleOp) -> dict[str, ModuleOp]:
        return {"step": module}

    def run(self, step: object, weights: object, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.runs.append(int(arguments[1][0]))
        return []


def test_executors_run_the_forms_that_they_know(parse: Parse):
    """Other forms plug in here; nothing runs where nothing has changed."""
    module, executor = parse(STEP), Counting()
    validator = Validator(module, executors=(executor,))
    validator.check(Unit(rewrite(nothing)))
    assert executor.runs == []
    scale_twice(module)
    validator.check(Unit(rewrite(scale_twice)))
    assert executor.runs == [0, 7, 14, 0, 7, 14]


def test_a_form_that_nothing_runs_is_compared_once_it_has_another(ctx: Context, parse: Parse, tmp_path: Path):
    """The step is hidden by one pass and comes back wrong from the next: either may be at fault."""
    hidden: list[FuncOp] = []

    def hide(module: ModuleOp) -> None:
        func = the_step(module)
        hidden.append(func)
        func.detach()
        module.body.block.add_op(ScheduleOp("step", [YieldOp()]))

    def bring_back_wrong(module: ModuleOp) -> None:
        (schedule,) = module.ops
        schedule.detach()
        module.body.block.add_op(hidden[0])
        scale_twice(module)

    ctx.load_dialect(LAUNCH)
    with pytest.raises(ValidationError, match=r'^passes rewrite, rewrite changed step "step"') as caught:
        validate_pipeline(ctx, parse(STEP), [rewrite(hide), rewrite(bring_back_wrong)], folder=tmp_path)
    assert "--pass-pipeline='rewrite,rewrite'" in caught.value.reproducer.read_text()


def test_a_form_that_nothing_runs_is_planned_at_the_end(ctx: Context, parse: Parse, tmp_path: Path):
    """What ends at launches that are not planned is compared all the same, and left as it is."""

    class WrongLink(LinkPass):
        def apply(self, ctx: Context, op: ModuleOp) -> None:
            scale_twice(op)
            super().apply(ctx, op)

    ctx.load_dialect(LAUNCH)
    module = parse(STEP)
    validate_pipeline(ctx, module, [FusePass(), LinkPass()], folder=tmp_path)
    (schedule,) = module.ops
    assert isinstance(schedule, ScheduleOp)
    assert schedule.arena is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValidationError, match=r'^passes link, plan changed step "step"') as caught:
        validate_pipeline(ctx, parse(STEP), [FusePass(), WrongLink()], folder=tmp_path)
    assert "--pass-pipeline='link,plan'" in caught.value.reproducer.read_text()


def test_what_is_linked_already_is_not_validated(ctx: Context, parse: Parse):
    ctx.load_dialect(LAUNCH)
    module = parse(STEP)
    validate_pipeline(ctx, module, [LinkPass()])
    with pytest.raises(LaneError, match=r'^step "step" is linked already: validation begins at a step of tg$'):
        validate_pipeline(ctx, module, [PlanPass()])


def test_the_rules_of_fuse_are_checked_one_by_one(ctx: Context, parse: Parse, tmp_path: Path):
    """Numbers come from fuse itself; the form before its first rule has none."""

    class WrongFuse(FusePass):
        def apply_observed(self, ctx: Context, op: ModuleOp, after_rule: Callable[[str], None]) -> None:
            def after_tampering(rule: str) -> None:
                if rule == "add_norm":
                    wrong_epsilon(op)
                after_rule(rule)

            super().apply_observed(ctx, op, after_tampering)

    with pytest.raises(ValidationError, match=r"^rule add_norm of pass fuse changed step") as caught:
        validate_pipeline(ctx, parse(STEP), [WrongFuse()], folder=tmp_path)
    assert "first at tg.rms_norm[1] differs by" in str(caught.value)
    assert "--pass-pipeline='fuse-add-norm'" in caught.value.reproducer.read_text()
    validate_pipeline(ctx, parse(STEP), [FusePass()], folder=tmp_path)


def test_an_unreadable_folder_is_one_line(ctx: Context, parse: Parse, tmp_path: Path):
    with pytest.raises(LaneError, match=r"^cannot write .*missing"):
        validate_pipeline(ctx, parse(STEP), [rewrite(scale_twice)], folder=tmp_path / "missing")


# Inputs.


def test_inputs_are_valid_and_what_must_not_be_read_is_nan(parse: Parse):
    inputs = StepInputs.of(the_step(parse(STEP)))
    assert (inputs.rows, inputs.length, inputs.vocabulary) == (2, 16, 50)
    assert list(inputs.positions) == [0, 7, 14]
    target = TargetAttr(cache=Precision.F16)
    for position in inputs.positions:
        token, pos, keys, _ = inputs.at(position, target)
        assert pos.tolist() == [position]
        assert ((token >= 0) & (token < 50)).all()
        assert keys.dtype == np.float16
        assert np.isfinite(keys[:position]).all()
        assert np.isnan(keys[position:]).all()
        for again, other in zip(inputs.at(position, target), inputs.at(position, target, seed=1), strict=True):
            assert again.shape == other.shape
    np.testing.assert_array_equal(inputs.at(7, target)[2], inputs.at(7, target)[2])
    assert not np.array_equal(inputs.at(7, target)[2][:7], inputs.at(7, target, seed=1)[2][:7])


def test_what_arguments_are_is_read_off_their_uses(parse: Parse):
    module = parse("""func.func @f(%t: memref<1xi32>, %p: memref<1xi32>, %table: tensor<9x4xf32>, %w: tensor<4x2xf32>,
        %ring: memref<2x4xf32>, %cache: memref<5x4xf32>) {
        %x = tg.gather %table[%t] : (tensor<9x4xf32>, memref<1xi32>) -> tensor<1x4xf32>
        %y = tg.fused "f" {
          %z = tg.conv %x, %w ring %ring : (tensor<1x4xf32>, tensor<4x2xf32>, memref<2x4xf32>) -> tensor<1x4xf32>
          tg.yield %z : tensor<1x4xf32>
        }
        tg.set_row %y into %cache[%p] : tensor<1x4xf32>, memref<5x4xf32>, memref<1xi32>
        func.return }""")
    inputs = StepInputs.of(the_step(module))
    assert [a.kind for a in inputs.arguments] == [
        ArgumentKind.TOKEN,
        ArgumentKind.POSITION,
        None,
        None,
        ArgumentKind.CONV_RING,
        ArgumentKind.KV_CACHE,
    ]
    assert not inputs.at(0, TargetAttr())[4].any()
    assert inputs.at(2, TargetAttr())[4].all()


# Differences.


def test_difference_of_nan_and_rounding():
    a = np.array([[1, np.nan], [3, 4]], np.float32)
    assert difference("a", a, a.copy(), 0.0) is None
    b = a.copy()
    b[1, 0] += 1e-5
    assert difference("a", a, b, 1e-5) is None
    found = difference("a", a, b, 1e-7)
    assert found is not None
    assert found.index == (1, 0)
    assert found.relative == pytest.approx(1e-5 / np.sqrt(26), rel=0.02)


@pytest.mark.parametrize("before, after", [(1.0, np.nan), (np.nan, 1.0), (1.0, np.inf), (np.inf, -np.inf)])
def test_what_is_not_finite_differs_from_all_else(before: float, after: float):
    found = difference("a", np.array([5, before], np.float32), np.array([5, after], np.float32), 1e9)
    assert found is not None
    assert found.largest == np.inf


def test_integers_differ_by_anything():
    a = np.array([100000, 5], np.int32)
    found = difference("id", a, a + np.array([0, 1], np.int32), 1.0)
    assert found is not None
    assert found.index == (1,)


def test_other_shapes_differ():
    assert difference("a", np.zeros((2, 3)), np.zeros((3, 2)), 1.0) is not None
