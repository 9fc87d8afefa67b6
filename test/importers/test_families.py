"""What each family refuses: damaged files of every architecture, one line that names the key or the tensor."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
from gguf import GGUFValueType

from lane_mlir.checkpoint import Checkpoint, Tensor
from lane_mlir.checkpoint.header import Entry
from lane_mlir.checkpoint.metadata import Metadata
from lane_mlir.diagnostics import LaneError
from lane_mlir.formats import Format
from lane_mlir.importers import import_step
from lane_mlir.importers.registry import ARCHITECTURES

MODELS = Path(__file__).parent.parent / "data" / "models"

_TYPES: dict[type, tuple[GGUFValueType, str]] = {
    bool: (GGUFValueType.BOOL, "<?"),
    int: (GGUFValueType.INT64, "<q"),
    float: (GGUFValueType.FLOAT64, "<d"),
}


def metadata_of(path: Path, values: Mapping[str, object]) -> Metadata:
    """Metadata with these values, as a file would hold them."""
    data, entries = bytearray(), dict[str, Entry]()
    for key, value in values.items():
        elements = cast("list[object]", value) if isinstance(value, list) else [value]
        kind = type(elements[0]) if elements else int
        entry_type, form = _TYPES.get(kind, (GGUFValueType.STRING, ""))
        entries[key] = Entry(entry_type, len(elements) if isinstance(value, list) else None, len(data))
        for element in elements:
            text = str(element).encode()
            data += struct.pack(form, element) if form else struct.pack("<Q", len(text)) + text
    return Metadata(str(path), memoryview(bytes(data)), entries)


def edited(
    checkpoint: Checkpoint,
    keys: Mapping[str, object] | None = None,
    *,
    without_keys: Collection[str] = (),
    tensors: Mapping[str, Tensor] | None = None,
    without_tensors: Collection[str] = (),
    architecture: str = "",
) -> Checkpoint:
    """The checkpoint with other keys (less their prefix) and tensors, or of another architecture; nothing is written."""
    old = checkpoint.architecture
    values = {key: checkpoint.metadata.value(key) for key in checkpoint.metadata if key != "general.architecture"}
    new = architecture or old
    values = {key.replace(f"{old}.", f"{new}.", 1): value for key, value in values.items()}
    values |= {"general.architecture": new} | {f"{new}.{key}": value for key, value in (keys or {}).items()}
    values = {key: value for key, value in values.items() if key.removeprefix(f"{new}.") not in without_keys}
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in without_tensors}
    all_tensors = MappingProxyType(kept | dict(tensors or {}))
    return Checkpoint(checkpoint.path, metadata_of(checkpoint.path, values), all_tensors, checkpoint.header)


def stored(name: str, *shape: int) -> dict[str, Tensor]:
    """A tensor of f32 of which nothing but the shape is read."""
    return {name: Tensor(name, shape, Format.F32, 0, np.empty((0, 0), np.uint8))}


def experts(layer: int, hidden: int, *, shared: bool = False, bias: bool = False) -> dict[str, Tensor]:
    """The tensors of a mixture of 8 experts over rows of 256 columns."""
    prefix = f"blk.{layer}.ffn_"
    tensors = stored(f"{prefix}gate_inp.weight", 8, 256) | stored(f"{prefix}down_exps.weight", 8, 256, hidden)
    for part in ("gate", "up"):
        tensors |= stored(f"{prefix}{part}_exps.weight", 8, hidden, 256)
    if shared:
        tensors |= stored(f"{prefix}gate_inp_shexp.weight", 256) | stored(f"{prefix}down_shexp.weight", 256, hidden)
        tensors |= stored(f"{prefix}gate_shexp.weight", hidden, 256) | stored(f"{prefix}up_shexp.weight", hidden, 256)
    if bias:
        tensors |= stored(f"blk.{layer}.exp_probs_b.bias", 8)
    return tensors


def dense(*layers: int, hidden: int = 384) -> dict[str, Tensor]:
    """The tensors of gated networks over rows of 256 columns."""
    tensors: dict[str, Tensor] = {}
    for layer in layers:
        for part, shape in (("gate", (hidden, 256)), ("up", (hidden, 256)), ("down", (256, hidden))):
            tensors |= stored(f"blk.{layer}.ffn_{part}.weight", *shape)
    return tensors


ROUTED = {"expert_count": 8, "expert_used_count": 2}


@cache
def tiny(name: str) -> Checkpoint:
    """A tiny model less its vocabulary, of which importers read nothing but the length, which is a key as well."""
    checkpoint = Checkpoint.open(MODELS / f"{name}.gguf")
    metadata = checkpoint.metadata
    values = {key: metadata.value(key) for key in metadata if not key.startswith("tokenizer.")}
    return Checkpoint(checkpoint.path, metadata_of(checkpoint.path, values), checkpoint.tensors, checkpoint.header)


def qwen2moe() -> Checkpoint:
    tensors = experts(0, 64, shared=True) | experts(1, 64, shared=True)
    keys = ROUTED | {"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 64}
    return edited(tiny("qwen2-Q8_0"), keys, tensors=tensors, without_tensors=[*dense(0, 1)], architecture="qwen2moe")


def granitemoe() -> Checkpoint:
    tensors = experts(0, 384) | experts(1, 384)
    base = tiny("granite-Q4_0")
    return edited(base, ROUTED, tensors=tensors, without_tensors=[*dense(0, 1)], architecture="granitemoe")


def lfm2moe() -> Checkpoint:
    keys = ROUTED | {"leading_dense_block_count": 1, "expert_feed_forward_length": 64, "expert_gating_func": 2}
    tensors = experts(1, 64, bias=True)
    return edited(tiny("lfm2-Q4_K_M"), keys, tensors=tensors, without_tensors=[*dense(1)], architecture="lfm2moe")


def qwen35() -> Checkpoint:
    base = tiny("qwen35moe-moe-Q4_K_M")
    mixture = [name for name in base.tensors if "exp" in name or "gate_inp" in name]
    without = [f"expert_{key}" for key in ("count", "used_count", "feed_forward_length", "shared_feed_forward_length")]
    return edited(base, without_keys=without, tensors=dense(0, 1), without_tensors=mixture, architecture="qwen35")


def exaone4() -> Checkpoint:
    layers = (0, 1)
    after = [f"blk.{layer}.post_{part}_norm.weight" for layer in layers for part in ("attention", "ffw")]
    before = [f"blk.{layer}.{part}_norm.weight" for layer in layers for part in ("attn", "ffn")]
    tensors = {name: stored(name, 256)[name] for name in after}
    keys = {"attention.sliding_window": 16, "attention.sliding_window_pattern": [1, 0]}
    return edited(tiny("qwen3-Q8_0"), keys, tensors=tensors, without_tensors=before, architecture="exaone4")


def gemma3() -> Checkpoint:
    """Two of its six layers, one with a window."""
    base = tiny("gemma3-Q4_K_M")
    others = [name for name in base.tensors if re.match(r"blk\.[2-5]\.", name)]
    keys = {"block_count": 2, "attention.sliding_window_pattern": [1, 0]}
    return edited(base, keys, without_tensors=others)


FAMILIES = {
    "deepseek2": "deepseek2-moe-Q4_K_M",
    "ernie4_5": "ernie4_5-F16",
    "exaone4": exaone4,
    "gemma2": "gemma2-Q5_K_M",
    "gemma3": gemma3,
    "glm4": "glm4-Q5_0",
    "glm4moe": "glm4moe-moe-Q4_K_M",
    "gpt-oss": "gpt-oss-moe-Q4_K_M",
    "granite": "granite-Q4_0",
    "granitemoe": granitemoe,
    "lfm2": "lfm2-Q4_K_M",
    "lfm2moe": lfm2moe,
    "llama": "llama-Q4_K_M",
    "llama, a mixture": "llama-moe-Q4_K_M",
    "olmo2": "olmo2-Q6_K",
    "phi3": "phi3-Q4_1",
    "qwen2": "qwen2-Q8_0",
    "qwen2moe": qwen2moe,
    "qwen3": "qwen3-Q8_0",
    "qwen3moe": "qwen3moe-moe-Q4_K_M",
    "qwen35": qwen35,
    "qwen35moe": "qwen35moe-moe-Q4_K_M",
    "qwen3next": "qwen3next-moe-Q4_K_M",
    "smollm3": "smollm3-Q4_0",
    "starcoder2": "starcoder2-Q8_0",
}


def family(name: str) -> Checkpoint:
    source = FAMILIES[name]
    return edited(tiny(source) if isinstance(source, str) else source())


ALL = pytest.mark.parametrize("name", FAMILIES)


def refusal(checkpoint: Checkpoint, **options: Any) -> str:
    with pytest.raises(LaneError) as refused:
        import_step(checkpoint, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def outcome(checkpoint: Checkpoint) -> str:
    """The text of the step, or of its refusal."""
    try:
        return str(import_step(checkpoint, context=64))
    except LaneError as refused:
        return str(refused)


def family_keys(checkpoint: Checkpoint) -> list[str]:
    prefix = f"{checkpoint.architecture}."
    return [key.removeprefix(prefix) for key in checkpoint.metadata if key.startswith(prefix)]


def test_every_architecture_is_here() -> None:
    assert {family(name).architecture for name in FAMILIES} == set(ARCHITECTURES)


@ALL
def test_it_is_imported_as_it_is(name: str) -> None:
    import_step(family(name), rows=2, context=64).verify()


# --- tensors ---


def one_of_each(checkpoint: Checkpoint) -> list[str]:
    """Tensors that belong to no layer, and of each that layers have, the one of the first."""
    roles: dict[str, str] = {}
    for tensor in checkpoint.tensors:
        roles.setdefault(re.sub(r"^blk\.\d+\.", "", tensor), tensor)
    return list(roles.values())


def is_plain(tensor: str) -> bool:
    """Norms, biases and the like are f32 in every file, and are read as such."""
    return "norm" in tensor or tensor.endswith((".bias", "attn_sinks.weight", "ssm_a"))


@ALL
def test_without_each_tensor(name: str) -> None:
    for tensor in one_of_each(family(name)):
        # Without these a model is another one, but still a model: the head tied, frequencies or choice as they are.
        if tensor not in ("output.weight", "rope_freqs.weight") and "exp_probs_b" not in tensor:
            assert f"'{tensor}'" in refusal(edited(family(name), without_tensors=[tensor]))


@ALL
def test_with_each_tensor_misshapen(name: str) -> None:
    """Rows twice as long, and a dimension more."""
    for tensor in one_of_each(family(name)):
        known = family(name).tensors[tensor]
        for shape in ((*known.shape[:-1], 2 * known.shape[-1]), (2, *known.shape)):
            message = refusal(edited(family(name), tensors={tensor: replace(known, shape=shape)}))
            assert f"tensor '{tensor}' is {' x '.join(map(str, shape))}, expected " in message or (
                tensor == "token_embd.weight" and f"has {shape[0]} rows for a vocabulary of 128 tokens" in message
            )


@ALL
def test_with_each_tensor_mistyped(name: str) -> None:
    tensors = family(name).tensors
    for tensor in filter(is_plain, one_of_each(family(name))):
        mistyped = edited(family(name), tensors={tensor: replace(tensors[tensor], format=Format.F16)})
        assert f"tensor '{tensor}' is stored as f16, expected f32" in refusal(mistyped)


@ALL
def test_with_a_tensor_that_nothing_reads(name: str) -> None:
    message = refusal(edited(family(name), tensors=stored("blk.1.attn_rel_b.weight", 4, 4)))
    assert "tensor 'blk.1.attn_rel_b.weight' is not understood for architecture" in message


# --- keys ---

EVERYWHERE = ("block_count", "embedding_length", "attention.head_count")
OF_DELTA_RULE = tuple(
    f"ssm.{key}" for key in ("inner_size", "conv_kernel", "state_size", "time_step_rank", "group_count")
)
OF_LATENTS = ("kv_lora_rank", "q_lora_rank", "key_length_mla", "value_length_mla")
OF_MIXTURE = ("expert_count", "expert_used_count")
OF_SHARED_EXPERTS = (*OF_MIXTURE, "expert_feed_forward_length", "expert_shared_count", "feed_forward_length")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "deepseek2": (*OF_SHARED_EXPERTS, "rope.dimension_count", *(f"attention.{key}" for key in OF_LATENTS)),
    "glm4moe": OF_SHARED_EXPERTS,
    "gpt-oss": (*OF_MIXTURE, "expert_feed_forward_length", "attention.sliding_window"),
    "granite": ("feed_forward_length", "logit_scale"),
    "granitemoe": (*OF_MIXTURE, "feed_forward_length", "logit_scale"),
    "lfm2": ("feed_forward_length", "shortconv.l_cache"),
    "lfm2moe": (*OF_MIXTURE, "feed_forward_length", "shortconv.l_cache"),
    "llama, a mixture": (*OF_MIXTURE, "feed_forward_length"),
    "qwen2moe": OF_MIXTURE,
    "qwen3moe": OF_MIXTURE,
    "qwen35": (*OF_DELTA_RULE, "feed_forward_length", "rope.dimension_sections"),
    "qwen35moe": (*OF_DELTA_RULE, *OF_MIXTURE, "rope.dimension_sections"),
    "qwen3next": (*OF_DELTA_RULE, *OF_MIXTURE, "expert_shared_feed_forward_length"),
}
"""The keys of each family that have no default; of dense ones, the width of the network."""


@ALL
def test_without_each_key(name: str) -> None:
    needed = {*EVERYWHERE, *NEEDED.get(name, ("feed_forward_length",))}
    needed.add("attention.layer_norm_epsilon" if name == "starcoder2" else "attention.layer_norm_rms_epsilon")
    checkpoint = family(name)
    outcomes = {key: outcome(edited(checkpoint, without_keys=[key])) for key in family_keys(checkpoint)}
    prefix = f"{checkpoint.path}: key '{checkpoint.architecture}."
    assert {key for key, said in outcomes.items() if said.startswith(f"{prefix}{key}' is missing")} == needed
    # A default that the tensors do not fit is named as well.
    refused = {key: said for key, said in outcomes.items() if not said.startswith("builtin.module")}
    assert [key for key, said in refused.items() if f"'{checkpoint.architecture}.{key}'" not in said] == []


@ALL
def test_with_each_key_mistyped(name: str) -> None:
    checkpoint = family(name)
    for key in set(family_keys(checkpoint)) - {"vocab_size"}:
        found = checkpoint.metadata.value(f"{checkpoint.architecture}.{key}")
        message = refusal(edited(checkpoint, {key: 1.5 if isinstance(found, str) else "many"}))
        assert f"key '{checkpoint.architecture}.{key}' is " in message


LENGTHS = ("attention.sliding_window", "full_attention_interval", "rope.scaling.original_context_length")
"""Keys of what may be longer than any model."""


@ALL
@pytest.mark.parametrize("value", [-7, 2**31, 2**62])
def test_with_each_number_absurd(name: str, value: int) -> None:
    checkpoint = family(name)
    unchanged = outcome(edited(checkpoint))
    for key in family_keys(checkpoint):
        if type(checkpoint.metadata.value(f"{checkpoint.architecture}.{key}")) is int:
            said = outcome(edited(checkpoint, {key: value}))
            is_length = key in LENGTHS and value == 2**31
            assert f"'{checkpoint.architecture}.{key}'" in said or is_length or said == unchanged, key


@ALL
@pytest.mark.parametrize("value", [-7.0, float("nan"), float("inf")])
def test_with_each_factor_absurd(name: str, value: float) -> None:
    checkpoint = family(name)
    for key in family_keys(checkpoint):
        if isinstance(checkpoint.metadata.value(f"{checkpoint.architecture}.{key}"), float):
            assert f"'{checkpoint.architecture}.{key}'" in refusal(edited(checkpoint, {key: value}))


# With one key head, which divides any number, or with none, or where a tensor has a value a head: it is tensors that
# do not fit.
BY_TENSOR = ("deepseek2", "gemma3", "gpt-oss")


def heads_of(name: str, count: int) -> int | list[int]:
    """A number of heads as the family has it: LFM 2 says it layer by layer, of which the second has none."""
    return [count, 0] if name.startswith("lfm2") else count


@ALL
def test_heads_that_do_not_divide(name: str) -> None:
    message = refusal(edited(family(name), {"attention.head_count": heads_of(name, 3)}))
    if name in BY_TENSOR:
        assert "tensor 'blk.0.attn_" in message
    else:
        assert "attention.head_count_kv' is 2 in layer 0, which does not divide its 3 heads" in message


@ALL
def test_no_heads(name: str) -> None:
    assert "attention.head_count' is 0, expected at least 1" in refusal(
        edited(family(name), {"attention.head_count": 0})
    )


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "deepseek2"])
@pytest.mark.parametrize("count", [0, 3, 8, -2])
def test_key_heads(name: str, count: int) -> None:
    message = refusal(edited(family(name), {"attention.head_count_kv": heads_of(name, count)}))
    if count > 0:
        assert f"attention.head_count_kv' is {count} in layer 0, which does not divide its 4 heads" in message
    else:
        assert f"attention.head_count_kv' is {count}, expected at least 1" in message


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "deepseek2"])
def test_heads_that_do_not_divide_the_width(name: str) -> None:
    keys = {f"attention.head_count{kind}": heads_of(name, 3) for kind in ("", "_kv")}
    without = ("attention.key_length", "attention.value_length")
    message = refusal(edited(family(name), keys, without_keys=without))
    assert "attention.head_count' is 3, which does not divide the width 256" in message


MIXTURES = [
    name for name in FAMILIES if "moe" in name or name in ("deepseek2", "gpt-oss", "llama, a mixture", "qwen3next")
]


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize(("used", "message"), [(9, "is 9, more than the 8 experts"), (0, "is 0, expected at least 1")])
def test_experts_used(name: str, used: int, message: str) -> None:
    assert f"expert_used_count' {message}" in refusal(edited(family(name), {"expert_used_count": used}))


@pytest.mark.parametrize("name", MIXTURES)
def test_groups_of_experts(name: str) -> None:
    keys = {"expert_group_count": 3, "expert_group_used_count": 1}
    message = refusal(edited(family(name), keys))
    assert "expert_group_count' is 3 with 1 used: 2 of 8 experts cannot be chosen from them" in message
    import_step(edited(family(name), {"expert_group_count": 1, "expert_group_used_count": 1})).verify()


def test_a_window_of_0_is_none_to_phi3() -> None:
    base = family("phi3")
    none = outcome(edited(base, without_keys=["attention.sliding_window"]))
    assert outcome(edited(base, {"attention.sliding_window": 0})) == none


@pytest.mark.parametrize(
    ("name", "window"),
    [
        *((name, window) for name in ("exaone4", "gemma2", "gemma3", "gpt-oss", "olmo2") for window in (0, -1)),
        ("phi3", -1),
    ],
)
def test_windows(name: str, window: int) -> None:
    message = refusal(edited(family(name), {"attention.sliding_window": window}))
    assert f"attention.sliding_window' is {window}, expected at least {0 if name == 'phi3' else 1}" in message


@ALL
def test_contexts(name: str) -> None:
    assert refusal(family(name), context=0) == "context is 0, expected at least 1"
    message = refusal(family(name), context=10**11)
    assert message.startswith("a context of 100000000000 positions takes ")
    assert message.endswith(" GiB of state, more than the 140 GiB of chip h200")


MEANINGFUL: tuple[Mapping[str, object], ...] = (
    {"activation.situ_beta": 0.5},
    {"attention.causal": False},
    {"attention.clamp_kqv": 6.0},
    {"attention.key_length_swa": 32},
    {"attention.layer_norm_epsilon": 0.5},
    {"attention.layer_norm_rms_epsilon": 0.5},
    {"attention.max_alibi_bias": 8.0},
    {"attention.output_scale": 0.5},
    {"attention.rope_pattern": 2},
    {"attention.scale": 0.25},
    {"attention.shared_kv_layers": 1},
    {"attention.sliding_window": 24},
    {"attention.temperature_scale": 0.5},
    {"attention.value_length_swa": 32},
    {"attention.value_scale": 0.5},
    {"attn_logit_softcapping": 40.0},
    {"deepstack_mapping": [0, 1]},
    {"embedding_scale": 2.5},
    {"expert_count": 16},
    {"expert_gating_func": 7},
    {"expert_group_count": 4, "expert_group_used_count": 2},
    {"expert_group_scale": 0.5},
    {"expert_shared_count": 2},
    {"expert_used_count": 1},
    {"expert_weights_scale": 2.5},
    {"final_logit_softcapping": 20.0},
    {"interleave_moe_layer_step": 2},
    {"leading_dense_block_count": 2},
    {"logit_scale": 0.5},
    {"moe_every_n_layers": 2},
    {"n_deepstack_layers": 1},
    {"residual_scale": 0.5},
    {"rope.dimension_count": 14},
    {"rope.dimension_count_swa": 8},
    {"rope.dimension_sections": [4, 4, 4, 4]},
    {"rope.freq_base": 12345.0},
    {"rope.freq_base_swa": 1234.0},
    {"rope.scaling.attn_factor": 1.5},
    {"rope.scaling.factor": 4.0, "rope.scaling.type": "linear"},
    {"rope.scaling.factor": 4.0, "rope.scaling.type": "yarn"},
    {"router_logit_softcapping": 20.0},
    {"swiglu_clamp_exp": [7.0, 7.0]},
    {"use_parallel_residual": True},
)
"""Keys that mean something in one family or another, with values that no family has by itself."""


@ALL
def test_nothing_is_silently_left_out(name: str) -> None:
    """Each of these changes the step, or is refused by name (or by a tensor that does not fit it)."""
    checkpoint = family(name)
    plain = outcome(edited(checkpoint))
    for keys in MEANINGFUL:
        found = outcome(edited(checkpoint, keys))
        assert found != plain, keys
        if not found.startswith("builtin.module"):
            prefix = f"{checkpoint.path}: key '{checkpoint.architecture}."
            named = (*(f"{prefix}{key}' " for key in keys), f"{prefix}expert_", f"{checkpoint.path}: tensor 'blk.")
            assert found.startswith(named), keys
            assert "\n" not in found


@ALL
def test_what_generic_writers_store_says_nothing(name: str) -> None:
    checkpoint = family(name)
    keys: dict[str, object] = {
        "attention.rope_pattern": 1,
        "deepstack_mapping": [-1] * 4,
        "expert_group_scale": float(np.float32(0.05)),
        "logit_softcapping": 0.0,
        "router_logit_softcapping": 30.0,
        "token_shift_count": 2,
    }
    keys["attention.key_length_swa"] = checkpoint.metadata.value(f"{checkpoint.architecture}.attention.key_length")
    assert str(import_step(edited(checkpoint, keys))) == str(import_step(edited(checkpoint)))
