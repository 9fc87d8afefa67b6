"""
Phi 3: as llama, with q, k and v in one product, gate and up in another, the rotation of halves, long rope, and one
window for every layer.

Source: Abdin et al., Phi-3 Technical Report (2024).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step
from lane_mlir.importers.windows import EVERY_LAYER, windows_of


@importer("phi3")
def phi3(step: Step) -> SSAValue:
    # Files of Phi-4 say 0, to be told from those of Phi-3.
    windows = windows_of(step, period=EVERY_LAYER, zero_is_none=True)
    rotation = step.rotation(rotary_of(step.model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = layer.rms_norm(x, "attn_norm")
        x = layer.residual(x, self_attention(layer, y, rotation, window=windows[layer.index]), "attn_residual")
        x = layer.residual(x, gated(layer, layer.rms_norm(x, "ffn_norm"), fused=True), "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))
