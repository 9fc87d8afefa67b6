"""
Qwen3.5: as Qwen3-Next, with products of their own for beta and decay, and value heads that take the key heads in turn;
dense, or a mixture with a gated shared expert.

Source: Qwen Team, Qwen3.5 (2026).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import KeyHeadOrder, Pairing
from lane_mlir.importers.delta_net import delta_rule, gated_attention, recurrent_layers
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row, with_shared_expert
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of, sections_of
from lane_mlir.importers.step import Layer, Step


@importer("qwen35")
@importer("qwen35moe")
def qwen35(step: Step) -> SSAValue:
    model = step.model
    is_recurrent = recurrent_layers(model)
    feed_forward = _mixture if model.has_experts else gated
    rotary = rotary_of(model, step.context)
    if not sections_of(model, rotary, is_interleaved=True):
        raise model.refuse_key("rope.dimension_sections", "is missing or has a 0, expected columns of each coordinate")
    rotation = step.rotation(rotary, Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = layer.rms_norm(x, "attn_norm")
        if is_recurrent[layer.index]:
            y = delta_rule(layer, y, _gates, KeyHeadOrder.CYCLIC)
        else:
            y = gated_attention(layer, y, rotation)
        x = layer.residual(x, y, "attn_residual")
        y = feed_forward(layer, layer.rms_norm(x, "post_attention_norm"))
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


def _gates(layer: Layer, x: SSAValue, value_heads: int) -> tuple[SSAValue, SSAValue]:
    return layer.gate(x, "ssm_beta", value_heads), layer.gate(x, "ssm_alpha", value_heads)


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    model = layer.model
    shared = model.optional_size("expert_shared_feed_forward_length") or model.feed_forward[layer.index]
    return with_shared_expert(layer, x, mixture(layer, x), shared, is_gated=True)
