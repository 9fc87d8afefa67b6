"""Norms on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lane_mlir.diagnostics import LaneError

NUMERICS = ("int8", "two_pass_int8")


@pytest.mark.parametrize("cols", [32, 96, 576, 2304, 20, 33])
def test_norm_of_rows(compare: Any, random: Any, out: Any, cols: int):
    """Rows of fewer and of more vectors than threads, and rows that are no whole number of vectors."""
    compare(
        f"launch.norm %x weight %w out %y (rows = 3, cols = {cols}) eps = 1.0e-05 f32\n"
        f"launch.norm %x out %z (rows = 3, cols = {cols}) eps = 1.0 f32",
        x=random(3, cols), w=random(cols), y=out((3, cols)), z=out((3, cols)),
    ).check()  # fmt: skip


def test_add_norm_writes_the_sum(compare: Any, random: Any, out: Any):
    """Also in place of what is added; the sum of large values stays f32."""
    got = compare(
        "launch.norm %x add %r sum %s weight %w out %y (rows = 2, cols = 64) eps = 1.0e-05 f32\n"
        "launch.norm %x add %r sum %r weight %w out %z (rows = 2, cols = 64) eps = 1.0e-05 f32",
        x=1e4 * random(2, 64), r=random(2, 64), s=out((2, 64)), w=random(64), y=out((2, 64)), z=out((2, 64)),
    ).check()  # fmt: skip
    assert np.array_equal(got.emulated("s"), got.emulated("r"))


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("f32", ["f32 ", ""])
def test_sandwich_norm_quantized(compare: Any, random: Any, out: Any, numerics: str, f32: str):
    compare(
        "launch.norm %x pre 1.0e-02 pre_weight %p add %r sum %s weight %w out %y"
        f" (rows = 3, cols = 288) eps = 1.0e-05 {f32}quant",
        numerics, x=random(3, 288), r=random(3, 288), p=random(288), s=out((3, 288)), w=random(288), y=out((3, 288)),
    ).check()  # fmt: skip


@pytest.mark.parametrize("f32", ["f32 ", ""])
def test_rows_that_share_blocks_are_quantized_apart(compare: Any, random: Any, out: Any, f32: str):
    got = compare(
        f"launch.norm %x weight %w out %y (rows = 4, cols = 24) eps = 1.0e-05 {f32}quant", "int8",
        x=random(4, 24), w=random(24), y=out((4, 24)),
    ).check()  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == ["rms_norm", "quant"]


@pytest.mark.parametrize("bias", ["bias %b", ""])
def test_layer_norm(compare: Any, random: Any, out: Any, bias: str):
    compare(
        f"launch.norm %x add %r weight %w {bias} out %y (rows = 2, cols = 160) eps = 1.0e-05 center f32",
        x=random(2, 160) + 3, r=random(2, 160), w=random(160), b=random(160), y=out((2, 160)),
    ).check()  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("offset", [64, 66])
def test_part_read_in_place_lands_in_cache_rows_and_units(compare: Any, random: Any, out: Any, dtype: str, offset: int):
    """A part that begins at a whole vector and one that does not."""
    position = np.array([5], np.int32)
    got = compare(
        f"launch.norm %x every 192 from {offset} weight %w into %t at row %pos pitch 64 (rows = 3, cols = 64)"
        " eps = 1.0e-05 f32\n"
        f"launch.norm %x every 192 from {offset} weight %w into %u every 96 from 32 (rows = 3, cols = 64)"
        " eps = 1.0e-05 f32",
        x=random(3, 192), w=random(64), t=np.full((10, 64), 7, {"f32": np.float32, "f16": np.float16}[dtype]), pos=position, u=np.ones((3, 96), np.float32),
    ).check()  # fmt: skip
    assert (got.emulated("t")[:5] == 7).all()
    assert (got.emulated("t")[8:] == 7).all()
    assert (got.emulated("u")[:, :32] == 1).all()


def test_a_view_that_begins_inside_a_vector(compare: Any, random: Any, out: Any, alias: Any):
    compare(
        "launch.view %x from 2 into %v\nlaunch.norm %v weight %w out %y (rows = 2, cols = 32) eps = 1.0e-05 f32",
        x=random(70), v=alias("x", 2, (2, 32)), w=random(32), y=out((2, 32)),
    ).check()  # fmt: skip


def test_tiny_rows_stay_finite(compare: Any, out: Any):
    """Squares that underflow; an l2 norm of them divides by its epsilon."""
    got = compare(
        "launch.norm %x out %y (rows = 1, cols = 64) eps = 1.0e-12 f32 quant", "int8",
        x=np.full((1, 64), 1e-30, np.float32), y=out((1, 64)),
    ).check()  # fmt: skip
    assert (got.emulated("y") > 0).all()


@pytest.mark.parametrize("cols", [64, 30])
def test_l2_norm(compare: Any, random: Any, out: Any, cols: int):
    x = random(4, cols)
    x[1] = 0
    compare(f"launch.l2_norm %x into %y (rows = 4, cols = {cols}) eps = 1.0e-06", x=x, y=out((4, cols))).check()


def test_what_is_quantized_apart_from_where_it_lands_is_refused(compare: Any, random: Any, out: Any):
    with pytest.raises(LaneError, match=r"no kernel for launch.norm that writes .* quantizes rows of 24 values"):
        compare(
            "launch.norm %x weight %w out %y into %u every 48 from 0 (rows = 4, cols = 24) eps = 1.0e-05 f32 quant",
            "int8", x=random(4, 24), w=random(24), y=out((4, 24)), u=np.zeros((4, 48), np.float32),
        )  # fmt: skip
