"""
StarCoder 2: layer norms, biases everywhere, the rotation of halves, a plain network by tanh-GELU.

Source: Lozhkov et al., StarCoder 2 and The Stack v2 (2024).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Activation, Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import plain
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step


@importer("starcoder2")
def starcoder2(step: Step) -> SSAValue:
    rotation = step.rotation(rotary_of(step.model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        x = layer.residual(x, self_attention(layer, layer.layer_norm(x, "attn_norm"), rotation), "attn_residual")
        y = plain(layer, layer.layer_norm(x, "ffn_norm"), Activation.GELU_TANH)
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.layer_norm(x, "output_norm"))
