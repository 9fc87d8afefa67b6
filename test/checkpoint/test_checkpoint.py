"""What a good GGUF file gives: typed metadata with account of what was read, and tensors with the right values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError
from lane_mlir.formats import Format

MODELS = Path(__file__).parent.parent / "data" / "models"


def write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_int8("llama.small", -5)
    writer.add_uint64("llama.large", 1 << 63)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_float32("llama.scale", math.nan)
    writer.add_bool("llama.flag", True)
    writer.add_string("llama.name", "größe")
    writer.add_array("llama.heads", [4, 0, 2])
    writer.add_array("llama.words", ["a", "", "ü"])
    writer.add_array("llama.flags", [True, False])
    writer.add_tensor("w", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.add_tensor("v", np.arange(6, dtype=np.float16))
    write(writer)
    return path


def test_metadata_has_types(file: Path) -> None:
    metadata = Checkpoint.open(file).metadata
    assert metadata.required("llama.block_count", int) == 3
    assert metadata.required("llama.small", int) == -5
    assert metadata.required("llama.large", int) == 1 << 63
    assert metadata.required("llama.rope.freq_base", float) == 10000.0
    assert metadata.required("llama.flag", bool) is True
    assert metadata.required("llama.name", str) == "größe"
    assert metadata.required_array("llama.heads", int) == [4, 0, 2]
    assert metadata.required_array("llama.words", str) == ["a", "", "ü"]
    assert metadata.required_array("llama.flags", bool) == [True, False]


def test_optional_keys(file: Path) -> None:
    metadata = Checkpoint.open(file).metadata
    assert metadata.optional("llama.block_count", int, 7) == 3
    assert metadata.optional("llama.absent", int, 7) == 7
    assert metadata.optional("llama.absent", str) is None
    assert metadata.optional_array("llama.absent", str) is None
    assert "llama.flag" in metadata
    assert "llama.absent" not in metadata
    assert metadata.is_array("llama.heads")
    assert not metadata.is_array("llama.flag")
    assert not metadata.is_array("llama.absent")


def test_values_for_messages(file: Path) -> None:
    """Of any type, without counting as read."""
    metadata = Checkpoint.open(file).metadata
    assert metadata.value("llama.name") == "größe"
    assert metadata.value("llama.heads") == [4, 0, 2]
    assert metadata.value("llama.flag") is True
    assert str(metadata.value("llama.scale")) == "nan"
    assert metadata.length("llama.heads") == 3
    assert metadata.length("llama.flag") is None
    assert metadata.length("llama.absent") is None
    assert {"llama.name", "llama.heads", "llama.flag", "llama.scale"} <= set(metadata.unread())


def test_one_value_a_layer(file: Path) -> None:
    metadata = Checkpoint.open(file).metadata
    assert metadata.per_layer("llama.heads", int, 3) == (4, 0, 2)
    assert metadata.per_layer("llama.block_count", int, 4) == (3, 3, 3, 3)
    assert metadata.per_layer("llama.absent", int, 2, 9) == (9, 9)
    with pytest.raises(LaneError, match=r"'llama.heads' has 3 values, expected one for each of 4 layers"):
        metadata.per_layer("llama.heads", int, 4)
    with pytest.raises(LaneError, match=r"'llama.absent' is missing"):
        metadata.per_layer("llama.absent", int, 4)


@pytest.mark.parametrize(
    "key, kind, message",
    [
        ("llama.absent", int, "key 'llama.absent' is missing, expected an integer"),
        ("llama.flag", int, "key 'llama.flag' is bool, expected an integer"),
        ("llama.block_count", bool, "key 'llama.block_count' is uint32, expected a bool"),
        ("llama.block_count", float, "key 'llama.block_count' is uint32, expected a float"),
        ("llama.block_count", str, "key 'llama.block_count' is uint32, expected a string"),
        ("llama.heads", int, "key 'llama.heads' is an array of 3 int32, expected an integer"),
        ("llama.scale", float, "key 'llama.scale' holds a NaN or an infinity"),
    ],
)
def test_wrong_types_are_named(key: str, kind: type[int | float | str | bool], message: str, file: Path) -> None:
    with pytest.raises(LaneError, match=message) as caught:
        Checkpoint.open(file).metadata.required(key, kind)
    assert str(file) in str(caught.value)


def test_an_array_is_expected(file: Path) -> None:
    metadata = Checkpoint.open(file).metadata
    with pytest.raises(LaneError, match=r"'llama.flag' is bool, expected an array, each value a bool"):
        metadata.required_array("llama.flag", bool)
    with pytest.raises(LaneError, match=r"'llama.words' is an array of 3 string, expected an array, each value an int"):
        metadata.required_array("llama.words", int)


def test_text_that_is_not_utf8(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace("größe".encode(), b"gr\xff\xffo\xff\xff"[:7]))
    metadata = Checkpoint.open(file).metadata
    with pytest.raises(LaneError, match=r"string 0 of key 'llama.name' is not UTF-8"):
        metadata.required("llama.name", str)


def test_what_was_not_read_is_known(file: Path) -> None:
    checkpoint = Checkpoint.open(file)
    assert checkpoint.architecture == "llama"
    checkpoint.metadata.required("llama.block_count", int)
    checkpoint.metadata.optional_array("llama.heads", int)
    checkpoint.metadata.ignore("llama.name", "llama.words", "llama.flags", "llama.flag")
    left = ("llama.small", "llama.large", "llama.rope.freq_base", "llama.scale")
    assert checkpoint.metadata.unread("llama.") == left
    assert checkpoint.metadata.unread("general.") == ()
    checkpoint.tensor("w", 2, 3, 4)
    assert checkpoint.unused_tensors() == ("v",)


def test_tensors(file: Path) -> None:
    checkpoint = Checkpoint.open(file)
    assert list(checkpoint.tensors) == ["w", "v"]
    weight = checkpoint.tensor("w")
    assert (weight.shape, weight.format, weight.nbytes, weight.row_count) == ((2, 3, 4), Format.F32, 96, 6)
    assert weight.data.shape == (6, 16)
    assert not weight.data.flags.writeable
    np.testing.assert_array_equal(weight.values(), np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    np.testing.assert_array_equal(weight.rows(1, 3), np.arange(4, 12, dtype=np.float32).reshape(2, 4))
    assert np.shares_memory(weight.values(), weight.data)
    vector = checkpoint.tensor("v", 6)
    np.testing.assert_array_equal(vector.values(), np.arange(6, dtype=np.float32))
    assert vector.rows(0, 0).shape == (0, 6)
    for start, stop in ((-1, 0), (0, 2), (1, 0)):
        with pytest.raises(IndexError):
            vector.rows(start, stop)


def test_missing_and_misshapen_tensors(file: Path) -> None:
    checkpoint = Checkpoint.open(file)
    with pytest.raises(LaneError, match=r"tensor 'output.weight' is missing"):
        checkpoint.tensor("output.weight")
    with pytest.raises(LaneError, match="tensor 'w' is 2 x 3 x 4, expected 2 x 12"):
        checkpoint.tensor("w", 2, 12)


@pytest.mark.parametrize("form", Format)
def test_rows_of_every_format(form: Format, tmp_path: Path) -> None:
    """More values than are taken at a time, in a rank-3 tensor; all rows at once against gguf's own in one call."""
    width, shape = 512, (3, 700)
    bytes_a_row = width // form.values * form.bytes
    stored = np.random.default_rng(7).integers(0, 64, (*shape, bytes_a_row), dtype=np.uint8)
    path = tmp_path / "format.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("w", stored, raw_dtype=form.ggml_type)
    write(writer)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(stored, form.ggml_type)
    weight = Checkpoint.open(path).tensor("w", *shape, width)
    assert weight.format is form
    assert weight.values().dtype == np.float32
    np.testing.assert_array_equal(weight.values(), expected)
    np.testing.assert_array_equal(weight.rows(699, 702), expected.reshape(-1, width)[699:702])


def test_every_scale_byte_of_mxfp4(tmp_path: Path) -> None:
    """Byte e scales by 2^(e-127), also 0 and 255; the codes are the sixteen values of E2M1."""
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = np.array([*magnitudes, *(-m for m in magnitudes)])
    block = [low | low << 4 for low in range(16)]
    stored = np.array([[scale, *block] for scale in range(256)], np.uint8)
    path = tmp_path / "mxfp4.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("w", stored, raw_dtype=GGMLQuantizationType.MXFP4)
    write(writer)
    scales = np.ldexp(1.0, np.arange(256) - 127)[:, None]
    with np.errstate(over="ignore"):
        expected = (scales * np.concatenate([codes, codes])).astype(np.float32)
    np.testing.assert_array_equal(Checkpoint.open(path).tensor("w").values(), expected)


@pytest.mark.parametrize("name", ["llama-f32", "llama-Q4_K_M", "qwen3-Q8_0"])
def test_equal_to_the_reference_reader(name: str) -> None:
    path = MODELS / f"{name}.gguf"
    checkpoint, reference = Checkpoint.open(path), GGUFReader(path)
    assert list(checkpoint.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        ours = checkpoint.tensor(tensor.name)
        assert ours.shape == tuple(tensor.shape.tolist()[::-1])
        assert (ours.offset, ours.nbytes) == (tensor.data_offset, tensor.n_bytes)
        np.testing.assert_array_equal(ours.values(), quants.dequantize(tensor.data, tensor.tensor_type))
    keys = [key for key in reference.fields if not key.startswith("GGUF.")]
    assert list(checkpoint.metadata) == keys


def test_alignment_other_than_the_default(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.ones(3, np.float32))
    writer.add_tensor("b", np.full(3, 2, np.float32))
    write(writer)
    checkpoint = Checkpoint.open(path)
    assert checkpoint.tensor("b").offset % 256 == 0
    assert checkpoint.tensor("b").values().tolist() == [2, 2, 2]
