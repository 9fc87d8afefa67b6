"""
Granite 3: as llama, with scales of the embedding, of what joins the residual, of attention and of the logits; dense, or
a mixture with a shared expert.

Source: IBM Research, Granite 3.0 Language Models (2024).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row, with_shared_expert
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Layer, Step


@importer("granite")
@importer("granitemoe")
def granite(step: Step) -> SSAValue:
    model = step.model
    feed_forward = _mixture if model.has_experts else gated
    joined = model.factor("residual_scale", 1.0)
    # These files say by this key whether positions are rotated at all.
    is_rotated = model.optional("rope.scaling.finetuned", bool, True)
    rotary = rotary_of(model, step.context)
    rotation = step.rotation(rotary, Pairing.INTERLEAVED) if is_rotated else None
    x = step.scale(step.embedding(), model.factor("embedding_scale", 1.0), "token_embd_scaled")
    for layer in step.layers():
        y = self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation)
        x = layer.residual(x, layer.scale(y, joined, "attn_scaled"), "attn_residual")
        y = feed_forward(layer, layer.rms_norm(x, "ffn_norm"))
        x = layer.residual(x, layer.scale(y, joined, "ffn_scaled"), "ffn_residual")
    logits = step.head(step.rms_norm(x, "output_norm"))
    return step.scale(logits, 1 / model.factor("logit_scale", None), "output_scaled")


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    model = layer.model
    routed = mixture(layer, x, hidden=model.feed_forward[layer.index])
    shared = model.optional_size("expert_shared_feed_forward_length")
    return with_shared_expert(layer, x, routed, shared) if shared else routed
