"""Lifted steps of several sequences: each computes what it would alone, and structure says what belongs to which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects import tg
from lane_mlir.eval import CheckpointWeights, make_arguments, run_step
from lane_mlir.eval.step import the_step
from lane_mlir.importers import import_step

# One of each kind of state, and of mixtures.
MODELS = (
    "llama-f32",
    "llama-moe-Q4_K_M",
    "qwen3-Q8_0",
    "gemma3-Q4_K_M",
    "gpt-oss-moe-Q4_K_M",
    "deepseek2-moe-Q4_K_M",
    "lfm2-Q4_K_M",
    "qwen3next-moe-Q4_K_M",
    "qwen35moe-moe-Q4_K_M",
    "olmo2-Q6_K",
)
CONTEXT = 16

# Products of several rows sum in another order than those of one: f32 rounding.
ROUNDING = 1e-5


def lifted(checkpoint: Checkpoint, sequences: int) -> FuncOp:
    return the_step(import_step(checkpoint, context=CONTEXT, sequences=sequences))


def share(func: FuncOp, arrays: Sequence[NDArray[Any]], sequence: int) -> dict[tuple[tg.ArgumentKind, str], Any]:
    """The arguments of one sequence of a step: its part of the tokens, its position, its state."""
    found: dict[tuple[tg.ArgumentKind, str], Any] = {}
    for argument, array in zip(tg.arguments(func), arrays, strict=True):
        if argument.kind is tg.ArgumentKind.TOKEN:
            found[argument.kind, argument.name] = array[sequence : sequence + 1]
        elif argument.sequence == sequence:
            found[argument.kind, argument.name] = array
    return found


def close(got: NDArray[Any], want: NDArray[Any]) -> bool:
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(np.linalg.norm(got - want)) <= ROUNDING * float(np.linalg.norm(want))


@pytest.mark.parametrize("name", MODELS)
def test_each_sequence_computes_what_it_would_alone(model: Callable[[str], Path], name: str):
    """At unequal positions: logits, next tokens, and all state after two steps."""
    checkpoint = Checkpoint.open(model(name))
    weights, one, three = CheckpointWeights(checkpoint), lifted(checkpoint, 1), lifted(checkpoint, 3)
    random, together = np.random.default_rng(1), make_arguments(three)
    alone = [make_arguments(one) for _ in range(3)]
    for sequence, arguments in enumerate(alone):
        for token in random.integers(0, 100, 1 + 2 * sequence):
            arguments[0][:] = token
            run_step(one, weights, arguments)
        for key, array in share(three, together, sequence).items():
            array[...] = share(one, arguments, 0)[key]
    for _ in range(2):
        logits, *ids = run_step(three, weights, together)
        assert len(ids) == 3
        for sequence, arguments in enumerate(alone):
            want, next_id = run_step(one, weights, arguments)
            assert close(logits[sequence], want[0])
            assert ids[sequence] == next_id
    for sequence, arguments in enumerate(alone):
        expected = share(one, arguments, 0)
        assert expected.keys() == share(three, together, sequence).keys()
        assert all(close(array, expected[key]) for key, array in share(three, together, sequence).items())


@pytest.mark.parametrize("sequences", [2, 16])
def test_what_is_once_a_sequence_and_what_is_for_all(model: Callable[[str], Path], sequences: int):
    checkpoint = Checkpoint.open(model("qwen3next-moe-Q4_K_M"))
    one, many = lifted(checkpoint, 1), lifted(checkpoint, sequences)

    def count(func: FuncOp, *kinds: type[tg.LiftedOperation]) -> int:
        return sum(isinstance(op, kinds) for op in func.body.block.ops)

    for kind in (tg.AttentionOp, tg.SetRowOp, tg.ConvOp, tg.DeltaOp, tg.DecayOp, tg.RopeOp, tg.ArgmaxOp, tg.AdvanceOp):
        assert count(many, kind) == sequences * count(one, kind) > 0
    assert count(many, tg.GatherOp) == 1
    # Mixtures are lifted row by row, their shared experts with them; all other products are of all rows.
    products = [op for op in many.body.block.ops if isinstance(op, tg.MatmulOp)]
    assert {tg.shape_of(op.x)[0] for op in products} == {1, sequences}
    assert all("shexp" in str(op.location) for op in products if tg.shape_of(op.x)[0] == 1)
    places = [op.place for op in many.body.block.ops if isinstance(op, tg.AdvanceOp)]
    assert places == list(range(sequences))


def test_arguments_say_whose_they_are(model: Callable[[str], Path]):
    func = lifted(Checkpoint.open(model("lfm2-Q4_K_M")), 2)
    found = [(str(a.kind), a.sequence, a.name) for a in tg.arguments(func)]
    assert found == [
        ("token", 0, "token"),
        ("position", 0, "position"),
        ("position", 1, "position"),
        ("kv_cache", 0, "blk.0.k"),
        ("kv_cache", 0, "blk.0.v"),
        ("kv_cache", 1, "blk.0.k"),
        ("kv_cache", 1, "blk.0.v"),
        ("conv_ring", 0, "blk.1.conv"),
        ("conv_ring", 1, "blk.1.conv"),
    ]
    assert tg.shape_of(func.args[0]) == (2,)
