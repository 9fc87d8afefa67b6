"""Constants, gathers, row sets, slices, joins, views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lane_mlir.diagnostics import LaneError

Run = Callable[..., Any]


def test_constant(run: Run, rng: np.random.Generator):
    w = rng.standard_normal((3, 4)).astype(np.float32)
    y = run('%y = tg.constant "w" : tensor<3x4xf32>', "%y : tensor<3x4xf32>", weights={"w": w})
    np.testing.assert_array_equal(y, w)


def test_constant_that_is_missing_is_named(run: Run):
    with pytest.raises(LaneError, match=r"^tg.constant: unknown tensor 'w'; valid: v"):
        run('%y = tg.constant "w" : tensor<1x1xf32>', weights={"v": np.zeros((1, 1))})


def test_constant_of_another_shape_names_both(run: Run):
    with pytest.raises(LaneError, match=r'tensor "w" is 3x4, expected 4x3'):
        run('%y = tg.constant "w" : tensor<4x3xf32>', weights={"w": np.zeros((3, 4))})


def test_gather(run: Run, rng: np.random.Generator):
    table = rng.standard_normal((5, 3)).astype(np.float32)
    y = run(
        "%y = tg.gather %table[%index] : (tensor<5x3xf32>, memref<4xi32>) -> tensor<4x3xf32>",
        "%y : tensor<4x3xf32>",
        table=table,
        index=np.array([4, 0, 0, 2], np.int32),
    )
    for row, index in enumerate([4, 0, 0, 2]):
        assert y[row].tolist() == table[index].tolist()


@pytest.mark.parametrize("index", [-1, 5])
def test_gather_refuses_an_index_out_of_range(run: Run, index: int):
    with pytest.raises(LaneError, match=rf"^tg.gather\[3\]: index {index} of row 1 is not one of the table's 5 rows"):
        run(
            "%y = tg.gather[3] %table[%index] : (tensor<5x3xf32>, memref<2xi32>) -> tensor<2x3xf32>",
            table=np.zeros((5, 3), np.float32),
            index=np.array([0, index], np.int32),
        )


SET_ROW = "tg.set_row %src into %table[%pos] : tensor<2x3xf32>, memref<6x3xf32>, memref<1xi32>"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_set_row_rounds_to_what_the_table_stores(run: Run, rng: np.random.Generator, dtype: Any):
    src = rng.standard_normal((2, 3)).astype(np.float32)
    table = rng.standard_normal((6, 3)).astype(dtype)
    before = table.copy()
    run(SET_ROW, state=("table",), src=src, table=table, pos=np.array([4], np.int32))
    np.testing.assert_array_equal(table[:4], before[:4])
    np.testing.assert_array_equal(table[4:], src.astype(dtype))


@pytest.mark.parametrize("position", [-1, 5, 2**30])
def test_set_row_refuses_rows_past_the_end(run: Run, position: int):
    table = np.zeros((6, 3), np.float32)
    with pytest.raises(LaneError, match=rf"rows {position} to {position + 2} are not within the table's 6 rows"):
        run(
            SET_ROW,
            state=("table",),
            src=np.ones((2, 3), np.float32),
            table=table,
            pos=np.array([position], np.int32),
        )
    assert not table.any()


def test_insert_places_a_part_in_every_unit_and_leaves_its_operand_alone(run: Run):
    dst = np.arange(24, dtype=np.float32).reshape(2, 12)
    src = -np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    y = run(
        "%y = tg.insert %src into %dst every 6 from 1 : (tensor<4x2xf32>, tensor<2x12xf32>) -> tensor<2x12xf32>",
        "%y : tensor<2x12xf32>",
        src=src,
        dst=dst,
    )
    flat = list(range(24))
    for group in range(4):
        for i in range(2):
            flat[group * 6 + 1 + i] = -(group * 2 + i + 1)
    assert y.reshape(-1).tolist() == flat
    assert dst.reshape(-1).tolist() == list(range(24))


def test_insert_of_whole_rows(run: Run):
    y = run(
        "%e = tg.empty : tensor<3x2xf32>\n"
        "%y = tg.insert %src into %e every 6 from 2 : (tensor<1x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>",
        "%y : tensor<3x2xf32>",
        src=np.array([[1, 2]], np.float32),
    )
    assert y[1].tolist() == [1, 2]
    # Nobody may read what nobody inserted.
    assert np.isnan(y[[0, 2]]).all()


def test_slice_of_every_unit(run: Run):
    y = run(
        "%y = tg.slice %x every 6 from 2 width 3 : (tensor<2x12xf32>) -> tensor<2x6xf32>",
        "%y : tensor<2x6xf32>",
        x=np.arange(24, dtype=np.float32).reshape(2, 12),
    )
    assert y.reshape(-1).tolist() == [g * 6 + 2 + i for g in range(4) for i in range(3)]


def test_slice_of_state_is_what_it_held_then(run: Run):
    table = np.arange(8, dtype=np.float16).reshape(4, 2)
    y = run(
        "%y = tg.slice %table every 8 from 0 width 8 : (memref<4x2xf32>) -> tensor<4x2xf32>\n"
        "tg.set_row %src into %table[%pos] : tensor<1x2xf32>, memref<4x2xf32>, memref<1xi32>",
        "%y : tensor<4x2xf32>",
        state=("table",),
        table=table,
        src=np.full((1, 2), 9, np.float32),
        pos=np.array([1], np.int32),
    )
    assert y.dtype == np.float32
    assert y.reshape(-1).tolist() == list(range(8))
    assert table[1].tolist() == [9, 9]


def test_join_interleaves_heads(run: Run):
    a = np.arange(8, dtype=np.float32).reshape(2, 4)
    b = 100 + np.arange(4, dtype=np.float32).reshape(2, 2)
    y = run(
        "%y = tg.join %a, %b heads 2 : (tensor<2x4xf32>, tensor<2x2xf32>) -> tensor<2x6xf32>",
        "%y : tensor<2x6xf32>",
        a=a,
        b=b,
    )
    assert y.tolist() == [[0, 1, 100, 2, 3, 101], [4, 5, 102, 6, 7, 103]]


def test_view_from_an_offset(run: Run):
    y = run(
        "%y = tg.view %x from 4 : (tensor<3x4xf32>) -> tensor<4x2xf32>",
        "%y : tensor<4x2xf32>",
        x=np.arange(12, dtype=np.float32).reshape(3, 4),
    )
    assert y.tolist() == [[4, 5], [6, 7], [8, 9], [10, 11]]
