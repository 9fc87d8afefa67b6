"""
The header of a GGUF file: metadata entries and tensor descriptions, read without decoding any array.

Layout (GGUF versions 2 and 3, little-endian): magic, u32 version, u64 tensor count, u64 entry count, the entries (key,
u32 type, value), the tensor descriptions (name, u32 rank, u64 dimensions, u32 storage type, u64 offset), padding to the
alignment, tensor data. A string is a u64 length and its bytes; an array is a u32 type, a u64 count and the values.

Every count and length is compared with the bytes left in the file before it is believed, so a hostile file costs no
more memory than an honest one of its size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

from gguf import GGUFValueType

from lane_mlir.diagnostics import LaneError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_RANK = 4

# The fewest bytes that an entry and a tensor description can take.
_LEAST_ENTRY = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: _U32,
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: _U64,
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the value of a metadata key lies: `count` values of `type` from byte `start`; no count for a single one."""

    type: GGUFValueType
    count: int | None
    start: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as described: dimensions in the file's order (row length first), offset into the data section."""

    name: str
    dimensions: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """The entries by key, the tensors in the file's order, and the byte behind the last description."""

    entries: dict[str, Entry]
    tensors: tuple[TensorEntry, ...]
    end: int


def shown(name: str) -> str:
    """A name taken from a file, quoted for a message: one line, of bounded length."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def read_header(path: str, data: memoryview) -> Header:
    """
    The header of the GGUF file whose bytes are `data`; `path` is for messages.

    Raises LaneError for a wrong magic, an unsupported version or byte order, whatever reaches past the end of the
    file, names that are not UTF-8, duplicate keys and tensor names, unknown value types, nested arrays, and tensors of
    no or more than four dimensions.
    """
    return _HeaderReader(path, data).read()


class _HeaderReader:
    """A position in the file, and what it is reading just now for the messages."""

    def __init__(self, path: str, data: memoryview):
        self.path = path
        self.data = data
        self.position = 0
        self.reading = "the header"

    def read(self) -> Header:
        self._magic_and_version()
        tensor_count = self._number(_U64)
        entry_count = self._number(_U64)
        self._check_count(entry_count, _LEAST_ENTRY, "metadata entries")
        self._check_count(tensor_count, _LEAST_TENSOR, "tensors")
        entries: dict[str, Entry] = {}
        for index in range(entry_count):
            self.reading = f"metadata entry {index + 1} of {entry_count}"
            key = self._string()
            if key in entries:
                self._refuse(f"key {shown(key)} occurs twice")
            self.reading = f"the value of {shown(key)}"
            entries[key] = self._entry(key)
        tensors: dict[str, TensorEntry] = {}
        for index in range(tensor_count):
            self.reading = f"the description of tensor {index + 1} of {tensor_count}"
            tensor = self._tensor()
            if tensor.name in tensors:
                self._refuse(f"tensor {shown(tensor.name)} occurs twice")
            tensors[tensor.name] = tensor
        return Header(entries, tuple(tensors.values()), self.position)

    def _magic_and_version(self) -> None:
        magic = bytes(self.data[:4])
        if magic != MAGIC:
            self._refuse(f"not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}")
        self.position = 4
        version = self._number(_U32)
        # The version is a small number: with its low half empty it was written in the other byte order.
        if version and version & 0xFFFF == 0:
            self._refuse("a big-endian GGUF file; only little-endian files are supported")
        if version not in VERSIONS:
            expected = " or ".join(map(str, VERSIONS))
            self._refuse(f"GGUF version {version} is not supported, expected {expected}")

    def _entry(self, key: str) -> Entry:
        kind = self._value_type(self._number(_U32), key)
        if kind is not GGUFValueType.ARRAY:
            start = self.position
            self._skip(kind, 1)
            return Entry(kind, None, start)
        element = self._value_type(self._number(_U32), key)
        if element is GGUFValueType.ARRAY:
            self._refuse(f"key {shown(key)} holds an array of arrays, which is not supported")
        count = self._number(_U64)
        start = self.position
        self._skip(element, count)
        return Entry(element, count, start)

    def _value_type(self, number: int, key: str) -> GGUFValueType:
        try:
            return GGUFValueType(number)
        except ValueError:
            self._refuse(f"key {shown(key)} has the unknown value type {number}")

    def _tensor(self) -> TensorEntry:
        name = self._string()
        self.reading = f"the description of tensor {shown(name)}"
        rank = self._number(_U32)
        if not 1 <= rank <= MAX_RANK:
            self._refuse(f"tensor {shown(name)} has {rank} dimensions, expected 1 to {MAX_RANK}")
        dimensions = tuple(self._number(_U64) for _ in range(rank))
        return TensorEntry(name, dimensions, self._number(_U32), self._number(_U64))

    def _number(self, layout: struct.Struct) -> int:
        start = self.position
        self._advance(layout.size)
        return layout.unpack_from(self.data, start)[0]

    def _string(self) -> str:
        length = self._number(_U64)
        start = self.position
        self._advance(length)
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            self._refuse(f"{self.reading} has a name that is not UTF-8")

    def _skip(self, kind: GGUFValueType, count: int) -> None:
        if kind is not GGUFValueType.STRING:
            self._advance(SCALARS[kind].size * count)
            return
        if count * _U64.size > len(self.data) - self.position:
            self._truncated()
        data, unpack, position = self.data, _U64.unpack_from, self.position
        try:
            # The one loop over a vocabulary that opening a file takes.
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):
            self._truncated()
        self._advance(position - self.position)

    def _advance(self, size: int) -> None:
        if size > len(self.data) - self.position:
            self._truncated()
        self.position += size

    def _check_count(self, count: int, least: int, what: str) -> None:
        if count * least > len(self.data) - self.position:
            self._refuse(f"the header says {count} {what}, more than a file of {len(self.data)} bytes can hold")

    def _truncated(self) -> NoReturn:
        self._refuse(f"truncated: {self.reading} reaches past the end of the file ({len(self.data)} bytes)")

    def _refuse(self, problem: str) -> NoReturn:
        raise LaneError(f"{self.path}: {problem}")
