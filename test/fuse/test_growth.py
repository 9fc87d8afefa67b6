"""
The work of the passes, and of the command that runs them, grows as the step does. Calls are counted, so that a busy
machine does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from lane_mlir.dialects import tg
from lane_mlir.passes.fuse import FusePass
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass
from lane_mlir.tools import lane_import, lane_opt

Lift = Callable[..., ModuleOp]


def layers(count: int) -> Callable[[Any], Any]:
    def build(s: Any) -> Any:
        x = s.embedding()
        for layer in range(count):
            k, v, y = s.cache(64, f"k{layer}"), s.cache(64, f"v{layer}"), s.norm(x)
            q = s.whole(s.rope(s.norm(s.heads(s.matmul(y)))))
            s.set_row(s.whole(s.rope(s.norm(s.heads(s.matmul(y))))), k)
            s.set_row(s.matmul(y), v)
            x = s.add(x, s.matmul(s.attention(q, k, v)))
            y = s.norm(x)
            x = s.add(x, s.matmul(s.mul(s.silu(s.matmul(y, 96)), s.matmul(y, 96))))
        token = s.add_op(tg.ArgmaxOp(s.matmul(s.norm(x), s.VOCABULARY)))
        s.add_op(tg.AdvanceOp(token, s.token, s.pos))
        return token

    return build


def calls(run: Callable[[], object]) -> int:
    """How many functions a run calls, of Python and of C."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("held", [(), ("add_norm", "row_write", "fused_quant")], ids=["all", "held"])
def test_twice_the_layers_take_at_most_twice_the_work(lift: Lift, held: tuple[str, ...]):
    work: list[int] = []
    for count in (5, 10):
        module = lift(layers(count), 1, "int8")
        run: list[Callable[[], None]] = [
            lambda module=module: FusePass(held).apply(Context(), module),
            lambda module=module: LinkPass().apply(Context(), module),
            lambda module=module: PlanPass().apply(Context(), module),
        ]
        work.append(sum(calls(part) for part in run))
    assert work[1] < 2.1 * work[0]


def deep_step(models: Path, folder: Path, count: int) -> Path:
    """The text of a step of eight sequences of a model of `count` layers, each as the first one of a tiny model."""
    model, step = folder / f"{count}.gguf", folder / f"{count}.mlir"
    reader, writer = GGUFReader(models / "qwen3-Q8_0.gguf"), GGUFWriter(model, "qwen3")
    for key, field in reader.fields.items():
        if key.startswith("qwen3."):
            value = count if key == "qwen3.block_count" else field.contents()
            writer.add_key_value(key, value, field.types[0])
    for tensor in reader.tensors:
        if tensor.name.startswith("blk.0."):
            for layer in range(count):
                name = tensor.name.replace("blk.0.", f"blk.{layer}.")
                writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
        elif not tensor.name.startswith("blk."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert lane_import.main([str(model), "--sequences", "8", "-o", str(step)]) == 0
    return step


def test_the_command_grows_as_the_step(models: Path, tmp_path: Path):
    """Reading, verifying and printing among it; of what each doubling adds, so that what is done once does not count."""
    work: list[int] = []
    for count in (1, 2, 4):
        step = deep_step(models, tmp_path, count)
        arguments = ["--pass-pipeline=fuse,link,plan", str(step), "-o", str(tmp_path / "planned.mlir")]
        work.append(calls(lambda arguments=arguments: lane_opt.main(arguments)))
    assert work[2] - work[1] < 2.1 * (work[1] - work[0])
