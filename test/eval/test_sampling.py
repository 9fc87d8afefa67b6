"""The choice of the next token, and the advance to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[..., Any]


def test_argmax_takes_the_first_of_equal_values(run: Run):
    y = run(
        "%y = tg.argmax %x : (tensor<3x4xf32>) -> tensor<3xi32>",
        "%y : tensor<3xi32>",
        x=np.array([[0, 3, 3, 1], [-5, -4, -9, -4], [7, 7, 7, 7]], np.float32),
    )
    assert y.tolist() == [1, 1, 0]
    assert y.dtype == np.int32


def test_advance_moves_token_and_position(run: Run):
    token, pos = np.array([5], np.int32), np.array([9], np.int32)
    run(
        "%id = tg.argmax %x : (tensor<1x3xf32>) -> tensor<1xi32>\n"
        "tg.advance %id to %token, %pos : tensor<1xi32>, memref<1xi32>, memref<1xi32>",
        x=np.array([[0, 1, 2]], np.float32),
        token=token,
        pos=pos,
    )
    assert (token[0], pos[0]) == (2, 10)
