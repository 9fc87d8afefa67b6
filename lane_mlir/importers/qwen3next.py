"""
Qwen3-Next: the gated delta rule in three of four layers, gated attention with rotation of part of each head in the
fourth, and a mixture with a gated shared expert.

Source: Qwen Team, Qwen3-Next: Towards Ultimate Training & Inference Efficiency (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import KeyHeadOrder, Pairing
from lane_mlir.importers.delta_net import delta_rule, gated_attention, recurrent_layers
from lane_mlir.importers.feed_forward import mixture, row_by_row, with_shared_expert
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Layer, Step


@importer("qwen3next")
def qwen3next(step: Step) -> SSAValue:
    model = step.model
    is_recurrent = recurrent_layers(model)
    rotation = step.rotation(rotary_of(model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = layer.rms_norm(x, "attn_norm")
        if is_recurrent[layer.index]:
            y = delta_rule(layer, y, _gates, KeyHeadOrder.BLOCKED)
        else:
            y = gated_attention(layer, y, rotation)
        x = layer.residual(x, y, "attn_residual")
        y = _mixture(layer, layer.rms_norm(x, "post_attention_norm"))
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


def _gates(layer: Layer, x: SSAValue, value_heads: int) -> tuple[SSAValue, SSAValue]:
    """Beta and decay stand together for each key head: one column for each of its value heads, then the other."""
    key_heads = layer.model.size("ssm.group_count")
    both = layer.gate(x, "ssm_ba", 2 * value_heads)
    each = value_heads // key_heads
    return layer.columns(both, 0, each, "delta_b", key_heads), layer.columns(both, each, each, "delta_a", key_heads)


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    shared = layer.model.size("expert_shared_feed_forward_length")
    return with_shared_expert(layer, x, mixture(layer, x), shared, is_gated=True)
