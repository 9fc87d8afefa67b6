"""
Forms of architectures of which there is no tiny model: a tiny model with other metadata, which the reference engine has
evaluated too, or one that computes what another does when its weights are made so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects.tg import AttentionOp, HeadMatmulOp, MoeOp, RopeOp, RopeTableOp, Scoring
from lane_mlir.eval.step import the_step
from lane_mlir.importers import import_step
from lane_mlir.importers.deepseek2 import default_scoring

MODELS = Path(__file__).parent.parent / "data" / "models"

Tensors = dict[str, NDArray[Any]]

# As in test_values.py.
TOLERANCE = 1e-4


def values(path: Path, suffix: str) -> Mapping[str, NDArray[Any]]:
    """The values of the tensors whose names end so."""
    return {n: t.values() for n, t in Checkpoint.open(path).tensors.items() if n.endswith(suffix)}


def check(run: Callable[..., Any], path: Path, expected: tuple[list[int], NDArray[Any]]) -> None:
    tokens, want = expected
    got = run(path, tokens, 7)
    assert (np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max() < TOLERANCE


def step_of(path: Path, rows: int = 1, context: int | None = None) -> FuncOp:
    return the_step(import_step(Checkpoint.open(path), rows=rows, context=context))


YARN: Mapping[str, object] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LONG_ROPE: Mapping[str, object] = {
    "rope.scaling.type": "longrope",
    "rope.scaling.attn_factor": 1.1875,
    "rope.scaling.original_context_length": 64,
}
FACTORS: Mapping[str, NDArray[Any]] = {
    "rope_factors_long.weight": np.linspace(1, 6, 32, dtype=np.float32),
    "rope_factors_short.weight": np.linspace(1, 2, 32, dtype=np.float32),
}
WINDOWS = ("attention.sliding_window", "attention.sliding_window_pattern")
SHARED = [f"blk.{layer}.ffn_{part}_shexp.weight" for layer in range(2) for part in ("gate", "up", "down")]


@dataclass(frozen=True)
class Variant:
    """A tiny model with keys (less their prefix) and tensors added, replaced or left out."""

    model: str
    keys: Mapping[str, object] = field(default_factory=dict[str, object])
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    without_keys: Sequence[str] = ()
    without_tensors: Sequence[str] = ()


VARIANTS: Mapping[str, Variant] = {
    "deepseek2 with YaRN": Variant("deepseek2-moe-Q4_K_M", YARN),
    "deepseek2 with YaRN and its multiplier": Variant(
        "deepseek2-moe-Q4_K_M", {**YARN, "rope.scaling.yarn_log_multiplier": 0.0707}
    ),
    "deepseek2 with groups of experts": Variant(
        "deepseek2-moe-Q4_K_M", {"expert_group_count": 4, "expert_group_used_count": 1}
    ),
    "exaone4 without windows": Variant("exaone4-Q8_0", without_keys=WINDOWS),
    "granite with long rope": Variant("granite-Q4_0", LONG_ROPE, FACTORS),
    "granite without rotation": Variant("granite-Q4_0", {"rope.scaling.finetuned": False}),
    "granitemoe without a shared expert": Variant(
        "granitemoe-moe-Q8_0", without_keys=["expert_shared_feed_forward_length"], without_tensors=SHARED
    ),
    "llama with YaRN and divisors": Variant(
        "llama-Q4_K_M", YARN, {"rope_freqs.weight": np.linspace(1, 6, 32, dtype=np.float32)}
    ),
    "olmo3": Variant("olmo2-Q6_K", {**YARN, **dict(zip(WINDOWS, (16, [True, False]), strict=True))}),
    "phi3 with long rope": Variant("phi3-Q4_1", LONG_ROPE, FACTORS),
    "phi4": Variant("phi3-Q4_1", {"attention.sliding_window": 0}),
    "qwen3 with YaRN": Variant("qwen3-Q8_0", YARN),
    "qwen3next with layers by name": Variant("qwen3next-moe-Q4_K_M", {"attention.recurrent_layers": [True, False]}),
}
"""Those of which `variants.npz` has the logits after the last of the model's `tokens`."""


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_reference(name: str, edited: Callable[..., Path], logits: Any, reference: Any) -> None:
    variant = VARIANTS[name]
    architecture = Checkpoint.open(MODELS / f"{variant.model}.gguf").architecture
    path = edited(
        variant.model,
        {f"{architecture}.{key}": value for key, value in variant.keys.items()},
        tensors=variant.tensors,
        without_keys=[f"{architecture}.{key}" for key in variant.without_keys],
        without_tensors=variant.without_tensors,
    )
    tokens, plain = reference(variant.model)
    want = np.load(MODELS.parent / "variants.npz")[name]
    got = logits(path, tokens, 8)[-1]
    assert np.linalg.norm(got - want) < TOLERANCE * np.linalg.norm(want)
    # The key is read: without it the model is another one.
    same = name in ("phi4", "qwen3next with layers by name")
    assert same == (np.linalg.norm(plain[-1] - want) < TOLERANCE * np.linalg.norm(want))


@pytest.mark.parametrize(
    ("name", "architecture", "rotated"), [("qwen3-Q8_0", "exaone4", [False]), ("olmo2-Q6_K", "olmo2", None)]
)
def test_windows_on_all_but_each_fourth_layer(
    edited: Callable[..., Path], name: str, architecture: str, rotated: list[bool] | None
) -> None:
    """EXAONE 4 rotates only within windows; OLMo 3 everywhere, unstretched within them."""
    keys: dict[str, object] = {
        f"{architecture}.attention.sliding_window": 16,
        f"{architecture}.attention.sliding_window_pattern": [1, 0],
        f"{architecture}.rope.scaling.type": "yarn",
        f"{architecture}.rope.scaling.factor": 4.0,
    }
    norms = {
        f"blk.{layer}.{norm}.weight": np.ones(256, np.float32)
        for layer in range(2)
        for norm in ("post_attention_norm", "post_ffw_norm")
    }
    old = [f"blk.{layer}.{norm}.weight" for layer in range(2) for norm in ("attn_norm", "ffn_norm")]
    step = step_of(edited(name, keys, tensors=norms, without_tensors=old, architecture=architecture))
    ops = list(step.body.block.ops)
    windows = [op.window for op in ops if isinstance(op, AttentionOp)]
    assert [None if window is None else window.value.data for window in windows] == [16, None]
    scales = [op.freq_scale.value.data for op in ops if isinstance(op, RopeTableOp)]
    tables = [op.cos for op in ops if isinstance(op, RopeOp)]
    if rotated is None:
        assert scales == [0.25, 1.0]
        assert len(tables) == 4
        assert tables[0] == tables[1] != tables[2] == tables[3]
    else:
        assert scales == [0.25]
        assert len(tables) == 2


def test_a_window_that_the_context_never_leaves_is_none(model: Callable[..., Path]) -> None:
    for context, expected in ((16, 0), (17, 1)):
        step = step_of(model("gemma2-Q5_K_M"), context=context)
        windows = [op.window for op in step.body.block.ops if isinstance(op, AttentionOp)]
        assert sum(window is not None for window in windows) == expected


@pytest.mark.parametrize(("context", "used"), [(64, "short"), (65, "long")])
def test_long_rope(edited: Callable[..., Path], context: int, used: str) -> None:
    keys = {
        "phi3.rope.scaling.type": "longrope",
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.rope.scaling.attn_factor": 1.25,
    }
    factors = {f"rope_factors_{kind}.weight": np.ones(32, np.float32) for kind in ("long", "short")}
    step = step_of(edited("phi3-Q4_1", keys, tensors=factors), context=context)
    (table,) = (op for op in step.body.block.ops if isinstance(op, RopeTableOp))
    assert table.attn_factor.value.data == 1.25
    assert table.factors is not None
    assert table.factors.name_hint == f"rope_factors_{used}.weight"


DEEPSEEK = "deepseek2-moe-Q4_K_M"


def test_latent_attention_expands_where_that_is_less_work(model: Callable[..., Path], logits: Any) -> None:
    # 4 heads, 256 latent columns, 64 of a key, 32 rotated, 64 of a value: 544 a row absorbed, 32768 + 160 a row expanded.
    forms = [
        sum(
            op.transposed is not None
            for op in step_of(model(DEEPSEEK), rows, 128).body.block.ops
            if isinstance(op, HeadMatmulOp)
        )
        for rows in (1, 85, 86)
    ]
    assert forms == [0, 0, 2]
    tokens = np.random.default_rng(7).integers(0, 128, 90).tolist()
    want = logits(model(DEEPSEEK), tokens, 30, 128)
    got = logits(model(DEEPSEEK), tokens, 90, 128)
    assert (np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max() < TOLERANCE


@pytest.mark.parametrize(
    ("layers", "vocabulary", "scoring"),
    [
        (27, 102_400, Scoring.SOFTMAX),
        (47, 154_880, Scoring.SIGMOID),
        (48, 154_880, Scoring.SIGMOID),
        (46, 154_880, Scoring.SOFTMAX),
        (48, 128_256, Scoring.SOFTMAX),
    ],
)
def test_scoring_that_a_deepseek2_file_leaves_out(
    edited: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    layers: int,
    vocabulary: int,
    scoring: Scoring,
):
    assert default_scoring(layers, vocabulary) is scoring
    path = edited(DEEPSEEK, without_keys=["deepseek2.expert_gating_func"])

    def of_sizes(*sizes: int) -> Scoring:
        return scoring

    monkeypatch.setattr("lane_mlir.importers.deepseek2.default_scoring", of_sizes)
    (moe,) = (op for op in step_of(path).body.block.ops if isinstance(op, MoeOp))
    assert moe.scoring.data is scoring


def test_latent_attention_with_one_weight_for_keys_and_values(
    edited: Callable[..., Path], model: Callable[..., Path], logits: Any, reference: Any
) -> None:
    """The older form: its weight has the keys' and the values' rows of each head, the keys' not transposed."""
    tensors: Tensors = {}
    for layer in range(2):
        (k_b,) = values(model(DEEPSEEK), f"blk.{layer}.attn_k_b.weight").values()
        (v_b,) = values(model(DEEPSEEK), f"blk.{layer}.attn_v_b.weight").values()
        tensors[f"blk.{layer}.attn_kv_b.weight"] = np.concatenate([k_b.transpose(0, 2, 1), v_b], 1).reshape(-1, 256)
    keys = {
        "deepseek2.attention.key_length": 96,
        "deepseek2.attention.value_length": 64,
        "deepseek2.attention.head_count_kv": 4,
    }
    path = edited(
        DEEPSEEK,
        keys,
        without_keys=[f"deepseek2.attention.{side}_length_mla" for side in ("key", "value")],
        tensors=tensors,
        without_tensors=[f"blk.{layer}.attn_{side}_b.weight" for layer in range(2) for side in "kv"],
    )
    check(logits, path, reference(DEEPSEEK))


def test_latent_attention_without_low_rank_queries(edited: Callable[..., Path], logits: Any) -> None:
    """Low-rank queries of full rank: the norm between is undone where its input is the unit rows of the first norm."""
    rng = np.random.default_rng(11)
    tensors: Tensors = {}
    low_rank: Tensors = {}
    for layer in range(2):
        weight = rng.standard_normal((384, 256)).astype(np.float32) / 16
        tensors[f"blk.{layer}.attn_q.weight"] = weight
        low_rank[f"blk.{layer}.attn_q_a.weight"] = np.eye(256, dtype=np.float32)
        low_rank[f"blk.{layer}.attn_q_a_norm.weight"] = np.ones(256, np.float32)
        low_rank[f"blk.{layer}.attn_q_b.weight"] = weight
        # Rows of this norm have a mean square of 1, so that a second one leaves them as they are.
        for each in (tensors, low_rank):
            each[f"blk.{layer}.attn_norm.weight"] = np.ones(256, np.float32)
    tokens = list(range(20))
    with_rank = edited(DEEPSEEK, {"deepseek2.attention.q_lora_rank": 256}, tensors=low_rank)
    want = logits(with_rank, tokens, 7)
    without = [f"blk.{layer}.{name}.weight" for layer in range(2) for name in ("attn_q_a", "attn_q_a_norm", "attn_q_b")]
    path = edited(DEEPSEEK, without_keys=["deepseek2.attention.q_lora_rank"], tensors=tensors, without_tensors=without)
    check(logits, path, (tokens, want))


@pytest.mark.parametrize(
    ("multiplier", "scale"),
    [(0.0, 1 + 0.1 * np.log(4)), (0.1, 1 + 0.1 * np.log(4)), (0.05, 1 + 0.05 * np.log(4))],
)
def test_yarn_of_latent_attention(edited: Callable[..., Path], multiplier: float, scale: float) -> None:
    """Its magnitude scales the logits; cosines and sines keep 1 where the file gives a multiplier."""
    keys = {
        "deepseek2.rope.scaling.type": "yarn",
        "deepseek2.rope.scaling.factor": 4.0,
        "deepseek2.rope.scaling.yarn_log_multiplier": multiplier,
    }
    step = step_of(edited(DEEPSEEK, keys))
    attention = next(op for op in step.body.block.ops if isinstance(op, AttentionOp))
    table = next(op for op in step.body.block.ops if isinstance(op, RopeTableOp))
    assert attention.scale.value.data == pytest.approx(scale**2 * 96**-0.5)
    applied = table.attn_factor.value.data * (1 + 0.1 * np.log(4))
    assert applied == pytest.approx(1.0 if multiplier else 1 + 0.1 * np.log(4))


def test_layers_that_predict_further_tokens_are_left_out(
    edited: Callable[..., Path], logits: Any, reference: Any
) -> None:
    keys = {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    path = edited("glm4moe-moe-Q4_K_M", keys, tensors={"blk.2.nextn.enorm.weight": np.ones(256, np.float32)})
    check(logits, path, reference("glm4moe-moe-Q4_K_M"))
