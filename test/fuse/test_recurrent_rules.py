"""conv_silu, conv_silu_l2, conv_parts, gates and gate_projections."""

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


ANOTHER_READER = "has another reader, and the launch would not write its result"
NO_CONVOLUTION = "its parts are no convolutions, each with a SiLU, or that and an L2 norm of heads, or nothing more"
CONVOLUTIONS = ("conv_silu", "conv_silu_l2", "conv_parts")


def conv(s: Any, silu: bool = True, l2: bool = False, eps: float = 1e-6, taps: int = 4) -> SSAValue:
    y = s.conv(s.embedding(), taps)
    y = s.silu(y) if silu else y
    return s.whole(s.l2_norm(s.heads(y), eps)) if l2 else y


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_conv_silu(fuse: Fuse, rows: int):
    assert fuse(conv, *CONVOLUTIONS, rows=rows).fired == {"conv_silu": 1}


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("silu", [False, True])
def test_conv_silu_l2(fuse: Fuse, silu: bool, rows: int):
    rewrite = fuse(lambda s: conv(s, silu, l2=True), *CONVOLUTIONS, rows=rows)
    assert rewrite.count("conv_silu_l2") == 1
    assert rewrite.classes == ["conv_silu_l2"]


def silu_of_the_first_rows(s: Any) -> SSAValue:
    y = s.silu(s.conv(s.embedding()))
    return s.l2_norm(s.view(y, s.rows, 32))


@pytest.mark.parametrize(
    ("build", "rule", "reason"),
    [
        case(lambda s: s.unary("gelu", s.conv(s.embedding())), "conv_silu", NO_CONVOLUTION),
        case(lambda s: (y := s.conv(s.embedding()), s.silu(y)), "conv_silu", f"conv[1] (conv.1) {ANOTHER_READER}"),
        case(
            lambda s: (y := conv(s), s.l2_norm(s.heads(y))),
            "conv_silu_l2",
            f"unary[2] (unary.2) {ANOTHER_READER}",
        ),
        (silu_of_the_first_rows, "conv_silu_l2", NO_CONVOLUTION),
    ],
    ids=["gelu", "conv read", "silu read", "first rows"],
)
def test_convolutions_are_refused(fuse: Fuse, build: Build, rule: str, reason: str):
    rewrite = fuse(build, *CONVOLUTIONS, rows=3)
    assert rewrite.refusals(rule) == [reason]
    assert not rewrite.count(rule)


def test_conv_parts(fuse: Fuse):
    rewrite = fuse(lambda s: [conv(s, l2=True), conv(s, l2=True), conv(s)], *CONVOLUTIONS)
    assert rewrite.fired == {"conv_silu": 3, "conv_silu_l2": 2, "conv_parts": 1}
    assert rewrite.classes == ["conv_parts"]


@pytest.mark.parametrize(
    ("build", "rows", "reason"),
    [
        case(
            lambda s: [conv(s), conv(s, silu=False)],
            1,
            "the kernel of several convolutions takes the SiLU of each, and one has none",
        ),
        case(
            lambda s: [conv(s, l2=True), conv(s, l2=True, eps=1e-3)],
            1,
            "its L2 norms differ in width or epsilon",
        ),
        case(lambda s: [conv(s), conv(s)], 3, "the kernel of several convolutions takes one row, not 3"),
    ],
)
def test_conv_parts_is_refused(fuse: Fuse, build: Build, rows: int, reason: str):
    rewrite = fuse(build, *CONVOLUTIONS, rows=rows)
    assert rewrite.refusals("conv_parts") == [reason]
    assert not rewrite.count("conv_parts")


def test_convolutions_of_one_ring_run_one_after_the_other(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        first = s.conv(x)
        ring, w = first.owner.ring, first.owner.w
        return s.silu(first), s.silu(s.add_op(tg.ConvOp(x, w, ring)))

    rewrite = fuse(build, *CONVOLUTIONS)
    assert rewrite.fired == {"conv_silu": 2}
    (reason,) = rewrite.refusals("conv_parts")
    assert reason.endswith("both touch %ring2, and the launch runs them at once")


def a_chain(s: Any) -> SSAValue:
    return s.silu(s.conv(s.silu(s.conv(s.embedding()))))


def of_other_taps(s: Any) -> Any:
    return conv(s), conv(s, taps=3)


@pytest.mark.parametrize("build", [a_chain, of_other_taps])
def test_convolutions_that_differ_or_depend_run_apart(fuse: Fuse, build: Build):
    assert not fuse(build, *CONVOLUTIONS).report.of("conv_parts")


# The gates of the delta rule.

GATES = ("gates", "gate_projections")


def delta(
    s: Any,
    stored: str | None = None,
    activation: str = "sigmoid",
    other: bool = False,
    shared: bool = False,
    bias: bool = False,
) -> SSAValue:
    x = s.embedding()
    q, k, v, z = (s.matmul(x) for _ in range(4))
    b = s.matmul(x, 2, stored)
    a = b if shared else s.matmul(s.silu(x) if other else x, 2, stored)
    a = s.bias(a) if bias else a
    return s.delta(q, k, v, z, s.unary(activation, b), s.decay(a))


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
def test_gates_and_their_products(fuse: Fuse, numerics: str):
    rewrite = fuse(delta, *GATES, numerics=numerics)
    assert rewrite.fired == {"gates": 1, "gate_projections": 1}
    assert rewrite.classes == ["gate_projections"]


def test_one_product_for_both_gates(fuse: Fuse):
    rewrite = fuse(lambda s: delta(s, shared=True), *GATES)
    assert rewrite.fired == {"gates": 1, "gate_projections": 1}
    (place,) = rewrite.report.of("gate_projections")
    assert len(set(place.covers)) == len(place.covers) == 3


@pytest.mark.parametrize(
    ("how", "rows", "reason"),
    [
        ({}, 3, "the kernel of the gates and their products takes one row, not 3"),
        ({"other": True}, 1, "the products before the gates are not of one activation"),
        (
            {"stored": "q8_0"},
            1,
            "the kernel of the gates' products takes plain f32 weights, and one is stored as q8_0",
        ),
    ],
)
def test_gate_projections_is_refused(fuse: Fuse, how: dict[str, Any], rows: int, reason: str):
    rewrite = fuse(lambda s: delta(s, **how), *GATES, rows=rows)
    assert rewrite.refusals("gate_projections") == [reason]
    assert rewrite.fired == {"gates": 1}


@pytest.mark.parametrize("how", [{"activation": "tanh"}, {"bias": True}], ids=["tanh", "bias"])
def test_gates_of_another_kind_are_left(fuse: Fuse, how: dict[str, Any]):
    rewrite = fuse(lambda s: delta(s, **how), *GATES)
    assert not rewrite.report.of("gate_projections")
    assert rewrite.count("gates") == ("activation" not in how)


def test_a_gate_that_is_read_elsewhere_is_written(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        q, k, v, z = (s.matmul(x) for _ in range(4))
        beta, decay = s.unary("sigmoid", s.matmul(x, 2, None)), s.decay(s.matmul(x, 2, None))
        return s.delta(q, k, v, z, beta, decay), s.scale(beta), decay

    assert fuse(build, *GATES).fired == {"gates": 1, "gate_projections": 1}


def test_decay_of_beta_is_no_pair_of_gates(fuse: Fuse):
    """The decay needs beta: the two cannot be computed side by side."""

    def build(s: Any) -> SSAValue:
        x = s.embedding()
        beta = s.unary("sigmoid", s.matmul(x, 2, None))
        return s.delta(x, x, x, x, beta, s.decay(beta))

    rewrite = fuse(build, *GATES)
    assert rewrite.refusals("gates") == [
        "the launch would read the result of unary[2] (unary.2), which it computes itself"
    ]
    assert not rewrite.fired
