"""Weights on the card, byte by byte against numpy."""

from __future__ import annotations

import time

import numpy as np

from lane_mlir.checkpoint import Tensor
from lane_mlir.cuda.check.reporter import Measured, Reporter
from lane_mlir.cuda.layout import LAYOUTS, layout
from lane_mlir.cuda.repack import repack
from lane_mlir.cuda.runtime.gpu import Bytes, Gpu
from lane_mlir.cuda.runtime.weights import GivenTensors, Stored, Weight, Weights
from lane_mlir.formats import Format, StoredTensor

ROWS, K = 96, 2304
LARGE = (32768, 4096)
"""Rows and values of a weight that takes several pieces, for the rate."""


def check_repacking(reporter: Reporter, gpu: Gpu) -> None:
    """Every format, bit for bit; and one weight of several pieces, with the rate at which it is loaded."""
    for fmt in sorted(LAYOUTS):
        reporter.run(str(fmt), lambda fmt=fmt: _check(gpu, fmt, ROWS, K))
    for fmt in (Format.Q8_0, Format.Q4_K):
        reporter.run(f"{fmt} in pieces", lambda fmt=fmt: _check(gpu, fmt, *LARGE))


def _check(gpu: Gpu, fmt: Format, rows: int, k: int) -> Measured:
    data = np.random.default_rng(9).integers(0, 256, (rows, k // fmt.values * fmt.bytes), dtype=np.uint8)
    weights = Weights(gpu, GivenTensors({"w": Tensor("w", (rows, k), fmt, 0, data)}))
    weight = Weight(StoredTensor("w", fmt), (rows, k), Stored.PLANES, 0, rows * k)
    arrival = weights.expect([weight])
    arrival.slab.allocate(gpu)
    started = time.perf_counter()
    for _ in weights.load(arrival):
        pass
    seconds = time.perf_counter() - started
    got = np.zeros(weight.size, np.uint8)
    gpu.compute.download(got, weights.address(weight))
    gpu.compute.sync()
    wrong = _differences(fmt, got, repack(fmt, data.reshape(-1), rows, k), rows, k)
    return Measured(wrong, 0, "the same bytes", f"{wrong} bytes differ; {data.nbytes / seconds / 1e9:.1f} GB/s")


def _differences(fmt: Format, got: Bytes, want: Bytes, rows: int, k: int) -> int:
    """Bytes of planes that differ; between planes there may be anything."""
    how = layout(fmt)
    spans = [(at, at + plane.size(rows, k)) for at, plane in zip(how.offsets(rows, k), how.planes, strict=True)]
    return sum(int(np.count_nonzero(got[start:stop] != want[start:stop])) for start, stop in spans)
