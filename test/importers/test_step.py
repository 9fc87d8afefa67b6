"""The shape of an imported step: arguments, order of ops, names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import MemRefType, NameLoc, f32
from xdsl.dialects.func import FuncOp

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.dialects.tg import (
    AttentionOp,
    ConstantOp,
    LiftedOperation,
    Numerics,
    Precision,
    RopeTableOp,
    RowsAttr,
    TargetAttr,
    encoding_of,
    shape_of,
)
from lane_mlir.dialects.tg.step import arguments, target_of, verify_step
from lane_mlir.eval.step import the_step
from lane_mlir.formats import Format
from lane_mlir.importers import import_step
from lane_mlir.importers.model import Model
from lane_mlir.importers.step import Step

LLAMA = "llama-Q4_K_M"


def step_of(path: Path, rows: int = 1, context: int | None = None) -> FuncOp:
    return the_step(import_step(Checkpoint.open(path), rows=rows, context=context))


def layer_ops(step: FuncOp, layer: int) -> list[str]:
    """The lifted ops of a layer, by name less the dialect."""
    prefix = f"blk.{layer}."
    return [
        op.name.removeprefix("tg.")
        for op in step.body.block.ops
        if isinstance(op, LiftedOperation)
        and isinstance(op.location, NameLoc)
        and op.location.desc.data.startswith(prefix)
    ]


def test_arguments(model: Callable[[str], Path]) -> None:
    step = step_of(model(LLAMA))
    verify_step(step)
    assert [(str(a.kind), a.name) for a in arguments(step)] == [
        ("token", "token"),
        ("position", "position"),
        ("kv_cache", "blk.0.k"),
        ("kv_cache", "blk.0.v"),
        ("kv_cache", "blk.1.k"),
        ("kv_cache", "blk.1.v"),
    ]
    # What the model was trained for, since that is less than the default.
    assert step.args[2].type == MemRefType(f32, (256, 128))


def test_order_of_a_layer(model: Callable[[str], Path]) -> None:
    attention = [
        *("rms_norm", "matmul", "matmul", "matmul"),
        *("view", "rope", "view", "view", "rope", "view"),
        *("set_row", "set_row", "attention"),
    ]
    output = ["matmul", "binary"]
    feed_forward = ["rms_norm", "matmul", "matmul", "unary", "binary", "matmul", "binary"]
    assert layer_ops(step_of(model(LLAMA)), 1) == [*attention, *output, *feed_forward]
    tail = ["view", "matmul", "view", "binary"]
    assert layer_ops(step_of(model(LLAMA), rows=4), 1) == [*attention, *tail, *feed_forward]
    assert layer_ops(step_of(model(LLAMA), rows=4), 0) == [*attention, *output, *feed_forward]


def test_every_op_names_what_it_came_from(model: Callable[[str], Path]) -> None:
    for op in step_of(model(LLAMA)).body.block.ops:
        assert isinstance(op.location, NameLoc)
        if isinstance(op, ConstantOp):
            assert op.location.desc == op.tensor


def test_the_target_is_the_module_s(model: Callable[[str], Path]) -> None:
    target = TargetAttr("l40s", Numerics.INT8, Precision.F16, Precision.BF16)
    assert target_of(import_step(Checkpoint.open(model(LLAMA)), target=target)) == target
    assert target_of(import_step(Checkpoint.open(model(LLAMA)))) == TargetAttr()


def test_heads_of_each_layer(edited: Callable[..., Path]) -> None:
    keys = {"llama.attention.head_count_kv": [2, 1], "llama.attention.head_count": [4, 2]}
    tensors = {
        "blk.1.attn_q.weight": np.ones((128, 256), np.float32),
        "blk.1.attn_k.weight": np.ones((64, 256), np.float32),
        "blk.1.attn_v.weight": np.ones((64, 256), np.float32),
        "blk.1.attn_output.weight": np.ones((256, 128), np.float32),
    }
    step = step_of(edited(LLAMA, keys, tensors=tensors))
    found = [op for op in step.body.block.ops if isinstance(op, AttentionOp)]
    assert [(op.heads.value.data, op.kv_heads.value.data) for op in found] == [(4, 2), (2, 1)]


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_the_table_only_where_there_is_no_other(edited: Callable[..., Path], tied: bool) -> None:
    step = step_of(edited(LLAMA, without_tensors=["output.weight"] if tied else []))
    constants = [op.tensor.data for op in step.body.block.ops if isinstance(op, ConstantOp)]
    assert constants.count("token_embd.weight") == 1
    assert ("output.weight" in constants) != tied


@pytest.mark.parametrize("tied", [False, True])
def test_projections_are_rows_in_f32_too(edited: Callable[..., Path], tied: bool) -> None:
    """The table one constant, whether it is the head as well or not; norms plain values."""
    step = step_of(edited("llama-f32", without_tensors=["output.weight"] if tied else []))
    stored = [(op.tensor.data, encoding_of(op.result)) for op in step.body.block.ops if isinstance(op, ConstantOp)]
    assert len(dict(stored)) == len(stored)
    plain = {name for name, encoding in stored if encoding is None}
    assert plain == {name for name, _ in stored if "norm" in name}
    assert {encoding for name, encoding in stored if name not in plain} == {RowsAttr(Format.F32)}


def test_gates_are_plain_values_where_they_are_stored_so(edited: Callable[..., Path]) -> None:
    """The experts' scores, the gate of the shared expert, and those of the delta rule."""
    gates = ("ssm_alpha", "ssm_beta", "ffn_gate_inp", "ffn_gate_inp_shexp")
    names = [f"blk.0.{gate}.weight" for gate in gates]
    path = edited("qwen35moe-moe-Q4_K_M")
    tensors = Checkpoint.open(path).tensors
    path = edited("qwen35moe-moe-Q4_K_M", tensors={name: tensors[name].values() for name in names})
    found = {op.tensor.data: op.result for op in step_of(path).body.block.ops if isinstance(op, ConstantOp)}
    assert {encoding_of(found[name]) for name in names} == {None}


def test_a_tensor_is_stored_in_one_way(model: Callable[[str], Path]) -> None:
    step = Step(Model(Checkpoint.open(model("llama-f32"))), rows=1, context=8, logits="last", target=TargetAttr())
    step.projection("output.weight")
    with pytest.raises(ValueError, match=r"'output\.weight' as the weight of a projection here, and otherwise there"):
        step.constant("output.weight", 128, 256)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (1.0, 0.0, 1.0, 0)),
        ({"type": "linear", "factor": 4.0}, (0.25, 0.0, 1.0, 0)),
        ({"type": "none", "factor": 4.0}, (1.0, 0.0, 1.0, 0)),
        ({"type": "linear", "factor": 0.0, "attn_factor": 1.5}, (1.0, 0.0, 1.5, 0)),
        ({"type": "yarn", "factor": 8.0, "original_context_length": 64}, (0.125, 1.0, 1.0, 64)),
        ({"type": "yarn", "factor": 8.0}, (0.125, 1.0, 1.0, 256)),
    ],
)
def test_scalings_of_positions(
    edited: Callable[..., Path], keys: dict[str, object], expected: tuple[float, ...]
) -> None:
    step = step_of(edited(LLAMA, {f"llama.rope.scaling.{key}": value for key, value in keys.items()}))
    (table,) = (op for op in step.body.block.ops if isinstance(op, RopeTableOp))
    assert shape_of(table.cos) == (256, 32)
    found = (table.freq_scale, table.ext_factor, table.attn_factor, table.original_context)
    assert tuple(attribute.value.data for attribute in found) == expected


def test_factors_of_frequencies(edited: Callable[..., Path]) -> None:
    step = step_of(edited(LLAMA, tensors={"rope_freqs.weight": np.ones(32, np.float32)}))
    (table,) = (op for op in step.body.block.ops if isinstance(op, RopeTableOp))
    assert table.factors is not None
