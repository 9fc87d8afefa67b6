"""The composites that fused ops realize, and how many ops of a step do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from lane_mlir.eval.step import the_step
from lane_mlir.passes.forms import composites, realizes

Build = Callable[[Any], Any]


class Fuse(Protocol):
    """See the fixture."""

    def __call__(self, build: Build, *only: str, **how: Any) -> Any: ...


def rotated(norm: bool = False, append: bool = True) -> Build:
    """Keys, with their per-head norm or not, rotated, that land in the rows of a cache or do not."""

    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        heads = s.heads(s.matmul(x))
        rows = s.whole(s.rope(s.norm(heads) if norm else heads))
        if append:
            s.set_row(rows, k)
        return s.attention(x, k, k) if append else rows

    return build


def delta(s: Any) -> Any:
    x = s.embedding()
    b, a = s.matmul(x, 2), s.matmul(x, 2)
    return s.delta(x, x, x, x, s.unary("sigmoid", b), s.decay(a))


def gate_and_up(s: Any) -> Any:
    x = s.embedding()
    gate, up = s.matmul(x, 96), s.matmul(x, 96)
    return s.mul(s.silu(gate), up)


def two_products(s: Any) -> Any:
    x = s.embedding()
    return s.matmul(x, 96), s.matmul(x, 96)


def shared_expert(gate: bool) -> Build:
    def build(s: Any) -> Any:
        x = s.embedding()
        routed = s.moe(x)
        shared = s.matmul(s.mul(s.silu(s.matmul(x, 32)), s.matmul(x, 32)))
        if gate:
            shared = s.mul(shared, s.unary("sigmoid", s.matmul(x, 1, stored=None)))
        return s.add(routed, shared)

    return build


def mixture(s: Any) -> Any:
    return s.moe(s.embedding())


PAIR = ("act_gate", "glu_pair")


@pytest.mark.parametrize(
    ("build", "rules", "rows", "expected"),
    [
        pytest.param(rotated(), ("row_write",), 1, {"rope_kv_append": 1}, id="rotation into a cache"),
        pytest.param(rotated(), (), 1, {}, id="rotation, then a row set"),
        pytest.param(rotated(append=False), ("row_write",), 1, {}, id="rotation elsewhere"),
        pytest.param(
            rotated(norm=True),
            ("head_norm_rope", "row_write"),
            1,
            {"qk_norm_rope_kv_append": 1},
            id="norm and rotation into a cache",
        ),
        pytest.param(rotated(norm=True), ("row_write",), 1, {"rope_kv_append": 1}, id="norm apart"),
        pytest.param(delta, (), 1, {"gated_norm": 1}, id="delta rule"),
        pytest.param(gate_and_up, PAIR, 1, {"merged_gate_up": 1}, id="gated pair"),
        pytest.param(
            gate_and_up,
            ("act_gate", "gemv_parts"),
            1,
            {"merged_gate_up": 1, "merged_projections": 1},
            id="gate and up side by side",
        ),
        pytest.param(gate_and_up, ("act_gate",), 1, {}, id="gate and up apart"),
        pytest.param(two_products, ("gemv_parts",), 1, {"merged_projections": 1}, id="two products of one width"),
        pytest.param(mixture, (), 17, {"moe_gather_in_operand": 1}, id="mixture sorted"),
        pytest.param(mixture, (), 16, {}, id="mixture row by row"),
        pytest.param(
            shared_expert(gate=True),
            (*PAIR, "shared_expert"),
            1,
            {"merged_gate_up": 1, "router_shared_gate_merge": 1},
            id="shared expert with a gate",
        ),
        pytest.param(
            shared_expert(gate=False), (*PAIR, "shared_expert"), 1, {"merged_gate_up": 1}, id="shared expert without"
        ),
    ],
)
def test_composites(fuse: Fuse, build: Build, rules: tuple[str, ...], rows: int, expected: dict[str, int]):
    rewrite = fuse(build, *(rules or ("gather_scale",)), rows=rows, positions=1)
    assert composites(the_step(rewrite.fused)) == expected


def test_realizes_names_classes_and_composites_each_once(fuse: Fuse):
    rewrite = fuse(rotated(norm=True), "head_norm_rope", "row_write", "qkv_head_epilogue", "gemv_parts", positions=1)
    (op,) = (op for op in rewrite.ops if "qk_norm_rope_kv_append" in realizes(op))
    assert realizes(op) == ("qkv_head_epilogue", "row_write", "head_norm_rope", "qk_norm_rope_kv_append")
    assert not any(realizes(other) for other in rewrite.ops if other.name == "tg.constant")
