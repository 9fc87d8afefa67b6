"""A GPU that holds the weights and the state of one model, and runs its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cuda.runtime import kept
from lane_mlir.cuda.runtime.cuda_gpu import open_gpu
from lane_mlir.cuda.runtime.errors import DriverError, OutOfMemory, too_large
from lane_mlir.cuda.runtime.executable import Executable
from lane_mlir.cuda.runtime.faults import History, find
from lane_mlir.cuda.runtime.gpu import Gpu
from lane_mlir.cuda.runtime.options import Options
from lane_mlir.cuda.runtime.placement import Placement
from lane_mlir.cuda.runtime.program import CudaProgram
from lane_mlir.cuda.runtime.state import State
from lane_mlir.cuda.runtime.weights import Tensors, Weights
from lane_mlir.diagnostics import LaneError
from lane_mlir.runtime.device import Progress, silent
from lane_mlir.runtime.recipe import StepIdentity
from lane_mlir.timeline import phase

if TYPE_CHECKING:
    from lane_mlir.dialects.launch import ScheduleOp


class CudaDevice:
    """
    Weights, state and programs of one model on one GPU: as `lane_mlir.runtime.Device` describes.

    `gpu` is the first card that the driver sees unless another is given. Raises: LaneError, saying what to install, if
    there is none to be used.
    """

    whole_chunks: bool = True

    def __init__(
        self,
        tensors: Tensors,
        gpu: Gpu | None = None,
        *,
        options: Options | None = None,
        progress: Progress = silent,
    ):
        self.options = Options.from_environment() if options is None else options
        self.gpu: Gpu = open_gpu() if gpu is None else gpu
        self._tensors, self._progress = tensors, progress
        self.weights = Weights(self.gpu, tensors)
        self.state = State(self.gpu)
        self.history = History()
        """What was done since the state was zero."""
        self._steps: list[Executable] = []
        self.loaded_bytes = 0
        """Bytes of weights that were copied from the host."""
        self.loading_seconds = 0.0
        self.planned_steps = 0
        """Steps that were compiled, not found among those that are kept."""

    @property
    def name(self) -> str:
        return self.gpu.name

    def compile(self, schedule: ScheduleOp) -> CudaProgram:
        """
        Make a planned schedule ready to run: print its kernels, and `prepare` the step.

        Raises: LaneError for a launch that no kernel runs, and as `prepare`.
        """
        # What is kept needs no compiler.
        from lane_mlir.cuda.lowering import Lowering

        return self.prepare(Lowering(schedule, self.gpu.chip).executable)

    def compile_kept(self, what: StepIdentity, plan: Callable[[], ScheduleOp]) -> CudaProgram:
        """
        `compile`, where what the step became before is kept beside its compiled kernels, and then not planned again.

        Raises: as `compile`.
        """
        with phase("looking for the compiled step"), self.gpu.programs() as programs:
            key = kept.key_of(what, self.gpu.chip)
            executable = kept.find(programs, key)
        if executable is None:
            from lane_mlir.cuda.lowering import Lowering

            with phase("compiling the step to kernels"):
                executable = Lowering(plan(), self.gpu.chip).executable
            self.planned_steps += 1
            with self.gpu.programs() as programs:
                kept.keep(programs, key, executable)
        return self.prepare(executable)

    def prepare(self, executable: Executable) -> CudaProgram:
        """
        Make a compiled step ready to run: compile its kernels, load the weights that are not there yet.

        Raises: LaneError for a step that does not fit into device memory.
        """
        placement = Placement(executable, self.weights, self.state)
        with phase("allocating device memory"):
            self._allocate(placement)
        kernels = self.gpu.begin(executable.source)
        self._load(placement)
        ordinal = len(self._steps)
        self._steps.append(executable)
        with self.reporting():
            return CudaProgram(self, executable, placement, kernels(), ordinal)

    def reset(self) -> None:
        """Set all state to zero: nothing has been read yet."""
        self.history.clear()
        with self.reporting():
            self.state.reset()

    @contextmanager
    def reporting(self) -> Generator[None]:
        """Turns a kernel's failure, as far as the driver reports it, into one that names the launch."""
        try:
            yield
        except DriverError as error:
            raise self._explained(error) from error

    def _explained(self, error: DriverError) -> LaneError:
        if not error.is_fault or not isinstance(self._tensors, Checkpoint):
            return error
        found = find(str(self._tensors.path), self._steps, self.history)
        if found is not None:
            return LaneError(found)
        return LaneError(
            f"a kernel of the step failed ({error}); run one by one the kernels did not fail, so it takes several that "
            "overlap, or memory that other programs left: LANE_CUDA_DEBUG=no-pdl lets none overlap"
        )

    def _allocate(self, placement: Placement) -> None:
        free, total = self.gpu.memory()
        try:
            placement.allocate(self.gpu)
        except OutOfMemory:
            raise too_large(self.name, placement.needed, free, total) from None

    def _load(self, placement: Placement) -> None:
        arrival = placement.arrival
        if not arrival.offsets:
            return
        done, total, started = 0, arrival.copied, time.perf_counter()
        with phase(f"loading {total / 1e9:.2f} GB of weights"):
            for size in self.weights.load(arrival):
                done += size
                self._progress(f"loading the weights onto {self.name}", done, total)
        self.loaded_bytes += done
        self.loading_seconds += time.perf_counter() - started
