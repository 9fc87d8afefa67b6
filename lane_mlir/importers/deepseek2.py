"""
DeepSeek 2 and 3: multi-head latent attention, with low-rank queries or without, and after leading dense layers a
mixture with shared experts, routed by softmax or by sigmoids with a bias for the choice, within groups.

Keys and values of a position are products of one latent row, c, and a rotated part of the key, r, for all heads. Where
the file has a weight for the keys of c and one for its values, what is cached is c and r, side by side: attention reads
the cache as it is (absorbed: each query goes through its head's weight of keys first, each result through that of
values), or expands c to the keys and values of every head before. Where it has one weight for both, keys and values
are cached themselves.

Sources: DeepSeek-AI, DeepSeek-V2 (2024); DeepSeek-V3 Technical Report (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue

from lane_mlir.dialects.tg import AttentionOp, HeadMatmulOp, JoinOp, Pairing, Scoring, SliceOp, shape_of
from lane_mlir.importers.feed_forward import gated, mixture, row_by_row, scoring_of, with_shared_expert
from lane_mlir.importers.registry import importer
from lane_mlir.importers.rotary import Rotary, rotary_of
from lane_mlir.importers.step import Layer, Rotation, Step


@dataclass(frozen=True)
class _Latent:
    """The shape of latent attention: columns of c and r, and of the rest of a key head and of a value head."""

    latent: int
    rotated: int
    key: int
    value: int
    scale: float

    def is_expanded(self, rows: int) -> bool:
        """
        Whether expanding takes fewer multiplications, a position and head: it is done once for all rows of a step, each
        of which then reads narrower keys and values.
        """
        absorbed = rows * (2 * self.latent + self.rotated)
        expanded = self.latent * (self.key + self.value) + rows * (self.key + self.rotated + self.value)
        return expanded < absorbed


@dataclass(frozen=True)
class _Query:
    """The heads' queries: the columns that are not rotated, and those that are."""

    own: SSAValue
    tail: SSAValue
    heads: int


@importer("deepseek2")
def deepseek2(step: Step) -> SSAValue:
    model = step.model
    rotary = rotary_of(model, step.context, columns=model.size("rope.dimension_count"), equal_magnitudes=True)
    rotation = step.rotation(rotary, Pairing.INTERLEAVED)
    shape = _latent_of(step, rotary)
    # Not of the model's heads, but of what a reference engine caches.
    model.per_layer("attention.head_count_kv", int, 1)
    x = step.embedding()
    for layer in step.layers():
        x = layer.residual(x, _attention(layer, layer.rms_norm(x, "attn_norm"), rotation, shape), "attn_residual")
        y = layer.rms_norm(x, "ffn_norm")
        y = gated(layer, y) if layer.index < model.dense_layers else _mixture(layer, y)
        x = layer.residual(x, y, "ffn_residual")
    return step.head(step.rms_norm(x, "output_norm"))


def _latent_of(step: Step, rotary: Rotary) -> _Latent:
    """
    Where there are keys that end in _mla, those are of the heads, and the others of what is cached: always where the
    latent part is cached.
    """
    model = step.model
    is_cached = step.has("blk.0.attn_k_b.weight")
    suffix = "_mla" if is_cached or model.count("attention.key_length_mla") else ""
    key, value = model.size(f"attention.key_length{suffix}"), model.size(f"attention.value_length{suffix}")
    if key <= rotary.columns:
        raise model.refuse_key(f"attention.key_length{suffix}", f"is {key}, of which {rotary.columns} are rotated")
    for name in ("attention.key_length", "attention.value_length"):
        model.optional(name, int)
    # YaRN's magnitude stands in the logits here, once for q and once for k, not in the rotation. Of its factor
    # 1 + 0.1·m·log(factor), the files of this family have 0.1·m where those of others have m.
    stretch = log(1 / rotary.scaling.freq_scale)
    multiplier = model.optional("rope.scaling.yarn_log_multiplier", float, 0.0)
    magnitude = rotary.scaling.attn_factor * (1 + 0.1 * stretch) * (1 + multiplier * stretch)
    return _Latent(
        latent=model.size("attention.kv_lora_rank"),
        rotated=rotary.columns,
        key=key - rotary.columns,
        value=value,
        scale=magnitude**2 * key**-0.5,
    )


def _attention(layer: Layer, x: SSAValue, rotation: Rotation, shape: _Latent) -> SSAValue:
    heads, width = layer.model.heads[layer.index], shape.key + shape.rotated
    q = _queries(layer, x, heads * width)
    kv = layer.linear(x, "attn_kv_a_mqa", shape.latent + shape.rotated)
    own = layer.columns(q, 0, shape.key, "attn_q.own", heads)
    c = layer.rms_norm(layer.columns(kv, 0, shape.latent, "attn_kv.latent"), "attn_kv_a_norm")
    uncompressed = layer.has("attn_kv_b.weight")
    absorbed = not uncompressed and not shape.is_expanded(layer.step.rows)
    if uncompressed:
        c = layer.linear(c, "attn_kv_b", heads * (shape.key + shape.value))
    if absorbed:
        # The weight of keys meets the queries of all sequences at once.
        k_b = layer.projection("attn_k_b.weight", heads, shape.latent, shape.key)
        own = layer.emit(HeadMatmulOp(own, k_b), "attn_k_b.weight", "attn_q.latent")

    def attend(layer: Layer, q: SSAValue, kv: SSAValue, own: SSAValue, c: SSAValue) -> SSAValue:
        tail = layer.columns(q, shape.key, shape.rotated, "attn_q.tail", heads)
        tail = _rotated(layer, tail, rotation, heads, "attn_q")
        r = layer.columns(kv, shape.latent, shape.rotated, "attn_k.tail")
        r = _rotated(layer, r, rotation, 1, "attn_k")
        query = _Query(own, tail, heads)
        if uncompressed:
            return _uncompressed(layer, query, c, r, shape)
        cache = layer.cache(_joined(layer, c, r, 1, "attn_kv.row"), "kv")
        return (_absorbed if absorbed else _expanded)(layer, query, cache, shape)

    y = layer.each_sequence(attend, q, kv, own, c, role="attention")
    if absorbed:
        v_b = layer.projection("attn_v_b.weight", heads, shape.value, shape.latent)
        y = layer.emit(HeadMatmulOp(y, v_b), "attn_v_b.weight", "attention.value")
    return layer.linear(y, "attn_output", layer.model.width)


def _queries(layer: Layer, x: SSAValue, columns: int) -> SSAValue:
    name, has_rank = "attention.q_lora_rank", layer.has("attn_q_a.weight")
    rank = layer.model.size(name) if has_rank else layer.model.optional_size(name)
    if not rank:
        return layer.linear(x, "attn_q", columns)
    return layer.linear(layer.rms_norm(layer.linear(x, "attn_q_a", rank), "attn_q_a_norm"), "attn_q_b", columns)


def _rotated(layer: Layer, x: SSAValue, rotation: Rotation, heads: int, role: str) -> SSAValue:
    rows, columns = shape_of(x)
    y = layer.view(x, rows * heads, columns // heads, f"{role}.heads")
    return layer.view(layer.rotate(y, rotation, heads, f"{role}.rope"), rows, columns, f"{role}.rows")


def _joined(layer: Layer, a: SSAValue, b: SSAValue, heads: int, role: str) -> SSAValue:
    result = TensorType(f32, (shape_of(a)[0], shape_of(a)[1] + shape_of(b)[1]))
    return layer.emit(JoinOp(a, b, result, heads=heads), role)


def _part(layer: Layer, cache: SSAValue, start: int, width: int, role: str) -> SSAValue:
    """Columns of every row of a cache."""
    length, columns = shape_of(cache)
    part = SliceOp(cache, TensorType(f32, (length, width)), every=columns, start=start, width=width)
    return layer.emit(part, role)


def _absorbed(layer: Layer, query: _Query, cache: SSAValue, shape: _Latent) -> SSAValue:
    """Queries of the width of a cached row, which all heads read, values within it."""
    heads = query.heads
    q = _joined(layer, query.own, query.tail, heads, "attn_q.row")
    v = _part(layer, cache, 0, shape.latent, "attn_v")
    attention = AttentionOp(q, cache, v, layer.position, heads=heads, kv_heads=1, scale=shape.scale)
    return layer.tail(layer.emit(attention, "attention"), "attention.tail")


def _expanded(layer: Layer, query: _Query, cache: SSAValue, shape: _Latent) -> SSAValue:
    """Keys and values of every head from the latent part of each cached row."""
    heads, position = query.heads, layer.position
    k_b = layer.projection("attn_k_b.weight", heads, shape.latent, shape.key)
    v_b = layer.projection("attn_v_b.weight", heads, shape.value, shape.latent)
    c = _part(layer, cache, 0, shape.latent, "attn_kv.latents")
    r = _part(layer, cache, shape.latent, shape.rotated, "attn_k.tails")
    keys = HeadMatmulOp(c, k_b, position, shared=True, transposed=True)
    k = layer.emit(keys, "attn_k_b.weight", "attn_k.own")
    v = layer.emit(HeadMatmulOp(c, v_b, position, shared=True), "attn_v_b.weight", "attn_v")
    return _attended(layer, query, k, v, r, shape)


def _uncompressed(layer: Layer, query: _Query, kv: SSAValue, r: SSAValue, shape: _Latent) -> SSAValue:
    """Caches of the keys and values of every head, and of the rotated part of the key for all."""
    heads = query.heads
    k = layer.cache(layer.columns(kv, 0, shape.key, "attn_k.own", heads), "k")
    v = layer.cache(layer.columns(kv, shape.key, shape.value, "attn_v", heads), "v")
    return _attended(layer, query, k, v, layer.cache(r, "k_tail"), shape)


def _attended(layer: Layer, query: _Query, k: SSAValue, v: SSAValue, r: SSAValue, shape: _Latent) -> SSAValue:
    heads, tails = query.heads, (query.tail, r)
    attention = AttentionOp(
        *(query.own, k, v, layer.position), heads=heads, kv_heads=heads, scale=shape.scale, tails=tails
    )
    return layer.tail(layer.emit(attention, "attention"), "attention.tail")


def default_scoring(layers: int, vocabulary: int) -> Scoring:
    """
    How experts are scored where the file does not say.

    Files of DeepSeek 2 are older than the key. So are some of GLM 4.7 Flash, whose experts are scored by sigmoids:
    nothing but their sizes tells them apart, and a reference engine (llama.cpp) takes them by these.
    """
    return Scoring.SIGMOID if layers in (47, 48) and vocabulary == 154_880 else Scoring.SOFTMAX


@row_by_row
def _mixture(layer: Layer, x: SSAValue) -> SSAValue:
    model = layer.model
    hidden = model.size("expert_feed_forward_length")
    routed = mixture(
        layer,
        x,
        hidden=hidden,
        scoring=scoring_of(model, default_scoring(model.layers, model.vocabulary)),
        renormalize=model.optional("expert_weights_norm", bool, False),
    )
    shared = model.size("expert_shared_count", least=0) * hidden
    return with_shared_expert(layer, x, routed, shared) if shared else routed
