"""Checkpoints to import: the tiny models, and copies of them with one thing changed; and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.eval import CheckpointWeights, make_arguments, run_step
from lane_mlir.eval.step import the_step
from lane_mlir.importers import import_step

MODELS = Path(__file__).parent.parent / "data" / "models"
CONTEXT = 80


@pytest.fixture
def model() -> Callable[[str], Path]:
    """The file of a tiny model."""
    return lambda name: MODELS / f"{name}.gguf"


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model with metadata and tensors added, replaced or left out, and of another architecture."""

    def edit(
        name: str,
        keys: Mapping[str, object] | None = None,
        *,
        without_keys: Collection[str] = (),
        tensors: Mapping[str, NDArray[Any]] | None = None,
        without_tensors: Collection[str] = (),
        architecture: str = "",
    ) -> Path:
        reader = GGUFReader(MODELS / f"{name}.gguf")
        path = tmp_path / f"{name}-edited.gguf"
        old = str(reader.fields["general.architecture"].contents())
        writer = GGUFWriter(path, architecture or old)
        _write_keys(writer, reader, dict(keys or {}), without_keys, (f"{old}.", f"{architecture or old}."))
        for tensor in reader.tensors:
            if tensor.name not in without_tensors and tensor.name not in (tensors or {}):
                writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        for tensor_name, values in (tensors or {}).items():
            writer.add_tensor(tensor_name, np.ascontiguousarray(values))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return edit


def _write_keys(
    writer: GGUFWriter,
    reader: GGUFReader,
    keys: Mapping[str, object],
    without: Collection[str],
    prefixes: tuple[str, str],
) -> None:
    for old_key, field in reader.fields.items():
        key = old_key.replace(*prefixes) if old_key.startswith(prefixes[0]) else old_key
        if key.startswith("GGUF.") or key == "general.architecture" or key in without or key in keys:
            continue
        element = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=element)
    for key, value in keys.items():
        writer.add_key_value(key, value, _value_type(value))


def _value_type(value: object) -> GGUFValueType:
    match value:
        case bool():
            return GGUFValueType.BOOL
        case int():
            return GGUFValueType.INT32
        case float():
            return GGUFValueType.FLOAT32
        case str():
            return GGUFValueType.STRING
        case _:
            return GGUFValueType.ARRAY


@pytest.fixture
def logits() -> Callable[[Path, Sequence[int], int], NDArray[Any]]:
    """Logits of a checkpoint after each token, entered so many at a time; the steps share their state."""

    def run(path: Path, tokens: Sequence[int], chunk: int, context: int = CONTEXT) -> NDArray[Any]:
        checkpoint = Checkpoint.open(path)
        weights = CheckpointWeights(checkpoint)
        rows: list[NDArray[Any]] = []
        steps: dict[int, FuncOp] = {}
        state: list[NDArray[Any]] | None = None
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            if len(part) not in steps:
                steps[len(part)] = the_step(import_step(checkpoint, rows=len(part), context=context, logits="all"))
            step = steps[len(part)]
            arguments = make_arguments(step)
            arguments[0][:], arguments[1][:] = part, start
            state = arguments[2:] if state is None else state
            arguments[2:] = state
            rows.append(run_step(step, weights, arguments)[0])
        return np.concatenate(rows)

    return run


@pytest.fixture
def reference() -> Callable[..., tuple[list[int], NDArray[Any]]]:
    """The tokens of a tiny model and the reference engine's logits after each, in float arithmetic."""

    def load(name: str, suffix: str = "") -> tuple[list[int], NDArray[Any]]:
        arrays = np.load(MODELS / f"{name}.npz")
        order = ("logits_dequant_gelu32", "logits_step_gelu32", "logits_dequant", "logits_step")
        found = next(array for array in order if array + suffix in arrays)
        return arrays["tokens" + suffix].tolist(), arrays[found + suffix]

    return load
