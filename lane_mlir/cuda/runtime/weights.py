"""Weights on the device: which form of which constant each kernel reads, shared by all programs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from xdsl.ir import Attribute
from xdsl.utils.str_enum import StrEnum

from lane_mlir.checkpoint import Tensor
from lane_mlir.cpu import Memory
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.cuda.runtime.loading import Loader
from lane_mlir.diagnostics import LaneError, unknown
from lane_mlir.dialects.launch import BufferOp, DType, TensorAttr, Touch
from lane_mlir.formats import Format


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

    constant: Attribute
    shape: tuple[int, ...]
    """Of the whole constant."""
    stored: Stored
    start: int
    """The first element."""
    length: int

    @property
    def format(self) -> Format:
        """How the values are stored: in the checkpoint, and as planes on the device too."""
        return self.constant.data.format if isinstance(self.constant, TensorAttr) else Format.F32

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


def weight_of(buffer: BufferOp, c_type: str) -> tuple[Weight, int]:
    """
    What a pointer of a type in CUDA C to a constant, or into one, reads: the weight, and the pointer's offset in it in
    bytes. `const u8` points to planes, everything else to values.

    Raises: LaneError for a constant that cannot be read so.
    """
    held, start, stop = buffer.holder(Touch.PLAIN)
    assert held.constant is not None
    if held.dtype.data is not DType.F32:
        raise LaneError(f'constant buffer "{held.label.data}" is of type {held.dtype.data}, expected f32')
    if held.transposed is None:
        if c_type.removeprefix("const ") == "u8":
            return _planes(held, start, stop)
        return Weight(held.constant, held.shape.data, Stored.VALUES, 0, held.length), 4 * start
    if (start, stop) != (0, held.length):
        raise LaneError(f'buffer "{buffer.label.data}" is part of "{held.label.data}", which is stored by columns')
    return Weight(held.constant, held.shape.data, Stored.COLUMNS, 0, held.length), 0


def _planes(held: BufferOp, start: int, stop: int) -> tuple[Weight, int]:
    constant, shape = held.constant, held.shape.data
    if not isinstance(constant, TensorAttr):
        raise LaneError(f'buffer "{held.label.data}" is read as a weight in a format, and holds {constant}')
    fmt = constant.data.format
    if not fmt.is_block:
        return Weight(constant, shape, Stored.PLANES, 0, held.length), start * fmt.bytes
    if start % fmt.values or stop % fmt.values:
        raise LaneError(
            f'elements {start} to {stop} of "{held.label.data}" are no whole blocks of {fmt.values} of its format {fmt}'
        )
    return Weight(constant, shape, Stored.PLANES, start, stop - start), 0


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
    """The weights of one model on one GPU. `tables` makes the constants that are no tensors: tables of rotations."""

    def __init__(self, gpu: Gpu, tensors: Tensors, tables: Memory):
        self._gpu, self._tensors, self._tables = gpu, tensors, tables
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
        with Loader(self._gpu, self._tensors, self._tables, list(arrival.offsets)) as loader:
            for weight, offset in arrival.offsets.items():
                yield from loader.load(weight, arrival.slab.address + offset)
        self._slabs.append(arrival.slab)
        self._addresses |= {weight: arrival.slab.address + offset for weight, offset in arrival.offsets.items()}

    def _offset_in_file(self, weight: Weight) -> int:
        if not isinstance(weight.constant, TensorAttr):
            return -1
        stored, tensor = weight.constant.data, self._tensors.tensor(weight.constant.data.name)
        if tensor.format is not stored.format:
            raise LaneError(f'tensor "{stored.name}" is stored as {tensor.format}, and the step reads {stored.format}')
        if _essential(tensor.shape) != _essential(weight.shape):
            found, expected = (" x ".join(map(str, shape)) for shape in (tensor.shape, weight.shape))
            raise LaneError(f'tensor "{stored.name}" is {found}, and the step reads {expected}')
        return tensor.offset + weight.start // tensor.format.values * tensor.format.bytes


def _essential(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of 1, of which files keep as many as they like."""
    return tuple(n for n in shape if n != 1)
