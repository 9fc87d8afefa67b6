"""
Gemma 2: a scaled embedding, norms on both sides of attention and feed-forward, windows on every other layer, soft caps
of the scores and the logits, a gated network by tanh-GELU.

Source: Gemma Team, Gemma 2 (2024).
"""

from __future__ import annotations

from math import sqrt

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Activation, Pairing
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.model import Model
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Step
from lane_mlir.importers.windows import windows_of

_LAYERS_OF_27B = 46


@importer("gemma2")
def gemma2(step: Step) -> SSAValue:
    model = step.model
    softcap = model.cap("attn_logit_softcapping", 50.0) or None
    windows = windows_of(step, period=2, default=4096)
    scale = attention_scale(model, _LAYERS_OF_27B)
    rotation = step.rotation(rotary_of(model, step.context), Pairing.HALF)
    x = step.scale(step.embedding(), sqrt(model.width), "token_embd_scaled")
    for layer in step.layers():
        y = layer.rms_norm(x, "attn_norm")
        y = self_attention(layer, y, rotation, scale=scale, window=windows[layer.index], softcap=softcap)
        x = layer.residual(x, layer.rms_norm(y, "post_attention_norm"), "attn_residual")
        y = gated(layer, layer.rms_norm(x, "ffn_norm"), activation=Activation.GELU_TANH)
        x = layer.residual(x, layer.rms_norm(y, "post_ffw_norm"), "ffn_residual")
    logits = step.head(step.rms_norm(x, "output_norm"))
    return step.soft_capped(logits, model.cap("final_logit_softcapping", 30.0))


def attention_scale(model: Model, layers_of_largest: int) -> float:
    """
    One over the root of a head's width; in the largest model of a generation, of the width a head would have if they
    shared the residual's. Its files do not say so: the number of layers does.
    """
    width = model.width / model.heads[0] if model.layers == layers_of_largest else model.key_width
    return model.factor("attention.scale", width**-0.5)
