"""
LFM 2: short gated convolutions, and attention in the layers that have key heads; dense, or a mixture after leading
dense layers.

Source: Liquid AI, LFM2 Technical Report (2025).
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import ArgumentKind, ConvOp, Pairing, Scoring, shape_of
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row, scoring_of
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Layer, Step


@importer("lfm2")
@importer("lfm2moe")
def lfm2(step: Step) -> SSAValue:
    model = step.model
    dense_layers = model.dense_layers if model.has_experts else model.layers
    rotation = step.rotation(rotary_of(model, step.context), Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        y = layer.rms_norm(x, "attn_norm")
        if model.kv_heads[layer.index]:
            y = self_attention(layer, y, rotation, head_norms=True)
        else:
            y = _short_convolution(layer, y)
        x = layer.residual(x, y, "attn_residual")
        y = layer.rms_norm(x, "ffn_norm")
        y = gated(layer, y) if layer.index < dense_layers else _mixture(layer, y)
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm" if step.has("output_norm.weight") else "token_embd_norm"))


def _short_convolution(layer: Layer, x: SSAValue) -> SSAValue:
    """out(c·conv(b·x')), b, c and x' side by side in one product of x."""
    model, width = layer.model, shape_of(x)[1]
    taps = model.size("shortconv.l_cache")
    parts = layer.linear(x, "shortconv.in_proj", 3 * width)
    b, c, y = (layer.columns(parts, i * width, width, f"shortconv.{part}") for i, part in enumerate("bcx"))
    w = layer.constant("shortconv.conv.weight", width, taps)

    def convolve(layer: Layer, x: SSAValue) -> SSAValue:
        ring = layer.state(ArgumentKind.CONV_RING, "conv", taps, width)
        return layer.emit(ConvOp(x, w, ring), "shortconv.conv.weight", "shortconv.conv")

    y = layer.each_sequence(convolve, layer.multiply(b, y, "shortconv.bx"), role="shortconv.conv")
    y = layer.multiply(layer.tail(c, "shortconv.c.tail"), layer.tail(y, "shortconv.conv.tail"), "shortconv.gated")
    return layer.linear(y, "shortconv.out_proj", model.width)


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    model = layer.model
    renormalize = model.optional("expert_weights_norm", bool, True)
    return mixture(layer, x, scoring=scoring_of(model, Scoring.SIGMOID), renormalize=renormalize)
