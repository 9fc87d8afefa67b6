"""
The llama family: RMS norms before attention and feed-forward, grouped queries, rotation of interleaved pairs, a gated
network or a mixture of experts.

Sources: Touvron et al., LLaMA (2023); Jiang et al., Mixtral of Experts (2024).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Layer, Step


@importer("llama")
def llama(step: Step) -> SSAValue:
    model = step.model
    feed_forward = _mixture if model.has_experts else gated
    rotation = step.rotation(rotary_of(model, step.context), Pairing.INTERLEAVED)
    x = step.embedding()
    for layer in step.layers():
        y = self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation)
        x = layer.residual(x, y, "attn_residual")
        y = layer.rms_norm(x, "ffn_norm")
        y = feed_forward(layer, y)
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    return mixture(layer, x, hidden=layer.model.feed_forward[layer.index])
