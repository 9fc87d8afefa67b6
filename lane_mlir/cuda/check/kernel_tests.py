"""
A plugin of pytest that runs the tests of kernels, which otherwise run emulated on the host, on the card.

It stands in for the fixture `emulator`: of each schedule that a test runs, the kernels run on the card, several times
and after a slow predecessor, with the same bits. `pytest -p lane_mlir.cuda.check.kernel_tests test/cuda`, with settings
in the environment: LANE_CHECK_SHARD as `2/8`, LANE_CHECK_DONE a file of tests that need not run, LANE_CHECK_ONLY.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.cuda.check.finding import AGAIN, KERNEL_TESTS, Finding, Verdict, begins, case_of
from lane_mlir.cuda.check.reporter import matches
from lane_mlir.cuda.lowering import call_of, form_of, unit_source
from lane_mlir.cuda.printer import Unit, Use, print_unit
from lane_mlir.cuda.printer.constants import constants_of
from lane_mlir.cuda.printer.kernel import Argument
from lane_mlir.cuda.runtime.cuda_gpu import open_gpu
from lane_mlir.cuda.runtime.errors import DriverError
from lane_mlir.cuda.runtime.faults import fault
from lane_mlir.cuda.runtime.gpu import Gpu, Slab
from lane_mlir.cuda.runtime.probe import SlowPredecessor
from lane_mlir.cuda.runtime.program import BoundKernel, bind
from lane_mlir.dialects.launch import BufferOp, LaunchOp, ScheduleOp, holder

REPEATS = 3


class TestMemory(Protocol):
    """The arrays behind a test's buffers, as the fixture `new_memory` of the tests makes them."""

    plain: dict[BufferOp, NDArray[Any]]
    quantized: dict[BufferOp, NDArray[Any]]
    scratch: dict[Any, NDArray[Any]]

    def address(self, argument: Argument, launch: LaunchOp) -> int:
        """Where an argument is on the host; its array is there afterwards."""
        ...


@dataclass(frozen=True)
class Mirror:
    """An array of the host and its place on the card."""

    host: NDArray[Any]
    offset: int
    hidden: bool

    @property
    def size(self) -> int:
        # Copied in vectors of 16 bytes.
        return -(-self.host.nbytes // 16) * 16


class CardRunner:
    """What `emulator` is to the tests, on a card."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu

    def compiled(self, source: str) -> Any:
        pytest.skip("calls a host function")

    def run(self, schedule: ScheduleOp, memory: TestMemory, *, steps: int = 1) -> Unit:
        """Run the kernels of a schedule on the memory of its buffers, as often as there are steps."""
        unit = print_unit(schedule)
        kernels = self._gpu.load(unit_source(unit, "test.cu"))
        for use in unit.uses:
            for argument in use.arguments:
                memory.address(argument, use.launch)
        slab, mirrors = Slab(), list[Mirror]()
        for array, hidden in _arrays(schedule, memory):
            mirrors.append(Mirror(array, slab.reserve(array.nbytes), hidden))
        slab.allocate(self._gpu)

        def bound(use: Use) -> BoundKernel:
            addresses = (_on_card(memory.address(a, use.launch), mirrors, slab.address) for a in use.arguments)
            pdl = self._gpu.chip.programmatic_launch
            return BoundKernel(call_of(use, ()), bind(kernels[use.symbol], form_of(use), addresses, pdl=pdl))

        launches = [bound(use) for use in unit.uses]
        slow = SlowPredecessor(self._gpu, [(slab.address + m.offset, m.size) for m in mirrors if m.hidden])
        before = [np.array(mirror.host) for mirror in mirrors]
        results = [self._results(launches * steps, mirrors, slab, before, slow=None) for _ in range(REPEATS)]
        results.append(self._results(launches * steps, mirrors, slab, before, slow=slow))
        for run, result in enumerate(results[1:], 2):
            same = all(np.array_equal(a, b) for a, b in zip(results[0], result, strict=True))
            assert same, f"run {run} differs" if run <= REPEATS else "another result after a slow predecessor"
        for mirror, result in zip(mirrors, results[0], strict=True):
            mirror.host.reshape(-1).view(np.uint8)[:] = result
        return unit

    def _results(
        self,
        launches: Sequence[BoundKernel],
        mirrors: Sequence[Mirror],
        slab: Slab,
        before: Sequence[NDArray[Any]],
        *,
        slow: SlowPredecessor | None,
    ) -> list[NDArray[np.uint8]]:
        """The bytes of all arrays after the launches, begun with what they held before."""
        stream = self._gpu.compute
        for mirror, data in zip(mirrors, before, strict=True):
            stream.upload(slab.address + mirror.offset, data)
        for i, bound in enumerate(launches):
            try:
                # What is early relies on its own predecessor, which is then late.
                (stream if slow is None or bound.launch.early else slow).launch(bound.launch)
                if slow is None or i + 1 == len(launches) or not launches[i + 1].launch.early:
                    stream.sync()
            except DriverError as error:
                if not error.is_fault:
                    raise
                raise fault("test", bound.call, bound.launch, error) from error
        after = [np.zeros(mirror.host.nbytes, np.uint8) for mirror in mirrors]
        for mirror, data in zip(mirrors, after, strict=True):
            stream.download(data, slab.address + mirror.offset)
        stream.sync()
        return after


def _arrays(schedule: ScheduleOp, memory: TestMemory) -> Iterator[tuple[NDArray[Any], bool]]:
    """Every array, and whether kernels may touch it only after they have waited."""
    constants = {holder(value) for launch in schedule.launches() for value in constants_of(launch)}
    for buffer, array in memory.plain.items():
        yield array, buffer not in constants
    for array in (*memory.quantized.values(), *memory.scratch.values()):
        yield array, True


def _on_card(host: int, mirrors: Sequence[Mirror], base: int) -> int:
    for mirror in mirrors:
        start = mirror.host.ctypes.data
        if start <= host < start + max(mirror.host.nbytes, 1):
            return base + mirror.offset + host - start
    raise AssertionError(f"an argument points to {host:#x}, where no array is")


# The plugin.


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    if fixturedef.argname != "emulator":
        return None
    fixturedef.cached_result = (CardRunner(open_gpu()), fixturedef.cache_key(request), None)
    return fixturedef.cached_result[0]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the tests of this process's share that run kernels, are wanted and not done."""
    shard, shards = (int(word) for word in os.environ.get("LANE_CHECK_SHARD", "0/1").split("/"))
    file = os.environ.get("LANE_CHECK_DONE")
    done = set(Path(file).read_text(encoding="utf-8").splitlines()) if file is not None else set[str]()
    only = os.environ.get("LANE_CHECK_ONLY", "*")
    # Those of the runtime bring an emulated card of their own.
    using = [item for item in items if "emulator" in item.fixturenames and "new_gpu" not in item.fixturenames]
    mine = [item for i, item in enumerate(using) if i % shards == shard]
    items[:] = [item for item in mine if case_of(item.nodeid) not in done and matches(_named(item.nodeid), only)]


def _named(test: str) -> str:
    return f"{KERNEL_TESTS} {case_of(test)}"


def pytest_runtest_logstart(nodeid: str, location: object) -> None:
    print("\n" + begins(case_of(nodeid)), flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Say what became of a test when it has run, or could not; end the process when the card is gone."""
    report = yield
    ended = report.when == "call" or report.outcome != "passed"
    if ended and report.when != "teardown":
        verdict = {"passed": Verdict.HELD, "failed": Verdict.FAILED}.get(report.outcome, Verdict.SKIPPED)
        detail = "" if verdict is Verdict.HELD else _reason(report, call)
        print("\n" + Finding(KERNEL_TESTS, case_of(item.nodeid), verdict, detail=detail).message(), flush=True)
        if call.excinfo is not None and _takes_the_card(call.excinfo.value):
            os._exit(AGAIN)
    return report


def _reason(report: Any, call: Any) -> str:
    if call.excinfo is None:
        return str(report.longrepr)
    return f"{type(call.excinfo.value).__name__}: {call.excinfo.value}\n{report.longrepr}"


def _takes_the_card(error: BaseException) -> bool:
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, DriverError) and chain.is_fault:
            return True
        chain = chain.__cause__
    return False
