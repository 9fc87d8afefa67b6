"""Whole models on the card: their launches one by one, logits in chunks and token by token, greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cpu import Memory
from lane_mlir.cuda.check.launches import LaunchCheck
from lane_mlir.cuda.check.reporter import Measured, NotChecked, Reporter
from lane_mlir.cuda.runtime import CudaDevice, CudaProgram
from lane_mlir.cuda.runtime.gpu import Gpu
from lane_mlir.runtime import Step, load

CHUNKS = (1, 7, 17, 64)
CONTEXT = 96
EXACT = ("logits_dequant_gelu32", "logits_step_gelu32", "logits_dequant", "logits_step")
"""Arrays of logits in f32 arithmetic, the best of those that a file has first."""

NEAR_TIE = 0.05
"""Between the two best logits: below it, sums in another order may choose the other token."""

NEAR_TIE_INT8 = 1.0
"""
Likewise under int8, where another order of sums rounds activations apart, layer by layer, until all of them are: then
as much moves as from dequant to int8. On SmolLM2 that moves the distance of the two best logits by 0.14 on the average,
by 0.34 at 95 %, and by 1.2 at most.
"""

_TOLERANCE = {
    "dequant": (1e-3, "f32 sums in another order, through all layers, against another program"),
    "two_pass_int8": (1e-3, "second int8 words rounded to the other side"),
    "int8": (5e-2, "int8 of activations rounded to the other side, keys too in tiles, through all layers"),
}

_OTHER_EXPERTS = 0.1
"""
Of the rows of a mixture under int8, the part that may be beyond the tolerance: where two experts are nearly as likely,
one step of an activation chooses the other, and the row is another function's, as is what attends it. Where more are,
as many are spared besides as the CPU target itself computes as differently when it reads one row at a time, or all at
once, or holds deferred_norm, or keeps the cache in the other precision: they are not determined.
"""


class ModelCheck:
    """A tiny model with the logits of a reference engine beside it, under one numerics."""

    def __init__(self, gpu: Gpu, path: Path, numerics: str, chunks: Sequence[int] = CHUNKS, cache: str = "f32"):
        self._gpu, self._path, self._numerics, self._chunks, self._cache = gpu, path, numerics, chunks, cache
        self._oracle: Mapping[str, NDArray[Any]] = dict(np.load(path.with_suffix(".npz")))

    def run(self, reporter: Reporter) -> None:
        for chunk in self._chunks:
            case = f"{chunk} row{'s' if chunk > 1 else ''}"
            reporter.run(f"{case} compiles", lambda chunk=chunk: self._compiles(chunk))
            self._launches(reporter, case, chunk)
            reporter.run(f"{case} logits", lambda chunk=chunk: self._logits(chunk))
        reporter.run("greedy", self._greedy)
        if self._cache == "f32":
            reporter.run("sequences", self._sequences)

    @cached_property
    def _step(self) -> Step:
        return self._load(1, self._device)

    def _device(self, checkpoint: Checkpoint) -> CudaDevice:
        return CudaDevice(checkpoint, self._gpu)

    def _load(self, chunk: int, device: Any, *, cache: str | None = None, held: Sequence[str] = ()) -> Step:
        kept, numerics = cache or self._cache, self._numerics
        return load(self._path, numerics=numerics, device=device, context=CONTEXT, chunk=chunk, cache=kept, held=held)

    def _program(self, rows: int) -> CudaProgram:
        program = self._step.compiled(rows, "all").program
        assert isinstance(program, CudaProgram)
        return program

    def _compiles(self, chunk: int) -> None:
        self._program(chunk)

    def _launches(self, reporter: Reporter, case: str, rows: int) -> None:
        try:
            program = self._program(rows)
        except Exception:  # reported already
            return
        device = self._step.device
        assert isinstance(device, CudaDevice)
        schedule = self._step.compiled(rows, "all").schedule
        check = LaunchCheck(program, schedule, Memory(self._step.checkpoint), device.state.regions)
        for position in (0, CONTEXT // 2 - 1 if rows < CONTEXT // 2 else CONTEXT - rows):
            check.run(reporter, f"{case} at {position}", position)

    def _tokens(self, chunk: int) -> list[int]:
        """As many as whole chunks take, so that no other number of rows need be compiled."""
        tokens = self._oracle["tokens" if chunk == 1 else "tokens_long"].tolist()
        return tokens[: len(tokens) // chunk * chunk]

    def _logits(self, chunk: int) -> Measured:
        tokens = self._tokens(chunk)
        self._step.chunk = chunk
        got = self._step.logits(tokens)
        tolerance, why = _TOLERANCE[self._numerics]
        if self._numerics == "dequant" and self._cache == "f32":
            suffix = "" if chunk == 1 else "_long"
            want = next(self._oracle[name + suffix] for name in EXACT if name + suffix in self._oracle)
            return worst_row(got, want[: len(tokens)], tolerance, why)
        want = self._load(chunk, "cpu").logits(tokens)
        if self._cache != "f32":
            tolerance, why = max(tolerance, 5e-3), "keys and values rounded to f16 the other way"
        why += "; against the CPU target"
        if self._numerics != "int8" or not self._chooses_experts:
            return worst_row(got, want, tolerance, why)
        spared = int(np.ceil(_OTHER_EXPERTS * len(want)))
        measured = worst_row(got, want, tolerance, why, spared)
        if measured.error <= tolerance:
            return measured
        return worst_row(got, want, tolerance, why, spared + self._undetermined(tokens, want, tolerance, chunk))

    def _undetermined(self, tokens: Sequence[int], want: NDArray[Any], tolerance: float, chunk: int) -> int:
        """How many rows are beyond the tolerance on the CPU target where it rounds or adds up in other ways."""
        others = (
            self._load(1, "cpu"),
            self._load(len(tokens), "cpu"),
            self._load(chunk, "cpu", held=("deferred_norm",)),
            self._load(chunk, "cpu", cache="f32" if self._cache == "f16" else "f16"),
        )
        errors = [row_errors(other.logits(tokens), want) for other in others]
        return int((np.max(errors, axis=0) > tolerance).sum())

    @property
    def _chooses_experts(self) -> bool:
        return any("_exps." in name for name in self._step.checkpoint.tensors)

    def _greedy(self) -> Measured:
        if "greedy_ids" not in self._oracle or self._numerics == "int8":
            raise NotChecked("no greedy tokens of this numerics")
        prompt, ids = self._oracle["greedy_prompt"].tolist(), self._oracle["greedy_ids"].tolist()
        self._step.chunk = 1
        made = list(self._step.generate_ids(prompt, len(ids)))
        return compared_ids(made, ids, self._oracle["greedy_margin"].tolist(), NEAR_TIE)

    def _sequences(self) -> Measured:
        """Prompts of different lengths together, against each alone, on the card."""
        tokens = self._oracle["tokens"].tolist()
        prompts, count = [tokens[:5], tokens[7:8], tokens[9:13]], 12
        self._step.chunk = 1
        alone = [list(self._step.generate_ids(prompt, count)) for prompt in prompts]
        made = [list(ids) for ids in self._step.generate_ids_batch(prompts, count)]
        wrong = [i for i, (a, b) in enumerate(zip(alone, made, strict=True)) if a != b]
        first = [next(i for i, (a, b) in enumerate(zip(alone[n], made[n], strict=True)) if a != b) for n in wrong]
        detail = f"{len(wrong)} of {len(prompts)} sequences differ, from tokens {first} on" if wrong else ""
        return Measured(len(wrong), 0, "the tokens of each prompt alone, but for near ties", detail)


def row_errors(got: NDArray[Any], want: NDArray[Any]) -> NDArray[Any]:
    """The relative L2 error of each row; infinite where one is not finite."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    return np.where(np.isfinite(errors), errors, np.inf)


def worst_row(got: NDArray[Any], want: NDArray[Any], tolerance: float, why: str, spared: int = 0) -> Measured:
    """The largest error of a row, but for the `spared` largest, as long as these are finite."""
    errors = row_errors(got, want)
    order = np.argsort(errors)[::-1]
    worst, agree = int(order[0]), float((got.argmax(axis=1) == want.argmax(axis=1)).mean())
    beyond = int((errors > tolerance).sum())
    detail = (
        f"row {worst} of {len(got)}, {beyond} beyond, median {np.median(errors):.1e}, arg-max agrees in {agree:.0%}"
    )
    if 0 < beyond <= spared and np.isfinite(errors).all():
        detail += f"; {beyond} rows of other experts, {errors[worst]:.1e}"
        return Measured(float(errors[order[beyond]]), tolerance, why, detail)
    return Measured(float(errors.max()), tolerance, why, detail)


def compared_ids(made: Sequence[int], ids: Sequence[int], margins: Sequence[float], near: float) -> Measured:
    """Tokens against expected ones: the first that differs must be a near tie, and what follows is not compared."""
    different = next((i for i, (a, b) in enumerate(zip(made, ids, strict=True)) if a != b), None)
    why = f"where the two best logits are within {near} the other is right too"
    if different is None:
        return Measured(0, 0, why, f"{len(ids)} tokens")
    margin = margins[different]
    detail = f"token {different} is {made[different]}, expected {ids[different]}, at a margin of {margin:.3f}"
    return Measured(0 if margin < near else 1, 0, why, detail)


def check_real(reporter: Reporter, gpu: Gpu, path: Path, expected: Path, numerics: str) -> None:
    """A real model: the tokens that follow each of the expected prompts."""
    if not path.is_file() or not expected.is_file():
        missing = path if not path.is_file() else expected

        def refuse() -> Measured:
            raise NotChecked(f"{missing} is not there")

        reporter.run("greedy", refuse)
        return
    prompts: list[dict[str, Any]] = json.loads(expected.read_text(encoding="utf-8"))["prompts"]
    step = load(path, numerics=numerics, device=lambda checkpoint: CudaDevice(checkpoint, gpu), context=1024)
    near = NEAR_TIE if numerics == "dequant" else NEAR_TIE_INT8
    for prompt in prompts:
        reporter.run(f"greedy {prompt['name']}", _continued(step, prompt, near))


def _continued(step: Step, prompt: Mapping[str, Any], near: float) -> Callable[[], Measured]:
    def check() -> Measured:
        want = prompt.get("dequant_gelu32") or prompt["dequant"]
        made = list(step.generate_ids(prompt["prompt_ids"], len(want["ids"])))
        measured = compared_ids(made, want["ids"], want["margin"], near)
        timing = step.timing
        rate = timing.decode_tokens / max(timing.decode_seconds, 1e-9)
        return Measured(measured.error, measured.tolerance, measured.why, f"{measured.detail}; {rate:.0f} tok/s")

    return check
