"""The table of rules: their order, and a step run through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from xdsl.dialects.func import FuncOp

from lane_mlir.dialects.tg import TargetAttr
from lane_mlir.passes.forms import ADVANCE, FUSED_QUANT, RULE_OF_CLASS, classes_of
from lane_mlir.passes.fuse.closing import Advance
from lane_mlir.passes.fuse.epilogues import GemvNormEpilogue, MoeDeferredFinalize, QkvHeadEpilogue
from lane_mlir.passes.fuse.graph import StepGraph
from lane_mlir.passes.fuse.joins import JoinInPlace
from lane_mlir.passes.fuse.mixtures import MoeRows, SharedExpert
from lane_mlir.passes.fuse.norms import AddNorm, EmbedNorm, GatherScale, SandwichNorm
from lane_mlir.passes.fuse.numerics import FusedQuant
from lane_mlir.passes.fuse.products import ActGate, AttnOutputGate, GemvBias, GemvParts, GluPair
from lane_mlir.passes.fuse.recurrent import ConvParts, ConvSilu, ConvSiluL2, GateProjections, Gates
from lane_mlir.passes.fuse.report import Fired, Report
from lane_mlir.passes.fuse.rotations import HeadNormRope, RopeParts
from lane_mlir.passes.fuse.rows import RowWrite
from lane_mlir.passes.fuse.rule import FusionRule, Rewriting, sweep
from lane_mlir.passes.fuse.slices import SliceRead, StridedValues
from lane_mlir.passes.link.judge import Judge
from lane_mlir.passes.prepare import prepare

RULES: Sequence[str] = (
    "add_norm",
    "sandwich_norm",
    "gemv_bias",
    "gemv_norm_epilogue",
    "head_norm_rope",
    "slice_read",
    "row_write",
    "qkv_head_epilogue",
    "join_in_place",
    "conv_silu",
    "conv_silu_l2",
    "conv_parts",
    "gates",
    "gate_projections",
    "act_gate",
    "attn_output_gate",
    "glu_pair",
    "shared_expert",
    "moe_rows",
    "moe_deferred_finalize",
    "gather_scale",
    "embed_norm",
    "strided_values",
    "rows_a_warp",
    "rope_parts",
    "gemv_parts",
    "sequences",
)
"""The rules of the table, in its order; LATE and ON_LAUNCHES say which apply after the numerics fold, and in `plan`."""

LATE: Sequence[str] = ("rope_parts", "gemv_parts")
"""The rules that apply once every product's activation is quantized where it will be read."""

ON_LAUNCHES: Sequence[str] = ("rows_a_warp", "sequences", "deferred_norm", "deferred_rope")
"""The rules that act on launches, in `plan`."""

OWN: Sequence[str] = ("deferred_norm", "deferred_rope")
"""Rules of our own, beside the table: they act on launches, in `plan`, after all others."""

_IMPLEMENTED: Mapping[str, type[FusionRule]] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            AddNorm,
            SandwichNorm,
            GemvBias,
            GemvNormEpilogue,
            HeadNormRope,
            SliceRead,
            RowWrite,
            QkvHeadEpilogue,
            JoinInPlace,
            ConvSilu,
            ConvSiluL2,
            ConvParts,
            Gates,
            GateProjections,
            ActGate,
            AttnOutputGate,
            GluPair,
            SharedExpert,
            MoeRows,
            MoeDeferredFinalize,
            GatherScale,
            EmbedNorm,
            StridedValues,
            FusedQuant,
            RopeParts,
            GemvParts,
            Advance,
        )
    }
)


@dataclass(frozen=True)
class Optimized:
    """A step after the rules: every rule that fired on it, and every decision."""

    fired: Sequence[Fired]
    report: Report


def rule_names() -> Sequence[str]:
    """The rules that a compilation can hold back: those of the table in its order, the numerics fold, our own."""
    return (*(rule for rule in RULES if rule in _IMPLEMENTED or rule in ON_LAUNCHES), FUSED_QUANT, *OWN)


def reported_rules() -> Sequence[str]:
    """The rules that a report has: those that can be held back, and the closing one, which always fires."""
    return (*rule_names(), ADVANCE)


def rule_class(rule: str) -> type[FusionRule]:
    """The class of a rule that rewrites the graph."""
    return _IMPLEMENTED[rule]


def steps() -> Sequence[str]:
    """
    Every step of a compilation in the order it runs: the rules, the numerics fold, the late rules, the closing rule.

    Holding every step from one on leaves the graph as the steps before it make it.
    """
    early = (rule for rule in RULES if rule not in LATE and rule not in ON_LAUNCHES)
    return tuple(rule for rule in (*early, FUSED_QUANT, *LATE, ADVANCE) if rule in _IMPLEMENTED)


def classes_built() -> Mapping[str, Sequence[str]]:
    """The classes that the rules build, by rule."""
    return {rule: classes_of(rule) for rule in dict.fromkeys(RULE_OF_CLASS.values())}


def optimize(
    func: FuncOp,
    target: TargetAttr,
    held: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
    limit: int | None = None,
    after_step: Callable[[str], None] | None = None,
) -> Optimized:
    """
    Rewrite a step in place by the rules, but those held, for what it is compiled for.

    A rule held runs on a copy, to report where it would have fired. `only` runs no others, `limit` stops after that
    many firings (the closing rule always fires), `after_step` is called with the name of each step when it is done.
    """
    prepare(func, target.numerics.data)
    report = Report()
    rewriting = Rewriting(StepGraph(func.body.block), Judge(func, target), report, limit)
    for name in steps():
        if only is not None and name not in only:
            continue
        rule = _IMPLEMENTED[name]
        if name in held:
            copy = func.clone()
            sweep(rule(Rewriting(StepGraph(copy.body.block), Judge(copy, target), report, held=True)))
            copy.erase()
        else:
            sweep(rule(rewriting))
        if after_step is not None:
            after_step(name)
    return Optimized(report.fired(), report)
