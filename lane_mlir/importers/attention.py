"""Self-attention of a layer: projections, norms and rotation of heads, caches."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import AttentionOp, shape_of
from lane_mlir.importers.step import Layer, Rotation


def project(layer: Layer, x: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
    """
    Queries, keys and values of x: `attn_q`, `attn_k`, `attn_v`, or the three side by side as `attn_qkv`.

    Raises LaneError where the layer has no heads.
    """
    model, index = layer.model, layer.index
    heads, kv_heads = model.heads[index], model.kv_heads[index]
    if not heads or not kv_heads:
        raise model.refuse_key("attention.head_count", f"is {heads} and head_count_kv {kv_heads} in layer {index}")
    widths = {
        "attn_q": heads * model.key_width,
        "attn_k": kv_heads * model.key_width,
        "attn_v": kv_heads * model.value_width,
    }
    if layer.has("attn_qkv.weight"):
        q, k, v = layer.linear_parts(x, "attn_qkv", widths)
    elif layer.has("attn_q.weight"):
        q, k, v = (layer.linear(x, role, width) for role, width in widths.items())
    else:
        raise model.refuse(f"tensor '{layer.prefix}attn_q.weight' (or '{layer.prefix}attn_qkv.weight') is missing")
    return q, k, v


def place_heads(
    layer: Layer, x: SSAValue, role: str, heads: int, rotation: Rotation | None, *, head_norm: bool = False
) -> SSAValue:
    """The heads of x [rows, heads·width] normed by `role_norm` if they are, and rotated if they are."""
    rows, columns = shape_of(x)
    y = layer.view(x, rows * heads, columns // heads, f"{role}.heads")
    if head_norm:
        y = layer.rms_norm(y, f"{role}_norm")
    if rotation is not None:
        y = layer.rotate(y, rotation, heads, f"{role}.rope")
    return layer.view(y, rows, columns, f"{role}.rows") if y is not x else x


def attend(
    layer: Layer,
    q: SSAValue,
    k: SSAValue,
    v: SSAValue,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: SSAValue | None = None,
) -> SSAValue:
    """Cache keys and values of a sequence, attend them; of a chunk only the rows that the rest of the step needs."""
    model = layer.model
    attention = AttentionOp(
        q,
        layer.cache(k, "k"),
        layer.cache(v, "v"),
        layer.position,
        heads=model.heads[layer.index],
        kv_heads=model.kv_heads[layer.index],
        scale=model.attention_scale if scale is None else scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )
    return layer.tail(layer.emit(attention, "attention"), "attention.tail")


def self_attention(
    layer: Layer,
    x: SSAValue,
    rotation: Rotation | None,
    *,
    head_norms: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: SSAValue | None = None,
) -> SSAValue:
    """Projections, norms of the heads of q and k if they have them, rotation, attention, output product."""
    model = layer.model

    def rotate_and_attend(layer: Layer, q: SSAValue, k: SSAValue, v: SSAValue) -> SSAValue:
        q = place_heads(layer, q, "attn_q", model.heads[layer.index], rotation, head_norm=head_norms)
        k = place_heads(layer, k, "attn_k", model.kv_heads[layer.index], rotation, head_norm=head_norms)
        return attend(layer, q, k, v, scale=scale, window=window, softcap=softcap, sinks=sinks)

    y = layer.each_sequence(rotate_and_attend, *project(layer, x), role="attention")
    return layer.linear(y, "attn_output", model.width)
