"""The repacking kernels, emulated, give the bytes that numpy gives."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from lane_mlir.cuda.layout import LAYOUTS, MAX_PLANES, layout
from lane_mlir.cuda.repack import repack
from lane_mlir.cuda.runtime.repacking import REPACK_THREADS, REPACK_UNIT, print_repacking, repack_kernel
from lane_mlir.cuda.source import self_contained
from lane_mlir.formats import Format

BLOCK_FORMATS = sorted(f for f in LAYOUTS if f.is_block)


@pytest.fixture(scope="module")
def library(emulator: Any) -> ctypes.CDLL:
    entries = "".join(
        f'extern "C" void run_{repack_kernel(f)}(void* raw, void* weight, long first, long units, long* at, unsigned grid) {{'
        " static void *r, *w; static long f, u, *p; r = raw; w = weight; f = first; u = units; p = at;"
        f" emulator::launch([] {{ {repack_kernel(f)}((const u8*)r, (u8*)w, f, u, p[0], p[1], p[2], p[3]); }},"
        f" {{grid, 1, 1}}, {REPACK_THREADS}, 0); }}\n"
        for f in BLOCK_FORMATS
    )
    return emulator.compiled(self_contained(print_repacking(), "repack.cu") + entries)


@pytest.mark.parametrize("fmt", BLOCK_FORMATS)
def test_in_two_chunks_as_numpy_at_once(library: ctypes.CDLL, fmt: Format):
    rows, k = 5, 512
    raw = np.random.default_rng(3).integers(0, 256, rows * k // fmt.values * fmt.bytes, dtype=np.uint8)
    expected = repack(fmt, raw, rows, k)
    weight = np.zeros_like(expected)
    offsets = (ctypes.c_long * MAX_PLANES)(*layout(fmt).offsets(rows, k))
    units, first = rows * k // REPACK_UNIT, 2 * k // REPACK_UNIT
    for begin, end in ((0, first), (first, units)):
        chunk = raw[begin * REPACK_UNIT // fmt.values * fmt.bytes : end * REPACK_UNIT // fmt.values * fmt.bytes].copy()
        run = getattr(library, f"run_{repack_kernel(fmt)}")
        address, out = ctypes.c_void_p(chunk.ctypes.data), ctypes.c_void_p(weight.ctypes.data)
        count = end - begin
        run(address, out, ctypes.c_long(begin), ctypes.c_long(count), offsets, -(-count // REPACK_THREADS))
    assert np.array_equal(weight, expected)
