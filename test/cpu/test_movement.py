"""Elementwise launches, and those that move values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import Numerics
from lane_mlir.eval import quantize

Random = Callable[..., NDArray[np.float32]]


def indices(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@pytest.mark.parametrize("fields, shape", [("", (3, 8)), ("row = 8 ", (8,)), ("column = 8 ", (3,))])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_binary(run: Any, random: Random, out: Any, op: str, fields: str, shape: tuple[int, ...]):
    a, b = random(3, 8), random(*shape)
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    got = run(f"launch.binary {op} %a, %b into %y (n = 24) {fields}f32", a=a, b=b, y=out((3, 8)))
    other = b[:, None] if shape == (3,) else b
    np.testing.assert_array_equal(got.values("y"), functions[op](a, other))


def test_gated_binary_over_its_second_operand(run: Any, random: Random):
    a, b = random(4, 8), random(4, 8)
    got = run("launch.binary mul gate tanh %a, %b into %b (n = 32) f32", a=a, b=b)
    # numpy's tanh of f32 is good to a few units of the last place.
    np.testing.assert_allclose(got.values("b"), np.tanh(a.astype(np.float64)) * b, rtol=1e-6)


def test_swiglu_scale_unary(run: Any, random: Random, out: Any):
    g, u = random(2, 32), random(2, 32)
    got = run(
        """launch.swiglu %g, %u into %y (n = 64) f32 quant
        launch.scale %u into %z (n = 64) factor = 0.25
        launch.unary relu %u into %r (n = 64)""",
        "int8",
        g=g,
        u=u,
        y=out((2, 32), quantized=True),
        z=out((2, 32)),
        r=out((2, 32)),
    )
    wide = g.astype(np.float64)
    y = got.values("y")
    np.testing.assert_allclose(y, wide / (1 + np.exp(-wide)) * u, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(got.quantized("y"), quantize(y, Numerics.INT8).ravel())
    np.testing.assert_array_equal(got.values("z"), u / 4)
    np.testing.assert_array_equal(got.values("r"), np.where(u > 0, u, 0))


def test_gather(run: Any, random: Random, weight: Any, out: Any):
    table = random(5, 8)
    got = run(
        """launch.gather %t rows<q8_0> at %i into %y (rows = 3, cols = 8)
        launch.gather %t at %i into %z (rows = 3, cols = 8) scale = 0.5""",
        t=weight(table),
        i=indices(4, 0, 4),
        y=out((3, 8)),
        z=out((3, 8)),
    )
    np.testing.assert_array_equal(got.values("y"), table[[4, 0, 4]])
    np.testing.assert_array_equal(got.values("z"), table[[4, 0, 4]] * np.float32(0.5))


@pytest.mark.parametrize("wrong", [5, -1])
def test_gather_refuses_an_index_that_is_no_row(bench: Any, random: Random, weight: Any, out: Any, wrong: int):
    got = bench(
        "launch.gather %t at %i into %y (rows = 2, cols = 8) covers [0]",
        t=weight(random(5, 8)),
        i=indices(1, wrong),
        y=out((2, 8)),
    )
    message = f"launch.gather of ops 0: index {wrong} of row 1 is not one of the table's 5 rows"
    with pytest.raises(LaneError, match=message):
        got.program.run()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_set_row_rounds_to_what_the_table_stores(run: Any, random: Random, dtype: Any):
    src = random(2, 8)
    got = run(
        """launch.set_row %s into %t at row %pos pitch 8 (cols = 8, count = 2) f32
        launch.set_row %s into %f at row 1 pitch 8 (cols = 8, count = 2) f32""",
        s=src,
        t=np.zeros((4, 8), dtype),
        f=np.zeros((3, 8), dtype),
        pos=indices(2),
    )
    rounded = src.astype(dtype)
    np.testing.assert_array_equal(got.values("t")[2:], rounded)
    np.testing.assert_array_equal(got.values("f")[1:], rounded)
    assert not got.values("t")[:2].any()
    assert not got.values("f")[:1].any()


def test_set_row_of_sequences(run: Any, random: Random):
    src = random(3, 4)
    got = run(
        "launch.set_row %s into %t at row %pos pitch 4 (cols = 4, count = 3) seq = 8 f32",
        s=src,
        t=np.zeros((3, 2, 4), np.float32),
        pos=indices(1, 0, 1),
    ).values("t")
    expected = np.zeros((3, 2, 4), np.float32)
    expected[[0, 1, 2], [1, 0, 1]] = src
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("row", ["%pos", "1"])
def test_set_row_copies_quantized_rows(run: Any, random: Random, out: Any, row: str):
    src = random(1, 32)
    got = run(
        f"""launch.scale %x into %s (n = 32) factor = 1.0
        launch.quant %s (n = 32)
        launch.scale %old into %t (n = 64) factor = 1.0
        launch.quant %t (n = 64)
        launch.set_row %s into %t at row {row} pitch 32 (cols = 32, count = 1) quant""",
        "int8",
        x=src,
        old=np.ones((2, 32), np.float32),
        pos=indices(1),
        s=out((1, 32), quantized=True),
        t=out((2, 32), quantized=True),
    )
    expected = np.concatenate([quantize(np.ones((1, 32), np.float32), Numerics.INT8), quantize(src, Numerics.INT8)])
    np.testing.assert_array_equal(got.quantized("t"), expected.ravel())
    np.testing.assert_array_equal(got.values("t"), np.ones((2, 32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_slice(run: Any, random: Random, out: Any, dtype: Any):
    x = random(4, 12).astype(dtype)
    got = run("launch.slice %x into %y (groups = 4, every = 12, start = 8, width = 3)", x=x, y=out((4, 3))).values("y")
    np.testing.assert_array_equal(got, x[:, 8:11])


def test_join(run: Any, random: Random, out: Any):
    a, b = random(2, 6), random(2, 4)
    got = run(
        """launch.join %a, %b into %y (rows = 2, heads = 2, ha = 3, hb = 2)
        launch.join %a, %b into %t at row %pos pitch 10 (rows = 2, heads = 2, ha = 3, hb = 2)""",
        a=a,
        b=b,
        pos=indices(1),
        t=np.zeros((3, 10), np.float32),
        y=out((2, 10)),
    )
    expected = np.concatenate([a.reshape(2, 2, 3), b.reshape(2, 2, 2)], axis=2).reshape(2, 10)
    np.testing.assert_array_equal(got.values("y"), expected)
    np.testing.assert_array_equal(got.values("t"), np.concatenate([np.zeros((1, 10)), expected]))


def test_join_of_sequences(run: Any, random: Random):
    a, b = random(2, 3), random(2, 1)
    got = run(
        "launch.join %a, %b into %t at row %pos pitch 4 (rows = 2, heads = 1, ha = 3, hb = 1) yz = 12",
        a=a,
        b=b,
        pos=indices(2, 0),
        t=np.zeros((2, 3, 4), np.float32),
    ).values("t")
    expected = np.zeros((2, 3, 4), np.float32)
    expected[0, 2], expected[1, 0] = np.concatenate([a, b], axis=1)
    np.testing.assert_array_equal(got, expected)


def test_join_of_sequences_without_a_row_parameter_is_refused(bench: Any, random: Random, out: Any):
    with pytest.raises(LaneError, match=r"launch\.join: of several sequences lands in rows that a parameter names"):
        bench(
            "launch.join %a, %b into %y (rows = 2, heads = 1, ha = 3, hb = 1) yz = 4",
            a=random(2, 3),
            b=random(2, 1),
            y=out((2, 4)),
        )


def test_argmax_takes_the_first_of_equal_ones(run: Any, out: Any):
    x = np.array([[1, 3, 3, 0], [-2, -2, -5, -2]], np.float32)
    got = run("launch.argmax %x into %id (n = 4, rows = 2)", x=x, id=out((2,), "i32"))
    np.testing.assert_array_equal(got.values("id"), [1, 0])


def test_argmax_moves_the_step_on(run: Any, random: Random, out: Any):
    x = np.array([[0, 0, 5], [7, 0, 0]], np.float32)
    got = run(
        "launch.argmax %x into %id (n = 3, rows = 2) advance %token, %pos item 1",
        x=x,
        token=indices(9, 9, 9),
        pos=indices(4, 6),
        id=out((2,), "i32"),
    )
    np.testing.assert_array_equal(got.values("id"), [2, 0])
    np.testing.assert_array_equal(got.values("token"), [9, 2, 0])
    np.testing.assert_array_equal(got.values("pos"), [5, 7])


def test_views_are_the_same_elements(run: Any, random: Random, alias: Any):
    x = random(4, 6)
    got = run(
        """launch.view %x from 6 into %rows
        launch.view %rows from 3 into %half
        launch.scale %half into %half (n = 3) factor = 2.0""",
        x=x,
        rows=alias("x", 6, (2, 6)),
        half=alias("rows", 3, (1, 3)),
    ).values("x")
    expected = x.copy()
    expected[1, 3:] *= 2
    np.testing.assert_array_equal(got, expected)
