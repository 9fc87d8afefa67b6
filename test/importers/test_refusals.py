"""What an importer refuses, in one line that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError
from lane_mlir.importers import import_step

LLAMA = "llama-Q4_K_M"


def refusal(source: Path | Checkpoint, **options: Any) -> str:
    with pytest.raises(LaneError) as refused:
        import_step(source if isinstance(source, Checkpoint) else Checkpoint.open(source), **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows is 0, expected at least 1"),
        ({"rows": 9, "context": 8}, "a step of 9 rows does not fit a context of 8 positions"),
        ({"context": 0}, "context is 0, expected at least 1"),
        ({"context": -1}, "context is -1, expected at least 1"),
        ({"context": 10**9}, "a context of 1000000000 positions takes 1907.3 GiB of state, more than the 140 GiB"),
        ({"sequences": 0}, "sequences is 0, expected 1 to 16"),
        ({"sequences": 17}, "sequences is 17, expected 1 to 16"),
        ({"sequences": 2, "rows": 2}, "a step of 2 sequences takes one token of each, not 2 rows"),
    ],
)
def test_sizes_of_the_step(model: Callable[[str], Path], options: dict[str, int], message: str) -> None:
    assert message in refusal(model(LLAMA), **options)


def test_an_unknown_architecture(edited: Callable[..., Path]) -> None:
    path = edited(LLAMA, {"general.architecture": "lama"})
    assert refusal(path).startswith(f"{path}: unknown architecture 'lama'; did you mean 'llama'? valid: deepseek2, ")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 0, "key 'llama.block_count' is 0, expected at least 1"),
        ("block_count", 3, "tensor 'blk.2.attn_norm.weight' is missing"),
        ("block_count", 2**31 - 1, "key 'llama.block_count' is 2147483647, more than the file has tensors"),
        ("attention.head_count", 0, "key 'llama.attention.head_count' is 0, expected at least 1"),
        ("attention.head_count", [4, 0], "key 'llama.attention.head_count' is 0 and head_count_kv 2 in layer 1"),
        ("attention.head_count_kv", 3, "key 'llama.attention.head_count_kv' is 3 in layer 0"),
        ("attention.head_count_kv", [2, 2, 2], "'llama.attention.head_count_kv' has 3 values"),
        ("attention.causal", False, "key 'llama.attention.causal' is false"),
        ("attention.layer_norm_rms_epsilon", 0.0, "key 'llama.attention.layer_norm_rms_epsilon' is 0.0"),
        ("attention.layer_norm_rms_epsilon", 1, "key 'llama.attention.layer_norm_rms_epsilon' is int32"),
        ("rope.dimension_count", 65, "key 'llama.rope.dimension_count' is 65, expected even and at most 64"),
        ("rope.dimension_count", 66, "key 'llama.rope.dimension_count' is 66, expected even and at most 64"),
        ("rope.freq_base", -1.0, "key 'llama.rope.freq_base' is -1.0, expected more than 0"),
        ("rope.scaling.type", "spiral", "key 'llama.rope.scaling.type' is 'spiral', expected one of none, linear"),
        ("rope.scaling.factor", -2.0, "key 'llama.rope.scaling.factor' is -2.0, expected more than 0"),
        ("logit_scale", 0.5, "key 'llama.logit_scale' = 0.5 is not understood"),
        ("attention.sliding_window", 16, "key 'llama.attention.sliding_window' = 16 is not understood"),
        ("attention.alibi_slopes", [0.0, 0.5], "key 'llama.attention.alibi_slopes' = [0.0, 0.5] is not understood"),
        ("expert_count", 8, "key 'llama.expert_used_count' is missing"),
        ("vocab_size", 127, "'token_embd.weight' has 128 rows for a vocabulary of 127 tokens (key 'llama.vocab_size')"),
        ("feed_forward_length", 256, "tensor 'blk.0.ffn_gate.weight' is 384 x 256, expected 256 x 256"),
    ],
)
def test_values_of_keys(edited: Callable[..., Path], key: str, value: object, message: str) -> None:
    assert message in refusal(edited(LLAMA, {f"llama.{key}": value}))


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key(edited: Callable[..., Path], key: str) -> None:
    assert f"key 'llama.{key}' is missing" in refusal(edited(LLAMA, without_keys=[f"llama.{key}"]))


@pytest.mark.parametrize(
    "tensor", ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_down.weight"]
)
def test_a_missing_tensor(edited: Callable[..., Path], tensor: str) -> None:
    assert f"tensor '{tensor}' is missing" in refusal(edited(LLAMA, without_tensors=[tensor]))


def test_a_misshapen_tensor(edited: Callable[..., Path]) -> None:
    path = edited(LLAMA, tensors={"blk.1.attn_v.weight": np.zeros((64, 256), np.float32)})
    assert "tensor 'blk.1.attn_v.weight' is 64 x 256, expected 128 x 256" in refusal(path)


def test_a_norm_that_is_not_f32(edited: Callable[..., Path]) -> None:
    path = edited(LLAMA, tensors={"output_norm.weight": np.ones(256, np.float16)})
    assert "tensor 'output_norm.weight' is stored as f16, expected f32" in refusal(path)


def test_a_tensor_that_nothing_reads(edited: Callable[..., Path]) -> None:
    path = edited(LLAMA, tensors={"blk.0.attn_q_norm.weight": np.ones(64, np.float32)})
    message = refusal(path)
    assert "tensor 'blk.0.attn_q_norm.weight' is not understood for architecture 'llama'" in message


def test_names_cannot_break_the_line(edited: Callable[..., Path]) -> None:
    assert r"key 'llama.a\nb' = 1 is not understood" in refusal(edited(LLAMA, {"llama.a\nb": 1}))
    path = edited(LLAMA, tensors={"a\x1b[31mb": np.ones(64, np.float32)})
    assert r"tensor 'a\x1b[31mb' is not understood" in refusal(path)


def test_a_bias_that_only_one_layer_has(edited: Callable[..., Path]) -> None:
    path = edited(LLAMA, tensors={"blk.1.attn_q.bias": np.ones(256, np.float32)})
    assert "tensor 'blk.0.attn_q.bias' is missing, though there is 'blk.1.attn_q.bias'" in refusal(path)


def test_values_of_unused_layers_stand_in_arrays(edited: Callable[..., Path]) -> None:
    keys = {"block_count": 3, "nextn_predict_layers": 1, "attention.head_count": [4, 4, 8]}
    path = edited(LLAMA, {f"llama.{key}": value for key, value in keys.items()})
    import_step(Checkpoint.open(path)).verify()


def test_neutral_values_say_nothing(edited: Callable[..., Path]) -> None:
    neutral = {"logit_scale": 0.0, "attention.sliding_window": 0, "swin_norm": False, "expert_count": 0, "x": [-1, 0]}
    path = edited(LLAMA, {f"llama.{key}": value for key, value in neutral.items()})
    import_step(Checkpoint.open(path)).verify()


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("deepseek2-moe-Q4_K_M", "expert_gating_func", 7, "is 7, expected 1 (softmax), 2 (sigmoid) or 3"),
        ("gpt-oss-moe-Q4_K_M", "expert_weights_norm", True, "is true, but mixtures of this architecture do not renorm"),
        ("qwen3moe-moe-Q4_K_M", "expert_gating_func", 2, "is 2, but mixtures of this architecture score by softmax"),
        ("deepseek2-moe-Q4_K_M", "leading_dense_block_count", 3, "is 3, more than the 2 layers"),
        ("gemma2-Q5_K_M", "attn_logit_softcapping", -1.0, "is -1.0, expected more than 0, or 0 for no cap"),
        ("llama-Q4_K_M", "embedding_scale", -1.0, "= -1.0 is not understood"),
        ("deepseek2-moe-Q4_K_M", "attention.key_length_mla", 32, "is 32, of which 32 are rotated"),
        ("gemma3-Q4_K_M", "attention.sliding_window", -1, "is -1, expected at least 1"),
        ("gpt-oss-moe-Q4_K_M", "attention.sliding_window_pattern", [1], "has 1 values, expected 0 or 1 for each"),
        ("gpt-oss-moe-Q4_K_M", "attention.sliding_window_pattern", [1, 2], "has 2 values, expected 0 or 1 for each"),
        ("gpt-oss-moe-Q4_K_M", "rope.scaling.original_context_length", "many", "is string, expected an integer"),
        ("qwen3next-moe-Q4_K_M", "ssm.group_count", 3, "is 3, which does not divide 4 value heads"),
        ("qwen3next-moe-Q4_K_M", "ssm.inner_size", 128, "is 128, expected 4 value heads of 64 columns"),
        ("qwen3next-moe-Q4_K_M", "attention.recurrent_layers", [True], "has 1 values, expected one for each of 2"),
        ("qwen3next-moe-Q4_K_M", "attention.value_length", 32, "is 32, expected that of a key, 64"),
        (
            "qwen35moe-moe-Q4_K_M",
            "rope.dimension_sections",
            [2, 2, 2, 10],
            "is [2, 2, 2, 10], which leaves some of 16 pairs",
        ),
        ("glm4moe-moe-Q4_K_M", "nextn_predict_layers", 2, "leaves no layer"),
        ("qwen3-Q8_0", "attention.temperature_scale", 0.5, "= 0.5 is not understood"),
    ],
)
def test_values_of_keys_of_families(
    edited: Callable[..., Path], name: str, key: str, value: object, message: str
) -> None:
    architecture = name.removesuffix("-moe-Q4_K_M").partition("-Q")[0]
    found = refusal(edited(name, {f"{architecture}.{key}": value}))
    assert f"key '{architecture}.{key}' {message}" in found


@pytest.mark.parametrize(
    ("groups", "used", "message"),
    [
        (4, None, "key 'deepseek2.expert_group_used_count' is missing, expected an integer"),
        (4, 0, "key 'deepseek2.expert_group_used_count' is 0, expected at least 1"),
        (3, 3, "key 'deepseek2.expert_group_count' is 3 with 3 used: 2 of 8 experts cannot be chosen"),
        (2, 3, "key 'deepseek2.expert_group_count' is 2 with 3 used: 2 of 8 experts cannot be chosen"),
    ],
)
def test_groups_of_experts(edited: Callable[..., Path], groups: int, used: int | None, message: str) -> None:
    keys = {"deepseek2.expert_group_count": groups}
    if used is not None:
        keys["deepseek2.expert_group_used_count"] = used
    assert message in refusal(edited("deepseek2-moe-Q4_K_M", keys))


def test_what_a_mixture_does_anyway_may_be_said(edited: Callable[..., Path]) -> None:
    keys = {"qwen3moe.expert_weights_norm": True, "qwen3moe.expert_gating_func": 1}
    import_step(Checkpoint.open(edited("qwen3moe-moe-Q4_K_M", keys))).verify()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "yarn", "factor": 4.0, "freq_base": 1.0}, "rope.freq_base' is 1.0, expected more than 1 under YaRN"),
        ({"type": "yarn", "factor": 1e-30}, "rope.scaling.factor' is 1.0000000031710769e-30, too small for YaRN"),
        ({"attn_factor": -1.0}, "rope.scaling.attn_factor' is -1.0, expected more than 0"),
        ({"yarn_attn_factor": 0.0}, "rope.scaling.yarn_attn_factor' is 0.0, expected more than 0"),
        ({"type": "yarn", "yarn_beta_fast": 0.0}, "rope.scaling.yarn_beta_fast' is 0.0, expected more than 0"),
        ({"type": "yarn", "yarn_beta_slow": 99.0}, "rope.scaling.yarn_beta_slow' is 99.0, expected at most"),
        ({"type": "yarn", "original_context_length": -1}, "original_context_length' is -1, expected at least 0"),
    ],
)
def test_scaled_positions(edited: Callable[..., Path], keys: dict[str, object], message: str) -> None:
    names = {key: "rope.freq_base" if key == "freq_base" else f"rope.scaling.{key}" for key in keys}
    path = edited(LLAMA, {f"llama.{names[key]}": value for key, value in keys.items()})
    assert message in refusal(path)
