"""Mixtures of experts on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lane_mlir.formats import Format

NUMERICS = ["dequant", "int8", "two_pass_int8"]
SUMS = 1e-5
"""Of the largest result: two products of sums, of which the first is rounded again where it is quantized."""
STEPS = 2e-2
"""The same, where a hidden value may be rounded to the other side: one step of 127, of one value in some hundred."""


def tolerance(numerics: str) -> float:
    return {"dequant": SUMS, "int8": STEPS, "two_pass_int8": 1e-4}[numerics]


@pytest.fixture
def experts(rows: Any) -> Any:
    """Weights of experts by name."""

    def make(
        formats: tuple[Format, Format, Format], experts: int, d: int, dff: int, prefix: str = "w"
    ) -> dict[str, Any]:
        gate, up, down = formats
        return {
            f"{prefix}g": rows(gate, experts * dff, d),
            f"{prefix}u": rows(up, experts * dff, d),
            f"{prefix}d": rows(down, experts * d, dff),
        }

    return make


def launch(
    d: int, dff: int, experts: int, used: int, rows: int, formats: str, how: str = "score softmax act silu", more: str = "",
    extra: str = "",
) -> str:  # fmt: skip
    return (
        f"launch.moe %x router %wr {extra} experts %wg, %wu, %wd [{formats}] into %y {how}"
        f" (d = {d}, dff = {dff}, experts = {experts}, k = {used}, rows = {rows}) {more}"
    )


def of(text: str, **names: str) -> str:
    """A launch with other operands than %x, %wr, %wg, %wu, %wd and %y."""
    for name, other in names.items():
        text = text.replace(f"%{name} ", f"%{other} ").replace(f"%{name},", f"%{other},")
    return text


FORMATS = [
    (Format.Q4_0, Format.Q4_0, Format.Q8_0, 1),
    (Format.Q8_0, Format.Q5_0, Format.F16, 3),
    (Format.F32, Format.F32, Format.F32, 1),
]


@pytest.mark.parametrize("numerics", NUMERICS)
def test_chosen_experts(
    compare: Any, random: Any, out: Any, activation: Any, transposed: Any, experts: Any, numerics: str
):
    """Weights in block formats and plain, the router stored by columns and by rows, one row and several."""
    d, dff, count = 96, 64, 6
    launches: list[str] = []
    buffers: dict[str, Any] = {"x1": activation(random(1, d)), "x3": activation(random(3, d))}
    for i, (gate, up, down, tokens) in enumerate(FORMATS):
        buffers |= experts((gate, up, down), count, d, dff, f"w{i}")
        for kind, stored in (("t", transposed), ("r", np.asarray)):
            text = launch(d, dff, count, 2, tokens, f"{gate}, {up}, {down}", more="renormalize")
            names = {f"w{k}": f"w{i}{k}" for k in "gud"}
            launches.append(of(text, x=f"x{tokens}", wr=f"r{i}{kind}", y=f"y{i}{kind}", **names))
            buffers |= {f"r{i}{kind}": stored(random(count, d)), f"y{i}{kind}": out((tokens, d))}
    compare("\n".join(launches), numerics, **buffers).check(tolerance(numerics))


def test_every_router(compare: Any, random: Any, out: Any, transposed: Any, experts: Any):
    """Scores by softmax, sigmoid or softmax of the chosen ones, renormalized or not, scaled or not."""
    ways = {
        f"{scoring}_{i}": (f"score {scoring} act silu", more)
        for scoring in ("softmax", "sigmoid", "softmax_chosen")
        for i, more in enumerate(("", "renormalize", "scale = 2.5", "scale = 2.5 renormalize"))
    }
    launches = "\n".join(
        of(launch(32, 32, 40, 3, 2, "f32, f32, f32", how, more, "router_bias %rb"), y=name)
        for name, (how, more) in ways.items()
    )
    compare(
        launches, x=random(2, 32), wr=transposed(random(40, 32)), rb=random(40) - 3, **{n: out((2, 32)) for n in ways},
        **experts((Format.F32,) * 3, 40, 32, 32),
    ).check(SUMS)  # fmt: skip


def test_groups_and_selection_bias(compare: Any, random: Any, out: Any, transposed: Any, experts: Any):
    """Only the experts of the best groups are chosen; the bias chooses, but does not weigh."""
    ways = ((4, 2, 2), (8, 3, 2), (8, 8, 2), (16, 1, 1))
    launches = "\n".join(
        of(
            launch(
                32, 32, 16, chosen, 5, "f32, f32, f32", "score sigmoid act silu",
                f"groups = {groups} groups_used = {used} renormalize", "selection_bias %sb",
            ),
            y=f"y{groups}{used}",
        )
        for groups, used, chosen in ways
    )  # fmt: skip
    results = {f"y{groups}{used}": out((5, 32)) for groups, used, _ in ways}
    compare(
        launches, x=random(5, 32), wr=transposed(random(16, 32)), sb=random(16), **results,
        **experts((Format.F32,) * 3, 16, 32, 32),
    ).check(SUMS)  # fmt: skip


def test_equal_scores_choose_the_lower_expert(compare: Any, random: Any, out: Any, transposed: Any, experts: Any):
    f32 = (Format.F32,) * 3
    compare(
        launch(32, 32, 70, 3, 1, "f32, f32, f32"),
        x=random(1, 32), wr=transposed(np.zeros((70, 32), np.float32)), y=out((1, 32)), **experts(f32, 70, 32, 32),
    ).check(SUMS)  # fmt: skip


def test_scores_below_minus_one_and_one_expert(compare: Any, random: Any, out: Any, transposed: Any, experts: Any):
    f32 = (Format.F32,) * 3
    compare(
        launch(32, 32, 8, 1, 1, "f32, f32, f32", "score softmax_chosen act silu", extra="router_bias %rb"),
        x=random(1, 32), wr=transposed(random(8, 32)), rb=random(8) - 50, y=out((1, 32)), **experts(f32, 8, 32, 32),
    ).check(SUMS)  # fmt: skip


@pytest.mark.parametrize("numerics", NUMERICS)
def test_router_in_a_format(
    compare: Any, random: Any, out: Any, rows: Any, activation: Any, experts: Any, numerics: str
):
    routers = (Format.F32, Format.F16, Format.Q8_0)
    launches = "\n".join(
        of(launch(64, 32, 10, 2, 5, "q8_0, q8_0, q8_0").replace("%wr", f"%{f} rows<{f}>"), y=f"y_{f}") for f in routers
    )
    compare(
        launches, numerics, x=activation(random(5, 64)), **{str(f): rows(f, 10, 64) for f in routers},
        **{f"y_{f}": out((5, 64)) for f in routers}, **experts((Format.Q8_0,) * 3, 10, 64, 32),
    ).check(tolerance(numerics))  # fmt: skip


@pytest.mark.parametrize("numerics", NUMERICS)
def test_shared_expert(
    compare: Any, random: Any, out: Any, activation: Any, transposed: Any, experts: Any, numerics: str
):
    """A shared expert of another width and in other formats, with a gate and without."""
    launches: list[str] = []
    buffers: dict[str, Any] = {"sgate": random(64)}
    for i, shared in enumerate(((Format.Q8_0,) * 3, (Format.F16, Format.F16, Format.F32))):
        buffers |= experts(shared, 1, 64, 96, f"s{i}")
        for j, gate in enumerate(("shared_gate %sgate", "")):
            names = ", ".join(str(f) for f in shared)
            text = f" shared %s{i}g, %s{i}u, %s{i}d [{names}](sdff = 96) {gate} into"
            launches.append(of(launch(64, 32, 6, 2, 2, "q4_0, q4_0, q5_1").replace(" into", text), y=f"y{i}{j}"))
            buffers[f"y{i}{j}"] = out((2, 64))
    compare(
        "\n".join(launches), numerics, x=activation(random(2, 64)), wr=transposed(random(6, 64)), **buffers,
        **experts((Format.Q4_0, Format.Q4_0, Format.Q5_1), 6, 64, 32),
    ).check(tolerance(numerics))  # fmt: skip


@pytest.mark.parametrize("how", ["act gelu_tanh", "act clamped_swiglu alpha = 1.702 limit = 0.5"])
def test_activations_and_biases(compare: Any, random: Any, out: Any, transposed: Any, experts: Any, how: str):
    f32 = (Format.F32,) * 3
    text = launch(32, 32, 6, 2, 2, "f32, f32, f32", f"score softmax_chosen {how}").replace(
        "] into", "] gate_bias %bg up_bias %bu down_bias %bd into"
    )
    compare(
        text, x=random(2, 32), wr=transposed(random(6, 32)), y=out((2, 32)), bg=random(6, 32), bu=random(6, 32),
        bd=random(6, 32), **experts(f32, 6, 32, 32),
    ).check(SUMS)  # fmt: skip


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("per_warp", [1, 4])
def test_norm_of_the_mixture(
    compare: Any, random: Any, out: Any, activation: Any, transposed: Any, experts: Any, numerics: str, per_warp: int
):
    """By a kernel of its own, of the rows plus others."""
    block, form = (Format.Q4_0, Format.Q4_0, Format.Q8_0), "f32" if numerics == "dequant" else "f32 quant"
    moe = launch(64, 64, 6, 2, 3, "q4_0, q4_0, q8_0", more=f"per_warp = {per_warp}")
    got = compare(
        f"""launch.fold {{
          {moe}
          launch.norm %y add %r sum %s weight %w out %n (rows = 3, cols = 64) eps = 1.0e-05 {form}
        }}""", numerics,
        x=activation(random(3, 64)), wr=transposed(random(6, 64)), y=out((3, 64)), r=random(3, 64), s=out((3, 64)),
        w=random(64), n=out((3, 64)), **experts(block, 6, 64, 64),
    )  # fmt: skip
    got.check(4 * tolerance(numerics))
    assert [use.kernel.name for use in got.unit.uses] == ["moe_router", "moe_hidden_q4_0", "moe_down_q8_0", "rms_norm"]
    # The third chooses from the logits while the second is still at work.
    assert [use.kernel.early for use in got.unit.uses] == [False, False, True, False]


def test_sum_and_norm_of_the_mixture(compare: Any, random: Any, out: Any, transposed: Any, experts: Any):
    f32 = (Format.F32,) * 3
    got = compare(
        f"""launch.fold {{
          launch.fold {{
            {launch(32, 32, 6, 2, 2, "f32, f32, f32")}
            launch.binary add %r, %y into %s (n = 64) f32
          }}
          launch.norm %s weight %w out %n (rows = 2, cols = 32) eps = 1.0e-05 f32
        }}""",
        x=random(2, 32), wr=transposed(random(6, 32)), y=out((2, 32)), r=random(2, 32), s=out((2, 32)), w=random(32),
        n=out((2, 32)), **experts(f32, 6, 32, 32),
    ).check(SUMS)  # fmt: skip
    assert len(got.unit.uses) == 4


def test_lands_in_rows_of_a_table(compare: Any, random: Any, transposed: Any, experts: Any):
    f32 = (Format.F32,) * 3
    compare(
        launch(32, 32, 6, 2, 2, "f32, f32, f32").replace("%y", "%t at row %pos pitch 32"),
        x=random(2, 32), wr=transposed(random(6, 32)), t=np.full((6, 32), 7, np.float32), pos=np.array([3], np.int32),
        **experts(f32, 6, 32, 32),
    ).check(SUMS)  # fmt: skip


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize("formats", [(Format.Q4_0, Format.Q4_0, Format.Q8_0), (Format.Q8_0, Format.Q4_K, Format.Q6_K)])
def test_many_rows_sorted_by_experts(
    compare: Any, random: Any, out: Any, activation: Any, transposed: Any, experts: Any, numerics: str, formats: Any
):
    """Experts that nobody chooses, and one that all rows do: more than a tile of rows, and tiles that are not full."""
    width = 256 if Format.Q6_K in formats else 64
    router = random(9, 256)
    router[3] = 0
    text = launch(
        256, width, 9, 2, 50, ", ".join(str(f) for f in formats), "score softmax act silu", "renormalize", "router_bias %rb"
    ).replace("] into", "] gate_bias %bg up_bias %bu down_bias %bd shared %sg, %su, %sd [q8_0, q8_0, q8_0](sdff = 96)"
              " shared_gate %sgate into")  # fmt: skip
    bias = np.array([0, 0, -90, 90, 0, 0, 0, -90, 0], np.float32)
    got = compare(
        text, numerics, x=activation(random(50, 256)), wr=transposed(router), rb=bias, y=out((50, 256)),
        bg=random(9, width), bu=random(9, width), bd=random(9, 256), sgate=random(256),
        **experts(formats, 9, 256, width), **experts((Format.Q8_0,) * 3, 1, 256, 96, "s"),
    ).check(tolerance(numerics))  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == [
        "moe_router", "moe_choose", "moe_sort", "moe_gather", "moe_gate_up", "moe_down_up", "moe_shared_hidden",
        "moe_shared", "moe_combine",
    ]  # fmt: skip
