"""Where constants get their values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, TensorType, f32

from lane_mlir.eval import RandomWeights

Parse = Callable[[str], ModuleOp]


def values(name: str, *shape: int, seed: int = 0) -> np.ndarray:
    return RandomWeights(seed).values(name, TensorType(f32, shape))


def test_random_values_depend_on_seed_name_and_shape():
    w = values("w", 8, 64)
    np.testing.assert_array_equal(w, values("w", 8, 64))
    for other in (values("v", 8, 64), values("w", 64, 8).reshape(8, 64), values("w", 8, 64, seed=1)):
        assert not np.array_equal(w, other)


@pytest.mark.parametrize("shape", [(500, 64), (4, 100, 256), (2300, 2048)])
def test_products_by_random_matrices_keep_their_size(shape: tuple[int, ...]):
    w = values("w", *shape)
    assert w.shape == shape
    assert w.dtype == np.float32
    # Of 30,000 values and more: the deviation's own is below half a percent.
    assert np.std(w) * np.sqrt(shape[-1]) == pytest.approx(1, rel=0.02)
    rows = w.reshape(-1, shape[-1])
    assert len(np.unique(rows[:, 0])) == len(rows)


def test_random_vectors_lie_around_one():
    w = values("norm", 4096)
    assert np.mean(w) == pytest.approx(1, abs=0.01)
    assert w.min() > 0


def test_rates_of_decay_are_negative(parse: Parse):
    module = parse("""func.func @f(%a: tensor<1x4xf32>) -> tensor<1x4xf32> {
        %dt = tg.constant "dt" : tensor<4xf32>
        %al = tg.constant "al" : tensor<4xf32>
        %y = tg.decay %a dt %dt al %al : (tensor<1x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x4xf32>
        func.return %y : tensor<1x4xf32> }""")
    weights = RandomWeights.of(module)
    assert weights.values("al", TensorType(f32, (4,))).max() < 0
    assert weights.values("dt", TensorType(f32, (4,))).min() > 0
