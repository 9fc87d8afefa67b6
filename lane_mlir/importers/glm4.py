"""
GLM 4 (0414): norms on both sides of attention and feed-forward, biases of q, k and v, rotation of part of each head,
gate and up in one product.

Source: Team GLM, ChatGLM: A Family of Large Language Models (2024).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of, sections_of
from lane_mlir.importers.step import Step


@importer("glm4")
def glm4(step: Step) -> SSAValue:
    model = step.model
    rotary = rotary_of(model, step.context)
    # Files of models that also see were written for the other pairing.
    pairing = Pairing.HALF if sections_of(model, rotary) else Pairing.INTERLEAVED
    rotation = step.rotation(rotary, pairing)
    x = step.embedding()
    for layer in step.layers():
        y = self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation)
        x = layer.residual(x, layer.rms_norm(y, "post_attention_norm"), "attn_residual")
        y = gated(layer, layer.rms_norm(x, "ffn_norm"), fused=True)
        x = layer.residual(x, layer.rms_norm(y, "post_ffw_norm"), "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))
