"""
Qwen 3: as llama, with norms of the heads of q and k and the rotation of halves; dense, or a mixture.

Source: Yang et al., Qwen3 Technical Report (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step


@importer("qwen3")
@importer("qwen3moe")
def qwen3(step: Step) -> SSAValue:
    model = step.model
    feed_forward = row_by_row(mixture) if model.has_experts else gated
    rotation = step.rotation(rotary_of(model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = self_attention(layer, layer.rms_norm(x, "attn_norm"), rotation, head_norms=True)
        x = layer.residual(x, y, "attn_residual")
        y = feed_forward(layer, layer.rms_norm(x, "ffn_norm"))
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))
