"""What the metadata of a checkpoint says of its model, under the keys of its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf, isclose
from types import MappingProxyType
from typing import TypeVar, cast, overload

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.checkpoint.header import shown
from lane_mlir.diagnostics import LaneError

DEFAULT_CONTEXT = 2048
"""Positions that a step has room for, if its model was trained for as many."""

_LARGEST_COUNT = 2**32 - 1
"""The largest number that files store of anything that is counted."""

Value = TypeVar("Value", int, float, str, bool)

_WITHOUT_EFFECT = frozenset(
    {
        # What the file was made from, and limits that the step itself knows better.
        "vocab_size",
        "context_length",
        "rope.scaling.finetuned",
        # Of other uses of a model.
        "pooling_type",
        "decoder_start_token_id",
    }
)
"""Keys, less the architecture, that change nothing unless a family asks for them."""

_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "attn_logit_softcapping": 50.0,
        "router_logit_softcapping": 30.0,
        "final_logit_softcapping": 30.0,
        "token_shift_count": 2,
        "expert_group_scale": 0.05,
        "attention.rope_pattern": 1,
        "attention.indexer.kpool_select_tail": True,
        "kda.gate_lower_bound": -inf,
        "activation.situ_beta": 1.0,
        # The order of the rows of q and k that every file of the architecture has.
        "tensor_data_layout": "Meta AI original pth",
    }
)
"""What generic writers store for every family, used or not; any other value is somebody's intent."""

_AS_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "attention.key_length_swa": "attention.key_length",
        "attention.value_length_swa": "attention.value_length",
        "rope.dimension_count_swa": "rope.dimension_count",
        "rope.freq_base_swa": "rope.freq_base",
    }
)
"""Values for layers with windows, which change nothing where they are those of all layers."""


class Model:
    """
    The hyperparameters of a checkpoint, by their names in GGUF less the prefix of the architecture.

    Everything that is asked for is checked, and counts as understood; `refuse_unknown` refuses the rest. All methods
    raise LaneError naming the file and the key.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.architecture = checkpoint.architecture
        self._missing_sizes: dict[str, None] = {}
        if not self.optional("attention.causal", bool, True):
            raise self.refuse_key("attention.causal", "is false: only causal attention is supported")

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def refuse(self, message: str) -> LaneError:
        return LaneError(f"{self.checkpoint.path}: {message}")

    def refuse_key(self, name: str, message: str) -> LaneError:
        return self.refuse(f"key {shown(self.key(name))} {message}")

    def required(self, name: str, kind: type[Value]) -> Value:
        return self.checkpoint.metadata.required(self.key(name), kind)

    @overload
    def optional(self, name: str, kind: type[Value]) -> Value | None: ...
    @overload
    def optional(self, name: str, kind: type[Value], default: Value) -> Value: ...
    def optional(self, name: str, kind: type[Value], default: Value | None = None) -> Value | None:
        return self.checkpoint.metadata.optional(self.key(name), kind, default)

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A size of tensors, at least 1: none is beyond their largest dimension. It must be there, or has a default."""
        self.note_size(name)
        value = self.count(name, default, least=least)
        return self._within_tensors(name, value)

    def optional_size(self, name: str) -> int:
        """A size of tensors that is 0 where there are none, or where the file does not say."""
        return self.size(name, 0, least=0)

    def count(self, name: str, default: int | None = 0, *, least: int = 0) -> int:
        """A number that has a default where the file does not say, 0 if nothing else; None: it must be there."""
        value = self.required(name, int) if default is None else self.optional(name, int, default)
        if value < least:
            raise self.refuse_key(name, f"is {value}, expected at least {least}")
        if value > _LARGEST_COUNT:
            raise self.refuse_key(name, f"is {value}, expected at most {_LARGEST_COUNT}")
        return value

    def factor(self, name: str, default: float | None) -> float:
        """A number above 0, for which 0 means that the file does not say; without a default it must be there."""
        value = self.required(name, float) if default is None else self.optional(name, float, 0.0)
        if value < 0:
            raise self.refuse_key(name, f"is {value}, expected more than 0")
        return value or (1.0 if default is None else default)

    def positive(self, name: str, default: float) -> float:
        """A number above 0."""
        value = self.optional(name, float, default)
        if value <= 0:
            raise self.refuse_key(name, f"is {value}, expected more than 0")
        return value

    def cap(self, name: str, default: float) -> float:
        """A bound of scores or logits; 0 for none."""
        value = self.optional(name, float, default)
        if value < 0:
            raise self.refuse_key(name, f"is {value}, expected more than 0, or 0 for no cap")
        return value

    def note_size(self, name: str) -> None:
        """Have a key, if it is missing, named where a tensor does not fit what was taken instead."""
        if self.key(name) not in self.checkpoint.metadata:
            self._missing_sizes[name] = None

    def remark(self) -> str:
        """What to say behind the refusal of a tensor: the keys of sizes that the file has not."""
        keys = [f"'{self.key(name)}'" for name in self._missing_sizes]
        if not keys:
            return ""
        return f" (key {keys[0]} is missing)" if len(keys) == 1 else f" (keys {', '.join(keys)} are missing)"

    def _within_tensors(self, name: str, value: int, parts: int = 1) -> int:
        """Refuse what is more than so many times the largest dimension of the file's tensors."""
        if value > self._largest_dimension * parts:
            message = f"is {value}, but no dimension of a tensor is more than {self._largest_dimension}"
            raise self.refuse_key(name, message)
        return value

    @cached_property
    def _largest_dimension(self) -> int:
        return max((max(tensor.shape) for tensor in self.checkpoint.tensors.values()), default=0)

    def per_layer(self, name: str, kind: type[Value], default: Value | None = None) -> tuple[Value, ...]:
        """One value a layer, of a key with one value for all or an array, which also has those of unused layers."""
        values = self.checkpoint.metadata.per_layer(self.key(name), kind, self._layers_in_file, default)
        return values[: self.layers]

    @cached_property
    def layers(self) -> int:
        """Layers of the step; those that predict further tokens come after them in the file, and are not used."""
        layers = self._layers_in_file - self.count("nextn_predict_layers")
        if layers < 1:
            raise self.refuse_key("nextn_predict_layers", "leaves no layer")
        return layers

    @cached_property
    def _layers_in_file(self) -> int:
        layers = self.count("block_count", None, least=1)
        # A layer has a tensor at least: nothing is made for those that a damaged file only claims.
        if layers > len(self.checkpoint.tensors):
            raise self.refuse_key("block_count", f"is {layers}, more than the file has tensors")
        return layers

    @cached_property
    def dense_layers(self) -> int:
        """The leading layers of a model of mixtures that have plain feed-forward networks."""
        name = "leading_dense_block_count"
        self.note_size(name)
        layers = self.count(name)
        if layers > self._layers_in_file:
            raise self.refuse_key(name, f"is {layers}, more than the {self._layers_in_file} layers")
        return layers

    @cached_property
    def width(self) -> int:
        """Columns of the residual."""
        return self.size("embedding_length")

    @cached_property
    def vocabulary(self) -> int:
        """Tokens of the vocabulary: rows of the embedding table, on which the tokenizer must agree."""
        rows = self.checkpoint.tensor("token_embd.weight").shape[0]
        texts = "tokenizer.ggml.tokens"
        said = {self.key("vocab_size"): self.count("vocab_size"), texts: self.checkpoint.metadata.length(texts)}
        for key, tokens in said.items():
            if tokens and tokens != rows:
                message = f"has {rows} rows for a vocabulary of {tokens} tokens (key '{key}')"
                raise self.refuse(f"tensor 'token_embd.weight' {message}")
        return rows

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Query heads of each layer; 0 where it has no attention."""
        return self._head_counts("attention.head_count")

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """Key and value heads of each layer, which divide its query heads."""
        name = "attention.head_count_kv"
        self.note_size(name)
        if self.key(name) not in self.checkpoint.metadata:
            return self.heads
        counts = self._head_counts(name)
        for layer, (heads, kv_heads) in enumerate(zip(self.heads, counts, strict=True)):
            if kv_heads and heads % kv_heads:
                raise self.refuse_key(name, f"is {kv_heads} in layer {layer}, which does not divide its {heads} heads")
        return counts

    def _head_counts(self, name: str) -> tuple[int, ...]:
        counts = self.per_layer(name, int)
        if min(counts) < 0 or max(counts) == 0:
            raise self.refuse_key(name, f"is {min(counts)}, expected at least 1")
        self._within_tensors(name, max(counts))
        return counts

    @cached_property
    def key_width(self) -> int:
        """Columns of a query and of a key head."""
        return self.size("attention.key_length", self._default_head_width)

    @cached_property
    def value_width(self) -> int:
        """Columns of a value head."""
        return self.size("attention.value_length", self._default_head_width)

    @cached_property
    def _default_head_width(self) -> int:
        heads = max(self.heads)
        if self.key("attention.key_length") not in self.checkpoint.metadata and self.width % heads:
            raise self.refuse_key("attention.head_count", f"is {heads}, which does not divide the width {self.width}")
        return self.width // heads

    @cached_property
    def rms_epsilon(self) -> float:
        return self._epsilon("attention.layer_norm_rms_epsilon")

    @cached_property
    def layer_norm_epsilon(self) -> float:
        return self._epsilon("attention.layer_norm_epsilon")

    def _epsilon(self, name: str) -> float:
        value = self.required(name, float)
        if value <= 0:
            raise self.refuse_key(name, f"is {value}, expected more than 0")
        return value

    @cached_property
    def feed_forward(self) -> tuple[int, ...]:
        """Hidden columns of each layer's feed-forward network."""
        name = "feed_forward_length"
        widths = self.per_layer(name, int)
        if min(widths) < 1:
            raise self.refuse_key(name, f"is {min(widths)}, expected at least 1")
        # Of mixtures it may be what the experts that a row uses have together.
        self._within_tensors(name, max(widths), self.experts[1] if self.has_experts else 1)
        return widths

    @cached_property
    def has_experts(self) -> bool:
        """Whether feed-forward networks are mixtures: where the architecture is named for them, or a tensor is."""
        is_named = self.architecture.endswith("moe") or any("_exps." in name for name in self.checkpoint.tensors)
        return (self.size("expert_count") if is_named else self.count("expert_count")) > 0

    @cached_property
    def experts(self) -> tuple[int, int]:
        """The experts of a mixture, and how many of them a row uses."""
        experts, used = self.size("expert_count"), self.size("expert_used_count")
        if used > experts:
            raise self.refuse_key("expert_used_count", f"is {used}, more than the {experts} experts")
        return experts, used

    @cached_property
    def attention_scale(self) -> float:
        """The factor of attention's logits: `attention.scale`, or one over the root of a head's width."""
        return self.factor("attention.scale", self.key_width**-0.5)

    def ignore(self, *names: str) -> None:
        """Count keys as understood that have no effect in this family."""
        self.checkpoint.metadata.ignore(*map(self.key, names))

    def refuse_unknown(self) -> None:
        """
        Refuse what nothing has asked for: a key of the architecture with a value that is not a neutral one, or a
        tensor. Either would mean that the model computes something that the step does not.
        """
        metadata, prefix = self.checkpoint.metadata, self.key("")
        for key in metadata.unread(prefix):
            if not self._is_without_effect(key.removeprefix(prefix)):
                found = _shown(metadata.value(key))
                raise self.refuse(f"key {shown(key)} = {found} is not understood for this architecture")
        for name in self.checkpoint.unused_tensors():
            if not self._is_of_unused_layer(name):
                message = f"tensor {shown(name)} is not understood for architecture '{self.architecture}'"
                raise self.refuse(message + self.remark())

    def _is_without_effect(self, name: str) -> bool:
        if name in _WITHOUT_EFFECT:
            return True
        metadata = self.checkpoint.metadata
        value = metadata.value(self.key(name))
        if _is_neutral(value) or (name in _DEFAULTS and _is_close(value, _DEFAULTS[name])):
            return True
        elsewhere = self.key(_AS_ELSEWHERE.get(name, ""))
        return elsewhere in metadata and value == metadata.value(elsewhere)

    def _is_of_unused_layer(self, tensor: str) -> bool:
        _, _, rest = tensor.partition("blk.")
        number = rest.partition(".")[0]
        return number.isdecimal() and self.layers <= int(number) < self.required("block_count", int)


def _is_neutral(value: object) -> bool:
    """
    Whether a value says "none": 0, false, an empty string, the integer -1 (also as unsigned), or an array of nothing
    else.
    """
    if isinstance(value, list):
        return all(map(_is_neutral, cast("list[object]", value)))
    return value in (0, "") or (isinstance(value, int) and value in (-1, 2**32 - 1))


def _is_close(value: object, default: object) -> bool:
    """Whether a value is a default, of which a file may hold the nearest f32."""
    if isinstance(value, float) and isinstance(default, float):
        return isclose(value, default, rel_tol=1e-6)
    return value == default


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
