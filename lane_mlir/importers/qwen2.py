"""
Qwen 2: as llama, with biases of q, k and v and the rotation of halves; in the mixture, weights that are not
renormalized and a shared expert behind a gate.

Source: Yang et al., Qwen2 Technical Report (2024).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row, with_shared_expert
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Layer, Step


@importer("qwen2")
@importer("qwen2moe")
def qwen2(step: Step) -> SSAValue:
    model = step.model
    feed_forward = _mixture if model.has_experts else gated
    rotation = step.rotation(rotary_of(model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation)
        x = layer.residual(x, y, "attn_residual")
        y = feed_forward(layer, layer.rms_norm(x, "ffn_norm"))
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    model = layer.model
    shared = model.optional_size("expert_shared_feed_forward_length") or model.feed_forward[layer.index]
    routed = mixture(layer, x, renormalize=False)
    return with_shared_expert(layer, x, routed, shared, is_gated=True)
