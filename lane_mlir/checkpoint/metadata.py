"""The metadata of a checkpoint: typed access by key, decoded when asked for, with account of what was read."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

import numpy as np
from gguf import GGUFValueType

from lane_mlir.checkpoint.header import SCALARS, Entry, shown
from lane_mlir.diagnostics import LaneError

Value = TypeVar("Value", bound=int | float | str | bool)

_INTEGERS = frozenset(
    {
        GGUFValueType.UINT8,
        GGUFValueType.INT8,
        GGUFValueType.UINT16,
        GGUFValueType.INT16,
        GGUFValueType.UINT32,
        GGUFValueType.INT32,
        GGUFValueType.UINT64,
        GGUFValueType.INT64,
    }
)
_STORED_AS: dict[type, frozenset[GGUFValueType]] = {
    int: _INTEGERS,
    float: frozenset({GGUFValueType.FLOAT32, GGUFValueType.FLOAT64}),
    str: frozenset({GGUFValueType.STRING}),
    bool: frozenset({GGUFValueType.BOOL}),
}
_NAMES: dict[type, str] = {int: "an integer", float: "a float", str: "a string", bool: "a bool"}
_LENGTH = struct.Struct("<Q")


def _an_array(kind: type) -> str:
    return f"an array, each value {_NAMES[kind]}"


class Metadata:
    """
    The key-value pairs of a checkpoint.

    A key is read with the type that it must have: `int` (any width and sign), `float` (f32 or f64, finite), `str`
    (UTF-8) or `bool`. Arrays are decoded on each call, so that a vocabulary costs nothing to who does not need it.
    All methods raise LaneError naming the file and the key when the value has another type.
    """

    def __init__(self, path: str, data: memoryview, entries: Mapping[str, Entry]):
        self._path = path
        self._data = data
        self._entries = entries
        self._read: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def required(self, key: str, kind: type[Value]) -> Value:
        """The value of a key that must be there."""
        return self._scalar(key, self._entry(key, _NAMES[kind]), kind)

    @overload
    def optional(self, key: str, kind: type[Value]) -> Value | None: ...
    @overload
    def optional(self, key: str, kind: type[Value], default: Value) -> Value: ...
    @overload
    def optional(self, key: str, kind: type[Value], default: None) -> Value | None: ...
    def optional(self, key: str, kind: type[Value], default: Value | None = None) -> Value | None:
        """The value of a key, or the default where the file has no such key."""
        return self.required(key, kind) if key in self._entries else default

    def required_array(self, key: str, kind: type[Value]) -> list[Value]:
        """The values of an array that must be there."""
        return self._array(key, self._entry(key, _an_array(kind)), kind)

    def optional_array(self, key: str, kind: type[Value]) -> list[Value] | None:
        """The values of an array, or None where the file has no such key."""
        return self.required_array(key, kind) if key in self._entries else None

    def per_layer(self, key: str, kind: type[Value], layers: int, default: Value | None = None) -> tuple[Value, ...]:
        """
        One value a layer of a key that holds either one value for all layers or an array of one for each.

        Raises LaneError if the array has another length, or if the key is missing and there is no default.
        """
        if key not in self._entries and default is not None:
            return (default,) * layers
        entry = self._entry(key, _NAMES[kind])
        if entry.count is None:
            return (self._scalar(key, entry, kind),) * layers
        if entry.count != layers:
            raise LaneError(
                f"{self._path}: key {shown(key)} has {entry.count} values, expected one for each of {layers} layers"
            )
        return tuple(self._array(key, entry, kind))

    def is_array(self, key: str) -> bool:
        """Whether the file has the key and its value is an array."""
        return key in self._entries and self._entries[key].count is not None

    def length(self, key: str) -> int | None:
        """How many values an array has; None where the file has no such key, or a single value."""
        return self._entries[key].count if key in self._entries else None

    def value(self, key: str) -> object:
        """The value of a key that is there, whatever its type, for messages; it does not count as read."""
        entry = self._entries[key]
        kind = next(kind for kind, types in _STORED_AS.items() if entry.type in types)
        values: list[Any] = self._decode(key, entry, kind, 1 if entry.count is None else entry.count, finite=False)
        return values[0] if entry.count is None else values

    def ignore(self, *keys: str) -> None:
        """Counts keys as read that are known to have no effect."""
        self._read.update(keys)

    def unread(self, prefix: str = "") -> tuple[str, ...]:
        """The keys starting with `prefix` that nothing has read or ignored, in the file's order."""
        return tuple(key for key in self._entries if key.startswith(prefix) and key not in self._read)

    def _entry(self, key: str, expected: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise LaneError(f"{self._path}: key {shown(key)} is missing, expected {expected}")
        self._read.add(key)
        return entry

    def _scalar(self, key: str, entry: Entry, kind: type[Value]) -> Value:
        if entry.count is not None or entry.type not in _STORED_AS[kind]:
            raise self._wrong_type(key, entry, _NAMES[kind])
        return self._decode(key, entry, kind, 1)[0]

    def _array(self, key: str, entry: Entry, kind: type[Value]) -> list[Value]:
        if entry.count is None or entry.type not in _STORED_AS[kind]:
            raise self._wrong_type(key, entry, _an_array(kind))
        return self._decode(key, entry, kind, entry.count)

    def _decode(self, key: str, entry: Entry, kind: type[Value], count: int, *, finite: bool = True) -> list[Value]:
        values: list[Any]
        if entry.type is GGUFValueType.STRING:
            values = self._strings(key, entry.start, count)
        elif entry.type is GGUFValueType.BOOL:
            values = [byte != 0 for byte in self._data[entry.start : entry.start + count]]
        else:
            dtype = np.dtype(SCALARS[entry.type].format)
            values = np.frombuffer(self._data, dtype, count, entry.start).tolist()
        if finite and kind is float and not all(map(math.isfinite, values)):
            raise LaneError(f"{self._path}: key {shown(key)} holds a NaN or an infinity, expected finite numbers")
        return values

    def _strings(self, key: str, position: int, count: int) -> list[str]:
        data, unpack = self._data, _LENGTH.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                (length,) = unpack(data, position)
                position += 8
                strings.append(str(data[position : position + length], "utf-8"))
                position += length
        except UnicodeDecodeError:
            raise LaneError(f"{self._path}: string {len(strings)} of key {shown(key)} is not UTF-8") from None
        return strings

    def _wrong_type(self, key: str, entry: Entry, expected: str) -> LaneError:
        found = entry.type.name.lower()
        found = found if entry.count is None else f"an array of {entry.count} {found}"
        return LaneError(f"{self._path}: key {shown(key)} is {found}, expected {expected}")
