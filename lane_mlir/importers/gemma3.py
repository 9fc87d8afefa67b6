"""
Gemma 3: as Gemma 2 with norms of the heads of q and k instead of soft caps; five local layers for each global one, with
a rotation of their own.

Source: Gemma Team, Gemma 3 Technical Report (2025).
"""

from __future__ import annotations

from math import sqrt

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Activation, Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.gemma2 import attention_scale
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import Rotary, rotary_of
from lane_mlir.importers.step import Step
from lane_mlir.importers.windows import has_windows, local_layers, windows_of
from lane_mlir.rope import RopeScaling

_LAYERS_OF_27B = 62
_PERIOD = 6


@importer("gemma3")
def gemma3(step: Step) -> SSAValue:
    model = step.model
    windows = windows_of(step, period=_PERIOD)
    is_local = local_layers(model, _PERIOD) if has_windows(model) else (False,) * model.layers
    scale = attention_scale(model, _LAYERS_OF_27B)
    rotary = rotary_of(model, step.context)
    everywhere = step.rotation(rotary, Pairing.HALF) if not all(is_local) else None
    # Positions within a window are not stretched.
    base = model.positive("rope.freq_base_swa", 10000.0)
    locally = step.rotation(Rotary(rotary.columns, RopeScaling(base)), Pairing.HALF) if any(is_local) else None
    x = step.scale(step.embedding(), sqrt(model.width), "token_embd_scaled")
    for layer in step.layers():
        rotation = locally if is_local[layer.index] else everywhere
        y = layer.rms_norm(x, "attn_norm")
        y = self_attention(layer, y, rotation, head_norms=True, scale=scale, window=windows[layer.index])
        x = layer.residual(x, layer.rms_norm(y, "post_attention_norm"), "attn_residual")
        y = gated(layer, layer.rms_norm(x, "ffn_norm"), activation=Activation.GELU_TANH)
        x = layer.residual(x, layer.rms_norm(y, "post_ffw_norm"), "ffn_residual")
    logits = step.head(step.rms_norm(x, "output_norm"))
    return step.soft_capped(logits, model.cap("final_logit_softcapping", 0.0))
