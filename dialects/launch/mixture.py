"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
)

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.dialects.launch.attributes import DstAttr, FormatsAttr, NumberAttr, RealAttr
from lane_mlir.dialects.launch.directives import Into
from lane_mlir.dialects.launch.operation import (
    ORIGIN,
    LaunchEffects,
    LaunchOp,
    Target,
    Touch,
    fields,
    flags,
    optional,
    origin,
    present,
    sizes,
    target_of,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import (
    ExpertActivation,
    ExpertActivationAttr,
    Numerics,
    RowsAttr,
    Scoring,
    ScoringAttr,
)
from lane_mlir.formats import Format

Biases = tuple[SSAValue | None, SSAValue | None, SSAValue | None]
"""Biases of the gate, the up and the down projection."""


@dataclass(frozen=True)
class Router:
    """
    How experts are chosen and weighted: the router's weight, its format (None for plain f32 values, which multiply the
    f32 activation), a bias of its logits, a bias of the scores that counts for the choice alone, and the choice.
    """

    w: SSAValue
    format: Format | None = None
    bias: SSAValue | None = None
    selection_bias: SSAValue | None = None
    scoring: Scoring = Scoring.SOFTMAX
    renormalize: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True)
class SharedExpert:
    """
    An expert that every row takes besides the chosen ones, times sigmoid(gate·x) if there is a gate [d]; the gate is
    stored as the router is.
    """

    wg: SSAValue
    wu: SSAValue
    wd: SSAValue
    formats: tuple[Format, Format, Format]
    dff: int
    gate: SSAValue | None = None


@irdl_op_definition
class MoeOp(LaunchOp):
    """
    A mixture of experts: y[r] = Σ over the k chosen experts e of weight[r, e]·expert(e, x[r]) (+ the shared expert's).

    Router: logits = wr·x (+ rb); scores by `scoring`; the choice is by score (+ sb), ties to the lower expert, from the
    `groups_used` best of `groups` equal runs of experts (a run's score is the sum of its two best); weights are the
    chosen scores, divided by their sum (no less than 2⁻¹⁴) where `renormalize`, times `scale`.
    expert(e, x) = wd[e]·act(wg[e]·x + bg[e], wu[e]·x + bu[e]) + bd[e].

    x, y [rows, d]; wr [experts, d]; rb, sb [experts]; wg, wu [experts, dff, d]; wd [experts, d, dff]; bg, bu
    [experts, dff]; bd [experts, d]; swg, swu [sdff, d]; swd [d, sdff]; sgate [d].

    `router_split`: parts into which the router's product is split; `per_warp`, `batch` as in launch.gemv.

    Example: `launch.moe %x router %wr experts %wg, %wu, %wd [q4_k, q4_k, q6_k] into %y score softmax act silu
    (d = 2048, dff = 768, experts = 128, k = 8, rows = 1) renormalize`
    """

    name = "launch.moe"
    KIND: ClassVar[str] = "moe"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    x = operand_def(BUFFER)
    wr = operand_def(BUFFER)
    wg = operand_def(BUFFER)
    wu = operand_def(BUFFER)
    wd = operand_def(BUFFER)
    rb = opt_operand_def(BUFFER)
    """Bias of the router's logits."""
    sb = opt_operand_def(BUFFER)
    """Bias of the scores, for the choice alone."""
    bg = opt_operand_def(BUFFER)
    bu = opt_operand_def(BUFFER)
    bd = opt_operand_def(BUFFER)
    swg = opt_operand_def(BUFFER)
    swu = opt_operand_def(BUFFER)
    swd = opt_operand_def(BUFFER)
    sgate = opt_operand_def(BUFFER)
    """Weight of the shared expert's gate."""
    y = operand_def(BUFFER)
    param = opt_operand_def(BUFFER)
    router = opt_prop_def(RowsAttr)
    """Format of the router's weight; plain f32 values if there is none."""
    formats = prop_def(FormatsAttr)
    shared_formats = opt_prop_def(FormatsAttr)
    dst = prop_def(DstAttr)
    scoring = prop_def(ScoringAttr)
    act = prop_def(ExpertActivationAttr)
    alpha = opt_prop_def(RealAttr)
    limit = opt_prop_def(RealAttr)
    d = prop_def(NumberAttr)
    dff = prop_def(NumberAttr)
    experts = prop_def(NumberAttr)
    k = prop_def(NumberAttr)
    rows = prop_def(NumberAttr)
    sdff = opt_prop_def(NumberAttr)
    """Hidden width of the shared expert."""
    groups = opt_prop_def(NumberAttr, default_value=NumberAttr(1))
    groups_used = opt_prop_def(NumberAttr, default_value=NumberAttr(1))
    scale = opt_prop_def(RealAttr, default_value=RealAttr(1.0))
    renormalize = opt_prop_def(UnitAttr)
    per_warp = opt_prop_def(NumberAttr, default_value=NumberAttr(1))
    router_split = opt_prop_def(NumberAttr, default_value=NumberAttr(1))
    batch = opt_prop_def(UnitAttr)

    custom_directives = (Into,)
    assembly_format = (
        "$x `router` $wr (`rows` `` $router^)? (`router_bias` $rb^)? (`selection_bias` $sb^)?"
        " `experts` $wg `,` $wu `,` $wd $formats (`gate_bias` $bg^)? (`up_bias` $bu^)? (`down_bias` $bd^)?"
        " (`shared` $swg^ `,` $swu `,` $swd $shared_formats `(` `sdff` `=` $sdff `)`)? (`shared_gate` $sgate^)?"
        " `into` custom<Into>($y, $param, $dst) `score` $scoring `act` $act"
        + optional("alpha", "limit")
        + sizes("d", "dff", "experts", "k", "rows")
        + optional("groups", "groups_used", "scale")
        + flags("renormalize")
        + optional("per_warp", "router_split")
        + flags("batch")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        router: Router,
        weights: tuple[SSAValue, SSAValue, SSAValue],
        y: Target,
        *,
        formats: tuple[Format, Format, Format],
        d: int,
        dff: int,
        experts: int,
        k: int,
        rows: int,
        biases: Biases = (None, None, None),
        act: ExpertActivation = ExpertActivation.SILU,
        alpha: float | None = None,
        limit: float | None = None,
        shared: SharedExpert | None = None,
        per_warp: int = 1,
        router_split: int = 1,
        batch: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        shared_weights = (shared.wg, shared.wu, shared.wd, shared.gate) if shared is not None else (None,) * 4
        super().__init__(
            operands=[
                *(x, router.w, *weights, router.bias, router.selection_bias, *biases),
                *(*shared_weights, y.buffer, y.param),
            ],
            properties=fields(
                router=router.format,
                formats=formats,
                shared_formats=shared.formats if shared is not None else None,
                dst=y.dst,
                scoring=router.scoring,
                act=act,
                alpha=alpha,
                limit=limit,
                d=d,
                dff=dff,
                experts=experts,
                k=k,
                rows=rows,
                sdff=shared.dff if shared is not None else None,
                groups=router.groups,
                groups_used=router.groups_used,
                scale=router.scale,
                renormalize=router.renormalize,
                per_warp=per_warp,
                router_split=router_split,
                batch=batch,
            )
            | origin(covers, rules),
        )

    @property
    def target(self) -> Target:
        return target_of(self.y, self.param, self.dst)

    @property
    def shared(self) -> SharedExpert | None:
        if self.swg is None or self.swu is None or self.swd is None:
            return None
        if self.shared_formats is None or self.sdff is None or len(self.shared_formats.data) != 3:
            return None
        gate, up, down = self.shared_formats.data
        return SharedExpert(self.swg, self.swu, self.swd, (gate, up, down), self.sdff.data, self.sgate)

    def input_formats(self) -> tuple[Format, ...]:
        """The formats of the expert weights that the activation is multiplied by."""
        shared = self.shared
        return (*self.formats.data[:2], *(shared.formats[:2] if shared is not None else ()))

    def reads(self) -> Sequence[SSAValue]:
        return present(
            *(self.x, self.wr, self.wg, self.wu, self.wd, self.swg, self.swu, self.swd, self.sgate),
            *(self.rb, self.sb, self.bg, self.bu, self.bd, self.param),
        )

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.rows.data * self.d.data if self.target.own is t else None

    def projected_input(self) -> SSAValue | None:
        return self.x if any(f.is_block for f in self.input_formats()) else None

    def reads_f32_input(self) -> bool:
        routed_in_f32 = self.router is None or not self.router.data.is_block
        return routed_in_f32 or not all(f.is_block for f in self.input_formats())

    def result(self) -> SSAValue | None:
        return self.target.own

    def mixture(self) -> LaunchOp | None:
        return self

    def is_batch(self) -> bool:
        return self.batch is not None

    def on_tensor_cores(self, numerics: Numerics) -> bool:
        formats = (*self.input_formats(), self.formats.data[2])
        return (
            numerics is not Numerics.DEQUANT
            and all(f.is_block for f in formats)
            and self.batch is None
            and self.rows.data > GEMV_ROWS
        )

    def pairs_gate_and_up(self, numerics: Numerics) -> bool:
        return self.formats.data[0] is self.formats.data[1] and self.on_tensor_cores(numerics)

    def verify_(self) -> None:
        d, dff, experts, rows = self.d.data, self.dff.data, self.experts.data, self.rows.data
        self.expect_positive("d", "dff", "experts", "k", "rows", "sdff", "groups", "per_warp", "router_split")
        self._verify_choice()
        for name, value, length, what in (
            ("x", self.x, rows * d, f"rows = {rows} by d = {d}"),
            ("wr", self.wr, experts * d, f"experts = {experts} by d = {d}"),
            ("rb", self.rb, experts, f"experts = {experts}"),
            ("sb", self.sb, experts, f"experts = {experts}"),
            ("wg", self.wg, experts * dff * d, f"experts = {experts} by dff = {dff} by d = {d}"),
            ("wu", self.wu, experts * dff * d, f"experts = {experts} by dff = {dff} by d = {d}"),
            ("wd", self.wd, experts * d * dff, f"experts = {experts} by d = {d} by dff = {dff}"),
            ("bg", self.bg, experts * dff, f"experts = {experts} by dff = {dff}"),
            ("bu", self.bu, experts * dff, f"experts = {experts} by dff = {dff}"),
            ("bd", self.bd, experts * d, f"experts = {experts} by d = {d}"),
        ):
            self.expect_length(name, value, length, what)
        self._verify_shared()
        self.expect_target("y", self.target, rows, d)

    def _verify_choice(self) -> None:
        experts, used, groups, groups_used = (f.data for f in (self.experts, self.k, self.groups, self.groups_used))
        if len(self.formats.data) != 3:
            raise self.refuse(f"has {len(self.formats.data)} formats, expected 3: of gate, up and down weights")
        if used > experts or experts % groups or not 1 <= groups_used <= groups:
            raise self.refuse(
                f"chooses k = {used} of experts = {experts} in groups_used = {groups_used} of groups = {groups}"
            )
        clamped = self.act.data is ExpertActivation.CLAMPED_SWIGLU
        if clamped != (self.alpha is not None and self.limit is not None):
            raise self.refuse("has alpha and limit if and only if its activation is clamped_swiglu")

    def _verify_shared(self) -> None:
        parts = (self.swg, self.swu, self.swd, self.shared_formats, self.sdff)
        shared = self.shared
        if shared is None:
            if any(part is not None for part in (*parts, self.sgate)):
                raise self.refuse("has three weights of a shared expert, their formats and its width, or none of them")
            return
        d, dff = self.d.data, shared.dff
        for name, value in (("swg", shared.wg), ("swu", shared.wu), ("swd", shared.wd)):
            self.expect_length(name, value, dff * d, f"sdff = {dff} by d = {d}")
        self.expect_length("sgate", shared.gate, d, f"d = {d}")
