"""Weights on the device: which form of which constant each kernel reads, shared by all programs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from xdsl.utils.str_enum import StrEnum

from lane_mlir.checkpoint import Tensor
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.cuda.runtime.loading import Loader
from lane_mlir.diagnostics import LaneError, unknown
from lane_mlir.formats import Format, StoredTensor
from lane_mlir.rope import RopeTable


class Tensors(Protocol):
    """Where tensors come from: a checkpoint, or `GivenTensors`."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name. Raises LaneError if there is none."""
        ...


@dataclass(frozen=True)
class GivenTensors:
    """Tensors that the caller has, by name."""

    tensors: Mapping[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise LaneError(unknown("tensor", name, self.tensors))
        return self.tensors[name]


class Stored(StrEnum):
    """How a weight lies on the device."""

    PLANES = "planes"
    """As `lane_mlir.cuda.layout` says for its format."""
    VALUES = "values"
    """f32, row by row."""
    COLUMNS = "columns"
    """f32, column by column."""


@dataclass(frozen=True)
class Weight:
    """
    A constant, or a run of its elements, as kernels read it. Equal for all that read it alike.

    Blocks that are not the whole tensor are a weight of their own, since a kernel finds the planes by the number of
    rows that it is for.
    """

    source: StoredTensor | RopeTable
    shape: tuple[int, ...]
    """Of the whole constant."""
    stored: Stored
    start: int
    """The first element."""
    length: int

    @property
    def format(self) -> Format:
        """How the values are stored: in the checkpoint, and as planes on the device too."""
        return self.source.format if isinstance(self.source, StoredTensor) else Format.F32

    @property
    def is_repacked(self) -> bool:
        """Whether its blocks are taken apart on the device."""
        return self.stored is Stored.PLANES and self.format.is_block

    @property
    def size(self) -> int:
        """Bytes on the device."""
        if self.stored is Stored.PLANES:
            return layout(self.format).size(1, self.length)
        return 4 * self.length

    @property
    def copied(self) -> int:
        """Bytes that are copied to the device."""
        return self.length // self.format.values * self.format.bytes if self.is_repacked else self.size


@dataclass(frozen=True)
class Arrival:
    """Weights that are to come, with the place of each in one allocation."""

    slab: Slab
    offsets: Mapping[Weight, int]

    @property
    def copied(self) -> int:
        """Bytes that will be copied."""
        return sum(weight.copied for weight in self.offsets)


class Weights:
    """The weights of one model on one GPU."""

    def __init__(self, gpu: Gpu, tensors: Tensors):
        self._gpu, self._tensors = gpu, tensors
        self._addresses: dict[Weight, int] = {}
        self._slabs: list[Slab] = []

    def address(self, weight: Weight) -> int:
        return self._addresses[weight]

    def expect(self, weights: Iterable[Weight]) -> Arrival:
        """
        Reserve room for those of the weights that are not on the device, in the order of the file.

        Raises: LaneError for a tensor that there is not, or that is stored otherwise than the step says.
        """
        wanted = dict.fromkeys(weight for weight in weights if weight not in self._addresses)
        slab = Slab()
        ordered = sorted(wanted, key=self._offset_in_file)
        return Arrival(slab, {weight: slab.reserve(weight.size) for weight in ordered})

    def load(self, arrival: Arrival) -> Iterator[int]:
        """Load weights whose slab is allocated; the bytes of each piece as it is on its way."""
        with Loader(self._gpu, self._tensors, list(arrival.offsets)) as loader:
            for weight, offset in arrival.offsets.items():
                yield from loader.load(weight, arrival.slab.address + offset)
            yield from loader.flush()
        self._slabs.append(arrival.slab)
        self._addresses |= {weight: arrival.slab.address + offset for weight, offset in arrival.offsets.items()}

    def _offset_in_file(self, weight: Weight) -> int:
        stored = weight.source
        if not isinstance(stored, StoredTensor):
            return -1
        tensor = self._tensors.tensor(stored.name)
        if tensor.format is not stored.format:
            raise LaneError(f'tensor "{stored.name}" is stored as {tensor.format}, and the step reads {stored.format}')
        if _essential(tensor.shape) != _essential(weight.shape):
            found, expected = (" x ".join(map(str, shape)) for shape in (tensor.shape, weight.shape))
            raise LaneError(f'tensor "{stored.name}" is {found}, and the step reads {expected}')
        return tensor.offset + weight.start // tensor.format.values * tensor.format.bytes


def _essential(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of 1, of which files keep as many as they like."""
    return tuple(n for n in shape if n != 1)
