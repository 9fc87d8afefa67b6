"""
Architectures and forms of which there is no tiny model: each computes what another one does, of which there is one, when
its weights are made so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

Tensors = dict[str, NDArray[Any]]

# As in test_values.py.
TOLERANCE = 1e-4


def values(path: Path, suffix: str) -> Mapping[str, NDArray[Any]]:
    """The values of the tensors whose names end so."""
    return {n: t.values() for n, t in Checkpoint.open(path).tensors.items() if n.endswith(suffix)}


def as_one_expert(path: Path, parts: tuple[str, ...] = ("gate", "up", "down")) -> Tensors:
    """The feed-forward networks of a dense model as mixtures of one expert."""
    tensors: Tensors = {}
    for part in parts:
        for name, weight in values(path, f"ffn_{part}.weight").items():
            tensors[name.replace(part, f"{part}_exps")] = weight[None]
            tensors[name.replace(f"ffn_{part}", "ffn_gate_inp")] = np.zeros((1, 256), np.float32)
    return tensors


def dense_names(path: Path) -> list[str]:
    return [name for part in ("gate", "up", "down") for name in values(path, f"ffn_{part}.weight")]


def check(run: Callable[..., Any], path: Path, expected: tuple[list[int], NDArray[Any]]) -> None:
    tokens, want = expected
    got = run(path, tokens, 7)
    assert (np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max() < TOLERANCE


def step_of(path: Path, rows: int = 1, context: int | None = None) -> FuncOp:
    return the_step(import_step(Checkpoint.open(path), rows=rows, context=context))


@pytest.fixture
def mixture_of_one(edited: Callable[..., Path], model: Callable[..., Path]) -> Callable[..., Path]:
    """A dense model as a mixture of one expert, of another architecture."""

    def edit(name: str, architecture: str, keys: Mapping[str, object], tensors: Tensors) -> Path:
        common = {"expert_count": 1, "expert_used_count": 1, **keys}
        return edited(
            name,
            {f"{architecture}.{key}": value for key, value in common.items()},
            tensors=tensors,
            without_tensors=dense_names(model(name)),
            architecture=architecture,
        )

    return edit


def test_granitemoe(
    model: Callable[..., Path], mixture_of_one: Callable[..., Path], logits: Any, reference: Any
) -> None:
    path = mixture_of_one("granite-Q4_0", "granitemoe", {}, as_one_expert(model("granite-Q4_0")))
    (mixture, _) = (op for op in step_of(path).body.block.ops if isinstance(op, MoeOp))
    assert mixture.scoring.data is Scoring.SOFTMAX
    check(logits, path, reference("granite-Q4_0"))


def test_granitemoe_with_a_shared_expert(
    model: Callable[..., Path], mixture_of_one: Callable[..., Path], logits: Any, reference: Any
) -> None:
    tensors = halved(as_one_expert(model("granite-Q4_0")))
    keys = {"expert_shared_feed_forward_length": 192, "feed_forward_length": 192}
    check(logits, mixture_of_one("granite-Q4_0", "granitemoe", keys, tensors), reference("granite-Q4_0"))


def halved(tensors: Tensors) -> Tensors:
    """The first half of the expert's hidden columns, and the second as the shared expert's."""
    halves = dict(tensors)
    for name, weight in tensors.items():
        if "_exps" in name:
            axis = 2 if "down" in name else 1
            first, second = np.split(weight, 2, axis=axis)
            halves[name] = first
            halves[name.replace("_exps", "_shexp")] = second[0]
    return halves


def test_qwen2moe(model: Callable[..., Path], mixture_of_one: Callable[..., Path], logits: Any, reference: Any) -> None:
    tensors = halved(as_one_expert(model("qwen2-Q8_0")))
    for layer in range(2):
        # The gate is open by half for every row.
        tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"] = np.zeros(256, np.float32)
        tensors[f"blk.{layer}.ffn_down_shexp.weight"] *= 2
    keys = {"expert_feed_forward_length": 192, "expert_shared_feed_forward_length": 192}
    path = mixture_of_one("qwen2-Q8_0", "qwen2moe", keys, tensors)
    (mixture, _) = (op for op in step_of(path).body.block.ops if isinstance(op, MoeOp))
    assert mixture.renormalize is None
    check(logits, path, reference("qwen2-Q8_0"))


def test_lfm2moe(model: Callable[..., Path], mixture_of_one: Callable[..., Path], logits: Any, reference: Any) -> None:
    name = "lfm2-Q4_K_M"
    tensors = as_one_expert(model(name))
    for weight, stored in values(model(name), ".weight").items():
        if weight.startswith("blk.0.ffn_") and weight in dense_names(model(name)):
            tensors[weight] = stored
    tensors = {n: w for n, w in tensors.items() if not (n.startswith("blk.0.") and ("exps" in n or "inp" in n))}
    keys = {"leading_dense_block_count": 1, "expert_feed_forward_length": 384, "expert_gating_func": 2}
    path = mixture_of_one(name, "lfm2moe", keys, tensors)
    (mixture,) = (op for op in step_of(path).body.block.ops if isinstance(op, MoeOp))
    assert mixture.scoring.data is Scoring.SIGMOID
    check(logits, path, reference(name))


def test_qwen35(edited: Callable[..., Path], model: Callable[..., Path], logits: Any) -> None:
    """The dense form against the mixture of one expert, with a shared one of zeros."""
    name, rng = "qwen35moe-moe-Q4_K_M", np.random.default_rng(3)
    experts = [n for n in Checkpoint.open(model(name)).tensors if "exps" in n or "shexp" in n or "ffn_gate_inp" in n]
    dense: Tensors = {}
    mixed: Tensors = {}
    for layer in range(2):
        for part, shape in (("gate", (64, 256)), ("up", (64, 256)), ("down", (256, 64))):
            weight = rng.standard_normal(shape).astype(np.float32) / 16
            dense[f"blk.{layer}.ffn_{part}.weight"] = weight
            mixed[f"blk.{layer}.ffn_{part}_exps.weight"] = weight[None]
            mixed[f"blk.{layer}.ffn_{part}_shexp.weight"] = np.zeros(shape, np.float32)
        mixed[f"blk.{layer}.ffn_gate_inp.weight"] = np.ones((1, 256), np.float32)
        mixed[f"blk.{layer}.ffn_gate_inp_shexp.weight"] = np.ones(256, np.float32)
    without = [f"qwen35.expert_{key}" for key in ("count", "used_count", "feed_forward_length")]
    without.append("qwen35.expert_shared_feed_forward_length")
    plain = {"qwen35.feed_forward_length": 64}
    tokens = list(range(20))
    one = edited(name, plain, without_keys=without, tensors=dense, without_tensors=experts, architecture="qwen35")
    got = logits(one, tokens, 7)
    counts = {"qwen35moe.expert_count": 1, "qwen35moe.expert_used_count": 1}
    check(logits, edited(name, counts, tensors=mixed, without_tensors=experts), (tokens, got))


def test_exaone4(edited: Callable[..., Path], logits: Any) -> None:
    """With one head, norms of heads are norms of the whole row: OLMo 2."""
    rng = np.random.default_rng(5)
    tensors: Tensors = {}
    for layer in range(2):
        for role in ("q", "k", "v"):
            tensors[f"blk.{layer}.attn_{role}.weight"] = rng.standard_normal((64, 256)).astype(np.float32) / 16
        tensors[f"blk.{layer}.attn_output.weight"] = rng.standard_normal((256, 64)).astype(np.float32) / 8
        for role in ("q", "k"):
            tensors[f"blk.{layer}.attn_{role}_norm.weight"] = 1 + rng.standard_normal(64).astype(np.float32) / 4
    tokens = list(range(40))

    def one_head(architecture: str) -> Path:
        keys = {f"{architecture}.attention.{key}": 1 for key in ("head_count", "head_count_kv")}
        return edited("olmo2-Q6_K", keys, tensors=tensors, architecture=architecture)

    want = logits(one_head("olmo2"), tokens, 9)
    check(logits, one_head("exaone4"), (tokens, want))


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
