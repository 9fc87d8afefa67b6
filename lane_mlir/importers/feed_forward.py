"""The feed-forward part of a layer: gated and plain networks, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import Activation, ExpertActivation, MoeOp, Scoring, shape_of
from lane_mlir.importers.model import Model
from lane_mlir.importers.step import Layer

FeedForward: TypeAlias = Callable[[Layer, SSAValue], SSAValue]
"""The feed-forward part of a layer, of its input."""


def gated(
    layer: Layer,
    x: SSAValue,
    *,
    hidden: int | None = None,
    activation: Activation = Activation.SILU,
    suffix: str = "",
    fused: bool = False,
) -> SSAValue:
    """
    down(act(gate(x))·up(x)): tensors `ffn_gate`, `ffn_up` and `ffn_down`, the suffix after each.

    Where `fused`, `ffn_up` has both: gate, then up. `hidden` is feed_forward_length unless given.
    """
    hidden = layer.model.feed_forward[layer.index] if hidden is None else hidden
    gate_role, up_role = f"ffn_gate{suffix}", f"ffn_up{suffix}"
    if fused:
        gate, up = layer.linear_parts(x, up_role, {gate_role: hidden, up_role: hidden})
    else:
        gate, up = _product(layer, x, gate_role, hidden), _product(layer, x, up_role, hidden)
    activated = layer.unary(activation, gate, f"ffn_act{suffix}")
    y = layer.multiply(activated, up, f"ffn_gated{suffix}")
    return _product(layer, y, f"ffn_down{suffix}", layer.model.width)


def plain(layer: Layer, x: SSAValue, activation: Activation) -> SSAValue:
    """down(act(up(x))): tensors `ffn_up` and `ffn_down`."""
    up = _product(layer, x, "ffn_up", layer.model.feed_forward[layer.index])
    return _product(layer, layer.unary(activation, up, "ffn_act"), "ffn_down", layer.model.width)


def _product(layer: Layer, x: SSAValue, role: str, columns: int) -> SSAValue:
    return layer.linear(x, role, columns, scaled_bias=True)


def row_by_row(mix: FeedForward) -> FeedForward:
    """A mixture that takes the row of each sequence for itself, since every row has experts of its own."""
    return lambda layer, x: layer.each_sequence(mix, x, role="ffn_moe")


def mixture(
    layer: Layer,
    x: SSAValue,
    *,
    hidden: int | None = None,
    scoring: Scoring = Scoring.SOFTMAX,
    renormalize: bool = True,
    scale: float | None = None,
    activation: ExpertActivation = ExpertActivation.SILU,
    alpha: float | None = None,
    limit: float | None = None,
    selection_bias: bool = False,
) -> SSAValue:
    """
    The routed mixture: `ffn_gate_inp` scores the experts (with `exp_probs_b` for the choice alone, which must be there
    where `selection_bias`), whose networks are `ffn_gate_exps`, `ffn_up_exps` and `ffn_down_exps`; biases where the
    file has them.

    Keys: expert_count, expert_used_count, expert_weights_scale (unless `scale` is given), and for the hidden columns of
    an expert (unless `hidden` is given) expert_feed_forward_length, or else feed_forward_length shared by those used.
    Of groups of experts the file says how many there are, and how many are used: expert_group_count and
    expert_group_used_count.
    """
    model, d = layer.model, shape_of(x)[1]
    experts, used = model.experts
    if hidden is None:
        hidden = model.optional_size("expert_feed_forward_length") or model.feed_forward[layer.index] // used
    # Of dense layers, should there be any.
    model.per_layer("feed_forward_length", int, 0)
    _refuse_other_weights(model, scoring, renormalize)
    scale = model.factor("expert_weights_scale", 1.0) if scale is None else scale
    groups, groups_used = _groups_of(model)
    choose = layer.plain if selection_bias else layer.optional_plain
    moe = MoeOp(
        x,
        layer.constant("ffn_gate_inp.weight", experts, d),
        layer.projection("ffn_gate_exps.weight", experts, hidden, d),
        layer.projection("ffn_up_exps.weight", experts, hidden, d),
        layer.projection("ffn_down_exps.weight", experts, d, hidden),
        used=used,
        scoring=scoring,
        renormalize=renormalize,
        scale=scale,
        activation=activation,
        groups=groups,
        groups_used=groups_used,
        alpha=alpha,
        limit=limit,
        router_bias=layer.optional_plain("ffn_gate_inp.bias", experts),
        selection_bias=choose("exp_probs_b.bias", experts),
        gate_bias=layer.optional_plain("ffn_gate_exps.bias", experts, hidden),
        up_bias=layer.optional_plain("ffn_up_exps.bias", experts, hidden),
        down_bias=layer.optional_plain("ffn_down_exps.bias", experts, d),
    )
    return layer.emit(moe, "ffn_moe")


def with_shared_expert(layer: Layer, x: SSAValue, routed: SSAValue, hidden: int, *, is_gated: bool = False) -> SSAValue:
    """
    The routed mixture plus the expert that every row takes: tensors `ffn_gate_shexp`, `ffn_up_shexp` and
    `ffn_down_shexp`; where it is gated, times the sigmoid of x·`ffn_gate_inp_shexp`.
    """
    y = gated(layer, x, hidden=hidden, suffix="_shexp")
    if is_gated:
        gate = layer.unary(Activation.SIGMOID, layer.gate(x, "ffn_gate_inp_shexp", 1), "ffn_shexp_gate")
        y = layer.multiply(y, gate, "ffn_shexp_gated")
    return layer.add(routed, y, "ffn_shexp_sum")


def scoring_of(model: Model, default: Scoring) -> Scoring:
    """How the router scores experts: `expert_gating_func`, or the default where the file does not say."""
    number = model.count("expert_gating_func")
    known = {0: default, 1: Scoring.SOFTMAX, 2: Scoring.SIGMOID, 3: Scoring.SOFTMAX_CHOSEN}
    if number not in known:
        raise model.refuse_key("expert_gating_func", f"is {number}, expected 1 (softmax), 2 (sigmoid) or 3 (of chosen)")
    return known[number]


def _refuse_other_weights(model: Model, scoring: Scoring, renormalize: bool) -> None:
    """Refuse keys that say otherwise of the weights of experts than their mixture, where the family decides."""
    if scoring_of(model, scoring) is not scoring:
        number = model.count("expert_gating_func")
        raise model.refuse_key(
            "expert_gating_func", f"is {number}, but mixtures of this architecture score by {scoring}"
        )
    name = "expert_weights_norm"
    # False is what a generic writer stores for families that renormalize whatever a key says.
    if model.optional(name, bool, renormalize) and not renormalize:
        raise model.refuse_key(name, "is true, but mixtures of this architecture do not renormalize their weights")


def _groups_of(model: Model) -> tuple[int, int]:
    """
    Groups of experts, and how many of them are chosen from: expert_group_count, and expert_group_used_count, which must
    be there if there are several groups.
    """
    groups = model.count("expert_group_count") or 1
    name = "expert_group_used_count"
    used = model.count(name, None, least=1) if groups > 1 else model.count(name) or 1
    experts, chosen = model.experts
    if experts % groups or used > groups or chosen > used * (experts // groups):
        message = f"is {groups} with {used} used: {chosen} of {experts} experts cannot be chosen from them"
        raise model.refuse_key("expert_group_count", message)
    return groups, used
