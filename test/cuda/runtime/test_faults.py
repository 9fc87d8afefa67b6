"""A kernel that fails inside a graph is found by doing everything again, one kernel at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lane_mlir.cuda.runtime.device as device_module
from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cuda.runtime import CudaDevice, KernelFault, Options, replay
from lane_mlir.cuda.runtime.faults import History, Ran, find
from lane_mlir.diagnostics import LaneError


def test_a_history_is_short():
    history = History()
    for ran in (
        Ran(0, tokens=[1]),
        Ran(0, position=3),
        Ran(0, steps=1),
        Ran(0, steps=4),
        Ran(1, steps=1),
        Ran(0, steps=1),
    ):
        history.add(ran)
    assert [(ran.program, ran.steps) for ran in history.done] == [(0, 0), (0, 0), (0, 5), (1, 1), (0, 1)]
    history.clear()
    assert history.done == []


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch, new_device: Callable[..., CudaDevice]) -> Callable[..., None]:
    """Replays a record on an emulated card, where a kernel fails if it is named."""

    def run(record: dict[str, Any], failing: str | None = None) -> list[Any]:
        devices: list[CudaDevice] = []

        def make(tensors: Any, options: Options) -> CudaDevice:
            devices.append(new_device(options, failing=failing))
            return devices[-1]

        monkeypatch.setattr(replay, "CudaDevice", make)

        def opened(path: Any) -> Any:
            return path

        monkeypatch.setattr(Checkpoint, "open", opened)
        replay.replay(record)
        return devices

    return run  # pyright: ignore[reportReturnType]


def test_what_was_done_is_done_again(new_device: Any, schedule: Any, replayed: Any, monkeypatch: pytest.MonkeyPatch):
    device = new_device()
    chunk, decode = (device.compile(schedule(rows)) for rows in (5, 1))
    chunk.set_tokens([1, 2, 3, 4, 5])
    chunk.set_position(0)
    chunk.run()
    decode.set_tokens([6])
    decode.set_position(5)
    made = [token for (token,) in decode.continued(6)]
    record: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> Any:
        record.update(json.loads(Path(command[-1]).read_text()))
        raise OSError("no other process here")

    monkeypatch.setattr("lane_mlir.cuda.runtime.faults.subprocess.run", run)
    assert find("model.gguf", [chunk.executable, decode.executable], device.history) is None
    (again,) = replayed(record)
    states: list[Any] = []
    for one in (device, again):
        (region,) = [region for region in one.state.regions if region[1] > 1000]
        data = np.zeros(region[1], np.uint8)
        one.gpu.compute.download(data, region[0])
        states.append(data)
    assert np.array_equal(states[0], states[1])
    assert len(made) == 6
    (symbol,) = {b.call.kernel for b in decode.launches if "argmax" in b.call.kernel}
    with pytest.raises(
        KernelFault,
        match=f"CUDA_ERROR_ILLEGAL_ADDRESS in the kernel {symbol} of @step, which runs launch.argmax of ops",
    ):
        replayed(record, failing=symbol)


def test_the_error_is_that_of_the_launch(new_device: Any, schedule: Any, monkeypatch: pytest.MonkeyPatch):
    device = new_device(failing="argmax_7")
    program = device.compile(schedule())
    (device.gpu.failing,) = {b.call.kernel for b in program.launches if "argmax" in b.call.kernel}
    device._tensors = Checkpoint.__new__(Checkpoint)
    object.__setattr__(device._tensors, "path", Path("model.gguf"))
    asked: list[Any] = []
    answers = iter(["a kernel of @step failed", None])

    def find(*what: Any) -> str | None:
        asked.append(what)
        return next(answers)

    monkeypatch.setattr(device_module, "find", find)
    program.set_tokens([3])
    program.run()
    with pytest.raises(LaneError, match=r"^a kernel of @step failed$"):
        program.output(1)
    with pytest.raises(LaneError, match=r"run one by one the kernels did not fail, .*LANE_CUDA_DEBUG=no-pdl"):
        program.output(1)
    assert asked[0][0] == "model.gguf"
