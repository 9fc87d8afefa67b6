"""Weights arrive on an emulated card as numpy repacks them, whole or in pieces, each once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.checkpoint import Tensor
from lane_mlir.cuda.layout import LAYOUTS
from lane_mlir.cuda.lowering import weight_of
from lane_mlir.cuda.repack import repack
from lane_mlir.cuda.runtime import loading
from lane_mlir.cuda.runtime.weights import GivenTensors, Stored, Weight, Weights
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import BufferOp, DType, Fill, TensorAttr
from lane_mlir.formats import Format, StoredTensor

ROWS, K = 6, 512


def tensor(fmt: Format, rows: int = ROWS, k: int = K, name: str = "w") -> Tensor:
    """Random bytes, all scales of which are finite."""
    data = np.random.default_rng(3).integers(0, 256, (rows, k // fmt.values * fmt.bytes), dtype=np.uint8)
    if fmt is Format.F32:
        data = np.random.default_rng(3).standard_normal((rows, k)).astype(np.float32).view(np.uint8)
    elif not fmt.is_block:
        data[:, 1::2] &= 0xBF
    return Tensor(name, (rows, k), fmt, 0, data)


def constant(fmt: Format, *shape: int, transposed: bool = False) -> BufferOp:
    attribute = TensorAttr(StoredTensor("w", fmt))
    return BufferOp("w", shape or (ROWS, K), Fill.CONSTANT, constant=attribute, transposed=transposed, plain=True)


Load = Callable[..., list[NDArray[np.uint8]]]


@pytest.fixture
def load(new_gpu: Any) -> Load:
    """`load(tensor, weight, …)`: the bytes of each on the device, all guards around them untouched."""

    def run(source: Tensor, *weights: Weight) -> list[NDArray[np.uint8]]:
        gpu = new_gpu()
        found = Weights(gpu, GivenTensors({source.name: source}))
        arrival = found.expect(weights)
        arrival.slab.allocate(gpu)
        assert sum(found.load(arrival)) == arrival.copied
        gpu.check()
        arrays = [np.zeros(weight.size, np.uint8) for weight in weights]
        for weight, array in zip(weights, arrays, strict=True):
            gpu.compute.download(array, found.address(weight))
        return arrays

    return run


@pytest.mark.parametrize("fmt", sorted(LAYOUTS))
@pytest.mark.parametrize("staged", [64 << 20, 1200])
def test_planes_of_every_format(load: Load, fmt: Format, staged: int, monkeypatch: pytest.MonkeyPatch):
    """In one piece, and in pieces that end inside a row."""
    monkeypatch.setattr(loading, "STAGING_BYTES", staged)
    source = tensor(fmt)
    weight, offset = weight_of(constant(fmt), "const u8")
    assert (weight.stored, offset) == (Stored.PLANES, 0)
    (got,) = load(source, weight)
    want = repack(fmt, source.data.reshape(-1), ROWS, K)
    # Nothing is written between planes.
    used = repack(fmt, np.full_like(source.data.reshape(-1), 0xFF), ROWS, K) != 0
    assert (got == want)[used | (want != 0)].all()
    assert used.mean() > 0.85


def test_values_of_an_f32_tensor_and_its_columns(load: Load):
    source = tensor(Format.F32)
    (rows, at), (columns, _) = (weight_of(constant(Format.F32, transposed=t), "const float") for t in (False, True))
    assert (rows.stored, columns.stored, at) == (Stored.VALUES, Stored.COLUMNS, 0)
    got = load(source, rows, columns)
    assert np.array_equal(got[0].view(np.float32).reshape(ROWS, K), source.values())
    assert np.array_equal(got[1].view(np.float32).reshape(K, ROWS), source.values().T)


@pytest.mark.parametrize("fmt", [Format.F16, Format.BF16, Format.Q8_0])
def test_values_of_other_formats_are_dequantized(load: Load, fmt: Format, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "STAGING_BYTES", 3 * 4 * K)
    source = tensor(fmt)
    if fmt is Format.Q8_0:
        source.data[:, 1::34] &= 0x3F
    (got,) = load(source, weight_of(constant(fmt), "const float")[0])
    assert np.array_equal(got.view(np.float32).reshape(ROWS, K), source.values())


def alias(of: BufferOp, offset: int, *shape: int) -> BufferOp:
    return BufferOp("part", shape, Fill.ALIAS, of=of.buffer, offset=offset, plain=True)


def test_rows_of_a_block_format_are_a_weight_of_their_own(load: Load):
    whole = constant(Format.Q4_K)
    weight, offset = weight_of(alias(whole, 2 * K, 3, K), "const u8")
    assert (weight.start, weight.length, offset) == (2 * K, 3 * K, 0)
    source = tensor(Format.Q4_K)
    (got,) = load(source, weight)
    want = repack(Format.Q4_K, source.data[2:5].reshape(-1), 3, K)
    assert len(got) == len(want)
    assert (got == want)[want != 0].all()


def test_a_view_of_values_points_into_them():
    whole = constant(Format.F32)
    weight, offset = weight_of(alias(alias(whole, K, 4, K), 3, 5), "const float")
    assert weight == weight_of(whole, "const float")[0]
    assert offset == 4 * (K + 3)
    weight, offset = weight_of(alias(constant(Format.BF16), K, 2, K), "const u8")
    assert (weight.length, offset) == (ROWS * K, 2 * K)


def test_each_weight_is_loaded_once(new_gpu: Any):
    gpu, weight = new_gpu(), weight_of(constant(Format.Q8_0), "const u8")[0]
    found = Weights(gpu, GivenTensors({"w": tensor(Format.Q8_0)}))
    arrival = found.expect([weight, weight])
    assert list(arrival.offsets) == [weight]
    arrival.slab.allocate(gpu)
    list(found.load(arrival))
    assert found.expect([weight]).offsets == {}


def test_what_cannot_be_read():
    q4 = constant(Format.Q4_K)
    for buffer, c_type, message in (
        (alias(q4, 16, 256), "const u8", 'elements 16 to 272 of "w" are no whole blocks of 256 of its format q4_k'),
        (alias(constant(Format.F32, transposed=True), 0, 8), "const float", 'part of "w", which is stored by columns'),
        (
            BufferOp("w", (4,), Fill.CONSTANT, dtype=DType.F16, constant=q4.constant, plain=True),
            "const f16",
            'constant buffer "w" is of type f16, expected f32',
        ),
    ):
        with pytest.raises(LaneError, match=message):
            weight_of(buffer, c_type)


@pytest.mark.parametrize(
    "source, message",
    [
        (tensor(Format.Q4_0), 'tensor "w" is stored as q4_0, and the step reads q8_0'),
        (tensor(Format.Q8_0, rows=5), 'tensor "w" is 5 x 512, and the step reads 6 x 512'),
        (tensor(Format.Q8_0, name="v"), "unknown tensor 'w'; .*valid: v"),
    ],
)
def test_a_tensor_that_is_not_what_the_step_says(new_gpu: Any, source: Tensor, message: str):
    found = Weights(new_gpu(), GivenTensors({source.name: source}))
    with pytest.raises(LaneError, match=message):
        found.expect([weight_of(constant(Format.Q8_0), "const u8")[0]])


def test_more_pieces_than_buffers(load: Load, monkeypatch: pytest.MonkeyPatch):
    """Buffers are filled again and again, by threads that take their time, and what was copied from them is whole."""
    monkeypatch.setattr(loading, "STAGING_BYTES", 340)
    monkeypatch.setattr(loading, "_THREADS", 3)
    source = tensor(Format.Q8_0, rows=64)
    filled: list[int] = []
    fill = loading._fill  # pyright: ignore[reportPrivateUsage]

    def slowly(buffer: Any, data: Any) -> None:
        time.sleep(1e-3 * (len(filled) % 3))
        fill(buffer, data)
        filled.append(len(data))

    monkeypatch.setattr(loading, "_fill", slowly)
    (got,) = load(source, weight_of(constant(Format.Q8_0, 64, K), "const u8")[0])
    want = repack(Format.Q8_0, source.data.reshape(-1), 64, K)
    assert (got == want)[want != 0].all()
    assert len(filled) == -(-source.nbytes // 340)


def test_a_piece_that_cannot_be_read_is_an_error(load: Load, monkeypatch: pytest.MonkeyPatch):
    def fail(buffer: Any, data: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(loading, "_fill", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load(tensor(Format.Q8_0), weight_of(constant(Format.Q8_0), "const u8")[0])
