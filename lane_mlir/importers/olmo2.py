"""
OLMo 2 and 3: norms after attention and feed-forward instead of before, norms of all of q and of k; in OLMo 3 windows on
three of four layers, whose positions are not stretched.

Source: OLMo Team, 2 OLMo 2 Furious (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Pairing
from lane_mlir.importers.attention import attend, place_heads, project
from lane_mlir.importers.feed_forward import gated
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import Rotary, rotary_of
from lane_mlir.importers.step import Layer, Rotation, Step
from lane_mlir.importers.windows import has_windows, local_layers, windows_of
from lane_mlir.rope import RopeScaling

_PERIOD = 4


@importer("olmo2")
def olmo2(step: Step) -> SSAValue:
    model = step.model
    windows = windows_of(step, period=_PERIOD)
    is_local = local_layers(model, _PERIOD) if has_windows(model) else (False,) * model.layers
    rotary = rotary_of(model, step.context)
    everywhere = step.rotation(rotary, Pairing.HALF)
    locally = (
        step.rotation(Rotary(rotary.columns, RopeScaling(rotary.scaling.base)), Pairing.HALF)
        if any(is_local)
        else everywhere
    )
    x = step.embedding()
    for layer in step.layers():
        y = _attention(layer, x, locally if is_local[layer.index] else everywhere, windows[layer.index])
        x = layer.residual(x, layer.rms_norm(y, "post_attention_norm"), "attn_residual")
        x = layer.residual(x, layer.rms_norm(gated(layer, x), "post_ffw_norm"), "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


def _attention(layer: Layer, x: SSAValue, rotation: Rotation, window: int | None) -> SSAValue:
    model, index = layer.model, layer.index
    q, k, v = project(layer, x)
    q, k = layer.rms_norm(q, "attn_q_norm"), layer.rms_norm(k, "attn_k_norm")

    def rotate_and_attend(layer: Layer, q: SSAValue, k: SSAValue, v: SSAValue) -> SSAValue:
        q = place_heads(layer, q, "attn_q", model.heads[index], rotation)
        k = place_heads(layer, k, "attn_k", model.kv_heads[index], rotation)
        return attend(layer, q, k, v, window=window)

    y = layer.each_sequence(rotate_and_attend, q, k, v, role="attention")
    return layer.linear(y, "attn_output", model.width)
