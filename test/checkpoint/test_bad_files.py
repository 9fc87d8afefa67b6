"""Every kind of damaged GGUF file gives one line naming the file and the thing, and nothing is allocated for it."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError

F32 = GGMLQuantizationType.F32
Q8_0 = GGMLQuantizationType.Q8_0


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + u32(kind) + payload


def array(key: str, element: int, count: int, payload: bytes) -> bytes:
    return entry(key, GGUFValueType.ARRAY, u32(element) + u64(count) + payload)


def tensor(name: str | bytes, dimensions: list[int], kind: int, offset: int) -> bytes:
    return string(name) + u32(len(dimensions)) + b"".join(map(u64, dimensions)) + u32(kind) + u64(offset)


ARCHITECTURE = entry("general.architecture", GGUFValueType.STRING, string("llama"))
WEIGHT = tensor("weight", [32, 2], F32, 0)


def image(
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = bytes(256),
    *,
    magic: bytes = b"GGUF",
    version: bytes = u32(3),
    counts: tuple[int, int] | None = None,
) -> bytes:
    entries = [ARCHITECTURE] if entries is None else entries
    tensors = [WEIGHT] if tensors is None else tensors
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    head = magic + version + u64(tensor_count) + u64(entry_count) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def alignment(value: int) -> bytes:
    return entry("general.alignment", GGUFValueType.UINT32, u32(value))


CASES = {
    "empty": (b"", "empty"),
    "magic": (image(magic=b"GGML"), r"not a GGUF file: it starts with b'GGML', expected b'GGUF'"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "no version": (b"GGUF", "truncated: the header"),
    "version 1": (image(version=u32(1)), "version 1 is not supported, expected 2 or 3"),
    "version 4": (image(version=u32(4)), "version 4 is not supported"),
    "version 0": (image(version=u32(0)), "version 0 is not supported"),
    "big-endian": (image(version=struct.pack(">I", 3)), "big-endian"),
    "entries 2^60": (image(counts=(1, 1 << 60)), f"says {1 << 60} metadata entries"),
    "tensors 2^60": (image(counts=(1 << 60, 1)), f"says {1 << 60} tensors"),
    "tensors 2^64-1": (image(counts=((1 << 64) - 1, 1)), f"says {(1 << 64) - 1} tensors"),
    "key length": (image([u64(1 << 63) + bytes(40)]), "truncated: metadata entry 1 of 1"),
    "key not UTF-8": (image([entry(b"\xff\xfe", 4, u32(1))]), "metadata entry 1 of 1 has a name that is not UTF-8"),
    "duplicate key": (image([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' occurs twice"),
    "value type": (image([entry("a.b", 13, u32(1))]), "'a.b' has the unknown value type 13"),
    "element type": (image([array("a.b", 99, 1, u32(1))]), "'a.b' has the unknown value type 99"),
    "nested array": (image([array("a.b", GGUFValueType.ARRAY, 1, bytes(20))]), "'a.b' holds an array of arrays"),
    "array length": (image([array("a.b", 0, 1 << 60, b"")]), "truncated: the value of 'a.b'"),
    "array length wraps": (image([array("a.b", 10, 1 << 61, b"")]), "truncated: the value of 'a.b'"),
    "string count": (image([array("a.b", 8, 1 << 60, b"")]), "truncated: the value of 'a.b'"),
    "string in array": (image([array("a.b", 8, 2, u64(1 << 62))]), "truncated: the value of 'a.b'"),
    "last string": (image([array("a.b", 8, 1, u64(5000))]), "truncated: the value of 'a.b'"),
    "alignment 0": (image([alignment(0)]), "general.alignment is 0, expected a power of two of at least 8"),
    "alignment 4": (image([alignment(4)]), "general.alignment is 4"),
    "alignment 24": (image([alignment(24)]), "general.alignment is 24"),
    "alignment 2^31": (image([alignment(1 << 31)]), "tensor 'weight': truncated"),
    "alignment a string": (
        image([entry("general.alignment", GGUFValueType.STRING, string("32"))]),
        "'general.alignment' is string, expected an integer",
    ),
    "tensor name": (image(tensors=[tensor(b"\xc3", [32], F32, 0)]), "not UTF-8"),
    "duplicate tensor": (image(tensors=[WEIGHT, WEIGHT]), "tensor 'weight' occurs twice"),
    "5 dimensions": (image(tensors=[tensor("weight", [2] * 5, F32, 0)]), "'weight' has 5 dimensions, expected 1 to 4"),
    "0 dimensions": (image(tensors=[tensor("weight", [], F32, 0) + bytes(8)]), "'weight' has 0 dimensions"),
    "2^32-1 dimensions": (image(tensors=[string("w") + u32(0xFFFFFFFF) + bytes(40)]), "'w' has 4294967295 dimensions"),
    "dimension 0": (image(tensors=[tensor("weight", [32, 0], F32, 0)]), "'weight': 0 x 32 has a dimension of 0"),
    "huge dimension": (image(tensors=[tensor("weight", [1 << 40, 2], F32, 0)]), "'weight': truncated"),
    "size wraps": (image(tensors=[tensor("weight", [1 << 32, 1 << 32], F32, 0)]), "'weight': truncated"),
    "offset past the end": (image(tensors=[tensor("weight", [32], F32, 1 << 20)]), "'weight': truncated"),
    "offset wraps": (image(tensors=[tensor("weight", [32], F32, (1 << 64) - 32)]), "'weight': truncated"),
    "offset misaligned": (image(tensors=[tensor("weight", [32], F32, 8)]), "offset 8 is no multiple of the alignment 32"),
    "no data": (image(data=b""), r"'weight': truncated: its 256 bytes from \d+ on pass the end of the file"),
    "one byte short": (image(data=bytes(255)), "'weight': truncated"),
    "overlap": (image(tensors=[WEIGHT, tensor("other", [8], F32, 32)]), "tensors 'weight' and 'other' overlap at byte"),
    "type 4": (image(tensors=[tensor("experts", [32], 4, 0)]), r"'experts': type number 4 \(q4_2\) was withdrawn.*mxfp4"),
    "type 36": (image(tensors=[tensor("experts", [32], 36, 0)]), r"type number 36 \(iq4_nl_4_4\) was withdrawn"),
    "type 1000": (image(tensors=[tensor("weight", [32], 1000, 0)]), "'weight': unknown type number 1000"),
    "type i32": (image(tensors=[tensor("weight", [32], 26, 0)]), r"type number 26 \(i32\) is not supported"),
    "row of 33": (image(tensors=[tensor("weight", [33], Q8_0, 0)]), "rows of 33 values are no whole number of q8_0 blocks of 32"),
    "row of 576": (
        image(tensors=[tensor("weight", [576, 2], GGMLQuantizationType.Q4_K, 0)]),
        "rows of 576 values are no whole number of q4_k blocks of 256",
    ),
    "split": (
        image([entry("split.count", GGUFValueType.UINT16, b"\x03\0"), entry("split.no", GGUFValueType.UINT16, b"\x01\0")]),
        "part 2 of a model split into 3 files",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_line_names_the_thing(name: str, tmp_path: Path) -> None:
    content, expected = CASES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(LaneError, match=expected) as caught:
        Checkpoint.open(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_the_undamaged_image_opens(tmp_path: Path) -> None:
    """What the cases above change is all that is wrong with them."""
    path = tmp_path / "good.gguf"
    path.write_bytes(image())
    checkpoint = Checkpoint.open(path)
    assert checkpoint.architecture == "llama"
    assert checkpoint.tensor("weight").shape == (2, 32)


@pytest.mark.parametrize("kind", range(45))
def test_every_type_number_opens_or_is_refused_by_number(kind: int, tmp_path: Path) -> None:
    path = tmp_path / "type.gguf"
    path.write_bytes(image(tensors=[tensor("weight", [256], kind, 0)], data=bytes(4096)))
    usable = {*range(4), *range(6, 9), *range(10, 15), *range(16, 24), 29, 30, 34, 35, 39, 40}
    if kind in usable:
        assert Checkpoint.open(path).tensor("weight").values().shape == (256,)
        return
    with pytest.raises(LaneError, match=f"tensor 'weight'.* type number {kind}( |$)"):
        Checkpoint.open(path)


def test_a_name_cannot_break_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(image(tensors=[tensor("a\nb\x1b[31m" + "c" * 1000, [32], 1000, 0)], data=b""))
    with pytest.raises(LaneError) as caught:
        Checkpoint.open(path)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 300 + len(str(path))


@pytest.mark.parametrize("counts", [(1, 1 << 60), (1 << 60, 1), (1, 1 << 20)])
def test_nothing_is_allocated_for_hostile_counts(counts: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(image(counts=counts))
    tracemalloc.start()
    try:
        with pytest.raises(LaneError):
            Checkpoint.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(LaneError, match="no such file"):
        Checkpoint.open(tmp_path / "absent.gguf")
    with pytest.raises(LaneError, match="not a file"):
        Checkpoint.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LaneError, match="not a file"):
        Checkpoint.open(tmp_path / "pipe")


SMALL = image(
    [
        ARCHITECTURE,
        alignment(32),
        array("tokenizer.ggml.tokens", GGUFValueType.STRING, 3, string("a") + string("ü") + string("")),
        array("tokenizer.ggml.scores", GGUFValueType.FLOAT32, 3, struct.pack("<3f", 0, 1, 2)),
        entry("llama.rope.freq_base", GGUFValueType.FLOAT64, struct.pack("<d", 1e4)),
        entry("flag", GGUFValueType.BOOL, b"\1"),
    ],
    [WEIGHT, tensor("blocks", [64, 2], Q8_0, 256), tensor("norm", [8], GGMLQuantizationType.BF16, 416)],
    bytes(range(256)) * 2,
)
KINDS = (int, float, str, bool)
T = TypeVar("T")


def attempt(action: Callable[[], T]) -> T | None:
    """The result of an action, None if it was refused in one line."""
    problem = ""
    try:
        return action()
    except LaneError as error:
        problem = str(error)
    assert problem
    assert "\n" not in problem
    return None


def use_all(path: Path) -> None:
    """Opens a file and reads whatever can be read; only a LaneError may come of it."""
    checkpoint = attempt(lambda: Checkpoint.open(path))
    if checkpoint is None:
        return
    for weight in checkpoint.tensors.values():
        assert weight.values().shape == weight.shape
    for key in checkpoint.metadata:
        for kind in KINDS:
            attempt(partial(checkpoint.metadata.required, key, kind))
            attempt(partial(checkpoint.metadata.required_array, key, kind))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(SMALL) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3
    ),
    length=st.integers(0, len(SMALL)) | st.just(len(SMALL)),
)
def test_no_bytes_escape_as_a_traceback(changes: list[tuple[int, bytes]], length: int, tmp_path: Path) -> None:
    content = bytearray(SMALL)
    for position, patch in changes:
        content[position : position + len(patch)] = patch
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(content[:length])
    use_all(path)


def test_no_flipped_bit_escapes_as_a_traceback(tmp_path: Path) -> None:
    header = SMALL.index(bytes(range(16)))
    path = tmp_path / "flipped.gguf"
    for bit in range(8 * header):
        content = bytearray(SMALL)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        use_all(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    last = SMALL.index(bytes(range(16))) + 416 + 16
    for length in range(last):
        path.write_bytes(SMALL[:length])
        with pytest.raises(LaneError):
            Checkpoint.open(path)
    path.write_bytes(SMALL[:last])
    assert len(Checkpoint.open(path).tensors) == 3
