"""Where steps run: the protocol that a target implements, and the choice of one by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError, UsageError, unknown
from lane_mlir.runtime.recipe import StepIdentity

if TYPE_CHECKING:
    from lane_mlir.dialects.launch import ScheduleOp

DEVICES: Sequence[str] = ("auto", "cpu", "cuda")
"""The names of devices: `auto` is the GPU where there is one that we can drive, else the CPU."""


class Progress(Protocol):
    """Is told what is being done, and how much of it: `done` of `total`, where the total is known."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


def silent(what: str, done: int = 0, total: int | None = None) -> None:
    """Progress that nobody is told of."""


LOGITS, NEXT_ID = 0, 1
"""The outputs of a step; of several sequences, the next token of each follows."""


class Program(Protocol):
    """A planned step, ready to run again and again on its device."""

    def set_tokens(self, tokens: NDArray[np.int32]) -> None:
        """Set the tokens [rows] that the next run takes."""
        ...

    def set_position(self, position: int, sequence: int = 0) -> None:
        """Set the position of the first row of the next run, in one of the step's sequences."""
        ...

    def run(self) -> None:
        """Run every launch once. A decode step then has moved token and position on by itself."""
        ...

    def output(self, index: int) -> NDArray[Any]:
        """
        An output of the last run: 0 the logits [rows or 1, vocabulary], 1 the arg-max of the last row [1]. Of a step of
        several sequences the logits have a row for each, and there are as many arg-maxes, from 1 on.
        """
        ...


@runtime_checkable
class SelfContinuing(Protocol):
    """A program that goes on by itself, without the host between two tokens."""

    def continued(self, count: int) -> Iterator[Sequence[int]]:
        """
        The tokens of the next `count` steps, each the likeliest of each sequence, from where token and position stand;
        fewer if a context ends. Who stops early leaves token and position at some step after that.
        """
        ...


@runtime_checkable
class Batching(Protocol):
    """A program of a device that holds the state of several sequences."""

    def select(self, sequence: int) -> None:
        """Run from now on for one of the sequences. A step of several runs for the first ones unless told."""
        ...


@runtime_checkable
class Device(Protocol):
    """
    A machine that holds the weights of one checkpoint and the state of its sequences, and runs steps on them.

    State is shared by name among all programs of a device, so that a prompt read in chunks is continued one by one.
    """

    @property
    def name(self) -> str:
        """What the device is called."""
        ...

    def compile(self, schedule: ScheduleOp) -> Program:
        """Make a planned schedule ready to run. Raises LaneError for whatever the device cannot run or hold."""
        ...

    def reset(self) -> None:
        """Set all state to zero: nothing has been read yet."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """A device that keeps what steps become from one process to the next."""

    def compile_kept(self, what: StepIdentity, plan: Callable[[], ScheduleOp]) -> Program:
        """`compile`, where the step is planned only if it is not kept."""
        ...


@runtime_checkable
class WholeChunks(Protocol):
    """A device that says whether it reads prompts in whole chunks only."""

    whole_chunks: bool
    """
    It compiles a step for longer than it runs one for each token of a chunk: what is left of a prompt beyond whole
    chunks is read token by token.
    """


class CpuDevice:
    """The launches in numpy, on this machine."""

    name = "cpu"

    def __init__(self, checkpoint: Checkpoint):
        from lane_mlir.cpu import Memory

        self._memory = Memory(checkpoint)

    def compile(self, schedule: ScheduleOp) -> Program:
        from lane_mlir.cpu import CpuProgram

        return CpuProgram(schedule, self._memory)

    def reset(self) -> None:
        self._memory.reset()


def open_device(name: str, checkpoint: Checkpoint, progress: Progress = silent) -> Device:
    """
    The device of a name of `DEVICES`, for a checkpoint; `progress` is told of what takes long.

    Raises UsageError with the valid names for one that there is not; LaneError for one that cannot be used.
    """
    if name not in DEVICES:
        raise UsageError(unknown("device", name, DEVICES))
    if name == "cuda" or (name == "auto" and has_driver()):
        from lane_mlir.cuda.runtime import CudaDevice

        try:
            return CudaDevice(checkpoint, progress=progress)
        except LaneError as error:
            if name == "cuda":
                raise
            progress(f"using the CPU: {error}")
    return CpuDevice(checkpoint)


def has_driver() -> bool:
    """
    Whether this machine has a driver for NVIDIA GPUs.

    Only looks for its library: that is cheap, and asking the driver itself where there is none breaks later calls.
    """
    try:
        # Not typed, and not installed without the cuda extra.
        load: Callable[[str], object] = import_module("cuda.pathfinder").load_nvidia_dynamic_lib
        load("cuda")
    except (ImportError, RuntimeError, OSError):
        return False
    return True
