"""
EXAONE 4: norms after attention and feed-forward instead of before, norms of the heads of q and k; where layers have
windows, only those rotate positions.

Source: LG AI Research, EXAONE 4.0 (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step
from lane_mlir.importers.windows import has_windows, local_layers, windows_of

_PERIOD = 4


@importer("exaone4")
def exaone4(step: Step) -> SSAValue:
    model = step.model
    windows = windows_of(step, period=_PERIOD)
    is_rotated = local_layers(model, _PERIOD) if has_windows(model) else (True,) * model.layers
    rotation = step.rotation(rotary_of(model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        i = layer.index
        y = self_attention(layer, x, rotation if is_rotated[i] else None, head_norms=True, window=windows[i])
        x = layer.residual(x, layer.rms_norm(y, "post_attention_norm"), "attn_residual")
        x = layer.residual(x, layer.rms_norm(gated(layer, x), "post_ffw_norm"), "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))
