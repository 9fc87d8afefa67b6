"""
What xDSL's tools find of us: dialects, passes, targets and frontends, each imported when it is first used.

xDSL's own `xdsl-opt` loads this for every run, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe
from xdsl.utils.frontend import Frontend
from xdsl.utils.target import Target

GRAPH_RULES = (
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
    "rope_parts",
    "gemv_parts",
)
"""The rules that rewrite `tg`, in their order; each is also a pass. (rows_a_warp and sequences act in `plan`.)"""


def _tg() -> Dialect:
    from lane_mlir.dialects.tg import TG

    return TG


def _launch() -> Dialect:
    from lane_mlir.dialects.launch import LAUNCH

    return LAUNCH


def _fuse() -> type[ModulePass]:
    from lane_mlir.passes.fuse import FusePass

    return FusePass


def _link() -> type[ModulePass]:
    from lane_mlir.passes.link import LinkPass

    return LinkPass


def _plan() -> type[ModulePass]:
    from lane_mlir.passes.plan import PlanPass

    return PlanPass


def _check_plan() -> type[ModulePass]:
    from lane_mlir.passes.plan import CheckPlanPass

    return CheckPlanPass


def _rule(name: str) -> Callable[[], type[ModulePass]]:
    def rule() -> type[ModulePass]:
        from lane_mlir.passes.fuse import rule_pass

        return rule_pass(name)

    return rule


def _gguf() -> type[Frontend]:
    from lane_mlir.importers.frontend import GgufFrontend

    return GgufFrontend


def _cuda() -> type[Target]:
    from lane_mlir.cuda.target import CudaTarget

    return CudaTarget


LANE_UNIVERSE = Universe(
    all_dialects={"tg": _tg, "launch": _launch},
    all_passes={
        "fuse": _fuse,
        "link": _link,
        "plan": _plan,
        "check-plan": _check_plan,
        **{f"fuse-{rule.replace('_', '-')}": _rule(rule) for rule in GRAPH_RULES},
    },
    all_targets={"cuda": _cuda},
    all_frontends={"gguf": _gguf},
)
