"""Layers of the gated delta rule, and gated attention beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Activation, ArgumentKind, ConvOp, DecayOp, DeltaOp, KeyHeadOrder, L2NormOp, shape_of
from lane_mlir.importers.attention import attend, place_heads
from lane_mlir.importers.model import Model
from lane_mlir.importers.step import Layer, Rotation

Gates: TypeAlias = Callable[[Layer, SSAValue, int], tuple[SSAValue, SSAValue]]
"""Of the layer, its input and the number of value heads: beta and decay before their functions, a column a head."""


def recurrent_layers(model: Model) -> tuple[bool, ...]:
    """
    Which layers have the delta rule instead of attention: attention.recurrent_layers, or all but the last of each
    full_attention_interval (4), which a file may have beside the other.
    """
    name = "attention.recurrent_layers"
    metadata, key = model.checkpoint.metadata, model.key(name)
    if not metadata.is_array(key):
        model.note_size("full_attention_interval")
        interval = model.count("full_attention_interval", 4, least=1)
        return tuple((layer + 1) % interval != 0 for layer in range(model.layers))
    flags = cast("list[object]", metadata.value(key))
    model.ignore(name, "full_attention_interval")
    if len(flags) < model.layers:
        raise model.refuse_key(name, f"has {len(flags)} values, expected one for each of {model.layers} layers")
    return tuple(bool(flag) for flag in flags[: model.layers])


def delta_rule(layer: Layer, x: SSAValue, gates: Gates, order: KeyHeadOrder) -> SSAValue:
    """
    Convolution and SiLU of q, k and v, L2 norms of the heads of q and k, the gated delta rule, output product.

    Keys below ssm: group_count key heads and time_step_rank value heads, each of state_size columns, inner_size columns
    of all value heads; conv_kernel taps. Tensors: `attn_qkv` (q, k, v), `attn_gate`, `ssm_conv1d` (q, k, v),
    `ssm_dt.bias`, `ssm_a`, `ssm_norm`, `ssm_out`.

    Source: Yang et al., Gated Delta Networks (2024).
    """
    model = layer.model
    d, key_heads, value_heads = model.size("ssm.state_size"), model.size("ssm.group_count"), _value_heads(model)
    widths = {"delta_q": key_heads * d, "delta_k": key_heads * d, "delta_v": value_heads * d}
    parts = layer.linear_parts(x, "attn_qkv", widths)
    z = layer.linear(x, "attn_gate", value_heads * d)
    b, a = gates(layer, x, value_heads)
    taps = _tap_weights(layer, widths)

    def mix(layer: Layer, *rows: SSAValue) -> SSAValue:
        q, k, v = (_convolved(layer, y, w, role) for y, (role, w) in zip(rows[:3], taps.items(), strict=True))
        q, k = _normed_heads(layer, q, key_heads, "delta_q"), _normed_heads(layer, k, key_heads, "delta_k")
        z, b, a = rows[3:]
        beta = layer.unary(Activation.SIGMOID, b, "delta_beta")
        dt, al = layer.plain("ssm_dt.bias", value_heads), layer.plain("ssm_a", value_heads)
        decay = layer.emit(DecayOp(a, dt, al), "ssm_a", "delta_decay")
        norm = layer.plain("ssm_norm.weight", d)
        state = layer.state(ArgumentKind.DELTA_STATE, "delta", value_heads * d, d)
        delta = DeltaOp(
            *(q, k, v, z, beta, decay, norm, state),
            key_heads=key_heads,
            value_heads=value_heads,
            order=order,
            eps=model.rms_epsilon,
        )
        return layer.tail(layer.emit(delta, "delta"), "delta.tail")

    y = layer.each_sequence(mix, *parts, z, b, a, role="delta")
    return layer.linear(y, "ssm_out", model.width)


def _value_heads(model: Model) -> int:
    key_heads, value_heads, d = (
        model.size("ssm.group_count"),
        model.size("ssm.time_step_rank"),
        model.size("ssm.state_size"),
    )
    if value_heads % key_heads:
        raise model.refuse_key("ssm.group_count", f"is {key_heads}, which does not divide {value_heads} value heads")
    if model.size("ssm.inner_size") != value_heads * d:
        message = f"is {model.size('ssm.inner_size')}, expected {value_heads} value heads of {d} columns"
        raise model.refuse_key("ssm.inner_size", message)
    return value_heads


def _tap_weights(layer: Layer, widths: dict[str, int]) -> dict[str, SSAValue]:
    """The weights of the convolution of each part: its rows of one tensor."""
    taps = layer.model.size("ssm.conv_kernel")
    w = layer.constant("ssm_conv1d.weight", sum(widths.values()), taps)
    weights: dict[str, SSAValue] = {}
    first = 0
    for role, width in widths.items():
        weights[role] = layer.view(w, width, taps, f"{role}.conv_weight", first * taps)
        first += width
    return weights


def _convolved(layer: Layer, x: SSAValue, w: SSAValue, role: str) -> SSAValue:
    """The SiLU of the causal convolution of x."""
    width, taps = shape_of(w)
    ring = layer.state(ArgumentKind.CONV_RING, f"{role}.ring", taps, width)
    y = layer.emit(ConvOp(x, w, ring), "ssm_conv1d.weight", f"{role}.conv")
    return layer.unary(Activation.SILU, y, f"{role}.silu")


def _normed_heads(layer: Layer, x: SSAValue, heads: int, role: str) -> SSAValue:
    rows, columns = shape_of(x)
    y = layer.view(x, rows * heads, columns // heads, f"{role}.heads")
    y = layer.emit(L2NormOp(y, layer.model.rms_epsilon), f"{role}.l2_norm")
    return layer.view(y, rows, columns, f"{role}.rows")


def gated_attention(layer: Layer, x: SSAValue, rotation: Rotation) -> SSAValue:
    """Attention with norms of the heads of q and k, times the sigmoid of a gate that follows each head in `attn_q`."""
    model = layer.model
    heads, kv_heads, width = model.heads[layer.index], model.kv_heads[layer.index], model.key_width
    if model.value_width != width:
        raise model.refuse_key("attention.value_length", f"is {model.value_width}, expected that of a key, {width}")
    both = layer.linear(x, "attn_q", heads * 2 * width)
    k = layer.linear(x, "attn_k", kv_heads * width)
    v = layer.linear(x, "attn_v", kv_heads * width)
    gate = layer.tail(layer.columns(both, width, width, "attn_q.gate", heads), "attn_q.gate.tail")

    def attend_gated(layer: Layer, both: SSAValue, k: SSAValue, v: SSAValue, gate: SSAValue) -> SSAValue:
        q = layer.columns(both, 0, width, "attn_q.query", heads)
        q = place_heads(layer, q, "attn_q", heads, rotation, head_norm=True)
        k = place_heads(layer, k, "attn_k", kv_heads, rotation, head_norm=True)
        y = attend(layer, q, k, v)
        return layer.multiply(y, layer.unary(Activation.SIGMOID, gate, "attention.gate"), "attention.gated")

    y = layer.each_sequence(attend_gated, both, k, v, gate, role="attention")
    return layer.linear(y, "attn_output", model.width)
