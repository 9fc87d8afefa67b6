"""Launches that work element by element, on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lane_mlir.dialects.tg import Activation

ACTIVATIONS = [str(a) for a in Activation]


def test_unary(compare: Any, random: Any, out: Any):
    """Also far from 0: softplus of 25 is 25, sigmoid of -100 is 0."""
    x = 3 * random(2, 96)
    x[0, :4] = 25, -100, 0, -0.0
    launches = "\n".join(f"launch.unary {act} %x into %{act} (n = 192)" for act in ACTIVATIONS)
    compare(launches, x=x, **{act: out((2, 96)) for act in ACTIVATIONS}).check()


@pytest.mark.parametrize("n", [1024, 39])
def test_scale(compare: Any, random: Any, out: Any, n: int):
    compare(f"launch.scale %x into %y (n = {n}) factor = 0.22", x=random(1, n), y=out((1, n))).check()


@pytest.mark.parametrize("n", [576, 39])
def test_binary(compare: Any, random: Any, out: Any, n: int):
    operators = ("add", "sub", "mul", "div")
    launches = "\n".join(f"launch.binary {op} %a, %b into %{op} (n = {n}) f32" for op in operators)
    results = {op: out((1, n)) for op in operators}
    compare(launches, a=random(1, n), b=1 + random(1, n) ** 2, **results).check()


def test_one_row_or_one_value_for_several(compare: Any, random: Any, out: Any):
    b = {f"row_{size}": random(size) for size in (64, 6, 1)}
    b |= {f"column_{size}": random(384 // size) for size in (64, 3)}
    launches = "\n".join(
        f"launch.binary mul {gate} %a, %{name} into %{kind}_{name} (n = 384) {name.replace('_', ' = ')} f32"
        for name in b
        for kind, gate in (("plain", ""), ("gated", "gate sigmoid"))
    )
    results = {f"{kind}_{name}": out((6, 64)) for name in b for kind in ("plain", "gated")}
    compare(launches, a=random(6, 64), **b, **results).check()


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize("f32", ["f32 ", ""])
def test_quantized_results(compare: Any, random: Any, out: Any, numerics: str, f32: str):
    compare(
        f"launch.swiglu %a, %b into %y (n = 1056) {f32}quant\nlaunch.binary add %a, %r into %z (n = 1056) row = 32 {f32}quant",
        numerics, a=random(1056), b=random(1056), r=random(32), y=out((1, 1056)), z=out((1, 1056)),
    ).check()  # fmt: skip


def test_views_that_begin_inside_a_vector(compare: Any, random: Any, out: Any, alias: Any):
    got = compare(
        "launch.view %x from 2 into %v\nlaunch.swiglu %v, %b into %y (n = 64) quant", "int8",
        x=random(70), v=alias("x", 2, (64,)), b=random(64), y=out((64,)),
    ).check()  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == ["gated", "quant"]


def test_in_place(compare: Any, random: Any):
    compare("launch.binary add %a, %b into %a (n = 256) f32", a=random(256), b=random(256)).check()
    compare("launch.unary relu %a into %a (n = 33)", a=random(33)).check()


def test_infinities_and_nan_stay_visible(compare: Any, random: Any, out: Any):
    a = random(64)
    a[5], a[40] = np.inf, np.nan
    compare("launch.binary add %a, %a into %y (n = 64) f32", a=a, y=out((64,))).check()
