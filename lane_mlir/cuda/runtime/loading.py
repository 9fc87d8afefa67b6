"""
From the mapped file to the device: in pieces, through pinned buffers that several threads fill while others are copied,
and for block formats through a kernel that takes the blocks apart.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from lane_mlir.cuda.layout import MAX_PLANES, layout
from lane_mlir.cuda.runtime.errors import DriverError
from lane_mlir.cuda.runtime.gpu import Bytes, Event, Gpu, HostArray, KernelHandle, KernelLaunch, Signature, Slab, Source
from lane_mlir.cuda.runtime.repacking import REPACK_THREADS, REPACK_UNIT, print_repacking, repack_kernel
from lane_mlir.formats import Format, StoredTensor
from lane_mlir.rope import RopeTable, rope_tables
from lane_mlir.timeline import phase

if TYPE_CHECKING:
    from lane_mlir.checkpoint import Tensor
    from lane_mlir.cuda.runtime.weights import Tensors, Weight

STAGING_BYTES = 8 << 20
"""Bytes of a pinned buffer: copies of some megabytes reach the rate of the bus."""

_THREADS = 16
"""Threads that fill buffers at most: each moves some 5 GB/s of pages that are not mapped yet, and the bus takes 55."""

_SENT = 4
"""Buffers besides those that are filled, to be copied meanwhile."""

_REPACK_PARAMETERS = ("const u8*", "u8*", *("i64",) * (2 + MAX_PLANES))


@dataclass(frozen=True)
class Piece:
    """
    A part of a weight as it is copied: bytes that land `at` so many bytes in the weight, or, if `unit` is given, blocks
    of the checkpoint, whose first 32 values are that unit of the weight.
    """

    data: Bytes
    at: int = 0
    unit: int | None = None


@dataclass
class Slot:
    """A pinned buffer, the device memory for blocks from it, and when both are free again."""

    host: Bytes
    device: int
    free: Event
    used: bool = False


@dataclass(frozen=True)
class Filling:
    """A piece of a weight, on its way into a pinned buffer."""

    weight: Weight
    address: int
    piece: Piece
    slot: Slot
    filled: Future[None]


class Loader:
    """Loads weights, `with` which it holds its buffers; what was loaded and flushed is there when it ends."""

    def __init__(self, gpu: Gpu, tensors: Tensors, weights: Sequence[Weight]):
        self._gpu, self._tensors = gpu, tensors
        self._formats = sorted({weight.format for weight in weights if weight.is_repacked})
        self._staged = min(STAGING_BYTES, max((weight.copied for weight in weights), default=0))
        self._threads = min(_THREADS, os.cpu_count() or 1)
        pieces = sum(-(-weight.copied // self._staged) for weight in weights)
        self._count = min(self._threads + _SENT, max(pieces, 1))
        self._free: deque[Slot] = deque()
        self._filling: deque[Filling] = deque()

    def __enter__(self) -> Self:
        gpu = self._gpu
        self._raw = Slab()
        places = [self._raw.reserve(self._staged if self._formats else 0) for _ in range(self._count)]
        self._raw.allocate(gpu)
        with phase("pinned buffers"):
            hosts = gpu.pinned(max(self._count * self._staged, 1)).reshape(self._count, -1)
        self._free.extend(
            Slot(host, self._raw.address + at, gpu.event()) for host, at in zip(hosts, places, strict=True)
        )
        self._kernels = _repacking(gpu, self._formats)
        self._pool = ThreadPoolExecutor(self._threads, "weights")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._pool.shutdown(cancel_futures=True)
        # Nothing may be freed that is still copied from. What failed before it failed for a reason of its own.
        with suppress(DriverError) if error is not None else nullcontext():
            self._gpu.compute.sync()

    def load(self, weight: Weight, address: int) -> Iterator[int]:
        """Load a weight to an address; the bytes of each piece that is on its way meanwhile, maybe of one before."""
        for piece in self.pieces(weight):
            if not self._free or len(self._filling) > self._threads:
                yield self._send()
            slot = self._free.popleft()
            if slot.used:
                slot.free.sync()
            filled = self._pool.submit(_fill, slot.host[: piece.data.nbytes], piece.data)
            self._filling.append(Filling(weight, address, piece, slot, filled))

    def flush(self) -> Iterator[int]:
        """The bytes of each piece that is left, as it is on its way."""
        while self._filling:
            yield self._send()

    # What is copied.

    def pieces(self, weight: Weight) -> Iterator[Piece]:
        """A weight in pieces that fit a pinned buffer."""
        source = weight.source
        if not isinstance(source, StoredTensor):
            yield from self._in_pieces(self._rope_table(source, *weight.shape))
            return
        tensor = self._tensors.tensor(source.name)
        match str(weight.stored):
            case "columns":
                values = tensor.values().reshape(weight.shape)
                yield from self._in_pieces(np.ascontiguousarray(values.T))
            case "values" if tensor.format is not Format.F32:
                yield from self._dequantized(tensor)
            case _ if weight.is_repacked:
                yield from self._blocks(weight, tensor)
            case _:
                yield from self._in_pieces(tensor.data)

    def _rope_table(self, table: RopeTable, positions: int, half: int) -> HostArray:
        factors = None
        if table.factors is not None:
            factors = tuple(map(float, self._tensors.tensor(table.factors.name).values().reshape(-1)))
        cos, sin = rope_tables(table.scaling, positions, half, factors)
        return cos if table.which == "cos" else sin

    def _in_pieces(self, array: HostArray) -> Iterator[Piece]:
        data = array.reshape(-1).view(np.uint8)
        for at in range(0, len(data), self._staged):
            yield Piece(data[at : at + self._staged], at)

    def _dequantized(self, tensor: Tensor) -> Iterator[Piece]:
        row_bytes = 4 * tensor.shape[-1]
        rows = max(1, self._staged // row_bytes)
        for first in range(0, tensor.row_count, rows):
            values = tensor.rows(first, min(first + rows, tensor.row_count))
            yield Piece(values.reshape(-1).view(np.uint8), first * row_bytes)

    def _blocks(self, weight: Weight, tensor: Tensor) -> Iterator[Piece]:
        fmt = weight.format
        first = weight.start // fmt.values * fmt.bytes
        data = tensor.data.reshape(-1)[first : first + weight.copied]
        step = self._staged // fmt.bytes * fmt.bytes
        for at in range(0, len(data), step):
            yield Piece(data[at : at + step], unit=at // fmt.bytes * fmt.values // REPACK_UNIT)

    # How.

    def _send(self) -> int:
        """Copy what is filled, the pieces in their order, to the device; its bytes."""
        stream, filling = self._gpu.compute, self._filling.popleft()
        filling.filled.result()
        slot, piece = filling.slot, filling.piece
        staged = slot.host[: piece.data.nbytes]
        if piece.unit is None:
            stream.upload(filling.address + piece.at, staged)
        else:
            stream.upload(slot.device, staged)
            stream.launch(self._repacked(filling.weight, filling.address, slot.device, piece))
        stream.record(slot.free)
        slot.used = True
        self._free.append(slot)
        return piece.data.nbytes

    def _repacked(self, weight: Weight, address: int, raw: int, piece: Piece) -> KernelLaunch:
        fmt = weight.format
        units = piece.data.nbytes // fmt.bytes * fmt.values // REPACK_UNIT
        offsets = layout(fmt).offsets(1, weight.length)
        numbers = (piece.unit or 0, units, *offsets, *(0,) * (MAX_PLANES - len(offsets)))
        return KernelLaunch(
            self._kernels[repack_kernel(fmt)],
            (-(-units // REPACK_THREADS), 1, 1),
            REPACK_THREADS,
            (raw, address, *(np.int64(number) for number in numbers)),
        )


def _fill(buffer: Bytes, data: Bytes) -> None:
    """numpy lets other threads run meanwhile; a page of the file that is not there yet is read."""
    np.copyto(buffer, data)


def _repacking(gpu: Gpu, formats: Sequence[Format]) -> Mapping[str, KernelHandle]:
    if not formats:
        return {}
    signatures = {repack_kernel(fmt): Signature(_REPACK_PARAMETERS) for fmt in formats}
    return gpu.load(Source("repack.cu", print_repacking(formats), signatures))
