"""add_norm, sandwich_norm, gather_scale and embed_norm; a product's or a mixture's last block that norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from xdsl.ir import SSAValue

from lane_mlir.dialects import tg

Build = Callable[[Any], Any]


class Fuse(Protocol):
    """See the fixture."""

    def __call__(self, build: Build, *only: str, **how: Any) -> Any: ...


def case(build: Build, *expected: Any, id: str | None = None) -> Any:
    return pytest.param(build, *expected, id=id)


def residual(s: Any, swap: bool = False, **norm: Any) -> tuple[SSAValue, SSAValue, SSAValue]:
    """A residual, a branch and their sum."""
    x = s.embedding()
    branch = s.matmul(x)
    return x, branch, s.add(branch, x) if swap else s.add(x, branch)


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("swap", [False, True])
def test_add_norm_takes_the_residual_on_either_side(fuse: Fuse, swap: bool, rows: int):
    rewrite = fuse(lambda s: s.norm(residual(s, swap)[2]), "add_norm", rows=rows)
    assert rewrite.fired == {"add_norm": 1}
    assert rewrite.classes == ["add_norm"]


def sum_returned(s: Any) -> Any:
    h = residual(s)[2]
    return h, s.norm(h)


def sum_read_again(s: Any) -> Any:
    h = residual(s)[2]
    return s.norm(h), s.scale(h)


def sum_read_with_its_norm(s: Any) -> Any:
    h = residual(s)[2]
    return s.add(h, s.norm(h))


@pytest.mark.parametrize("build", [sum_returned, sum_read_again, sum_read_with_its_norm])
def test_add_norm_writes_the_sum_for_its_other_readers(fuse: Fuse, build: Build):
    rewrite = fuse(build, "add_norm")
    assert rewrite.fired == {"add_norm": 1}
    (fused,) = (op for op in rewrite.ops if isinstance(op, tg.FusedOp))
    assert len(fused.outputs) == 2


def test_each_norm_keeps_its_own_epsilon(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        first = s.norm(residual(s)[2], eps=1e-6)
        return s.norm(s.add(first, s.matmul(first)), eps=0.5)

    rewrite = fuse(build)
    assert rewrite.fired["add_norm"] == 2
    norms = [op.eps.value.data for op in rewrite.ops for op in op.walk() if isinstance(op, tg.RmsNormOp)]
    assert norms == [1e-6, 0.5]


def test_a_large_residual_stays_f32(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        h = s.add(s.scale(x, 1e4), s.scale(x, 1e-3))
        return s.norm(h), h

    assert fuse(build, "add_norm").fired == {"add_norm": 1}


@pytest.mark.parametrize(
    "build",
    [
        case(lambda s: s.norm(s.bias(s.embedding())), id="bias row"),
        case(lambda s: s.norm(s.binary("sub", s.embedding(), s.scale(s.embedding()))), id="difference"),
        case(lambda s: s.norm(s.add(s.matmul(x := s.embedding()), s.matmul(x, 1))), id="column"),
    ],
)
def test_what_is_no_norm_of_a_sum_has_no_decision(fuse: Fuse, build: Build):
    assert not list(fuse(build, "add_norm", rows=2).report)


def test_a_layer_norm_adds_nothing(fuse: Fuse):
    rewrite = fuse(lambda s: s.layer_norm(residual(s)[2]), "add_norm", rows=2)
    assert rewrite.refusals("add_norm") == ["the kernel of a layer norm adds nothing"]


def test_a_product_that_is_scaled_has_no_norm_at_its_end(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        return s.norm(s.add(x, s.scale(s.matmul(x), 0.5)))

    rewrite = fuse(build, "add_norm", "gemv_norm_epilogue")
    reason = "scale[2] (scale.2) stands between matmul[1] (matmul.1) and the norm"
    assert rewrite.refusals("gemv_norm_epilogue") == [reason]


def test_add_norm_does_not_pass_a_reader_of_the_sum(fuse: Fuse):
    def build(s: Any) -> Any:
        h = residual(s)[2]
        scaled = s.scale(h)
        return scaled, s.norm(h)

    rewrite = fuse(build, "add_norm")
    assert rewrite.refusals("add_norm") == [
        "binary[2] (binary.2) is read by scale[3] (scale.3), before rms_norm[4] (rms_norm.4)"
    ]
    assert not rewrite.fired


def test_of_two_norms_of_one_sum_one_is_fused(fuse: Fuse):
    def build(s: Any) -> Any:
        h = residual(s)[2]
        return s.norm(h), s.norm(h, eps=1e-2)

    rewrite = fuse(build, "add_norm")
    assert rewrite.fired == {"add_norm": 1}
    assert rewrite.refusals("add_norm") == ['the sum is already that of "add_norm"[2, 3] (binary.2), which writes it']


def test_add_norm_does_not_look_through_a_view(fuse: Fuse):
    rewrite = fuse(lambda s: s.norm(s.view(residual(s)[2], 1, 64, 128)), "add_norm", rows=3)
    assert rewrite.refusals("add_norm") == [
        "view[3] (view.3) stands between binary[2] (binary.2) and its norm: the rows differ"
    ]
    assert not rewrite.fired


def sandwich(s: Any, swap: bool = False, branch_weight: bool = True) -> tuple[SSAValue, SSAValue, SSAValue]:
    """A residual, the norm of a branch, and the norm of their sum."""
    x = s.embedding()
    branch = s.norm(s.silu(x), eps=1e-3, weight=branch_weight)
    h = s.add(branch, x) if swap else s.add(x, branch)
    return x, branch, s.norm(h, eps=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("swap", [False, True])
def test_sandwich_norm_takes_the_branch_on_either_side(fuse: Fuse, swap: bool, weight: bool, rows: int):
    rewrite = fuse(lambda s: sandwich(s, swap, weight)[2], "add_norm", "sandwich_norm", rows=rows)
    assert rewrite.fired == {"add_norm": 1, "sandwich_norm": 1}
    assert rewrite.classes == ["sandwich_norm"]


def test_sandwich_norm_of_the_residual_itself(fuse: Fuse):
    """A norm after the residual of a post-norm layer: x + norm(x)."""

    def build(s: Any) -> SSAValue:
        x = s.scale(s.embedding())
        return s.norm(s.add(x, s.norm(x)))

    assert fuse(build, "add_norm", "sandwich_norm").count("sandwich_norm") == 1


def branch_read_again(s: Any) -> Any:
    _, branch, y = sandwich(s)
    return y, s.scale(branch)


def branch_added_to_itself(s: Any) -> SSAValue:
    branch = s.norm(s.embedding())
    return s.norm(s.add(branch, branch))


def branch_added_to_its_view(s: Any) -> SSAValue:
    branch = s.norm(s.embedding())
    return s.norm(s.add(branch, s.view(branch, 1, 64)))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (branch_read_again, "rms_norm[2] (rms_norm.2) has another reader, and the launch would not write its result"),
        (branch_added_to_itself, "its parts are no norm of a sum or of one tensor"),
        (branch_added_to_its_view, 'view[2] (view.2) stands between, and "add_norm"[3, 4] (binary.3) reads it'),
    ],
)
def test_sandwich_norm_is_refused(fuse: Fuse, build: Build, reason: str):
    rewrite = fuse(build, "add_norm", "sandwich_norm")
    assert rewrite.refusals("sandwich_norm") == [reason]
    assert rewrite.fired == {"add_norm": 1}


def test_sandwich_norm_needs_add_norm(fuse: Fuse):
    assert not list(fuse(lambda s: sandwich(s)[2], "sandwich_norm").report)


@pytest.mark.parametrize("stored", ["q8_0", "f16", None])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_embedding_is_scaled_and_normed_in_its_launch(fuse: Fuse, scaled: bool, stored: str | None):
    def build(s: Any) -> Any:
        x = s.embedding(stored)
        x = s.scale(x, 8.0) if scaled else x
        return s.norm(x), x

    rewrite = fuse(build, "gather_scale", "embed_norm", rows=2)
    assert rewrite.fired == {"embed_norm": 1, **({"gather_scale": 1} if scaled else {})}
    assert rewrite.classes == ["embed_norm"]


def test_gather_scale_alone(fuse: Fuse):
    assert fuse(lambda s: s.scale(s.embedding()), "gather_scale").classes == ["gather_scale"]


def test_an_unscaled_row_that_is_read_is_not_scaled_in_its_launch(fuse: Fuse):
    rewrite = fuse(lambda s: (x := s.embedding(), s.scale(x)), "gather_scale")
    assert rewrite.refusals("gather_scale") == [
        "gather[0] (gather.0) has another reader, and the launch would not write its result"
    ]


def test_embed_norm_does_not_pass_a_reader_of_the_row(fuse: Fuse):
    rewrite = fuse(lambda s: (x := s.embedding(), s.silu(x), s.norm(x))[1:], "embed_norm")
    assert rewrite.refusals("embed_norm") == [
        "gather[0] (gather.0) is read by unary[1] (unary.1), before rms_norm[2] (rms_norm.2)"
    ]


# The last block of a product, or of a mixture, norms its rows.


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("stored", ["q8_0", "q4_0", "f16"])
def test_gemv_norm_epilogue_with_the_residual(fuse: Fuse, stored: str, swap: bool, rows: int):
    def build(s: Any) -> Any:
        x = s.embedding()
        y = s.matmul(x, stored=stored)
        h = s.add(y, x) if swap else s.add(x, y)
        return h, s.norm(h)

    rewrite = fuse(build, "add_norm", "gemv_norm_epilogue", rows=rows)
    assert rewrite.fired == {"add_norm": 1, "gemv_norm_epilogue": 1}


def test_gemv_norm_epilogue_of_a_sandwich(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        x = s.embedding()
        return s.norm(s.add(x, s.norm(s.bias(s.matmul(x)))))

    rewrite = fuse(build, "add_norm", "sandwich_norm", "gemv_bias", "gemv_norm_epilogue")
    assert rewrite.classes == ["gemv_norm_epilogue"]


def test_gemv_norm_epilogue_writes_the_product_for_its_other_readers(fuse: Fuse):
    rewrite = fuse(lambda s: (y := s.matmul(s.embedding()), s.norm(y)), "gemv_norm_epilogue")
    assert rewrite.fired == {"gemv_norm_epilogue": 1}


@pytest.mark.parametrize(
    ("build", "rows", "reason"),
    [
        case(
            lambda s: s.norm(s.matmul(s.embedding(), stored=None)),
            1,
            "the kernel of a product by plain f32 values has no epilogue",
        ),
        case(
            lambda s: s.norm(s.matmul(s.embedding())),
            17,
            "the product of 17 rows runs in tiles, which have no epilogue (up to 16 rows do)",
        ),
        case(
            lambda s: (y := s.matmul(s.embedding()), s.silu(y), s.norm(y))[1:],
            1,
            "matmul[1] (matmul.1) is read by unary[2] (unary.2), before rms_norm[3] (rms_norm.3)",
        ),
    ],
    ids=["plain weight", "many rows", "reader between"],
)
def test_gemv_norm_epilogue_is_refused(fuse: Fuse, build: Build, rows: int, reason: str):
    rewrite = fuse(build, "gemv_norm_epilogue", rows=rows)
    assert rewrite.refusals("gemv_norm_epilogue") == [reason]
    assert not rewrite.fired


def mixed(s: Any, swap: bool = False, **how: Any) -> tuple[SSAValue, SSAValue]:
    """The sum of a residual and a mixture of its norm, and the norm of that."""
    x = s.embedding()
    y = s.moe(s.norm(x), **how)
    h = s.add(y, x) if swap else s.add(x, y)
    return h, s.norm(h)


@pytest.mark.parametrize("numerics", ["dequant", "int8", "two_pass_int8"])
@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("swap", [False, True])
def test_moe_deferred_finalize(fuse: Fuse, swap: bool, rows: int, numerics: str):
    rules = ("add_norm", "moe_deferred_finalize")
    rewrite = fuse(lambda s: mixed(s, swap), *rules, rows=rows, numerics=numerics)
    assert rewrite.fired == {"add_norm": 1, "moe_deferred_finalize": 1}


def test_a_mixture_of_many_rows_has_no_last_block_that_norms(fuse: Fuse):
    rewrite = fuse(mixed, "add_norm", "moe_deferred_finalize", rows=17)
    assert rewrite.fired == {"add_norm": 1}
    assert rewrite.refusals("moe_deferred_finalize") == [
        "the product of 17 rows runs in tiles, which have no epilogue (up to 16 rows do)"
    ]


@pytest.mark.parametrize("rows", [1, 2, 8, 17])
def test_a_mixture_that_is_read_elsewhere_is_written(fuse: Fuse, rows: int):
    def build(s: Any) -> Any:
        x = s.embedding()
        y = s.moe(x)
        h = s.add(x, y)
        return s.norm(h), s.scale(y)

    rewrite = fuse(build, "add_norm", "moe_deferred_finalize", rows=rows)
    assert rewrite.count("moe_deferred_finalize") == (rows <= 16)
