"""
gpt-oss: biases everywhere, attention sinks, windows on every other layer, YaRN, and a mixture that weighs only the
chosen experts, of clamped SwiGLU.

Source: OpenAI, gpt-oss-120b & gpt-oss-20b Model Card (2025).
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import ExpertActivation, Pairing, Scoring
from lane_mlir.formats import Format
from lane_mlir.importers.attention import self_attention
from lane_mlir.importers.feed_forward import mixture, row_by_row, scoring_of
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import rotary_of
from lane_mlir.importers.step import Layer, Step
from lane_mlir.importers.windows import local_layers, windows_of

_PERIOD = 2
_ALPHA = 1.702
_LIMIT = 7.0


@importer("gpt-oss")
def gpt_oss(step: Step) -> SSAValue:
    model = step.model
    windows, is_local = windows_of(step, period=_PERIOD, required=True), local_layers(model, _PERIOD)
    rotary = rotary_of(model, step.context)
    local_base = model.positive("rope.freq_base_swa", rotary.scaling.base)
    local_rotary = replace(rotary, scaling=replace(rotary.scaling, base=local_base))
    everywhere = step.rotation(rotary, Pairing.HALF)
    locally = everywhere if local_rotary == rotary else step.rotation(local_rotary, Pairing.HALF)
    x = step.embedding()
    for layer in step.layers():
        rotation = locally if is_local[layer.index] else everywhere
        sinks = layer.plain("attn_sinks.weight", model.heads[layer.index])
        y = layer.rms_norm(x, "attn_norm")
        y = self_attention(layer, y, rotation, window=windows[layer.index], sinks=sinks)
        x = layer.residual(x, y, "attn_residual")
        _ignore_expert_scales(layer)
        y = _mixture(layer, layer.rms_norm(x, "post_attention_norm"))
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    return mixture(
        layer,
        x,
        hidden=layer.model.size("expert_feed_forward_length"),
        scoring=scoring_of(layer.model, Scoring.SOFTMAX_CHOSEN),
        renormalize=False,
        activation=ExpertActivation.CLAMPED_SWIGLU,
        alpha=_ALPHA,
        limit=_LIMIT,
    )


def _ignore_expert_scales(layer: Layer) -> None:
    """Scales beside the experts belong to weights in nvfp4: beside other formats the family does not use them."""
    checkpoint = layer.model.checkpoint
    for role in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
        weight = checkpoint.tensors.get(f"{layer.prefix}{role}.weight")
        if weight is not None and weight.format is not Format.NVFP4:
            for scale in (f"{role}.scale", f"{role}.input_scale"):
                if layer.has(scale):
                    checkpoint.tensor(layer.prefix + scale)
