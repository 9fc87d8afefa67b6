"""Rows that are put together of what is computed once a sequence: moe_rows, quantized rows, and rules that take parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue

from lane_mlir.dialects import tg
from lane_mlir.dialects.launch import MoeOp, QuantOp, SetRowOp
from lane_mlir.runtime.compilation import schedules
from lane_mlir.runtime.recipe import Recipe

Fuse = Callable[..., Any]

NUMERICS = ("dequant", "int8", "two_pass_int8")
WIDTH = 64


def put_together(s: Any, parts: list[SSAValue], order: tuple[int, ...] = (0, 1, 2)) -> SSAValue:
    rows = s.add_op(tg.EmptyOp(TensorType(f32, (len(parts), WIDTH))))
    for place, part in zip(order, parts, strict=True):
        rows = s.add_op(tg.InsertOp(part, rows, every=len(parts) * WIDTH, start=place * WIDTH))
    return rows


def rows_of(s: Any, x: SSAValue, order: tuple[int, ...] = (0, 1, 2)) -> list[SSAValue]:
    return [s.view(x, 1, WIDTH, row * WIDTH) for row in order]


class Experts:
    """Makes mixtures of the same experts, with the same shared expert."""

    def __init__(self, s: Any, shared: bool = False):
        self._s = s
        self._moe: tg.MoeOp | None = None
        self._shared: list[SSAValue] = []
        self._with_shared = shared

    def __call__(self, x: SSAValue, **how: Any) -> SSAValue:
        s = self._s
        if self._moe is None:
            routed: SSAValue = s.moe(x, **how)
            assert isinstance(routed.owner, tg.MoeOp)
            self._moe = routed.owner
        else:
            weights = (self._moe.router, self._moe.gate, self._moe.up, self._moe.down)
            routed = s.add_op(tg.MoeOp(x, *weights, used=2, scoring=tg.Scoring.SOFTMAX, **how))
        return s.add(routed, self._expert(x)) if self._with_shared else routed

    def _expert(self, x: SSAValue) -> SSAValue:
        s = self._s
        if not self._shared:
            shapes = ((32, WIDTH), (32, WIDTH), (WIDTH, 32))
            self._shared = [s.constant(*shape, stored="q8_0") for shape in shapes]
        gate, up, down = self._shared
        gate, up = (s.add_op(tg.MatmulOp(x, w)) for w in (gate, up))
        return s.add_op(tg.MatmulOp(s.mul(s.silu(gate), up), down))


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("shared", [False, True])
def test_moe_rows(fuse: Fuse, numerics: str, shared: bool):
    def build(s: Any) -> SSAValue:
        experts = Experts(s, shared)
        return put_together(s, [experts(row) for row in rows_of(s, s.norm(s.embedding()))])

    only = ("act_gate", "glu_pair", "shared_expert", "moe_rows")
    rewrite = fuse(build, *only, rows=3, numerics=numerics)
    assert rewrite.fired == ({rule: 3 for rule in only[:-1]} if shared else {}) | {"moe_rows": 1}
    assert not [op for op in rewrite.ops if isinstance(op, tg.InsertOp | tg.MoeOp)]


def test_moe_rows_then_the_norm(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        x, experts = s.embedding(), Experts(s)
        mixed = put_together(s, [experts(row) for row in rows_of(s, s.norm(x))])
        return s.norm(s.add(x, mixed))

    rewrite = fuse(build, "add_norm", "moe_rows", "moe_deferred_finalize", rows=3)
    assert rewrite.fired == {"add_norm": 1, "moe_rows": 1, "moe_deferred_finalize": 1}


def other_experts(s: Any) -> SSAValue:
    rows, experts = rows_of(s, s.embedding()), Experts(s)
    return put_together(s, [experts(rows[0]), experts(rows[1]), Experts(s)(rows[2])])


def other_choice(s: Any) -> SSAValue:
    rows, experts = rows_of(s, s.embedding()), Experts(s)
    return put_together(s, [experts(rows[0]), experts(rows[1]), experts(rows[2], renormalize=True)])


def rows_swapped(s: Any) -> SSAValue:
    experts = Experts(s)
    return put_together(s, [experts(row) for row in rows_of(s, s.embedding(), (0, 2, 1))])


def places_swapped(s: Any) -> SSAValue:
    experts = Experts(s)
    return put_together(s, [experts(row) for row in rows_of(s, s.embedding())], (0, 2, 1))


def other_activation(s: Any) -> SSAValue:
    experts, x = Experts(s), s.embedding()
    rows = [*rows_of(s, x)[:2], rows_of(s, s.silu(x))[2]]
    return put_together(s, [experts(row) for row in rows])


NOT_ROWS = "its parts are no mixtures of the rows of one activation by the same experts, put together again"


@pytest.mark.parametrize("build", [other_experts, other_choice, rows_swapped, places_swapped, other_activation])
def test_moe_rows_is_refused(fuse: Fuse, build: Callable[[Any], SSAValue]):
    rewrite = fuse(build, "moe_rows", rows=3)
    assert rewrite.refusals("moe_rows") == [NOT_ROWS]
    assert not rewrite.fired


def test_moe_rows_that_are_read_apart(fuse: Fuse):
    def build(s: Any) -> tuple[SSAValue, SSAValue]:
        experts = Experts(s)
        mixed = [experts(row) for row in rows_of(s, s.embedding())]
        return put_together(s, mixed), mixed[0]

    (reason,) = fuse(build, "moe_rows", rows=3).refusals("moe_rows")
    assert "has another reader" in reason


def test_rows_of_something_else_are_no_place(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        return put_together(s, [s.silu(row) for row in rows_of(s, s.embedding())])

    assert len(fuse(build, "moe_rows", rows=3).report) == 0


def test_held(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        experts = Experts(s)
        return put_together(s, [experts(row) for row in rows_of(s, s.embedding())])

    rewrite = fuse(build, rows=3, held=("moe_rows",))
    assert [(d.rule, str(d.outcome)) for d in rewrite.report if d.rule == "moe_rows"] == [("moe_rows", "held")]


@pytest.mark.parametrize("numerics", NUMERICS[1:])
def test_rows_are_quantized_by_what_makes_them(fuse: Fuse, numerics: str):
    def build(s: Any) -> SSAValue:
        x = s.embedding()
        rows = [s.mul(s.silu(row), row) for row in rows_of(s, x)]
        return s.matmul(put_together(s, rows))

    rewrite = fuse(build, "act_gate", "fused_quant", rows=3, numerics=numerics)
    assert rewrite.fired == {"act_gate": 3, "fused_quant": 3}
    inserts = [op for op in rewrite.ops if isinstance(op, tg.InsertOp)]
    assert [tg.encoding_of(op.result) for op in inserts] == [tg.QuantizedAttr(tg.Numerics(numerics))] * 3


def test_rows_read_plain_too(fuse: Fuse):
    def build(s: Any) -> tuple[SSAValue, SSAValue]:
        rows = [s.mul(s.silu(row), row) for row in rows_of(s, s.embedding())]
        joined = put_together(s, rows)
        return s.matmul(joined), s.silu(joined)

    rewrite = fuse(build, "act_gate", "fused_quant", rows=3, numerics="int8")
    assert rewrite.fired == {"act_gate": 3, "fused_quant": 3}
    assert len([op for op in rewrite.ops if isinstance(op, tg.InsertOp)]) == 6


def test_rows_of_what_does_not_quantize_are_quantized_together(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        experts = Experts(s)
        return s.matmul(put_together(s, [experts(row) for row in rows_of(s, s.embedding())]))

    rewrite = fuse(build, "act_gate", rows=3, numerics="int8")
    assert len([op for op in rewrite.ops if isinstance(op, tg.QuantizeOp) and tg.shape_of(op.x)[0] == 3]) == 2


# A row of a result is no result.


def rotated(s: Any, heads: SSAValue) -> SSAValue:
    cos, sin = s.tables()
    return s.add_op(tg.RopeOp(heads, cos, sin, s.pos, per_row=tg.shape_of(heads)[0], pairing=tg.Pairing.HALF))


def row_written(s: Any, x: SSAValue) -> None:
    s.set_row(s.view(x, 1, WIDTH, WIDTH), s.cache(WIDTH, "k"))


def slice_normed(s: Any, x: SSAValue) -> SSAValue:
    return s.norm(s.view(s.slice(x, 32, 0, 16), 2, 16, 32))


def heads_rotated(s: Any, x: SSAValue) -> SSAValue:
    return rotated(s, s.heads(s.view(s.matmul(x), 1, WIDTH, 0)))


def rows_joined(s: Any, x: SSAValue) -> SSAValue:
    return s.join(s.view(s.norm(x), 1, WIDTH, 0), s.norm(s.view(x, 1, WIDTH, 0)))


@pytest.mark.parametrize(
    ("rule", "build"),
    [
        ("row_write", row_written),
        ("slice_read", slice_normed),
        ("qkv_head_epilogue", heads_rotated),
        ("join_in_place", rows_joined),
    ],
)
def test_rows_of_a_result_are_computed_as_a_whole(lift: Any, rewrite: Any, rule: str, build: Any):
    def step(s: Any) -> tuple[SSAValue, ...]:
        x = s.matmul(s.embedding())
        made = build(s, x)
        return (x,) if made is None else (x, made)

    refusals = rewrite(lift(step, 3), only=(rule,)).refusals(rule)
    assert len(refusals) == 1
    assert refusals[0].endswith("takes some rows of a result that is computed as a whole")


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
def test_products_of_a_batch_say_so(models: Any, numerics: str):
    from lane_mlir.checkpoint import Checkpoint
    from lane_mlir.target import make_target

    module = (recipe := Recipe(make_target(numerics), (), 16)).lift(
        Checkpoint.open(models / "deepseek2-moe-Q4_K_M.gguf"), 1, "last", 3
    )
    recipe.lower(module)
    launches = [part for launch in schedules(module)[0].launches() for part in launch.parts()]
    products = [launch for launch in launches if launch.projected_input() is not None or hasattr(launch, "batch")]
    assert len(products) > 10
    assert all(launch.is_batch() for launch in products)
    (mixture,) = [launch for launch in launches if isinstance(launch, MoeOp)]
    assert mixture.rows.data == 3
    assert not [launch for launch in launches if isinstance(launch, SetRowOp) and launch.quant]
    # Values of heads, which no kernel quantizes.
    assert len([launch for launch in launches if isinstance(launch, QuantOp)]) == (2 if numerics == "int8" else 0)
