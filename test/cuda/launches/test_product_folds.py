"""Folds of products of a few rows on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lane_mlir.formats import Format

QUOTIENTS = 6e-6
"""Of the largest value: a gated pair multiplies two results, each divided by a root of a sum in another order."""

NUMERICS = ["dequant", "int8", "two_pass_int8"]


@pytest.fixture
def tables() -> dict[str, Any]:
    angles = np.outer(np.arange(40), 0.7 ** np.arange(16))
    positions = np.array([5], np.int32)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32), "pos": positions}


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("m", [1, 3, 16])
@pytest.mark.parametrize("weight, residual", [("weight %g", "add %r sum %s"), ("", "")])
def test_blocks_norm_the_columns_that_they_compute(
    compare: Any, random: Any, activation: Any, rows: Any, out: Any, numerics: str, m: int, weight: str, residual: str
):
    quant = "quant" if numerics != "dequant" else ""
    got = compare(
        f"""launch.fold {{
          launch.gemv %x by %w<q4_k> into %y (k = 256, n = 288, m = {m}) per_warp = 2 f32
          launch.norm %y {residual} squares %squares {weight} out %o (rows = {m}, cols = 288) eps = 0.25 f32 {quant}
        }}""",
        numerics=numerics, x=activation(random(m, 256)), w=rows(Format.Q4_K, 288, 256), r=random(m, 288),
        g=random(288), y=out((m, 288)), s=out((m, 288)), o=out((m, 288)), squares=out((m, 9)),
    ).check()  # fmt: skip
    assert got.text.count("__global__") == 1


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("m", [1, 7])
def test_readers_divide_what_a_norm_has_left_undivided(
    compare: Any, random: Any, activation: Any, rows: Any, out: Any, numerics: str, m: int
):
    """A product, several side by side with a bias, a gated pair, and a product by plain values."""
    undivided = "%o over rms %squares eps = 0.25"
    compare(
        f"""launch.gemv {undivided} by %w1<q8_0> into %y1 (k = 288, n = 64, m = {m}) f32
        launch.gemm_parts {undivided} by [%w1 bias %b into %y2 n = 64, %w2 into %y3 n = 40] [q8_0, q8_0] (k = 288, m = {m})
        launch.gemv_glu {undivided} by %w1, %w3 [q8_0, q8_0] into %y4 (k = 288, n = 64, m = {m}) f32
        launch.gemv {undivided} by %w4<f32> into %y5 (k = 288, n = 8, m = {m}) f32
        """,
        numerics=numerics, o=activation(random(m, 288)), squares=random(m, 9) ** 2,
        w1=rows(Format.Q8_0, 64, 288), w2=rows(Format.Q8_0, 40, 288), w3=rows(Format.Q8_0, 64, 288),
        w4=rows(Format.F32, 8, 288), b=random(64),
        y1=out((m, 64)), y2=out((m, 64)), y3=out((m, 40)), y4=out((m, 64)), y5=out((m, 8)),
    ).check(QUOTIENTS)  # fmt: skip


@pytest.mark.parametrize("m", [1, 8, 16])
def test_weights_in_f32_norm_and_divide_in_all_rows_of_a_batch(
    compare: Any, random: Any, activation: Any, rows: Any, out: Any, m: int
):
    """Under int8 numerics too: products by such weights leave no rows to tensor cores."""
    undivided = "%o over rms %squares eps = 0.25"
    got = compare(
        f"""launch.fold {{
          launch.gemv %x by %w<f32> into %y (k = 256, n = 288, m = {m}) f32 batch
          launch.norm %y add %r sum %s squares %squares weight %g out %o (rows = {m}, cols = 288) eps = 0.25 f32
        }}
        launch.gemm_parts {undivided} by [%w1 bias %b into %y1 n = 64, %w2 into %y2 n = 40] [f32, f32] (k = 288, m = {m}) batch
        launch.gemv_glu {undivided} by %w1, %w3 [f32, f32] into %y3 (k = 288, n = 64, m = {m}) f32 batch
        """,
        numerics="int8", x=activation(random(m, 256)), w=rows(Format.F32, 288, 256), r=random(m, 288), g=random(288),
        w1=rows(Format.F32, 64, 288), w2=rows(Format.F32, 40, 288), w3=rows(Format.F32, 64, 288), b=random(64),
        y=out((m, 288)), s=out((m, 288)), o=out((m, 288)), squares=out((m, 9)),
        y1=out((m, 64)), y2=out((m, 40)), y3=out((m, 64)),
    ).check(QUOTIENTS)  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == ["gemv_f32", "gemv_parts_f32", "gemv_glu_f32"]


def test_a_row_that_is_not_divided_by_its_readers_is_normed_by_a_kernel_of_its_own(
    compare: Any, random: Any, activation: Any, rows: Any, out: Any
):
    got = compare(
        """launch.fold {
          launch.gemv %x by %w<q4_k> into %y (k = 256, n = 288, m = 1) per_warp = 2 f32
          launch.norm %y add %r sum %s weight %g out %o (rows = 1, cols = 288) eps = 1.0e-05 f32 quant
        }""",
        numerics="int8", x=activation(random(1, 256)), w=rows(Format.Q4_K, 288, 256), r=random(1, 288), g=random(288),
        y=out((1, 288)), s=out((1, 288)), o=out((1, 288)),
    ).check()  # fmt: skip
    assert got.text.count("__global__") == 2


def test_a_norm_of_tiles_is_a_kernel_of_its_own(compare: Any, random: Any, activation: Any, rows: Any, out: Any):
    got = compare(
        """launch.fold {
          launch.gemv %x by %w<q8_0> into %y (k = 64, n = 96, m = 17) f32
          launch.norm %y weight %g out %o (rows = 17, cols = 96) eps = 1.0e-05 f32 quant
        }""",
        numerics="int8", x=activation(random(17, 64)), w=rows(Format.Q8_0, 96, 64), g=random(96), y=out((17, 96)), o=out((17, 96)),
    ).check()  # fmt: skip
    assert got.text.count("__global__") == 2


@pytest.mark.parametrize("numerics, m", [*((n, 1) for n in NUMERICS), ("int8", 2), ("int8", 17), ("dequant", 17)])
def test_heads_are_rotated_by_a_kernel_of_their_own(
    compare: Any, random: Any, activation: Any, rows: Any, out: Any, tables: Any, numerics: str, m: int
):
    """The key's are normed and land in a cache; the value is not rotated."""
    got = compare(
        f"""launch.fold {{
          launch.gemm_parts %x by [%wq into %q n = 192, %wk into %k n = 96, %wv into %v n = 96] [q8_0, q8_0, q8_0] (k = 128, m = {m})
          launch.rope_parts [%q into %qr heads = {4 * m} per_row = 4,
            %k norm %g eps 1.0e-05 into %kc at row %pos pitch 96 heads = {2 * m} per_row = 2]
            by %cos, %sin at %pos pairing half (hd = 48, half = 16)
        }}""",
        numerics=numerics, x=activation(random(m, 128)), wq=rows(Format.Q8_0, 192, 128), wk=rows(Format.Q8_0, 96, 128),
        wv=rows(Format.Q8_0, 96, 128), g=random(48), q=out((m, 192)), k=out((m, 96)), v=out((m, 96)),
        qr=out((m, 192)), kc=np.zeros((40, 96), np.float16), **tables,
    ).check()  # fmt: skip
    assert got.text.count("__global__") == 2
