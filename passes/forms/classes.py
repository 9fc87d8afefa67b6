"""The classes of fused ops, and the rule that builds each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

from xdsl.ir import Operation

from lane_mlir.dialects.tg import FusedOp
from lane_mlir.passes.forms.scope import covers

FUSED_QUANT = "fused_quant"
"""The numerics fold: a producer takes the quantize of its result."""

ADVANCE = "advance"
"""The rule that always closes the table: the arg-max that picks the next token moves the step on."""

RULE_OF_CLASS: Mapping[str, str] = MappingProxyType(
    {
        "add_norm": "add_norm",
        "sandwich_norm": "sandwich_norm",
        "gemv_bias": "gemv_bias",
        "gemv_norm_epilogue": "gemv_norm_epilogue",
        "qkv_head_epilogue": "qkv_head_epilogue",
        "moe_deferred_finalize": "moe_deferred_finalize",
        "head_norm_rope": "head_norm_rope",
        "slice_read": "slice_read",
        "conv_silu": "conv_silu",
        "conv_silu_l2": "conv_silu_l2",
        "conv_parts": "conv_parts",
        "gates": "gates",
        "gate_projections": "gate_projections",
        "shared_expert": "shared_expert",
        "moe_rows": "moe_rows",
        "attn_output_gate": "attn_output_gate",
        "strided_values": "strided_values",
        "row_write": "row_write",
        "join_in_place": "join_in_place",
        "act_gate": "act_gate",
        "glu_pair": "glu_pair",
        "gather_scale": "gather_scale",
        "embed_norm": "embed_norm",
        "rope_parts": "rope_parts",
        "gemv_parts": "gemv_parts",
        "norm_quant": FUSED_QUANT,
        "add_norm_quant": FUSED_QUANT,
        "embed_norm_quant": FUSED_QUANT,
        "glu_act_mul_quant": FUSED_QUANT,
        "elementwise_quant": FUSED_QUANT,
        "attn_output_quant": FUSED_QUANT,
        "gdn_output_quant": FUSED_QUANT,
        "gemv_quant": FUSED_QUANT,
        "advance": ADVANCE,
    }
)
"""The rule that builds a class."""


def classes_of(rule: str) -> tuple[str, ...]:
    """The classes that a rule builds."""
    return tuple(name for name, builder in RULE_OF_CLASS.items() if builder == rule)


def rules_of(op: Operation, numbers: Container[int] | None = None) -> tuple[str, ...]:
    """
    The rules that made an op, a name for each firing, the innermost first; given numbers of lifted ops, those that made
    something of these alone.
    """
    if not isinstance(op, FusedOp):
        return ()
    inner = tuple(rule for part in op.parts for rule in rules_of(part, numbers))
    rule = RULE_OF_CLASS.get(op.fusion_class.data)
    apart = numbers is not None and any(number not in numbers for number in covers(op))
    return inner if rule is None or apart else (*inner, rule)
