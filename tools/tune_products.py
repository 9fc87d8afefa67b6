"""
tune_products: how fast the product kernels are on the card that is there, for every way to split their work.

`python -m lane_mlir.tools.tune_products --shapes 4096x4096,12288x4096 --formats q8_0,q4_k --rows 1`: for each shape
(rows of the weight by columns), format and number of rows of the activation, a graph of dependent launches over more
copies of the weight than the second-level cache holds, timed for every split of `lane_mlir.cuda.kernels.gemv`. The
split that the printer chooses is marked. More than 16 rows run on tensor cores. All splits must give the same result.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from lane_mlir.cuda.compile import CompileOptions, compile_unit, program_cache
from lane_mlir.cuda.kernels.gemm import GEMM_TILE_N, gemm_shared_bytes, has_minima, scales_halves, tile_rows
from lane_mlir.cuda.kernels.gemv import GEMV_ROWS, QBLOCK, GemvSplit, rows_a_warp, split_gemv, staged_bytes, unit_values
from lane_mlir.cuda.layout import layout
from lane_mlir.cuda.printer.kernel import struct
from lane_mlir.cuda.runtime.cuda_gpu import open_gpu
from lane_mlir.cuda.runtime.gpu import Gpu, KernelLaunch, Signature, Source
from lane_mlir.diagnostics import LaneError, run_tool
from lane_mlir.formats import Format
from lane_mlir.tools.arguments import ArgumentParser

_CACHED_BYTES = 192 << 20
"""Bytes of weights that a graph reads at least: several times what the second-level cache of any card holds."""

_PARAMETERS = ("const i8*", "const float*", "const float*", "const u8*", "float*")


@dataclass(frozen=True)
class Case:
    """A product: y [m, n] = x [m, k]·wᵀ, w [n, k] in a format."""

    format: Format
    n: int
    k: int
    m: int

    @property
    def words(self) -> int:
        return 1 if self.format.is_block else 0

    @property
    def weight_bytes(self) -> int:
        return layout(self.format).size(self.n, self.k)

    def __str__(self) -> str:
        return f"{self.format} {self.n}x{self.k} m={self.m}"


@dataclass(frozen=True)
class Variant:
    """One way to run a case: what the kernel is called with, and how it is launched."""

    label: str
    call: str
    grid: tuple[int, int, int]
    block: int
    shared: int
    bounds: str
    chosen: bool

    def text(self, symbol: str) -> str:
        parameters = ", ".join(
            f"{t} {n}" for t, n in zip(_PARAMETERS, ("words", "scales", "values", "w", "y"), strict=True)
        )
        head = f'extern "C" __global__ void __launch_bounds__({self.bounds})\n{symbol}({parameters}) {{\n'
        return f"{head}  {self.call};\n}}\n"


def variants(case: Case, multiprocessors: int) -> list[Variant]:
    made = list(_tiles(case) if case.m > GEMV_ROWS else _splits(case, multiprocessors))
    return [v for i, v in enumerate(made) if v.call not in [w.call for w in made[:i] if w.bounds == v.bounds]]


def _splits(case: Case, multiprocessors: int) -> Iterator[Variant]:
    per_warp = rows_a_warp(case.format, case.n, case.k, case.m)
    chosen = _split(case, multiprocessors, per_warp)
    yield _row_variant(case, chosen, True)
    for rows, warps, depth in itertools.product((1, 2, 4), (4, 8, 16), (1, 2, 4)):
        if case.n % rows == 0 and rows * case.m <= 64:
            split = _split(case, multiprocessors, rows)
            group = unit_values(case.format) * split.lanes * depth
            if split.tile < case.k and split.tile % group:
                continue
            yield _row_variant(case, replace(split, warps=warps, depth=depth), False)


def _split(case: Case, multiprocessors: int, per_warp: int) -> GemvSplit:
    return split_gemv(
        case.format,
        case.n,
        case.k,
        case.m,
        words=case.words,
        per_warp=per_warp,
        whole_blocks=False,
        multiprocessors=multiprocessors,
    )


def _row_variant(case: Case, split: GemvSplit, chosen: bool) -> Variant:
    shape = struct(
        "GemvShape",
        k=case.k,
        m=case.m,
        words=case.words,
        lanes=split.lanes,
        rows=split.rows,
        warps=split.warps,
        depth=split.depth,
        tile=split.tile,
    )
    call = (
        f"gemv<{shape}>(GemvInput{{words, scales, values}}, QuantizedResult{{}}, "
        f"NothingAfter{{}}, Product<{str(case.format).upper()}, {case.n}>{{w, {{}}, y, nullptr}})"
    )
    label = f"lanes {split.lanes} rows {split.rows} warps {split.warps} depth {split.depth}"
    shared, threads = staged_bytes(split, case.format, case.m, case.words), 32 * split.warps
    return Variant(label, call, (-(-case.n // split.columns), 1, 1), threads, shared, str(threads), chosen)


def _tiles(case: Case) -> Iterator[Variant]:
    if not case.format.is_block:
        raise LaneError(f"products of {case.m} rows by {case.format} do not run on tensor cores")
    best = tile_rows(case.m, 128)
    for rows, blocks in itertools.product((32, 64, 128), (1, 2)):
        shape = struct("GemmShape", k=case.k, m=case.m, rows=rows)
        call = (
            f"gemm<{shape}>(GemvInput{{words, scales, values}}, QuantizedResult{{}}, "
            f"Product<{str(case.format).upper()}, {case.n}>{{w, {{}}, y, nullptr}})"
        )
        shared = gemm_shared_bytes(rows, 1, scales_halves(case.format), has_minima(case.format))
        grid, label = (-(-case.m // rows), -(-case.n // GEMM_TILE_N), 1), f"rows {rows} blocks {blocks}"
        yield Variant(label, call, grid, 2 * rows, shared, f"{2 * rows}, {blocks}", rows == best and blocks == 1)


def unit_text(made: Sequence[Variant]) -> str:
    kernels = "\n".join(variant.text(f"v{i}") for i, variant in enumerate(made))
    return f'#include "gemm.cuh"\n#include "gemv.cuh"\n\nusing namespace lane;\n\n{kernels}'


def compile_ahead(text: str, arch: str) -> None:
    """Compile a unit in another process, into the cache that all share."""
    with program_cache() as programs:
        compile_unit(text, CompileOptions(arch), name="tune.cu", cache=programs)


class Bench:
    """The device memory of the cases, as large as the largest needs."""

    def __init__(self, gpu: Gpu, cases: Sequence[Case]):
        self.gpu = gpu
        self.copies = {case: max(2, -(-_CACHED_BYTES // case.weight_bytes)) for case in cases}
        self.pitch = {case: -(-case.weight_bytes // 256) * 256 for case in cases}
        self.weights = gpu.allocate(max(self.pitch[case] * self.copies[case] for case in cases))
        columns = max(case.m * case.k for case in cases)
        self.x = gpu.allocate(9 * columns + 4096)
        self.values = gpu.allocate(4 * columns)
        self.y = gpu.allocate(4 * max(case.m * case.n for case in cases))

    def fill(self, case: Case) -> None:
        """Random codes; scales in f16 of an exponent that is neither infinite nor all alike."""
        rng, stream = np.random.default_rng(1), self.gpu.compute
        weight = rng.integers(0, 256, self.pitch[case], dtype=np.uint8)
        for plane, at in zip(layout(case.format).planes, layout(case.format).offsets(case.n, case.k), strict=True):
            if plane.name in ("scale", "scale_min"):
                size = plane.size(case.n, case.k)
                weight[at : at + size] = (rng.uniform(0.25, 1, size // 2) / 64).astype(np.float16).view(np.uint8)
            elif plane.name == "values":
                values = rng.standard_normal(case.n * case.k).astype(np.float32)
                stored = values.view(np.uint32) >> 16 if case.format is Format.BF16 else values
                kind = {Format.F32: np.float32, Format.F16: np.float16, Format.BF16: np.uint16}[case.format]
                weight[: case.weight_bytes] = stored.astype(kind).view(np.uint8)
        stream.upload(self.weights.address, weight)
        for i in range(1, self.copies[case]):
            stream.copy(self.weights.address + i * self.pitch[case], self.weights.address, self.pitch[case])
        size = case.m * case.k
        stream.upload(self.x.address, rng.integers(-127, 128, size, dtype=np.int8))
        stream.upload(self.x.address + size, rng.uniform(0.5, 1, size // QBLOCK).astype(np.float32))
        stream.upload(self.values.address, rng.standard_normal(size).astype(np.float32))
        stream.sync()

    def launches(self, case: Case, variant: Variant, kernel: object) -> list[KernelLaunch]:
        words, size = self.x.address, case.m * case.k
        return [
            KernelLaunch(
                kernel=kernel,
                grid=variant.grid,
                block=variant.block,
                arguments=(
                    words,
                    words + size,
                    self.values.address,
                    self.weights.address + i * self.pitch[case],
                    self.y.address,
                ),
                shared=variant.shared,
                pdl=True,
            )
            for i in range(self.copies[case])
        ]

    def seconds(self, case: Case, variant: Variant, kernel: object) -> float:
        """Of one launch: the median of some runs of the graph."""
        gpu, stream = self.gpu, self.gpu.compute
        launches = self.launches(case, variant, kernel)
        graph = gpu.capture(launches)
        times: list[float] = []
        for _ in range(7):
            start, end = gpu.event(timed=True), gpu.event(timed=True)
            stream.record(start)
            stream.run(graph)
            stream.record(end)
            end.sync()
            times.append(end.since(start))
        return statistics.median(times[2:]) / len(launches)

    def result(self, case: Case) -> np.ndarray:
        y = np.empty(case.m * case.n, np.float32)
        self.gpu.compute.download(y, self.y.address)
        self.gpu.compute.sync()
        return y

    def clear(self, case: Case) -> None:
        self.gpu.compute.fill(self.y.address, 4 * case.m * case.n, 0xFF)


def measure(bench: Bench, case: Case, made: Sequence[Variant]) -> Iterator[dict[str, object]]:
    kernels = {f"v{i}": Signature(_PARAMETERS, variant.shared) for i, variant in enumerate(made)}
    loaded = bench.gpu.load(Source("tune.cu", unit_text(made), kernels))
    bench.fill(case)
    expected: np.ndarray | None = None
    for i, variant in enumerate(made):
        bench.clear(case)
        seconds = bench.seconds(case, variant, loaded[f"v{i}"])
        y = bench.result(case)
        expected = y if expected is None else expected
        error = float(np.abs(y - expected).max() / np.abs(expected).max())
        yield {
            "case": str(case),
            "variant": variant.label,
            "chosen": variant.chosen,
            "us": seconds * 1e6,
            "gb_s": case.weight_bytes / seconds / 1e9,
            "tops": 2 * case.m * case.n * case.k / seconds / 1e12,
            "error": error,
        }


def print_case(rows: Sequence[dict[str, object]]) -> None:
    ordered = sorted(rows, key=lambda row: float(str(row["us"])))
    shown = [*ordered[:3], *(row for row in ordered[3:] if row["chosen"])]
    print(rows[0]["case"])
    for row in shown:
        mark = "*" if row["chosen"] else " "
        print(
            f"  {mark} {row['us']:8.2f} us {row['gb_s']:7.0f} GB/s {row['tops']:7.1f} TOPS  {row['variant']}"
            f"{'' if float(str(row['error'])) < 1e-4 else '  WRONG: ' + format(row['error'], '.1e')}"
        )


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="tune_products", description="Time every way to split products on a GPU.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--shapes", default="4096x4096", metavar="NxK,…", help="rows of the weight by its columns")
    add("--formats", default="q8_0", metavar="F,…", help="formats of the weight")
    add("--rows", default="1", metavar="M,…", help="rows of the activation")
    add("--details", type=Path, metavar="FILE", help="all timings as JSON, one a line")
    return parser


def tune(arguments: Namespace) -> int:
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    formats, rows = [Format(f) for f in arguments.formats.split(",")], [int(m) for m in arguments.rows.split(",")]
    cases = [Case(f, n, k, m) for f, (n, k), m in itertools.product(formats, shapes, rows)]
    gpu = open_gpu()
    chip = gpu.chip
    made = {case: variants(case, chip.multiprocessors) for case in cases}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_ahead, [unit_text(v) for v in made.values()], [chip.arch] * len(made)))
    bench = Bench(gpu, cases)
    details: list[dict[str, object]] = []
    for case in cases:
        found = list(measure(bench, case, made[case]))
        print_case(found)
        sys.stdout.flush()
        details += found
    if arguments.details is not None:
        arguments.details.write_text("".join(json.dumps(row) + "\n" for row in details), encoding="utf-8")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command `tune_products`."""
    return run_tool("tune_products", lambda: tune(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
