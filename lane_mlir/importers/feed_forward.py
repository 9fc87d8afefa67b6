"""The feed-forward part of a layer: gated and plain networks, mixtures of experts."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Activation, ExpertActivation, MoeOp, Scoring, shape_of
from lane_mlir.importers.step import Layer


def gated(
    layer: Layer, x: SSAValue, hidden: int | None = None, activation: Activation = Activation.SILU, suffix: str = ""
) -> SSAValue:
    """
    down(act(gate(x))·up(x)): tensors `ffn_gate`, `ffn_up` and `ffn_down`, the suffix after each.

    Where there is no gate tensor, `ffn_up` has both: gate, then up.
    """
    hidden = layer.model.feed_forward[layer.index] if hidden is None else hidden
    if layer.has(f"ffn_gate{suffix}.weight"):
        gate = layer.linear(x, f"ffn_gate{suffix}", hidden)
        up = layer.linear(x, f"ffn_up{suffix}", hidden)
    else:
        both = layer.linear(x, f"ffn_up{suffix}", 2 * hidden)
        gate = layer.columns(both, 0, hidden, f"ffn_gate{suffix}")
        up = layer.columns(both, hidden, hidden, f"ffn_up{suffix}")
    activated = layer.unary(activation, gate, f"ffn_act{suffix}")
    return layer.linear(layer.multiply(activated, up, f"ffn_gated{suffix}"), f"ffn_down{suffix}", layer.model.width)


def plain(layer: Layer, x: SSAValue, activation: Activation) -> SSAValue:
    """down(act(up(x))): tensors `ffn_up` and `ffn_down`."""
    up = layer.linear(x, "ffn_up", layer.model.feed_forward[layer.index])
    return layer.linear(layer.unary(activation, up, "ffn_act"), "ffn_down", layer.model.width)


def mixture(
    layer: Layer,
    x: SSAValue,
    *,
    hidden: int,
    scoring: Scoring = Scoring.SOFTMAX,
    renormalize: bool = True,
    scale: float = 1.0,
    groups: tuple[int, int] = (1, 1),
    activation: ExpertActivation = ExpertActivation.SILU,
    alpha: float | None = None,
    limit: float | None = None,
) -> SSAValue:
    """
    The routed mixture: `ffn_gate_inp` scores the experts (with `exp_probs_b` for the choice alone), whose networks are
    `ffn_gate_exps`, `ffn_up_exps` and `ffn_down_exps`; biases where the file has them. `groups` are how many there are,
    and how many are used.
    """
    model, d = layer.model, shape_of(x)[1]
    experts, used = model.size("expert_count"), model.size("expert_used_count")
    if used > experts:
        raise model.refuse_key("expert_used_count", f"is {used}, more than the {experts} experts")
    moe = MoeOp(
        x,
        layer.constant("ffn_gate_inp.weight", experts, d),
        layer.constant("ffn_gate_exps.weight", experts, hidden, d),
        layer.constant("ffn_up_exps.weight", experts, hidden, d),
        layer.constant("ffn_down_exps.weight", experts, d, hidden),
        used=used,
        scoring=scoring,
        renormalize=renormalize,
        scale=scale,
        activation=activation,
        groups=groups[0],
        groups_used=groups[1],
        alpha=alpha,
        limit=limit,
        router_bias=layer.optional_plain("ffn_gate_inp.bias", experts),
        selection_bias=layer.optional_plain("exp_probs_b.bias", experts),
        gate_bias=layer.optional_plain("ffn_gate_exps.bias", experts, hidden),
        up_bias=layer.optional_plain("ffn_up_exps.bias", experts, hidden),
        down_bias=layer.optional_plain("ffn_down_exps.bias", experts, d),
    )
    return layer.emit(moe, "ffn_moe")
