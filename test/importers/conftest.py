"""Checkpoints to import: the tiny models, and copies of them with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

MODELS = Path(__file__).parent.parent / "data" / "models"


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


def _copy(writer: GGUFWriter, reader: GGUFReader, keys: Mapping[str, object], without: Collection[str]) -> None:
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in without or key in keys:
            continue
        element = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=element)
    for key, value in keys.items():
        writer.add_key_value(key, value, _value_type(value))


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model with metadata and tensors added, replaced or left out."""

    def edit(
        model: str,
        keys: Mapping[str, object] | None = None,
        without_keys: Collection[str] = (),
        tensors: Mapping[str, NDArray[Any]] | None = None,
        without_tensors: Collection[str] = (),
    ) -> Path:
        reader = GGUFReader(MODELS / f"{model}.gguf")
        keys, tensors = dict(keys or {}), tensors or {}
        architecture = reader.fields["general.architecture"].contents()
        path = tmp_path / f"{model}-edited.gguf"
        writer = GGUFWriter(path, str(keys.pop("general.architecture", architecture)))
        _copy(writer, reader, keys, without_keys)
        for tensor in reader.tensors:
            if tensor.name not in without_tensors and tensor.name not in tensors:
                writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        for name, values in tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return edit


@pytest.fixture
def model() -> Callable[[str], Path]:
    """The file of a tiny model."""
    return lambda name: MODELS / f"{name}.gguf"
