"""Products by weights: matrix product, per-head product, mixture of experts, and the quantization of an activation."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr, f32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from lane_mlir.dialects.tg.attributes import (
    ExpertActivation,
    ExpertActivationAttr,
    Numerics,
    QuantizedAttr,
    RowsAttr,
    Scoring,
    ScoringAttr,
)
from lane_mlir.dialects.tg.operation import (
    F64,
    I64,
    INTEGERS,
    NUMBER,
    VALUES,
    VALUES_OR_STATE,
    LiftedOperation,
    OperandEffects,
    dimensions,
    encoding_of,
    integer,
    real,
    shape_of,
)


@irdl_op_definition
class QuantizeOp(LiftedOperation):
    """
    An activation in the numerics of the step: blocks of 32 values of a row as int8 with one f32 scale.

    int8: d = max|x|/127, q = round(x/d) (0 where d is 0), read back as q·d. two_pass_int8: x₁ as above, then x - x₁
    the same way, read back as the sum. The values keep type f32; the result's encoding says which. Rows are a whole
    number of blocks.
    """

    name = "tg.quantize"

    x = operand_def(VALUES)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"result": (QuantizedAttr,)}
    assembly_format = NUMBER + " $x attr-dict `:` type($x) `->` type($result)"
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, numerics: Numerics):
        super().__init__(operands=[x], result_types=[TensorType(f32, shape_of(x), QuantizedAttr(numerics))])

    @property
    def numerics(self) -> Numerics:
        encoding = encoding_of(self.result)
        assert isinstance(encoding, QuantizedAttr)
        return encoding.data

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        self.expect_shape("result", self.result, shape_of(self.x), "the shape of x")
        if encoding_of(self.result) is None:
            raise self.refuse("result is stored as plain f32 values, expected #tg.quantized")


@irdl_op_definition
class MatmulOp(LiftedOperation):
    """
    A product by a weight: y = x·wᵀ, y[r, n] = Σₖ x[r, k]·w[n, k].

    x [m, k], plain or quantized; w [n, k] in any storage; y [m, n]. Under int8 and two_pass_int8 a product by a weight
    in a block format takes its activation quantized: a plain x is then quantized first.
    """

    name = "tg.matmul"

    x = operand_def(VALUES)
    w = operand_def(VALUES)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"x": (QuantizedAttr,), "w": (RowsAttr,)}
    assembly_format = NUMBER + " $x `,` $w attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, w: SSAValue):
        result_type = TensorType(f32, (shape_of(x)[0], shape_of(w)[0]))
        super().__init__(operands=[x, w], result_types=[result_type])

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x, w=self.w)
        (rows, k), (n, w_k) = shape_of(self.x), shape_of(self.w)
        if k != w_k:
            raise self.disagree("x", self.x, "w", self.w, "their rows differ in width")
        self.expect_shape("result", self.result, (rows, n), "rows of x by rows of w")


@irdl_op_definition
class HeadMatmulOp(LiftedOperation):
    """
    A product by each head's own weight: y[r, h, j] = Σᵢ x[r, h, i]·w[h, j, i].

    x [m, heads·a], or [m, a] where `shared` (every head takes the same row); w [heads, b, a] in any storage, or
    [heads, a, b] where `transposed`: Σᵢ x[r, h, i]·w[h, i, j]. y [m, heads·b]. x may be an array of state, its rows
    those of positions. With `upto` [1], rows past the position of the step's last row need not be computed: nobody
    reads them.
    """

    name = "tg.head_matmul"

    x = operand_def(VALUES_OR_STATE)
    w = operand_def(VALUES)
    upto = opt_operand_def(INTEGERS)
    """The position of the step."""
    shared = opt_prop_def(UnitAttr)
    transposed = opt_prop_def(UnitAttr)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {"w": (RowsAttr,)}
    assembly_format = (
        NUMBER + " $x `,` $w (`upto` $upto^)? (`shared` $shared^)? (`transposed` $transposed^)? attr-dict `:`"
        " functional-type(operands, results)"
    )
    traits = traits_def(OperandEffects())

    def __init__(
        self, x: SSAValue, w: SSAValue, upto: SSAValue | None = None, *, shared: bool = False, transposed: bool = False
    ):
        heads, first, second = shape_of(w)
        super().__init__(
            operands=[x, w, upto],
            properties={
                "shared": UnitAttr() if shared else None,
                "transposed": UnitAttr() if transposed else None,
            },
            result_types=[TensorType(f32, (shape_of(x)[0], heads * (second if transposed else first)))],
        )

    @property
    def sides(self) -> tuple[int, int]:
        """Columns of a head of the result, and of x: b and a."""
        _, first, second = shape_of(self.w)
        return (first, second) if self.transposed is None else (second, first)

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x)
        self.expect_rank(3, w=self.w)
        (rows, width), heads, (b, a) = shape_of(self.x), shape_of(self.w)[0], self.sides
        expected = a if self.shared else heads * a
        if width != expected:
            raise self.refuse(f"x has rows of {width} values, but w ({dimensions(shape_of(self.w))}) takes {expected}")
        if self.upto is not None:
            self.expect_position(self.upto, "upto")
        self.expect_shape("result", self.result, (rows, heads * b), "rows of x by heads of w")


@irdl_op_definition
class MoeOp(LiftedOperation):
    """
    A mixture of experts: y[r] = Σ over the chosen experts e of weight[r, e]·expert(e, x[r]).

    Router: logits = x·routerᵀ (+ router_bias); scores by `scoring`; selection by score (+ selection_bias), ties to the
    lower expert; with `groups`, experts are in that many equal runs, a run's score is the sum of its two best selection
    scores, and only the `groups_used` best runs are chosen from. The `used` best are chosen; their weights are their
    scores (without the selection bias), divided by their sum (but no less than 2⁻¹⁴) where `renormalize`, times
    `scale`.

    expert(e, x) = down[e]·act(gate[e]·x + gate_bias[e], up[e]·x + up_bias[e]) + down_bias[e].

    x [m, d]; router [experts, d]; gate, up [experts, ff, d]; down [experts, d, ff]; router_bias, selection_bias
    [experts]; gate_bias, up_bias [experts, ff]; down_bias [experts, d]; y [m, d].

    Router and scores are f32. The experts' products take the activation as tg.matmul does: `quantized` is x quantized,
    for those by weights in a block format; where it is absent, such a product quantizes x itself.

    Sources: Shazeer et al. (2017); DeepSeek-V3 technical report (2024) for the groups and the selection bias.
    """

    name = "tg.moe"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(VALUES)
    router = operand_def(VALUES)
    gate = operand_def(VALUES)
    up = operand_def(VALUES)
    down = operand_def(VALUES)
    router_bias = opt_operand_def(VALUES)
    selection_bias = opt_operand_def(VALUES)
    gate_bias = opt_operand_def(VALUES)
    up_bias = opt_operand_def(VALUES)
    down_bias = opt_operand_def(VALUES)
    quantized = opt_operand_def(VALUES)
    used = prop_def(I64)
    scoring = prop_def(ScoringAttr)
    renormalize = opt_prop_def(UnitAttr)
    scale = prop_def(F64)
    activation = prop_def(ExpertActivationAttr)
    groups = prop_def(I64)
    groups_used = prop_def(I64)
    alpha = opt_prop_def(F64)
    limit = opt_prop_def(F64)
    result = result_def(VALUES)

    STORED_AS: ClassVar = {
        "quantized": (QuantizedAttr,),
        **dict.fromkeys(("router", "gate", "up", "down"), (RowsAttr,)),
    }
    assembly_format = (
        NUMBER + " $x (`quantized` $quantized^ `:` type($quantized))?"
        " `router` $router `gate` $gate `up` $up `down` $down"
        " (`router_bias` $router_bias^ `:` type($router_bias))?"
        " (`selection_bias` $selection_bias^ `:` type($selection_bias))?"
        " (`gate_bias` $gate_bias^ `:` type($gate_bias))? (`up_bias` $up_bias^ `:` type($up_bias))?"
        " (`down_bias` $down_bias^ `:` type($down_bias))?"
        " `used` $used `of` `groups` $groups_used `/` $groups `by` $scoring (`renormalize` $renormalize^)?"
        " `scale` custom<Real>($scale) $activation (`alpha` custom<Real>($alpha)^)? (`limit` custom<Real>($limit)^)?"
        " attr-dict `:`"
        " type($x) `,` type($router) `,` type($gate) `,` type($up) `,` type($down) `->` type($result)"
    )
    traits = traits_def(Pure())

    def __init__(
        self,
        x: SSAValue,
        router: SSAValue,
        gate: SSAValue,
        up: SSAValue,
        down: SSAValue,
        *,
        used: int,
        scoring: Scoring,
        renormalize: bool = False,
        scale: float = 1.0,
        activation: ExpertActivation = ExpertActivation.SILU,
        groups: int = 1,
        groups_used: int = 1,
        alpha: float | None = None,
        limit: float | None = None,
        router_bias: SSAValue | None = None,
        selection_bias: SSAValue | None = None,
        gate_bias: SSAValue | None = None,
        up_bias: SSAValue | None = None,
        down_bias: SSAValue | None = None,
        quantized: SSAValue | None = None,
    ):
        super().__init__(
            operands=[
                *(x, router, gate, up, down, router_bias, selection_bias, gate_bias, up_bias, down_bias),
                quantized,
            ],
            properties={
                "used": integer(used),
                "scoring": ScoringAttr(scoring),
                "renormalize": UnitAttr() if renormalize else None,
                "scale": real(scale),
                "activation": ExpertActivationAttr(activation),
                "groups": integer(groups),
                "groups_used": integer(groups_used),
                "alpha": None if alpha is None else real(alpha),
                "limit": None if limit is None else real(limit),
            },
            result_types=[x.type],
        )

    def taking(self, quantized: SSAValue) -> MoeOp:
        """The same mixture, its activation quantized already."""
        tensors = (self.x, self.router, self.gate, self.up, self.down)
        biases = (self.router_bias, self.selection_bias, self.gate_bias, self.up_bias, self.down_bias)
        properties = {name: value for name, value in self.properties.items() if name != "operandSegmentSizes"}
        mixture = MoeOp.build(
            operands=[*tensors, *biases, quantized], properties=properties, result_types=[self.result.type]
        )
        mixture.location = self.location
        return mixture

    def verify_(self) -> None:
        self.expect_rank(2, x=self.x, router=self.router)
        self.expect_rank(3, gate=self.gate, up=self.up, down=self.down)
        (_, d), (experts, _), (_, ff, _) = shape_of(self.x), shape_of(self.router), shape_of(self.gate)
        for name, value, shape in (
            ("router", self.router, (experts, d)),
            ("gate", self.gate, (experts, ff, d)),
            ("up", self.up, (experts, ff, d)),
            ("down", self.down, (experts, d, ff)),
            ("router_bias", self.router_bias, (experts,)),
            ("selection_bias", self.selection_bias, (experts,)),
            ("gate_bias", self.gate_bias, (experts, ff)),
            ("up_bias", self.up_bias, (experts, ff)),
            ("down_bias", self.down_bias, (experts, d)),
            ("quantized", self.quantized, shape_of(self.x)),
            ("result", self.result, shape_of(self.x)),
        ):
            if value is not None:
                self.expect_shape(name, value, shape)
        if self.quantized is not None and encoding_of(self.quantized) is None:
            raise self.refuse("quantized is stored as plain f32 values, expected #tg.quantized")
        self._verify_choice(experts)

    def _verify_choice(self, experts: int) -> None:
        self.expect_positive(scale=self.scale.value.data)
        used, groups, groups_used = self.used.value.data, self.groups.value.data, self.groups_used.value.data
        if not 1 <= used <= experts:
            raise self.refuse(f"uses {used} of {experts} experts")
        self.expect_multiple("the number of experts", experts, "groups", groups)
        if groups > 1 and experts // groups < 2:
            raise self.refuse(f"has {experts // groups} experts a group, expected 2 or more")
        if not 1 <= groups_used <= groups:
            raise self.refuse(f"uses {groups_used} of {groups} groups")
        if used > groups_used * (experts // groups):
            raise self.refuse(f"uses {used} experts, but {groups_used} groups have {groups_used * (experts // groups)}")
        clamped = self.activation.data is ExpertActivation.CLAMPED_SWIGLU
        for name, value in (("alpha", self.alpha), ("limit", self.limit)):
            if clamped != (value is not None):
                has = "no" if value is None else "an" if name == "alpha" else "a"
                raise self.refuse(f"has {has} {name}, but its activation is {self.activation.data}")
            if value is not None:
                self.expect_positive(**{name: value.value.data})
