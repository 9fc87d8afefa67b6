"""Products by weights on emulated kernels, against eval's arithmetic of the same numerics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import UnitAttr

from lane_mlir.cuda.layout import LAYOUTS
from lane_mlir.cuda.repack import dequantize, repack
from lane_mlir.dialects import launch
from lane_mlir.dialects.launch import BufferOp, Dst, DType, Fill, Part, Product, Row, ScheduleOp, Tail, Target, YieldOp
from lane_mlir.dialects.tg import Activation, Numerics, Precision, TargetAttr
from lane_mlir.eval.elementwise import silu
from lane_mlir.eval.numerics import activation_numerics, quantize, quantize_words
from lane_mlir.formats import Format

FORMATS = sorted(LAYOUTS)
RELATIVE = 2e-6
"""Of the largest result: sums of some hundred f32 products in another order."""


def random_bytes(fmt: Format, rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """A weight's bytes in the checkpoint: random codes and scales of about 1/16, so that results are of order 1."""
    count = rows * k // fmt.values
    if fmt is Format.F32:
        return rng.standard_normal(rows * k).astype(np.float32).view(np.uint8)
    if fmt is Format.F16:
        return rng.standard_normal(rows * k).astype(np.float16).view(np.uint8)
    if fmt is Format.BF16:
        return (rng.standard_normal(rows * k).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (count, fmt.bytes), dtype=np.uint8)
    if fmt is Format.MXFP4:
        blocks[:, 0] = rng.integers(118, 126, count)
        return blocks.reshape(-1)
    places = {
        Format.Q4_1: (0, 2), Format.Q5_1: (0, 2), Format.Q2_K: (80, 82), Format.Q3_K: (108,), Format.Q4_K: (0, 2),
        Format.Q5_K: (0, 2), Format.Q6_K: (208,),
    }.get(fmt, (0,))  # fmt: skip
    for place in places:
        scales = (rng.uniform(0.25, 1, count) / 64).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks.reshape(-1)


class Bench:
    """A schedule of one launch: its buffers by name, made as they are asked for, and their contents."""

    def __init__(self, numerics: Numerics, new_memory: Any) -> None:
        self.numerics = numerics
        self.buffers: dict[str, BufferOp] = {}
        self.rng = np.random.default_rng(7)
        words = {Numerics.DEQUANT: 0, Numerics.INT8: 1, Numerics.TWO_PASS_INT8: 2}[numerics]
        self.memory = new_memory(words)

    def buffer(self, name: str, *shape: int, dtype: DType = DType.F32, fill: Fill = Fill.COMPUTED) -> Any:
        if name not in self.buffers:
            self.buffers[name] = BufferOp(name, shape, fill, dtype=dtype)
        return self.buffers[name].buffer

    def given(self, name: str, values: np.ndarray, dtype: DType = DType.F32) -> Any:
        value = self.buffer(name, *values.shape, dtype=dtype)
        self.memory.plain[self.buffers[name]] = np.ascontiguousarray(values).reshape(-1)
        return value

    def activation(self, name: str, rows: int, k: int) -> tuple[Any, np.ndarray]:
        """An activation, in its quantized form too where the numerics has one."""
        x = self.rng.standard_normal((rows, k)).astype(np.float32)
        value = self.given(name, x)
        words = quantize_words(x, self.numerics)
        if words:
            bytes, form, _ = self.memory.quantized_of(self.buffers[name])
            q = np.stack([word.q.reshape(-1, 32) for word in words], axis=1)
            d = np.stack([word.d.reshape(-1) for word in words], axis=1)
            bytes[: form.scales_at(0)] = q.reshape(-1).view(np.uint8)
            bytes[form.scales_at(0) :] = d.reshape(-1).view(np.uint8)
        return value, x

    def weight(self, name: str, fmt: Format, n: int, k: int) -> tuple[Any, np.ndarray]:
        packed = repack(fmt, random_bytes(fmt, n, k, self.rng), n, k)
        value = self.buffer(name, n, k)
        self.memory.plain[self.buffers[name]] = packed.view(np.uint8)
        return value, dequantize(fmt, packed, n, k)

    def run(self, emulator: Any, *launches: launch.LaunchOp, steps: int = 1) -> str:
        target = TargetAttr("h200", self.numerics, Precision.F16, Precision.F32)
        ops = [*self.buffers.values(), *launches, YieldOp()]
        return emulator.run(ScheduleOp("step", ops, target=target), self.memory, steps=steps).text

    def plain(self, name: str) -> np.ndarray:
        return self.memory.plain_of(self.buffers[name])

    def quantized(self, name: str) -> np.ndarray:
        return self.memory.quantized_values(self.buffers[name])

    def product(self, x: np.ndarray, w: np.ndarray, fmt: Format) -> np.ndarray:
        """x·wᵀ as the numerics takes x, in double precision."""
        taken = quantize(x, activation_numerics(self.numerics, fmt))
        return taken.astype(np.float64) @ w.astype(np.float64).T


def assert_close(actual: np.ndarray, expected: np.ndarray, relative: float = RELATIVE) -> None:
    actual, expected = np.asarray(actual, np.float64).reshape(-1), np.asarray(expected).reshape(-1)
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("m, k, per_warp", [(1, 1280, 4), (3, 768, 2)])
def test_product_by_every_format(emulator: Any, new_memory: Any, numerics: Numerics, m: int, k: int, per_warp: int):
    """All in one unit, which compiles in the time of a few alone."""
    bench, n = Bench(numerics, new_memory), 45
    launches: list[launch.LaunchOp] = []
    expected: dict[str, np.ndarray] = {}
    x, values = bench.activation("x", m, k)
    for fmt in FORMATS:
        w, weights = bench.weight(f"w.{fmt}", fmt, n, k)
        y = Target(bench.buffer(f"y.{fmt}", m, n))
        launches.append(launch.GemvOp(x, w, y, format=fmt, k=k, n=n, m=m, per_warp=per_warp))
        expected[f"y.{fmt}"] = bench.product(values, weights, fmt)
    bench.run(emulator, *launches)
    for name, product in expected.items():
        assert_close(bench.plain(name), product)


@pytest.mark.parametrize("k, splits", [(100, 1), (1056, 4)])
def test_plain_weights_stored_transposed(emulator: Any, new_memory: Any, k: int, splits: int):
    bench, n, m = Bench(Numerics.INT8, new_memory), 19, 2
    x, w, bias = (bench.rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (n,)))
    weight = BufferOp("w", (n, k), Fill.CONSTANT, constant=UnitAttr(), transposed=True)
    bench.buffers["w"] = weight
    bench.memory.plain[weight] = np.ascontiguousarray(w.T).reshape(-1)
    y, given = Target(bench.buffer("y", m, n)), bench.given("bias", bias)
    bench.run(
        emulator,
        launch.GemvF32Op(
            bench.given("x", x), weight.buffer, y, affine=launch.Affine(bias=given), k=k, n=n, m=m, split=splits
        ),
    )
    assert_close(bench.plain("y"), x.astype(np.float64) @ w.T + bias)


@pytest.mark.parametrize("shared, part", [(False, None), (False, Part(100, 4)), (False, Part(99, 3)), (True, None)])
def test_products_by_each_heads_weight(emulator: Any, new_memory: Any, shared: bool, part: Part | None):
    """19 rows are more than a block takes; they land in units."""
    bench, m, heads, a, b = Bench(Numerics.INT8, new_memory), 19, 3, 64, 40
    units = m if shared else m * heads
    x = bench.rng.standard_normal((units, part.pitch if part else a)).astype(np.float32)
    w, weights = bench.weight("w", Format.Q8_0, heads * b, a)
    y = bench.given("y", np.zeros((m * heads, 50), np.float32))
    bench.run(
        emulator,
        launch.HeadGemvOp(
            bench.given("x", x), w, Target(y, None, Dst(unit=Part(50, 6))),
            format=Format.Q8_0, m=m, heads=heads, a=a, b=b, shared=shared, part=part,
        ),
    )  # fmt: skip
    taken = x[:, part.offset : part.offset + a] if part else x
    per_head = np.repeat(taken[:, None], heads, 1) if shared else taken.reshape(m, heads, a)
    expected = np.einsum("rhi,hji->rhj", per_head.astype(np.float64), weights.reshape(heads, b, a))
    landed = bench.plain("y").reshape(m, heads, 50)
    assert_close(landed[:, :, 6:46], expected)
    assert (landed[:, :, :6] == 0).all()
    assert (landed[:, :, 46:] == 0).all()


@pytest.mark.parametrize("fmt, shared", [(Format.Q8_0, False), (Format.Q4_K, True), (Format.F16, False)])
def test_heads_weights_stored_by_columns_of_their_input(emulator: Any, new_memory: Any, fmt: Format, shared: bool):
    bench, m, heads, a, b = Bench(Numerics.INT8, new_memory), 5, 3, 50, 256
    x = bench.rng.standard_normal((m, a) if shared else (m * heads, a)).astype(np.float32)
    w, weights = bench.weight("w", fmt, heads * a, b)
    op = launch.HeadGemvOp(
        bench.given("x", x), w, Target(bench.buffer("y", m * heads, b)),
        format=fmt, m=m, heads=heads, a=a, b=b, shared=shared, transposed=True,
    )  # fmt: skip
    bench.run(emulator, op)
    per_head = np.repeat(x[:, None], heads, 1) if shared else x.reshape(m, heads, a)
    expected = np.einsum("rhi,hij->rhj", per_head.astype(np.float64), weights.reshape(heads, a, b))
    assert_close(bench.plain("y"), expected)


@pytest.mark.parametrize("m", [17, 150])
def test_many_rows_in_f32_by_every_format(emulator: Any, new_memory: Any, m: int):
    """150 rows by 135 outputs are several tiles of either size, in splits where there are few."""
    bench, n, k = Bench(Numerics.DEQUANT, new_memory), 135, 512
    launches: list[launch.LaunchOp] = []
    expected: dict[str, np.ndarray] = {}
    x, values = bench.activation("x", m, k)
    bias = bench.rng.standard_normal(n).astype(np.float32)
    given = bench.given("bias", bias)
    for fmt in FORMATS:
        w, weights = bench.weight(f"w.{fmt}", fmt, n, k)
        y = Target(bench.buffer(f"y.{fmt}", m, n))
        launches.append(launch.GemvOp(x, w, y, affine=launch.Affine(bias=given), format=fmt, k=k, n=n, m=m))
        expected[f"y.{fmt}"] = bench.product(values, weights, fmt) + bias
    text = bench.run(emulator, *launches, steps=2)
    assert ".splits = 4" in text
    for name, product in expected.items():
        assert_close(bench.plain(name), product)


@pytest.mark.parametrize("transposed", [True, False])
def test_many_rows_by_plain_weights(emulator: Any, new_memory: Any, transposed: bool):
    bench, n, k, m = Bench(Numerics.INT8, new_memory), 19, 100, 33
    x, w = (bench.rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
    weight = BufferOp("w", (n, k), Fill.CONSTANT, constant=UnitAttr(), transposed=transposed)
    bench.buffers["w"] = weight
    bench.memory.plain[weight] = np.ascontiguousarray(w.T if transposed else w).reshape(-1)
    y = Target(bench.buffer("y", m, n))
    bench.run(emulator, launch.GemvF32Op(bench.given("x", x), weight.buffer, y, k=k, n=n, m=m))
    assert_close(bench.plain("y"), x.astype(np.float64) @ w.T)


def test_gated_pair_of_many_rows_in_f32(emulator: Any, new_memory: Any):
    """Plain weights take the activation in f32, and their result may still be wanted quantized, and only so."""
    bench, n, k, m = Bench(Numerics.INT8, new_memory), 96, 64, 70
    x, values = bench.activation("x", m, k)
    (wg, gate), (wu, up) = (bench.weight(name, Format.BF16, n, k) for name in ("wg", "wu"))
    op = launch.GemvGluOp(
        x, wg, wu, bench.buffer("h", m, n), formats=(Format.BF16, Format.BF16), k=k, n=n, m=m, f32=False, quant=True,
        act=Activation.RELU,
    )  # fmt: skip
    bench.run(emulator, op)
    expected = np.maximum(bench.product(values, gate, Format.BF16), 0) * bench.product(values, up, Format.BF16)
    assert np.isnan(bench.plain("h")).all()
    # Half a step of a block's scale, and no block's largest value is above that of all.
    assert np.abs(bench.quantized("h") - expected.reshape(-1)).max() <= np.abs(expected).max() / 127 * 0.51


def test_rows_past_the_position_are_not_computed(emulator: Any, new_memory: Any):
    bench, m, heads, a, b = Bench(Numerics.INT8, new_memory), 48, 1, 64, 32
    x = bench.rng.standard_normal((m, a)).astype(np.float16)
    w, weights = bench.weight("w", Format.F16, heads * b, a)
    position = bench.given("pos", np.array([14], np.int32), DType.I32)
    y = Target(bench.buffer("y", m, b))
    given = bench.given("x", x, DType.F16)
    op = launch.HeadGemvOp(given, w, y, format=Format.F16, m=m, heads=heads, a=a, b=b, upto=(position, 2))
    bench.run(emulator, op)
    landed = bench.plain("y").reshape(m, b)
    assert_close(landed[:16], x[:16].astype(np.float64) @ weights.T)
    assert np.isnan(landed[16:]).all()


@pytest.mark.parametrize("numerics", list(Numerics))
def test_sixteen_rows_in_tiles_of_columns(emulator: Any, new_memory: Any, numerics: Numerics):
    """An activation beyond what shared memory holds at once is taken in several tiles."""
    bench, n, k, m = Bench(numerics, new_memory), 8, 4384, 16
    x, values = bench.activation("x", m, k)
    w, weights = bench.weight("w", Format.Q8_0, n, k)
    y = bench.buffer("y", m, n)
    text = bench.run(emulator, launch.GemvOp(x, w, Target(y), format=Format.Q8_0, k=k, n=n, m=m, per_warp=2))
    assert f".tile = {k}" not in text
    assert_close(bench.plain("y"), bench.product(values, weights, Format.Q8_0))


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("per_warp", [1, 2, 4])
def test_bias_and_quantized_result(emulator: Any, new_memory: Any, numerics: Numerics, per_warp: int):
    bench, n, k, m = Bench(numerics, new_memory), 96, 256, 2
    x, values = bench.activation("x", m, k)
    w, weights = bench.weight("w", Format.Q4_1, n, k)
    bias = bench.rng.standard_normal(n).astype(np.float32)
    quant = numerics is not Numerics.DEQUANT
    bench.run(
        emulator,
        launch.GemvOp(
            x, w, Target(bench.buffer("y", m, n)), affine=launch.Affine(bias=bench.given("bias", bias)),
            format=Format.Q4_1, k=k, n=n, m=m, per_warp=per_warp, quant=quant,
        ),
    )  # fmt: skip
    y = bench.plain("y").reshape(m, n)
    assert_close(y, bench.product(values, weights, Format.Q4_1) + bias)
    if quant:
        assert np.array_equal(bench.quantized("y"), quantize(y, numerics).reshape(-1))


@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.DEQUANT])
@pytest.mark.parametrize("m, kernels", [(2, 1), (9, 3), (20, 3)])
def test_parts_in_three_formats_land_in_a_cache_row_and_in_units(
    emulator: Any, new_memory: Any, numerics: Numerics, m: int, kernels: int
):
    """One kernel multiplies a few rows by weights in all formats; those of more rows take one format each."""
    bench, k, end = Bench(numerics, new_memory), 256, m + 3
    x, values = bench.activation("x", m, k)
    formats = (Format.Q4_K, Format.Q8_0, Format.Q6_K)
    (wq, q), (wk, kk), (wv, v) = (
        bench.weight(name, fmt, n, k) for name, fmt, n in zip(("wq", "wk", "wv"), formats, (64, 33, 32), strict=True)
    )
    bias = bench.rng.standard_normal(33).astype(np.float32)
    position = bench.given("pos", np.array([3], np.int32), DType.I32)
    cache = bench.given("kc", np.full((end + 3, 33), 7, np.float16), DType.F16)
    wide = bench.given("wide", np.zeros((m, 50), np.float32))
    text = bench.run(
        emulator,
        launch.GemmPartsOp(
            x,
            [
                Product(wq, formats[0], Target(bench.buffer("q", m, 64)), 64),
                Product(wk, formats[1], Target(cache, position, Dst(row=Row(33))), 33, launch.Affine(bias=bench.given("bias", bias))),
                Product(wv, formats[2], Target(wide, None, Dst(unit=Part(50, 10))), 32),
            ],
            k=k, m=m, per_warp=2,
        ),
    )  # fmt: skip
    assert text.count("__global__") == kernels
    assert_close(bench.plain("q"), bench.product(values, q, formats[0]))
    rows = bench.plain("kc").reshape(end + 3, 33)
    expected = bench.product(values, kk, formats[1]) + bias
    assert_close(rows[3:end], expected, 2.0**-11)  # rounded to f16
    assert (rows[:3] == 7).all()
    assert (rows[end:] == 7).all()
    landed = bench.plain("wide").reshape(m, 50)
    assert_close(landed[:, 10:42], bench.product(values, v, formats[2]))
    assert (landed[:, :10] == 0).all()
    assert (landed[:, 42:] == 0).all()


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("m, per_warp", [(1, 1), (2, 4)])
def test_gated_pair(emulator: Any, new_memory: Any, numerics: Numerics, m: int, per_warp: int):
    bench, n, k = Bench(numerics, new_memory), 64, 512
    x, values = bench.activation("x", m, k)
    (wg, gate), (wu, up) = bench.weight("wg", Format.Q4_K, n, k), bench.weight("wu", Format.Q6_K, n, k)
    bg, bu = (bench.rng.standard_normal(n).astype(np.float32) for _ in range(2))
    quant = numerics is not Numerics.DEQUANT
    bench.run(
        emulator,
        launch.GemvGluOp(
            x, wg, wu, bench.buffer("h", m, n), formats=(Format.Q4_K, Format.Q6_K), k=k, n=n, m=m, per_warp=per_warp,
            gate=launch.Affine(bias=bench.given("bg", bg)), up=launch.Affine(bias=bench.given("bu", bu)), act=Activation.SILU, f32=True, quant=quant,
        ),
    )  # fmt: skip
    h = bench.plain("h").reshape(m, n)
    gated = bench.product(values, gate, Format.Q4_K) + bg
    assert_close(h, silu(gated) * (bench.product(values, up, Format.Q6_K) + bu))
    if quant:
        assert np.array_equal(bench.quantized("h"), quantize(h, numerics).reshape(-1))


FEW_ROWS = (Format.Q8_0, Format.Q4_0, Format.Q4_1, Format.Q4_K)


@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.TWO_PASS_INT8])
@pytest.mark.parametrize("m, n, k", [(8, 40, 256), (16, 64, 2560), (11, 32, 768)])
def test_few_rows_on_tensor_cores(emulator: Any, new_memory: Any, numerics: Numerics, m: int, n: int, k: int):
    """A single step, more steps than the ring has; rows and columns that fill no tile; fields of 12 bytes a row."""
    bench, expected, ops = Bench(numerics, new_memory), dict[str, np.ndarray](), list[launch.LaunchOp]()
    x, values = bench.activation("x", m, k)
    for fmt in FEW_ROWS:
        w, weights = bench.weight(f"w_{fmt}", fmt, n, k)
        ops.append(launch.GemvOp(x, w, Target(bench.buffer(f"y_{fmt}", m, n)), format=fmt, k=k, n=n, m=m, batch=True))
        expected[f"y_{fmt}"] = bench.product(values, weights, fmt)
    text = bench.run(emulator, *ops)
    assert text.count("gemm_rows<") == len(FEW_ROWS)
    for name, product in expected.items():
        assert_close(bench.plain(name), product)


@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.TWO_PASS_INT8])
@pytest.mark.parametrize("m, fmt", [(16, Format.Q8_0), (9, Format.Q4_K)])
def test_few_rows_side_by_side_and_gated(emulator: Any, new_memory: Any, numerics: Numerics, m: int, fmt: Format):
    bench, n, k = Bench(numerics, new_memory), 96, 512
    x, values = bench.activation("x", m, k)
    (wg, gate), (wu, up), (wk, kk) = (bench.weight(name, fmt, n, k) for name in ("wg", "wu", "wk"))
    bg, bu, bk = (bench.rng.standard_normal(n).astype(np.float32) for _ in range(3))
    wide = bench.given("wide", np.zeros((m, 100), np.float32))
    text = bench.run(
        emulator,
        launch.GemvGluOp(
            x, wg, wu, bench.buffer("h", m, n), formats=(fmt, fmt), k=k, n=n, m=m,
            gate=launch.Affine(bias=bench.given("bg", bg)), up=launch.Affine(bias=bench.given("bu", bu)), act=Activation.SILU, f32=True, quant=True,
        ),
        launch.GemvOp(x, wg, Target(bench.buffer("y", m, n)), format=fmt, k=k, n=n, m=m, quant=True),
        launch.GemmPartsOp(
            x,
            [
                Product(wg, fmt, Target(bench.buffer("g", m, n)), n),
                Product(wk, fmt, Target(wide, None, Dst(unit=Part(100, 4))), n, launch.Affine(bias=bench.given("bk", bk))),
            ],
            k=k, m=m,
        ),
    )  # fmt: skip
    assert [text.count(f"gemm_rows{kind}<") for kind in ("_glu", "")] == [1, 2]
    h, y = bench.plain("h").reshape(m, n), bench.plain("y").reshape(m, n)
    gated = bench.product(values, gate, fmt) + bg
    assert_close(h, silu(gated) * (bench.product(values, up, fmt) + bu))
    assert_close(y, bench.product(values, gate, fmt))
    assert_close(bench.plain("g"), bench.product(values, gate, fmt))
    for name, made in (("h", h), ("y", y)):
        assert np.array_equal(bench.quantized(name), quantize(made, numerics).reshape(-1))
    landed = bench.plain("wide").reshape(m, 100)
    assert_close(landed[:, 4:], bench.product(values, kk, fmt) + bk)
    assert (landed[:, :4] == 0).all()


@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.TWO_PASS_INT8])
def test_many_rows_on_tensor_cores_by_every_format(emulator: Any, new_memory: Any, numerics: Numerics):
    """Rows, columns and weights that fill no tile; two products side by side; a row of a cache."""
    bench, n, m, fmt = Bench(numerics, new_memory), 150, 37, Format.Q8_0
    launches: list[launch.LaunchOp] = []
    expected: dict[str, np.ndarray] = {}
    position = bench.given("pos", np.array([2], np.int32), DType.I32)
    cache = bench.given("kc", np.zeros((48, n), np.float16), DType.F16)
    for k in (256, 288):
        x, values = bench.activation(f"x{k}", m, k)
        for each in FORMATS:
            if not each.is_block or k % each.values:
                continue
            w, weights = bench.weight(f"w.{each}{k}", each, n, k)
            y = Target(bench.buffer(f"y.{each}{k}", m, n))
            launches.append(launch.GemvOp(x, w, y, format=each, k=k, n=n, m=m))
            expected[f"y.{each}{k}"] = bench.product(values, weights, each)
    k = 320
    x, values = bench.activation("x", m, k)
    w, weights = bench.weight("w", fmt, n, k)
    product = Product(w, fmt, Target(cache, position, Dst(row=Row(n))), n)
    launches.append(launch.GemmPartsOp(x, [Product(w, fmt, Target(bench.buffer("z", m, n)), n), product], k=k, m=m))
    expected["z"] = bench.product(values, weights, fmt)
    bench.run(emulator, *launches)
    for name, result in expected.items():
        assert_close(bench.plain(name), result)
    assert_close(bench.plain("kc").reshape(48, n)[2 : m + 2], bench.product(values, weights, fmt), 2.0**-11)


@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.TWO_PASS_INT8])
@pytest.mark.parametrize("formats", [(Format.Q4_K, Format.Q4_K), (Format.Q4_0, Format.Q6_K)])
def test_gated_pair_of_many_rows(emulator: Any, new_memory: Any, numerics: Numerics, formats: tuple[Format, Format]):
    bench, n, k, m = Bench(numerics, new_memory), 96, 256, 70
    x, values = bench.activation("x", m, k)
    (wg, gate), (wu, up) = (bench.weight(f"w{i}", fmt, n, k) for i, fmt in enumerate(formats))
    bg, bu = (bench.rng.standard_normal(n).astype(np.float32) for _ in range(2))
    op = launch.GemvGluOp(
        x, wg, wu, bench.buffer("h", m, n), formats=formats, k=k, n=n, m=m, quant=True,
        gate=launch.Affine(bias=bench.given("bg", bg)), up=launch.Affine(bias=bench.given("bu", bu)),
    )  # fmt: skip
    bench.run(emulator, op)
    h = bench.plain("h").reshape(m, n)
    gated = bench.product(values, gate, formats[0]) + bg
    assert_close(h, silu(gated) * (bench.product(values, up, formats[1]) + bu))
    assert np.array_equal(bench.quantized("h"), quantize(h, numerics).reshape(-1))


def test_only_the_rows_of_a_tail_are_computed(emulator: Any, new_memory: Any):
    bench, n, k = Bench(Numerics.INT8, new_memory), 32, 256
    x, values = bench.activation("x", 5, k)
    w, weights = bench.weight("w", Format.Q8_0, n, k)
    y = bench.buffer("y", 1, n)
    bench.run(emulator, launch.GemvOp(x, w, Target(y), format=Format.Q8_0, k=k, n=n, m=1, tail=Tail(4, 5)))
    assert_close(bench.plain("y"), bench.product(values, weights, Format.Q8_0)[4:])


@pytest.mark.parametrize("numerics", [Numerics.INT8, Numerics.TWO_PASS_INT8])
@pytest.mark.parametrize("kind", ["random", "tiny", "large", "zero", "infinite"])
def test_quantization_is_that_of_eval(emulator: Any, new_memory: Any, numerics: Numerics, kind: str):
    bench, n = Bench(numerics, new_memory), 352
    x = bench.rng.standard_normal(n).astype(np.float32)
    x = {
        "random": x,
        "tiny": x * np.float32(1e-37),
        "large": np.full(n, 2048, np.float32),
        "zero": x * 0,
        "infinite": x,
    }[kind]
    if kind == "infinite":
        x[5], x[40], x[70] = np.inf, np.nan, 1e38
    bench.run(emulator, launch.QuantOp(bench.given("x", x), n=n))
    words = quantize_words(x.reshape(1, n), numerics)
    bytes, form, _ = bench.memory.quantized_of(bench.buffers["x"])
    q = bytes[: form.scales_at(0)].view(np.int8).reshape(-1, len(words), 32)
    d = bytes[form.scales_at(0) :].view(np.float32).reshape(-1, len(words))
    for i, word in enumerate(words):
        assert np.array_equal(q[:, i].reshape(-1), word.q.reshape(-1))
        assert np.array_equal(d[:, i], word.d.reshape(-1), equal_nan=True)


@pytest.mark.parametrize(
    ("numerics", "m", "batch"),
    [
        pytest.param(Numerics.INT8, 2, False, id="matrix_vector"),
        pytest.param(Numerics.INT8, 8, True, id="few_rows"),
        pytest.param(Numerics.INT8, 20, False, id="tiles"),
        pytest.param(Numerics.DEQUANT, 20, False, id="f32_tiles"),
    ],
)
def test_scales(emulator: Any, new_memory: Any, numerics: Numerics, m: int, batch: bool):
    """Of products side by side, one of them with neither scale nor bias, and of a gated pair."""
    bench, n, k, fmt = Bench(numerics, new_memory), 64, 256, Format.Q8_0
    x, values = bench.activation("x", m, k)
    s, t, b, c = (bench.rng.standard_normal(size).astype(np.float32) for size in (1, 1, n, n))
    scale, other, bias, more = (bench.given(name, value) for name, value in zip("stbc", (s, t, b, c), strict=True))
    affine: dict[str, tuple[launch.Affine, Callable[[np.ndarray], np.ndarray]]] = {
        "plain": (launch.Affine(), lambda y: y),
        "scale": (launch.Affine(scale), lambda y: s * y),
        "scale then bias": (launch.Affine(other, bias), lambda y: t * y + b),
        "bias then scale": (launch.Affine(scale, more, scaled_bias=True), lambda y: s * (y + c)),
    }
    weights = {name: bench.weight(f"w of {name}", fmt, n, k) for name in affine}
    products = [
        Product(weights[name][0], fmt, Target(bench.buffer(name, m, n)), n, what) for name, (what, _) in affine.items()
    ]
    (gate, of_gate), (up, of_up) = affine["bias then scale"], affine["scale then bias"]
    (wg, gates), (wu, ups) = weights["plain"], weights["scale"]
    glu = launch.GemvGluOp(
        x, wg, wu, bench.buffer("h", m, n), formats=(fmt, fmt), k=k, n=n, m=m, gate=gate, up=up, batch=batch
    )
    bench.run(emulator, launch.GemmPartsOp(x, products, k=k, m=m, batch=batch), glu)
    for name, (_, of) in affine.items():
        assert_close(bench.plain(name), of(bench.product(values, weights[name][1], fmt)))
    gated = of_gate(bench.product(values, gates, fmt))
    assert_close(bench.plain("h"), gated / (1 + np.exp(-gated)) * of_up(bench.product(values, ups, fmt)))


def test_a_scale_of_plain_weights_stored_transposed(emulator: Any, new_memory: Any):
    bench, n, k, m = Bench(Numerics.INT8, new_memory), 19, 100, 2
    x, w, bias, scale = (bench.rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (n,), (1,)))
    weight = BufferOp("w", (n, k), Fill.CONSTANT, constant=UnitAttr(), transposed=True)
    bench.buffers["w"] = weight
    bench.memory.plain[weight] = np.ascontiguousarray(w.T).reshape(-1)
    affine = launch.Affine(bench.given("scale", scale), bench.given("bias", bias), scaled_bias=True)
    y = Target(bench.buffer("y", m, n))
    bench.run(emulator, launch.GemvF32Op(bench.given("x", x), weight.buffer, y, affine=affine, k=k, n=n, m=m))
    assert_close(bench.plain("y"), scale * (x.astype(np.float64) @ w.T + bias))
