"""
ERNIE 4.5, dense: as llama.

Source: Baidu ERNIE Team, ERNIE 4.5 Technical Report (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step


@importer("ernie4_5")
def ernie4_5(step: Step) -> SSAValue:
    rotation = step.rotation(rotary_of(step.model, step.context), Pairing.INTERLEAVED)
    x = step.embedding()
    for layer in step.layers():
        x = layer.residual(x, self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation), "attn_residual")
        x = layer.residual(x, gated(layer, layer.rms_norm(x, "ffn_norm")), "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))
