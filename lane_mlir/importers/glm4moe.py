"""
GLM 4.5: a mixture routed by sigmoids with a bias for the choice, after leading dense layers; biases of q, k and v,
norms of the heads of q and k if in the file, rotation of part of each head.

Source: GLM-4.5 Team, GLM-4.5: Agentic, Reasoning, and Coding Foundation Models (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing, Scoring
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row, scoring_of, with_shared_expert
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of, sections_of
from lane_mlir.importers.step import Layer, Step


@importer("glm4moe")
def glm4moe(step: Step) -> SSAValue:
    model = step.model
    rotary = rotary_of(model, step.context)
    sections_of(model, rotary)
    rotation = step.rotation(rotary, Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = layer.rms_norm(x, "attn_norm")
        y = self_attention(layer, y, rotation, head_norms=layer.has_optional("attn_q_norm.weight"))
        x = layer.residual(x, y, "attn_residual")
        y = layer.rms_norm(x, "post_attention_norm")
        y = gated(layer, y) if layer.index < model.dense_layers else _mixture(layer, y)
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    model = layer.model
    renormalize = model.optional("expert_weights_norm", bool, False)
    scoring = scoring_of(model, Scoring.SIGMOID)
    hidden = model.size("expert_feed_forward_length")
    routed = mixture(layer, x, hidden=hidden, scoring=scoring, renormalize=renormalize, selection_bias=True)
    shared = model.size("expert_shared_count", least=0) * hidden
    return with_shared_expert(layer, x, routed, shared) if shared else routed
