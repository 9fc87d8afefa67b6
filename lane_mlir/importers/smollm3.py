"""
SmolLM 3: as llama, without rotation in every fourth layer.

Sources: Bakouch et al., SmolLM3 (2025); Yang et al., RoPE to NoPE and back again (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step

_UNROTATED_PERIOD = 4


@importer("smollm3")
def smollm3(step: Step) -> SSAValue:
    rotation = step.rotation(rotary_of(step.model, step.context), Pairing.INTERLEAVED)
    x = step.embedding()
    for layer in step.layers():
        is_rotated = (layer.index + 1) % _UNROTATED_PERIOD != 0
        y = self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation if is_rotated else None)
        x = layer.residual(x, y, "attn_residual")
        x = layer.residual(x, gated(layer, layer.rms_norm(x, "ffn_norm")), "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))
