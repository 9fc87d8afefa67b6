"""Gathers, row sets, slices, joins and the arg-max, on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lane_mlir.cuda.layout import LAYOUTS
from lane_mlir.formats import Format

POSITION = np.array([2], np.int32)
DTYPES = [np.float32, np.float16]


def test_gather_by_every_format(compare: Any, out: Any, rows: Any):
    """Exactly the values of the table."""
    formats = sorted(LAYOUTS)
    launches = "\n".join(
        f"launch.gather %t_{fmt} rows<{fmt}> at %i into %y_{fmt} (rows = 3, cols = 512)" for fmt in formats
    )
    tables = {f"t_{fmt}": rows(fmt, 7, 512) for fmt in formats}
    results = {f"y_{fmt}": out((3, 512)) for fmt in formats}
    compare(launches, i=np.array([6, 0, 3], np.int32), **tables, **results).check(0)


def test_gather_plain_values_scaled(compare: Any, random: Any, out: Any):
    index = np.array([1], np.int32)
    compare(
        "launch.gather %t at %i into %y (rows = 1, cols = 36) scale = 12.0",
        t=random(3, 36), i=index, y=out((1, 36)),
    ).check(0)  # fmt: skip


def test_an_index_that_is_no_row_gives_nan(compare: Any, random: Any, out: Any):
    got = compare(
        "launch.gather %t at %i into %y (rows = 3, cols = 64)", reference=False,
        t=random(3, 64), i=np.array([1, 3, -1], np.int32), y=out((3, 64)),
    )  # fmt: skip
    assert np.isfinite(got.emulated("y")).all(axis=1).tolist() == [True, False, False]


@pytest.mark.parametrize("cols", [256, 4224])
@pytest.mark.parametrize("numerics", ["dequant", "int8", "two_pass_int8"])
def test_gather_and_norm(compare: Any, random: Any, out: Any, rows: Any, cols: int, numerics: str):
    form = "f32" if numerics == "dequant" else "quant"
    got = compare(
        f"""launch.fold {{
          launch.gather %t rows<q4_0> at %i into %h (rows = 2, cols = {cols}) scale = 3.5
          launch.norm %h weight %w out %y (rows = 2, cols = {cols}) eps = 1.0e-05 {form}
        }}""", numerics,
        t=rows(Format.Q4_0, 5, cols), i=np.array([4, 1], np.int32), h=out((2, cols)), w=random(cols), y=out((2, cols)),
    ).check()  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == ["gather_norm"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_set_row(compare: Any, random: Any, dtype: Any):
    got = compare(
        "launch.set_row %s into %t at row %pos pitch 40 (cols = 40, count = 3) f32\n"
        "launch.set_row %s into %u at row 4 pitch 40 (cols = 40, count = 3) f32",
        s=random(3, 40), t=np.full((8, 40), 7, dtype), u=np.full((8, 40), 7, dtype), pos=POSITION,
    ).check()  # fmt: skip
    assert (got.emulated("t")[[0, 1, 5, 6, 7]] == 7).all()
    assert (got.emulated("u")[[0, 1, 2, 3, 7]] == 7).all()


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize("row", ["%pos", "1"])
def test_set_quantized_row(compare: Any, random: Any, activation: Any, numerics: str, row: str):
    got = compare(
        f"launch.set_row %s into %t at row {row} pitch 64 (cols = 64, count = 2) quant", numerics,
        s=activation(random(2, 64)), t=activation(random(5, 64)), pos=POSITION,
    ).check()  # fmt: skip
    table = got.emulated_memory.quantized_values(got.buffers["t"])
    assert np.array_equal(table, got.program.buffers.quantized(got.buffers["t"].buffer).values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_set_a_row_of_every_sequence(compare: Any, random: Any, dtype: Any):
    compare(
        "launch.set_row %s into %t at row %pos pitch 32 (cols = 32, count = 3) seq = 160 f32",
        s=random(3, 32), t=np.full((3, 5, 32), 7, dtype), pos=np.array([4, 0, 2], np.int32),
    ).check()  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_slice(compare: Any, random: Any, out: Any, dtype: Any):
    compare(
        "launch.slice %x into %y (groups = 5, every = 12, start = 3, width = 7)",
        x=random(5, 12).astype(dtype), y=out((5, 7)),
    ).check(0)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_join(compare: Any, random: Any, out: Any, dtype: Any):
    """Into a buffer of its own, into rows of a table, and of sequences each into its own table."""
    compare(
        "launch.join %a, %b into %y (rows = 3, heads = 2, ha = 5, hb = 3)\n"
        "launch.join %a, %b into %t at row %pos pitch 16 (rows = 3, heads = 2, ha = 5, hb = 3)\n"
        "launch.join %a, %b into %s at row %each pitch 16 (rows = 3, heads = 2, ha = 5, hb = 3) yz = 64",
        a=random(3, 10), b=random(3, 6), y=out((3, 16)), t=np.full((8, 16), 7, dtype), pos=POSITION,
        s=np.full((3, 4, 16), 7, dtype), each=np.array([3, 0, 1], np.int32),
    ).check(0)  # fmt: skip


@pytest.mark.parametrize("n", [128, 16400, 151936, 4097])
def test_argmax(compare: Any, random: Any, out: Any, n: int):
    """The first of equal values, wherever blocks begin; the largest anywhere; all values infinite."""
    x = random(4, n)
    x[0, [n - 1, n // 2, 37]] = 9
    x[1, n - 1] = 9
    x[2] = -np.inf
    x[3] = -0.0
    x[3, n - 3] = 0
    got = compare(f"launch.argmax %x into %id (n = {n}, rows = 4)", x=x, id=out((4,), "i32")).check()
    assert got.emulated("id").tolist() == [37, n - 1, 0, 0]
    assert got.unit.uses[0].kernel.grid[0] == (1 if n <= 4096 else min(-(-n // 4096), 132))


def test_argmax_moves_the_step_on(compare: Any, random: Any, out: Any):
    got = compare(
        "launch.argmax %x into %id (n = 9000, rows = 1) advance %tok, %pos item 2",
        x=random(1, 9000), id=out((1,), "i32"), tok=np.array([5, 6, 7, 8], np.int32), pos=np.array([41], np.int32),
    ).check()  # fmt: skip
    assert got.emulated("pos")[0] == 42
    assert got.emulated("tok").tolist() == [5, 6, got.emulated("id")[0], 8]


def test_argmax_of_a_nan_is_the_nan(compare: Any, random: Any, out: Any):
    x = random(1, 64)
    x[0, 40] = np.nan
    got = compare("launch.argmax %x into %id (n = 64, rows = 1)", x=x, id=out((1,), "i32")).check()
    assert got.emulated("id")[0] == 40
