"""Rotations, slices read in place, results landing elsewhere: head_norm_rope to join_in_place, strided_values, advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from xdsl.dialects.builtin import MemRefType, f32
from xdsl.ir import SSAValue

from lane_mlir.dialects import tg

Build = Callable[[Any], Any]


class Fuse(Protocol):
    """See the fixture."""

    def __call__(self, build: Build, *only: str, **how: Any) -> Any: ...


def case(build: Build, *expected: Any, id: str | None = None) -> Any:
    return pytest.param(build, *expected, id=id)


ANOTHER_READER = "has another reader, and the launch would not write its result"


# Rotations.


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("half", [16, 8, 12])
@pytest.mark.parametrize("rows", [1, 5])
def test_head_norm_rope(fuse: Fuse, rows: int, half: int, pairing: str):
    rewrite = fuse(lambda s: s.rope(s.norm(s.heads(s.embedding())), half, pairing), "head_norm_rope", rows=rows)
    assert rewrite.fired == {"head_norm_rope": 1}


@pytest.mark.parametrize("heads", [1, 8, 64])
def test_every_head_is_rotated(fuse: Fuse, heads: int):
    def build(s: Any) -> SSAValue:
        x = s.matmul(s.embedding(), heads * 32)
        return s.rope(s.norm(s.heads(x)))

    rewrite = fuse(build, "head_norm_rope", "qkv_head_epilogue", rows=2)
    assert rewrite.fired == {"head_norm_rope": 1, "qkv_head_epilogue": 1}


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("rotated", [32, 64, 96, 128])
def test_part_of_a_wide_head_is_rotated(fuse: Fuse, rotated: int, pairing: str):
    def build(s: Any) -> SSAValue:
        heads = s.heads(s.matmul(s.embedding(), 8 * 128), 128)
        return s.rope(s.norm(heads), rotated // 2, pairing)

    assert fuse(build, "head_norm_rope", rows=2).fired == {"head_norm_rope": 1}


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        case(
            lambda s: s.rope(s.norm(s.heads(s.embedding()), weight=False)),
            "the kernel of a rotation norms heads by a weight, and this norm has none",
        ),
        case(
            lambda s: s.rope(s.heads(s.norm(s.embedding()))),
            "view[2] (view.2) stands between rms_norm[1] (rms_norm.1) and the rotation: the norm is not of heads",
        ),
        case(lambda s: (n := s.norm(s.heads(s.embedding())), s.rope(n)), f"rms_norm[2] (rms_norm.2) {ANOTHER_READER}"),
    ],
)
def test_head_norm_rope_is_refused(fuse: Fuse, build: Build, reason: str):
    rewrite = fuse(build, "head_norm_rope")
    assert rewrite.refusals("head_norm_rope") == [reason]
    assert not rewrite.fired


@pytest.mark.parametrize("rows", [1, 3])
def test_rope_parts(fuse: Fuse, rows: int):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        q_heads, k_heads = s.heads(s.scale(x)), s.heads(s.silu(x))
        q = s.whole(s.rope(s.norm(q_heads)))
        s.set_row(s.whole(s.rope(k_heads)), k)
        return s.attention(q, k, k)

    rewrite = fuse(build, "head_norm_rope", "row_write", "rope_parts", rows=rows)
    assert rewrite.fired == {"head_norm_rope": 1, "row_write": 1, "rope_parts": 1}


def ropes_of_two_tables(s: Any) -> Any:
    x = s.heads(s.embedding())
    return s.rope(x, 16), s.rope(s.scale(x), 8)


def a_chain_of_ropes(s: Any) -> SSAValue:
    return s.rope(s.rope(s.heads(s.embedding())))


def ropes_of_two_pairings(s: Any) -> Any:
    x = s.heads(s.embedding())
    return s.rope(x), s.rope(x, pairing="interleaved")


@pytest.mark.parametrize("build", [ropes_of_two_tables, a_chain_of_ropes, ropes_of_two_pairings])
def test_rotations_that_differ_or_depend_run_apart(fuse: Fuse, build: Build):
    assert not list(fuse(build, "rope_parts").report)


def test_rotations_do_not_pass_what_reads_the_first(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        q = s.rope(s.heads(x))
        read = s.silu(q)
        return read, s.rope(s.heads(s.scale(x)))

    assert not list(fuse(build, "rope_parts").report)


def test_rotations_do_not_pass_a_read_of_what_one_writes(fuse: Fuse):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        s.set_row(s.whole(s.rope(s.heads(x))), k)
        y = s.attention(x, k, k)
        return y, s.rope(s.heads(s.scale(x)))

    rewrite = fuse(build, "row_write", "rope_parts")
    assert rewrite.fired == {"row_write": 1}


# The heads of a product.


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_qkv_head_epilogue(fuse: Fuse, cached: bool, normed: bool, rows: int, numerics: str):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        heads = s.heads(s.bias(s.matmul(x)))
        y = s.whole(s.rope(s.norm(heads) if normed else heads))
        if not cached:
            return y
        s.set_row(y, k)
        return s.attention(x, k, k)

    rules = ("gemv_bias", "head_norm_rope", "row_write", "qkv_head_epilogue")
    rewrite = fuse(build, *rules, rows=rows, numerics=numerics)
    assert rewrite.count("qkv_head_epilogue") == 1
    assert rewrite.classes == ["qkv_head_epilogue"]


@pytest.mark.parametrize(
    ("build", "rows", "reason"),
    [
        case(
            lambda s: s.rope(s.heads(s.matmul(s.embedding(), stored=None))),
            1,
            "the kernel of a product by plain f32 values has no epilogue",
        ),
        case(
            lambda s: s.rope(s.heads(s.matmul(s.embedding()))),
            17,
            "the product of 17 rows runs in tiles, which have no epilogue (up to 16 rows do)",
        ),
        case(
            lambda s: (y := s.matmul(s.embedding()), s.rope(s.heads(y))),
            1,
            "matmul[1] (matmul.1) has another reader, func.return",
        ),
    ],
)
def test_qkv_head_epilogue_is_refused(fuse: Fuse, build: Build, rows: int, reason: str):
    rewrite = fuse(build, "qkv_head_epilogue", rows=rows)
    assert rewrite.refusals("qkv_head_epilogue") == [reason]
    assert not rewrite.fired


def test_all_of_attention_in_one_launch(fuse: Fuse):
    """Queries, keys and values of one activation: products, norms, rotations, and two rows of caches."""

    def build(s: Any) -> Any:
        x, k, v = s.norm(s.embedding()), s.cache(64, "k"), s.cache(64, "v")
        q = s.whole(s.rope(s.norm(s.heads(s.matmul(x)))))
        s.set_row(s.whole(s.rope(s.norm(s.heads(s.matmul(x))))), k)
        s.set_row(s.matmul(x), v)
        return s.attention(q, k, v)

    rewrite = fuse(build, numerics="int8")
    assert rewrite.fired["gemv_parts"] == 1
    assert rewrite.classes == ["embed_norm_quant", "gemv_parts"]


# Results that land in a cache.


def landing(producer: Build, width: int = 64) -> Build:
    def build(s: Any) -> Any:
        k = s.cache(width, "k")
        y = producer(s)
        s.set_row(y, k)
        return s.embedding()

    return build


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "producer",
    [
        case(lambda s: s.matmul(s.embedding()), id="product"),
        case(lambda s: s.matmul(s.embedding(), stored=None), id="plain product"),
        case(lambda s: s.bias(s.matmul(s.embedding())), id="product with bias"),
        case(lambda s: s.norm(s.embedding()), id="norm"),
        case(lambda s: s.whole(s.rope(s.heads(s.embedding()))), id="rotation"),
        case(lambda s: s.whole(s.heads(s.view(s.matmul(s.embedding()), s.rows, 64))), id="through views"),
        case(lambda s: s.join(s.slice(s.embedding(), 64, 0, 32), s.slice(s.embedding(), 64, 0, 32)), id="join"),
        case(lambda s: s.head_matmul(s.embedding(), 2, 32), id="product of heads"),
        case(lambda s: s.moe(s.embedding()), id="mixture"),
    ],
)
def test_row_write(fuse: Fuse, producer: Build, rows: int):
    rewrite = fuse(landing(producer), "gemv_bias", "row_write", rows=rows)
    assert rewrite.count("row_write") == 1


def a_sum_beside_a_landing_norm(s: Any) -> Any:
    k = s.cache(64, "k")
    x = s.embedding()
    h = s.add(x, s.scale(x))
    s.set_row(s.norm(h), k)
    return h


def test_a_norm_that_lands_writes_its_sum(fuse: Fuse):
    assert fuse(a_sum_beside_a_landing_norm, "add_norm", "row_write").fired == {"add_norm": 1, "row_write": 1}


def set_twice(s: Any) -> Any:
    y, k, v = s.matmul(s.embedding()), s.cache(64, "k"), s.cache(64, "v")
    s.set_row(y, k)
    s.set_row(y, v)
    return s.embedding()


def set_and_read(s: Any) -> Any:
    y, k = s.matmul(s.embedding()), s.cache(64, "k")
    s.set_row(y, k)
    return s.scale(y)


def first_rows_set(s: Any) -> Any:
    y, k = s.matmul(s.embedding()), s.cache(64, "k")
    s.set_row(s.view(y, 2, 64), k)
    return s.embedding()


@pytest.mark.parametrize(
    ("build", "reasons"),
    [
        (
            landing(lambda s: s.silu(s.embedding())),
            ["the kernel of unary[1] (unary.1) does not write its result into rows of a table"],
        ),
        (
            landing(lambda s: s.embedding()),
            ["the kernel of gather[0] (gather.0) does not write its result into rows of a table"],
        ),
        (
            set_twice,
            [
                f"matmul[1] (matmul.1) {ANOTHER_READER}",
                "matmul[1] (matmul.1) is read by set_row[2] (set_row.2), before set_row[3] (set_row.3)",
            ],
        ),
        (set_and_read, [f"matmul[1] (matmul.1) {ANOTHER_READER}"]),
        (first_rows_set, ["view[2] (view.2) takes some rows of a result that is computed as a whole"]),
    ],
    ids=["unary", "gather", "set twice", "read too", "first rows"],
)
def test_row_write_is_refused(fuse: Fuse, build: Build, reasons: list[str]):
    rewrite = fuse(build, "row_write", rows=4)
    assert rewrite.refusals("row_write") == reasons
    assert not rewrite.fired


def test_rows_land_in_the_order_they_are_set(fuse: Fuse):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        first, second = s.matmul(x), s.matmul(x)
        s.set_row(second, k)
        s.set_row(first, k)
        return s.attention(x, k, k)

    assert fuse(build, "row_write").fired == {"row_write": 2}


def test_a_read_of_the_cache_between_product_and_row(fuse: Fuse):
    """The product may move down to the row; the row may not move up to it."""

    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        y = s.matmul(x)
        s.set_row(x, k)
        before = s.attention(x, k, k)
        s.set_row(y, k)
        return before, s.attention(x, k, k)

    rewrite = fuse(build, "row_write")
    assert rewrite.fired == {"row_write": 1}


# Reading in place.


def part(s: Any) -> Any:
    """Heads of 32 columns inside units of 48."""
    return s.slice(s.matmul(s.embedding(), 2 * 48), 48, 16, 32)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "build",
    [
        case(lambda s: s.norm(part(s)), id="norm"),
        case(lambda s: s.rope(part(s)), id="rotation"),
        case(lambda s: s.rope(s.norm(part(s))), id="norm and rotation"),
        case(lambda s: s.head_matmul(s.whole(part(s)), 2, 16), id="product of heads"),
        case(lambda s: s.norm(s.view(s.whole(part(s)), 2 * s.rows, 32)), id="through views"),
    ],
)
def test_slice_read(fuse: Fuse, build: Build, rows: int):
    assert fuse(build, "head_norm_rope", "slice_read", rows=rows).count("slice_read") == 1


def slice_of_one_run(s: Any) -> SSAValue:
    return s.norm(s.slice(s.embedding(), 64, 16, 32))


def slice_read_twice(s: Any) -> Any:
    part = s.slice(s.embedding(), 64, 16, 32)
    return s.norm(part), s.scale(part)


def slice_in_halves(s: Any) -> SSAValue:
    return s.norm(s.view(s.slice(s.embedding(), 64, 0, 32), 2 * s.rows, 16))


def rows_after_the_first(s: Any) -> SSAValue:
    part = s.slice(s.embedding(), 64, 0, 32)
    return s.norm(s.view(part, s.rows - 1, 32, 32))


@pytest.mark.parametrize(
    ("build", "rows", "reason"),
    [
        (slice_of_one_run, 1, "slice[1] (slice.1) is one run of elements: a view, which costs no launch"),
        (slice_read_twice, 3, f"slice[1] (slice.1) {ANOTHER_READER}"),
        (
            slice_in_halves,
            3,
            "the kernel of rms_norm[3] (rms_norm.3) reads no part of wider units, or these have no single pitch",
        ),
        (rows_after_the_first, 3, "view[2] (view.2) takes some rows of a result that is computed as a whole"),
    ],
)
def test_slice_read_is_refused(fuse: Fuse, build: Build, rows: int, reason: str):
    rewrite = fuse(build, "slice_read", rows=rows)
    assert rewrite.refusals("slice_read") == [reason]
    assert not rewrite.fired


def latent(s: Any, heads: int = 1) -> Any:
    """Attention whose values are the last columns of its keys' rows."""
    x, k = s.embedding(), s.cache(64, "k")
    s.set_row(x, k)
    return s.attention(x, k, s.slice(k, 64, 16, 32), heads=heads, kv_heads=heads)


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_strided_values(fuse: Fuse, rows: int, heads: int, numerics: str):
    rewrite = fuse(lambda s: s.matmul(latent(s, heads)), "strided_values", "fused_quant", rows=rows, numerics=numerics)
    assert rewrite.count("strided_values") == 1


def test_values_through_a_reshape_are_copied(fuse: Fuse):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        s.set_row(x, k)
        v = s.view(s.slice(k, 64, 16, 32, (64, 16)), 32, 32)
        return s.attention(x, k, v, heads=1, kv_heads=1)

    assert not list(fuse(build, "strided_values").report)


def values_before_the_row(s: Any) -> Any:
    """The values are those before the step's own row is set."""
    x, k = s.embedding(), s.cache(64, "k")
    s.set_row(s.scale(x), k)
    v = s.slice(k, 64, 16, 32)
    s.set_row(x, k)
    return s.attention(x, k, v, heads=1, kv_heads=1)


def values_in_two_rows(s: Any) -> Any:
    """Rows of values that are halves of the keys' rows: no one pitch reaches them."""
    x, k = s.embedding(), s.cache(64, "k")
    keys = s.argument(tg.ArgumentKind.KV_CACHE, "keys", MemRefType(f32, (64, 64)))
    s.set_row(x, k)
    s.set_row(x, keys)
    return s.attention(x, keys, s.slice(k, 64, 16, 32, (64, 16)), heads=1, kv_heads=1)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            values_before_the_row,
            "set_row[4] (set_row.4) stands between and touches the same state as slice[3] (slice.3)",
        ),
        (values_in_two_rows, "its parts are no attention, where it reads its values, and what gates it"),
    ],
)
def test_strided_values_is_refused(fuse: Fuse, build: Build, reason: str):
    # Rows of the cache that are not written yet are NaN, and the slice has them too.
    rewrite = fuse(build, "strided_values")
    assert rewrite.refusals("strided_values") == [reason]
    assert not rewrite.fired


# Joins.


def joined(s: Any, heads: int = 2) -> SSAValue:
    """Queries of latent attention: every head's own part, and the rotated tail."""
    x = s.embedding()
    tail = s.rope(s.view(s.matmul(x, heads * 8), heads * s.rows, 8), 4)
    return s.join(s.head_matmul(x, heads, 16), s.whole(tail), heads)


@pytest.mark.parametrize("rows", [1, 3])
def test_join_in_place(fuse: Fuse, rows: int):
    rewrite = fuse(joined, "join_in_place", rows=rows)
    assert rewrite.count("join_in_place") == 1
    assert not any(isinstance(op, tg.JoinOp) for op in rewrite.ops)


def test_join_of_a_product_is_refused(fuse: Fuse):
    rewrite = fuse(lambda s: s.join(s.matmul(x := s.embedding()), s.head_matmul(x, 2, 16)), "join_in_place")
    assert rewrite.refusals("join_in_place") == [
        "the kernel of matmul[1] (matmul.1) does not write its result in part of wider units"
    ]
    assert [op.name for op in rewrite.ops][-2:] == ["tg.join", "func.return"]


def test_join_of_one_result_is_refused(fuse: Fuse):
    rewrite = fuse(lambda s: s.join(x := s.norm(s.embedding()), x), "join_in_place")
    assert rewrite.refusals("join_in_place") == ["both its sides are of one result"]


def test_join_whose_side_is_read_elsewhere_is_left_as_it_was(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        a = s.head_matmul(x, 2, 16)
        return s.join(a, s.head_matmul(x, 2, 16), 2), a

    rewrite = fuse(build, "join_in_place")
    assert len(rewrite.refusals("join_in_place")) == 1
    assert [op.name for op in rewrite.ops][-2:] == ["tg.join", "func.return"]
    assert not any(isinstance(op, tg.EmptyOp) for op in rewrite.ops)


# The end of a step.


def closing(s: Any) -> Any:
    logits = s.matmul(s.embedding(), s.VOCABULARY)
    token = s.add_op(tg.ArgmaxOp(logits))
    s.add_op(tg.AdvanceOp(token, s.token, s.pos))
    return logits, token


@pytest.mark.parametrize("limit", [None, 0])
def test_advance_always_closes(fuse: Fuse, limit: int | None):
    rewrite = fuse(closing, limit=limit)
    assert rewrite.fired == {"advance": 1}
    assert rewrite.classes == ["advance"]


def test_advance_moves_over_what_reads_the_position(fuse: Fuse):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        logits = s.matmul(x, s.VOCABULARY)
        token = s.add_op(tg.ArgmaxOp(logits))
        s.set_row(x, k)
        s.add_op(tg.AdvanceOp(token, s.token, s.pos))
        return logits, token

    assert fuse(build).count("advance") == 1
