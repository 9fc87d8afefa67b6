"""What was measured of a model on a card: as data, as JSON, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from lane_mlir.cpu.buffers import describe
from lane_mlir.cuda.bench.measure import launch_seconds
from lane_mlir.cuda.bench.traffic import Traffic, traffic
from lane_mlir.cuda.printer import print_unit
from lane_mlir.cuda.runtime.program import CudaProgram
from lane_mlir.dialects.launch import LaunchOp, ScheduleOp
from lane_mlir.dialects.tg import TargetAttr

SCHEMA = 1
"""Version of the JSON form; it grows when a field changes its meaning or goes."""


@dataclass(frozen=True)
class LaunchTime:
    """A launch of a step: how long its kernels take by themselves, and what they must move."""

    launch: LaunchOp
    kernels: tuple[str, ...]
    seconds: float
    traffic: Traffic

    @property
    def kind(self) -> str:
        return self.launch.kind()

    @property
    def where(self) -> str:
        return describe(self.launch)


@dataclass(frozen=True)
class KindTime:
    """All launches of a kind."""

    kind: str
    count: int
    seconds: float
    traffic: Traffic


def launch_times(program: CudaProgram, schedule: ScheduleOp, position: int, repeats: int) -> list[LaunchTime]:
    """The launches of a step in order, each timed by itself; `schedule` is what the program was made from."""
    target = schedule.target
    numerics = (target if target is not None else TargetAttr()).numerics.data
    seconds = iter(launch_seconds(program, position, repeats))
    found: list[LaunchTime] = []
    for launch, group in groupby(print_unit(schedule, program.gpu.chip).uses, key=lambda use: use.launch):
        uses = list(group)
        taken = sum(next(seconds) for _ in uses)
        symbols = tuple(use.symbol for use in uses)
        found.append(LaunchTime(launch, symbols, taken, traffic(uses, position, numerics)))
    return found


def by_kind(launches: Sequence[LaunchTime]) -> list[KindTime]:
    """The kinds, the one that takes the longest first."""
    kinds: dict[str, list[LaunchTime]] = {}
    for launch in launches:
        kinds.setdefault(launch.kind, []).append(launch)
    found = [KindTime(kind, len(group), sum(l.seconds for l in group), total(group)) for kind, group in kinds.items()]
    return sorted(found, key=lambda kind: -kind.seconds)


def total(launches: Sequence[LaunchTime]) -> Traffic:
    return sum((launch.traffic for launch in launches), Traffic())


@dataclass(frozen=True)
class Figures:
    """
    What was measured: a decode step at a depth, tokens as a caller gets them, a prompt of some tokens, and the read
    bandwidth of the card in the same run, in seconds and bytes.
    """

    model: str
    card: str
    target: TargetAttr
    depth: int
    sequences: int
    """Sequences that decode together, a token of each in every step."""
    steps: Sequence[float]
    """Of each repeat, seconds a step."""
    generated: float | None
    """Seconds a step by the clock of the host."""
    launches: Sequence[LaunchTime]
    prompt_tokens: int
    chunk: int
    prompt: Sequence[float]
    bandwidth: float
    loaded: tuple[int, float]
    """Bytes of weights, and seconds that loading them took."""
    ready: float
    """Seconds from opening the file to a decode step that can run."""
    was_kept: bool
    """Whether the step was kept from another process, and so not compiled in that time."""

    @property
    def step(self) -> float:
        return median(self.steps)

    @property
    def traffic(self) -> Traffic:
        """Of a decode step."""
        return total(self.launches)

    @property
    def must_move(self) -> float:
        """Bytes that a step must move to and from device memory: weights and state; activations stay in caches."""
        return self.traffic.weights + self.traffic.state

    def json(self) -> dict[str, object]:
        """
        The figures as plain data; times in seconds, bytes as they are, rates a second.

        - `model`, `card`, `target`: `chip`, `numerics`, `cache`, `state`;
        - `decode`: `depth`, `sequences`, `step_seconds` (median), `repeats`, `tokens_per_second` of all sequences,
          `generated_seconds` a step in the host's hands (or null), `weight_bytes`, `state_bytes`, `bytes_per_second`,
          `share` of `read_bytes_per_second`;
        - `prefill`: null, or `tokens`, `chunk`, `seconds` (median), `tokens_per_second`;
        - `load`: `bytes` of weights, `seconds`, `ready_seconds` from the file to a step, and whether it `was_kept`, not
          compiled;
        - `kinds`: a list of `kind`, `count`, `seconds`, `bytes`, `operations`;
        - `launches`: a list of `kind`, `kernels`, `where`, `seconds`, `bytes`, `operations`.
        """
        target, moved = self.target, self.traffic
        return {
            "schema": SCHEMA,
            "model": self.model,
            "card": self.card,
            "target": {
                "chip": target.chip.data,
                "numerics": str(target.numerics.data),
                "cache": str(target.cache.data),
                "state": str(target.state.data),
            },
            "decode": {
                "depth": self.depth,
                "sequences": self.sequences,
                "step_seconds": self.step,
                "repeats": list(self.steps),
                "tokens_per_second": self.sequences / self.step,
                "generated_seconds": self.generated,
                "weight_bytes": moved.weights,
                "state_bytes": moved.state,
                "bytes_per_second": self.must_move / self.step,
                "share": self.must_move / self.step / self.bandwidth,
            },
            "prefill": self._prefill(),
            "load": {
                "bytes": self.loaded[0],
                "seconds": self.loaded[1],
                "ready_seconds": self.ready,
                "was_kept": self.was_kept,
            },
            "read_bytes_per_second": self.bandwidth,
            "kinds": [
                {"kind": kind.kind, "count": kind.count, "seconds": kind.seconds, **_moved(kind.traffic)}
                for kind in by_kind(self.launches)
            ],
            "launches": [
                {
                    "kind": launch.kind,
                    "kernels": list(launch.kernels),
                    "where": launch.where,
                    "seconds": launch.seconds,
                    **_moved(launch.traffic),
                }
                for launch in self.launches
            ],
        }

    def _prefill(self) -> Mapping[str, object] | None:
        if not self.prompt:
            return None
        seconds = median(self.prompt)
        return {
            "tokens": self.prompt_tokens,
            "chunk": self.chunk,
            "seconds": seconds,
            "tokens_per_second": self.prompt_tokens / seconds,
        }

    def lines(self) -> list[str]:
        """The figures for people."""
        target = self.target
        rate, share = self.must_move / self.step, self.must_move / self.step / self.bandwidth
        size, seconds = self.loaded
        together = f", {self.sequences} sequences together" if self.sequences > 1 else ""
        lines = [
            f"{self.model} on {self.card}: "
            f"{target.numerics.data}, cache {target.cache.data}, state {target.state.data}",
            f"load      {size / 1e9:.2f} GB in {seconds:.2f} s ({size / max(seconds, 1e-9) / 1e9:.1f} GB/s); "
            f"{self.ready:.2f} s from the file to a step, {'kept from before' if self.was_kept else 'compiled'}",
            f"read      {self.bandwidth / 1e9:.0f} GB/s, a plain read of memory in this run",
            f"decode    {self.sequences / self.step:.0f} tok/s at depth {self.depth}{together}: "
            f"{self.step * 1e6:.1f} us a step"
            f" (median of {len(self.steps)}, {min(self.steps) * 1e6:.1f} to {max(self.steps) * 1e6:.1f})",
            f"          {self.must_move / 1e6:.1f} MB a step ({self.traffic.weights / 1e6:.1f} weights, "
            f"{self.traffic.state / 1e6:.2f} state): {rate / 1e9:.0f} GB/s, {share:.0%} of the read",
        ]
        if self.generated is not None:
            lines.append(f"generate  {self.sequences / self.generated:.0f} tok/s, tokens in the host's hands")
        if self.prompt:
            seconds = median(self.prompt)
            lines.append(
                f"prefill   {self.prompt_tokens / seconds:.0f} tok/s: {self.prompt_tokens} tokens in chunks of "
                f"{self.chunk} in {seconds * 1e3:.2f} ms"
            )
        return [*lines, "", *self.table()]

    def table(self) -> list[str]:
        """A line a kind of launch, timed one by one."""
        kinds = by_kind(self.launches)
        alone = sum(kind.seconds for kind in kinds)
        lines = [
            f"{'launch':<16} {'count':>5} {'us':>8} {'us each':>8} {'MB':>9} {'GB/s':>7} {'of read':>7} {'share':>6}"
        ]
        for kind in [*kinds, KindTime("all", sum(k.count for k in kinds), alone, self.traffic)]:
            rate = kind.traffic.bytes / kind.seconds if kind.seconds else 0.0
            lines.append(
                f"{kind.kind:<16} {kind.count:>5} {kind.seconds * 1e6:>8.1f} {kind.seconds / kind.count * 1e6:>8.2f} "
                f"{kind.traffic.bytes / 1e6:>9.2f} {rate / 1e9:>7.0f} {rate / self.bandwidth:>7.0%} "
                f"{kind.seconds / alone if alone else 0:>6.0%}"
            )
        lines.append(f"(one by one; as a graph, where they overlap, all take {self.step * 1e6:.1f} us)")
        return lines


def _moved(traffic: Traffic) -> Mapping[str, float]:
    return {"bytes": traffic.bytes, "operations": traffic.operations}
