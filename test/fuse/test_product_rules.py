"""gemv_bias, act_gate, glu_pair, attn_output_gate, shared_expert, gemv_parts and the numerics fold."""

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


NUMERICS = ("dequant", "int8", "two_pass_int8")
ANOTHER_READER = "has another reader, and the launch would not write its result"


# A bias.


@pytest.mark.parametrize("stored", ["q8_0", "f16", None])
@pytest.mark.parametrize("rows", [1, 17])
def test_gemv_bias(fuse: Fuse, rows: int, stored: str | None):
    rewrite = fuse(lambda s: s.bias(s.matmul(s.embedding(), stored=stored)), "gemv_bias", rows=rows)
    assert rewrite.fired == {"gemv_bias": 1}


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        case(lambda s: (y := s.matmul(s.embedding()), s.bias(y)), f"matmul[1] (matmul.1) {ANOTHER_READER}"),
        case(
            lambda s: s.bias(s.heads(s.matmul(s.embedding()))),
            "view[2] (view.2) stands between matmul[1] (matmul.1) and its bias: the rows differ",
        ),
        case(
            lambda s: (y := s.matmul(s.embedding()), s.silu(y), s.bias(y))[1:],
            "matmul[1] (matmul.1) is read by unary[2] (unary.2), before binary[3] (binary.3)",
        ),
    ],
    ids=["product returned", "view between", "reader between"],
)
def test_gemv_bias_is_refused(fuse: Fuse, build: Build, reason: str):
    rewrite = fuse(build, "gemv_bias")
    assert rewrite.refusals("gemv_bias") == [reason]
    assert not rewrite.fired


Affine = Callable[[Any, SSAValue], SSAValue]


def scaled(s: Any, y: SSAValue) -> SSAValue:
    return s.product_scale(y)


def scaled_then_biased(s: Any, y: SSAValue) -> SSAValue:
    return s.bias(s.product_scale(y))


def biased_then_scaled(s: Any, y: SSAValue) -> SSAValue:
    return s.product_scale(s.bias(y))


AFFINE = pytest.mark.parametrize(("affine", "firings"), [(scaled, 1), (scaled_then_biased, 2), (biased_then_scaled, 2)])


@pytest.mark.parametrize("stored", ["q8_0", "f16", None])
@pytest.mark.parametrize("rows", [1, 17])
@AFFINE
def test_gemv_bias_takes_a_scale(fuse: Fuse, affine: Affine, firings: int, rows: int, stored: str | None):
    rewrite = fuse(lambda s: affine(s, s.matmul(s.embedding(), stored=stored)), "gemv_bias", rows=rows)
    assert rewrite.fired == {"gemv_bias": firings}
    assert rewrite.classes == ["gemv_bias"]


@AFFINE
def test_scaled_products_fuse_like_others(fuse: Fuse, affine: Affine, firings: int):
    def build(s: Any) -> SSAValue:
        x = s.embedding()
        q, k, gate, up = (affine(s, s.matmul(x)) for _ in range(4))
        hidden = s.mul(s.silu(gate), up)
        return s.norm(s.add(s.add(q, k), affine(s, s.matmul(hidden))))

    rules = ("add_norm", "gemv_bias", "gemv_norm_epilogue", "act_gate", "glu_pair", "gemv_parts")
    rewrite = fuse(build, *rules)
    counts = {"add_norm": 1, "gemv_norm_epilogue": 1, "act_gate": 1, "glu_pair": 1, "gemv_parts": 1}
    assert rewrite.fired == {"gemv_bias": 5 * firings, **counts}


def test_one_row_added_is_a_residual_and_no_bias(fuse: Fuse):
    rewrite = fuse(lambda s: s.norm(s.add(s.matmul(s.embedding()), s.constant(1, 64))), "gemv_bias", "add_norm")
    assert rewrite.fired == {"add_norm": 1}


# Gates.


def gated(s: Any, swap: bool = False, activation: str = "silu") -> SSAValue:
    x = s.embedding()
    gate, up = s.matmul(x, 96), s.matmul(x, 96)
    act = s.unary(activation, gate)
    return s.mul(up, act) if swap else s.mul(act, up)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("activation", [str(a) for a in tg.Activation])
def test_act_gate_takes_every_activation_on_either_side(fuse: Fuse, activation: str, swap: bool):
    rewrite = fuse(lambda s: gated(s, swap, activation), "act_gate", rows=2)
    assert rewrite.fired == {"act_gate": 1}


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("swap", [False, True])
def test_glu_pair_takes_the_gate_on_either_side(fuse: Fuse, swap: bool, rows: int, numerics: str):
    rewrite = fuse(lambda s: gated(s, swap, "gelu_tanh"), "act_gate", "glu_pair", rows=rows, numerics=numerics)
    assert rewrite.fired == {"act_gate": 1, "glu_pair": 1}
    assert rewrite.classes == ["glu_pair"]


def test_glu_pair_with_biases(fuse: Fuse):
    def build(s: Any) -> SSAValue:
        x = s.embedding()
        return s.mul(s.silu(s.bias(s.matmul(x))), s.bias(s.matmul(x)))

    assert fuse(build, "gemv_bias", "act_gate", "glu_pair").classes == ["glu_pair"]


def test_both_sides_gated(fuse: Fuse):
    """Of silu(g)·gelu(u), the first activation that is legal is the gate."""

    def build(s: Any) -> SSAValue:
        x = s.embedding()
        return s.mul(s.silu(s.matmul(x)), s.unary("gelu", s.matmul(x)))

    assert fuse(build, "act_gate").count("act_gate") == 1


def act_read_again(s: Any) -> Any:
    x = s.embedding()
    act = s.silu(x)
    return s.mul(act, s.matmul(x)), s.scale(act)


def act_squared(s: Any) -> SSAValue:
    act = s.silu(s.embedding())
    return s.mul(act, act)


def act_by_a_row(s: Any) -> SSAValue:
    return s.mul(s.silu(s.embedding()), s.constant(64))


def act_by_its_view(s: Any) -> SSAValue:
    act = s.silu(s.embedding())
    return s.mul(act, s.view(act, 1, 64))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (act_read_again, f"unary[1] (unary.1) {ANOTHER_READER}"),
        (act_squared, "its parts are no activation and the product by it"),
        (act_by_a_row, "its parts are no activation and the product by it"),
        (act_by_its_view, "view[2] (view.2) stands between, and binary[3] (binary.3) reads it"),
    ],
)
def test_act_gate_is_refused(fuse: Fuse, build: Build, reason: str):
    rewrite = fuse(build, "act_gate")
    assert rewrite.refusals("act_gate") == [reason]
    assert not rewrite.fired


def glu_of(first: str | None, second: str | None) -> Build:
    def build(s: Any) -> SSAValue:
        x = s.embedding()
        return s.mul(s.silu(s.matmul(x, stored=first)), s.matmul(x, stored=second))

    return build


def glu_of_two_activations(s: Any) -> SSAValue:
    x = s.embedding()
    return s.mul(s.silu(s.matmul(x)), s.matmul(s.silu(x)))


def scaled_up(s: Any) -> Any:
    x = s.embedding()
    act = s.silu(s.matmul(x))
    return s.mul(act, s.scale(s.matmul(x)))


def gate_read_again(s: Any) -> Any:
    x = s.embedding()
    gate = s.matmul(x)
    return s.mul(s.silu(gate), s.matmul(x)), gate


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (glu_of(None, None), "the kernel of a gated pair takes weights in rows of a format, not plain f32 values"),
        (glu_of_two_activations, "its products are of two activations"),
        (gate_read_again, f"matmul[1] (matmul.1) {ANOTHER_READER}"),
        (scaled_up, "scale[4] (scale.4) stands between matmul[3] (matmul.3) and the gating"),
    ],
)
def test_glu_pair_is_refused(fuse: Fuse, build: Build, reason: str):
    rewrite = fuse(build, "act_gate", "glu_pair")
    assert rewrite.refusals("glu_pair") == [reason]
    assert rewrite.fired == {"act_gate": 1}


@pytest.mark.parametrize(
    ("formats", "rows", "numerics", "refusal"),
    [
        (("q8_0", "q4_0"), 16, "dequant", ""),
        (("q8_0", "q4_0"), 20, "int8", ""),
        (
            ("q8_0", "q4_0"),
            20,
            "dequant",
            "the kernel of a gated pair of 20 rows in f32 takes weights in one format, not q8_0 and q4_0",
        ),
        (
            ("f16", "bf16"),
            20,
            "int8",
            "the kernel of a gated pair of 20 rows in f32 takes weights in one format, not f16 and bf16",
        ),
        (
            ("q8_0", "f16"),
            1,
            "dequant",
            "its weights are stored in formats that are read in different units: q8_0, f16",
        ),
        # The activation of one is quantized, that of the other is not.
        (("q8_0", "f16"), 1, "int8", "its products are of two activations"),
    ],
)
def test_a_gated_pair_of_two_formats(fuse: Fuse, formats: tuple[str, str], rows: int, numerics: str, refusal: str):
    """As far as a kernel takes them: what it does not take runs as two products."""
    rewrite = fuse(glu_of(*formats), "act_gate", "glu_pair", numerics=numerics, rows=rows)
    assert rewrite.count("glu_pair") == (not refusal)
    assert rewrite.refusals("glu_pair") == ([refusal] if refusal else [])


def test_a_product_gated_by_itself_is_no_pair(fuse: Fuse):
    rewrite = fuse(lambda s: s.mul(s.silu(y := s.matmul(s.embedding())), y), "act_gate", "glu_pair")
    assert rewrite.fired == {"act_gate": 1}
    assert not rewrite.report.of("glu_pair")


def attention(s: Any) -> tuple[SSAValue, SSAValue]:
    """Attention of one product over itself, and what it attends with."""
    q, k = s.matmul(s.embedding()), s.cache(64, "k")
    s.set_row(q, k)
    return s.attention(q, k, k), q


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("swap", [False, True])
def test_attn_output_gate(fuse: Fuse, swap: bool, rows: int, numerics: str):
    def build(s: Any) -> SSAValue:
        y, q = attention(s)
        gate = s.unary("sigmoid", s.matmul(q))
        return s.matmul(s.mul(y, gate) if swap else s.mul(gate, y))

    rules = ("act_gate", "attn_output_gate", "fused_quant")
    rewrite = fuse(build, *rules, rows=rows, numerics=numerics)
    assert rewrite.count("attn_output_gate") == 1
    assert rewrite.classes[-1] == ("attn_output_quant" if numerics == "int8" else "attn_output_gate")


def attention_read_again(s: Any) -> Any:
    y, q = attention(s)
    return s.mul(s.silu(q), y), s.scale(y)


def attention_gated_by_itself(s: Any) -> SSAValue:
    y, _ = attention(s)
    return s.mul(s.silu(y), y)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (attention_read_again, f"attention[3] (attention.3) {ANOTHER_READER}"),
        (attention_gated_by_itself, "its parts are no attention, where it reads its values, and what gates it"),
    ],
)
def test_attn_output_gate_is_refused(fuse: Fuse, build: Build, reason: str):
    rewrite = fuse(build, "act_gate", "attn_output_gate")
    assert rewrite.refusals("attn_output_gate") == [reason]
    assert rewrite.fired == {"act_gate": 1}


# The shared expert.

SHARED = ("gemv_bias", "act_gate", "glu_pair", "shared_expert")


def with_shared_expert(
    s: Any,
    swap: bool = False,
    gate: bool = True,
    activation: str = "silu",
    gate_stored: str | None = None,
    bias: bool = False,
    other_input: bool = False,
) -> SSAValue:
    x = s.embedding()
    routed = s.moe(x)
    own = s.silu(x) if other_input else x
    down = s.matmul(s.mul(s.unary(activation, s.matmul(own, 32)), s.matmul(own, 32)))
    shared = s.bias(down) if bias else down
    if gate:
        shared = s.mul(shared, s.unary("sigmoid", s.matmul(x, 1, stored=gate_stored)))
    return s.add(shared, routed) if swap else s.add(routed, shared)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_shared_expert(fuse: Fuse, swap: bool, gate: bool, rows: int, numerics: str):
    rewrite = fuse(lambda s: with_shared_expert(s, swap, gate), *SHARED, rows=rows, numerics=numerics)
    assert rewrite.fired == {"act_gate": 1, "glu_pair": 1, "shared_expert": 1}
    assert rewrite.classes == ["shared_expert"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"activation": "gelu"}, "the kernel of a mixture with a shared expert gates both by SiLU"),
        ({"bias": True, "gate": False}, "the kernel of a shared expert neither scales its products nor adds a bias"),
        ({"other_input": True}, "the shared expert is of another activation than the mixture"),
        ({"gate_stored": "q8_0"}, "the gate of the shared expert is stored as q8_0, the router as f32"),
    ],
)
def test_shared_expert_is_refused(fuse: Fuse, how: dict[str, Any], reason: str):
    rewrite = fuse(lambda s: with_shared_expert(s, **how), *SHARED)
    assert rewrite.refusals("shared_expert") == [reason]
    assert not rewrite.count("shared_expert")


def test_a_shared_expert_that_is_read_elsewhere_stays(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        routed = s.moe(x)
        down = s.matmul(s.mul(s.silu(s.matmul(x, 32)), s.matmul(x, 32)))
        return s.add(routed, down), s.scale(down)

    rewrite = fuse(build, *SHARED)
    assert rewrite.refusals("shared_expert") == [f"matmul[6] (matmul.6) {ANOTHER_READER}"]


# Products of one activation.


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("rows", [1, 17])
def test_gemv_parts(fuse: Fuse, rows: int, numerics: str):
    def build(s: Any) -> Any:
        x = s.embedding()
        return s.matmul(x), s.matmul(x, 32), s.bias(s.matmul(x, 16))

    rewrite = fuse(build, "gemv_bias", "gemv_parts", rows=rows, numerics=numerics)
    assert rewrite.fired == {"gemv_bias": 1, "gemv_parts": 1}
    assert rewrite.classes == ["gemv_parts"]


def test_a_product_beside_one_that_is_normed_at_its_end(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        return s.norm(s.matmul(x)), s.matmul(x)

    rewrite = fuse(build, "gemv_norm_epilogue", "gemv_parts")
    normed = '"gemv_norm_epilogue"[1, 2] (matmul.1)'
    reason = f"the other product of its activation is {normed}, whose last block norms its rows"
    assert rewrite.refusals("gemv_parts") == [reason]


def test_gemv_parts_of_weights_in_blocks_and_of_each_plain_format(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        return [s.matmul(x, stored=stored) for stored in ("q8_0", "bf16", "q4_0", "bf16", "f16")]

    rewrite = fuse(build, "gemv_parts")
    assert rewrite.fired == {"gemv_parts": 2}
    assert rewrite.refusals("gemv_parts") == [
        "its weight is stored as f16, those of the activation's other products as q8_0, q4_0, bf16"
    ]


def test_plain_products_run_apart(fuse: Fuse):
    rewrite = fuse(lambda s: [s.matmul(x := s.embedding(), stored=None), s.matmul(x, stored=None)], "gemv_parts")
    assert rewrite.refusals("gemv_parts") == [
        "the kernel of several products takes weights in rows of a format, not plain f32 values"
    ]


def test_a_product_alone_has_no_decision(fuse: Fuse):
    assert not list(fuse(lambda s: (x := s.embedding(), s.matmul(x)), "gemv_parts").report)


def test_products_move_over_what_they_do_not_need(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.embedding()
        a = s.matmul(x)
        return s.silu(a), s.matmul(x)

    rewrite = fuse(build, "gemv_parts")
    assert rewrite.fired == {"gemv_parts": 1}
    assert [op.name for op in rewrite.ops if not isinstance(op, tg.ConstantOp)] == [
        *("tg.gather", "tg.fused", "tg.unary", "func.return")
    ]


def test_a_product_by_a_weight_that_is_computed_later_stays(fuse: Fuse):
    """The second weight is a result of the first product: a chain, and no pair."""

    def build(s: Any) -> Any:
        x = s.embedding()
        a = s.matmul(x, 64, stored=None)
        w = s.view(s.matmul(a, 64 * 8, stored=None), 8, 64)
        return s.add_op(tg.MatmulOp(x, w))

    rewrite = fuse(build, "gemv_parts")
    assert rewrite.refusals("gemv_parts") == [
        "matmul[4] (matmul.4) reads view[3] (view.3), which is computed after matmul[1] (matmul.1)"
    ]


def test_parts_of_one_weight(fuse: Fuse):
    """Views of a tensor of the checkpoint move with their products."""

    def build(s: Any) -> Any:
        x, w = s.embedding(), s.constant(128, 64, stored="q8_0")
        first = s.add_op(tg.MatmulOp(x, s.view(w, 64, 64)))
        return first, s.add_op(tg.MatmulOp(x, s.view(w, 64, 64, 64 * 64)))

    assert fuse(build, "gemv_parts").fired == {"gemv_parts": 1}


def test_a_product_that_lands_in_a_cache_does_not_move_over_a_read_of_it(fuse: Fuse):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        s.set_row(s.scale(x), k)
        q = s.matmul(x)
        y = s.attention(q, k, k)
        s.set_row(s.matmul(x), k)
        return s.add(y, s.attention(q, k, k))

    rewrite = fuse(build, "row_write", "gemv_parts")
    assert rewrite.refusals("gemv_parts") == [
        'attention[4] (attention.4) stands between and touches the same state as "row_write"[5, 6] (matmul.5)'
    ]


def test_products_that_land_in_the_same_rows_run_one_after_the_other(fuse: Fuse):
    def build(s: Any) -> Any:
        x, k = s.embedding(), s.cache(64, "k")
        s.set_row(s.matmul(x), k)
        s.set_row(s.matmul(x), k)
        return s.attention(x, k, k)

    rewrite = fuse(build, "row_write", "gemv_parts")
    assert rewrite.refusals("gemv_parts") == [
        '"row_write"[1, 2] (matmul.1) and "row_write"[3, 4] (matmul.3) both touch %k, and the launch runs them at once'
    ]


# The numerics fold.


def normed(s: Any) -> SSAValue:
    return s.norm(s.embedding())


def summed(s: Any) -> SSAValue:
    x = s.embedding()
    return s.norm(s.add(x, s.scale(x)))


def delta(s: Any) -> SSAValue:
    x = s.embedding()
    q, k, v, z = (s.matmul(x, stored=None) for _ in range(4))
    return s.delta(q, k, v, z, s.unary("sigmoid", s.matmul(x, 2, None)), s.decay(s.matmul(x, 2, None)))


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize("plain_too", [False, True])
@pytest.mark.parametrize(
    ("producer", "fusion_class"),
    [
        case(lambda s: s.norm(s.silu(s.embedding())), "norm_quant"),
        (normed, "embed_norm_quant"),
        (summed, "add_norm_quant"),
        case(lambda s: gated(s), "glu_act_mul_quant"),
        case(lambda s: s.mul(s.silu(s.embedding()), s.embedding()), "glu_act_mul_quant"),
        case(lambda s: s.add(s.silu(s.embedding()), s.embedding()), "elementwise_quant"),
        case(lambda s: attention(s)[0], "attn_output_quant"),
        (delta, "gdn_output_quant"),
        case(lambda s: s.bias(s.matmul(s.embedding())), "gemv_quant"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_producer_takes_the_quantize_of_its_result(
    fuse: Fuse, producer: Build, fusion_class: str, plain_too: bool, numerics: str
):
    def build(s: Any) -> Any:
        x = producer(s)
        y = s.matmul(x)
        return (y, s.scale(x)) if plain_too else y

    rewrite = fuse(build, rows=2, numerics=numerics)
    assert fusion_class in [decision.fusion_class for decision in rewrite.report.fired()]
    quantizes = [op for op in rewrite.ops if isinstance(op, tg.QuantizeOp) and not isinstance(op.x.owner, tg.GatherOp)]
    assert not quantizes


def test_nothing_is_quantized_in_f32(fuse: Fuse):
    assert not fuse(lambda s: s.matmul(normed(s))).report.of("fused_quant")


@pytest.mark.parametrize(
    ("producer", "reason"),
    [
        case(lambda s: s.embedding(), "the kernel of gather does not quantize its result"),
        case(lambda s: s.silu(s.embedding()), "the kernel of unary does not quantize its result"),
        case(
            lambda s: s.matmul(s.embedding(), stored=None),
            "the kernel of a product by plain f32 values does not quantize its result",
        ),
        case(lambda s: s.layer_norm(s.embedding()), "the kernel of layer_norm does not quantize its result"),
    ],
)
def test_what_quantizes_nothing_says_so(fuse: Fuse, producer: Build, reason: str):
    rewrite = fuse(lambda s: s.matmul(producer(s)), "fused_quant", numerics="int8")
    assert rewrite.refusals("fused_quant") == [reason]


def test_products_of_one_activation_share_its_quantize(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.norm(s.embedding())
        last = s.view(x, 1, 64, 64)
        return s.matmul(x), s.matmul(last), s.matmul(s.heads(x)), s.matmul(s.view(x, 1, 64, 16))

    rewrite = fuse(build, "fused_quant", rows=2, numerics="int8")
    quantizes = [op for op in rewrite.ops for op in op.walk() if isinstance(op, tg.QuantizeOp)]
    # One for the activation and its views of whole blocks, one for the view that begins within a block.
    assert len(quantizes) == 2


def test_a_quantize_to_other_numerics_is_not_shared(fuse: Fuse, lift: Callable[..., Any]):
    def build(s: Any) -> Any:
        x = s.norm(s.embedding())
        return s.matmul(s.quantize(x, "two_pass_int8")), s.matmul(x)

    rewrite = fuse(build, numerics="int8", launches=False)
    kinds = {op.numerics for op in rewrite.ops for op in op.walk() if isinstance(op, tg.QuantizeOp)}
    assert kinds == {tg.Numerics.INT8, tg.Numerics.TWO_PASS_INT8}


def test_a_view_before_the_quantize_that_it_shares(fuse: Fuse):
    def build(s: Any) -> Any:
        x = s.norm(s.embedding())
        last = s.view(x, 1, 64, 64)
        return s.matmul(s.quantize(x)), s.matmul(last)

    fuse(build, rows=2, numerics="int8")
