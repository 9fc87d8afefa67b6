"""A GGUF file, opened and checked as a whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from lane_mlir.checkpoint.header import Header, TensorEntry, read_header, shown
from lane_mlir.checkpoint.metadata import Metadata
from lane_mlir.checkpoint.tensor import Tensor
from lane_mlir.diagnostics import LaneError
from lane_mlir.formats import Format, format_of

_DEFAULT_ALIGNMENT = 32

# Type numbers that ggml has withdrawn. Files still carry them, some with other contents than ggml gave them.
_WITHDRAWN = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


class TensorError(LaneError):
    """A tensor is missing, or has another shape than the one that is asked for."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """
    A model file: its metadata and tensors, the latter mapped, not read.

    `tensors` are in the file's order. `tensor(name, shape)` also keeps account, so that an importer can refuse what it
    does not know: `unused_tensors()`, and `metadata.unread(prefix)`.
    """

    path: Path
    metadata: Metadata = field(repr=False)
    tensors: Mapping[str, Tensor] = field(repr=False)
    header: NDArray[np.uint8] = field(repr=False)
    """The bytes before the tensors' data: metadata, and what tensors there are."""
    _used: set[str] = field(default_factory=set[str], repr=False)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Checkpoint:
        """
        Opens a GGUF file and checks all of its structure.

        Raises LaneError, naming the file and the key or tensor, if the file cannot be read, is not a GGUF file of a
        supported version, is truncated or contradicts itself, or stores a tensor in a format that cannot be used.
        """
        name = os.fspath(path)
        data = _map(name)
        header = read_header(name, data.data)
        metadata = Metadata(name, data.data, header.entries)
        _refuse_split(name, metadata)
        tensors = _tensors(name, data, header, metadata)
        return Checkpoint(Path(name), metadata, MappingProxyType(tensors), data[: header.end])

    @property
    def architecture(self) -> str:
        """The family of the model, `general.architecture`; LaneError if the file does not say."""
        return self.metadata.required("general.architecture", str)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the header: equal for files of the same metadata and tensors, whatever their values."""
        return hashlib.sha256(self.header.data).hexdigest()

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor of a name, of the given shape if one is given; TensorError naming both shapes otherwise."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise TensorError(f"{self.path}: tensor {shown(name)} is missing")
        if shape and tensor.shape != shape:
            raise TensorError(f"{self.path}: tensor {shown(name)} is {_by(tensor.shape)}, expected {_by(shape)}")
        self._used.add(name)
        return tensor

    def unused_tensors(self) -> tuple[str, ...]:
        """The tensors that nothing has asked for by name, in the file's order."""
        return tuple(name for name in self.tensors if name not in self._used)


def _map(path: str) -> NDArray[np.uint8]:
    if not os.path.exists(path):
        raise LaneError(f"{path}: no such file")
    if not os.path.isfile(path):
        raise LaneError(f"{path}: not a file")
    if os.path.getsize(path) == 0:
        raise LaneError(f"{path}: the file is empty")
    try:
        return np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise LaneError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _refuse_split(path: str, metadata: Metadata) -> None:
    parts = metadata.optional("split.count", int, 1)
    if parts > 1:
        part = metadata.optional("split.no", int, 0) + 1
        raise LaneError(
            f"{path}: part {part} of a model split into {parts} files (split.count); merge them into one first"
        )


def _tensors(path: str, data: NDArray[np.uint8], header: Header, metadata: Metadata) -> dict[str, Tensor]:
    alignment = _alignment(path, metadata)
    section = -(-header.end // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for entry in header.tensors:
        where = f"{path}: tensor {shown(entry.name)}"
        form = _format(where, entry.type_number)
        size = _size(where, entry, form)
        if entry.offset % alignment:
            raise LaneError(f"{where}: offset {entry.offset} is no multiple of the alignment {alignment}")
        start = section + entry.offset
        if start + size > len(data):
            raise LaneError(
                f"{where}: truncated: its {size} bytes from {start} on pass the end of the file ({len(data)} bytes)"
            )
        shape = entry.dimensions[::-1]
        stored = data[start : start + size].view(np.ndarray).reshape(prod(shape[:-1]), -1)
        tensors[entry.name] = Tensor(entry.name, shape, form, start, stored)
    _refuse_overlap(path, tensors)
    return tensors


def _alignment(path: str, metadata: Metadata) -> int:
    alignment = metadata.optional("general.alignment", int, _DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment & (alignment - 1):
        raise LaneError(f"{path}: general.alignment is {alignment}, expected a power of two of at least 8")
    return alignment


def _format(where: str, number: int) -> Format:
    if number in _WITHDRAWN:
        raise LaneError(
            f"{where}: type number {number} ({_WITHDRAWN[number]}) was withdrawn from the format; convert the model "
            "again (some older files store mxfp4, which is number 39, under it)"
        )
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise LaneError(f"{where}: unknown type number {number}") from None
    form = format_of(kind)
    if form is None:
        raise LaneError(f"{where}: type number {number} ({kind.name.lower()}) is not supported as a weight format")
    return form


def _size(where: str, entry: TensorEntry, form: Format) -> int:
    """Bytes of a tensor. Python's integers do not wrap; the caller compares with the file."""
    if 0 in entry.dimensions:
        raise LaneError(f"{where}: {_by(entry.dimensions[::-1])} has a dimension of 0")
    width = entry.dimensions[0]
    if width % form.values:
        raise LaneError(f"{where}: rows of {width} values are no whole number of {form} blocks of {form.values}")
    return prod(entry.dimensions) // form.values * form.bytes


def _refuse_overlap(path: str, tensors: Mapping[str, Tensor]) -> None:
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise LaneError(
                f"{path}: tensors {shown(before.name)} and {shown(after.name)} overlap at byte {after.offset}"
            )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
