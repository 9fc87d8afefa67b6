"""
Compilation of a unit by NVRTC to a cubin: no GPU is needed, and no toolkit, only the package nvidia-cuda-nvrtc.

A cubin, not PTX, since a driver may be older than NVRTC. Results are kept in cuda.core's program cache, whose key is of
the whole source, the options and NVRTC's version.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lane_mlir.cuda.source import self_contained
from lane_mlir.diagnostics import LaneError

if TYPE_CHECKING:
    from collections.abc import Generator

    from cuda.core import ObjectCode, Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

INSTALL = "install it with: pip install 'lane-mlir[cuda]'"
"""What to do where a package of the CUDA extra is missing."""

_MAX_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class CompileOptions:
    """How a unit is compiled: for which architecture, and whether with what profilers and debuggers read."""

    arch: str
    """NVRTC's name, such as `sm_90a`."""
    line_info: bool = False
    max_registers: int | None = None


def compile_unit(
    text: str, options: CompileOptions, *, name: str = "step.cu", cache: FileStreamProgramCache | None = None
) -> ObjectCode:
    """
    Compile a translation unit as the printer writes it.

    Raises: LaneError if NVRTC is missing, or refuses the unit: with the kernel, the place and the first error.
    """
    program_class, options_class = _nvrtc()
    source = self_contained(text, name)
    settings = options_class(
        name=name,
        arch=options.arch,
        std="c++20",
        lineinfo=options.line_info or None,
        max_register_count=options.max_registers,
    )
    try:
        program = program_class(source, "c++", settings)
        try:
            return program.compile("cubin", cache=cache) if cache is not None else program.compile("cubin")
        finally:
            program.close()
    except Exception as error:  # cuda.core's own classes of errors are not public
        raise LaneError(f"NVRTC refuses {name} for {options.arch}: {explained(str(error), text)}") from error


def _nvrtc() -> tuple[type[Program], type[ProgramOptions]]:
    try:
        from cuda.bindings import nvrtc
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise LaneError(f"the CUDA target compiles with cuda.core, which is not installed; {INSTALL}") from error
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:
        raise LaneError(f"the CUDA target compiles with NVRTC, which is not installed; {INSTALL}") from error
    return Program, ProgramOptions


def explained(log: str, text: str) -> str:
    """The first error of a log, and the printed kernel that it arose in, if the log names one of its lines."""
    first = next((line for line in log.splitlines() if "error" in line and "(" in line), log.strip().splitlines()[-1])
    lines = text.splitlines()
    for number in (int(n) for n in re.findall(r"at line (\d+) of", log)):
        for line in reversed(lines[: number + 1]):
            if (symbol := re.match(r"(\w+)\(.*\) \{$", line)) is not None:
                return f"kernel {symbol[1]}: {first.strip()}"
    return first.strip()


@contextmanager
def program_cache(folder: str | Path | None = None) -> Generator[FileStreamProgramCache]:
    """
    The cache of compiled programs, which processes share safely: in `folder`, LANE_CUDA_CACHE or cuda.core's own place.

    Raises: LaneError if cuda.core is missing or the folder cannot be made.
    """
    try:
        from cuda.core.utils import FileStreamProgramCache
    except ImportError as error:
        raise LaneError(f"the CUDA target compiles with cuda.core, which is not installed; {INSTALL}") from error
    folder = folder or os.environ.get("LANE_CUDA_CACHE")
    try:
        cache = FileStreamProgramCache(folder, max_size_bytes=_MAX_CACHE_BYTES)
    except OSError as error:
        raise LaneError(f"cannot keep compiled programs in {folder}: {error.strerror or error}") from error
    with cache:
        yield cache
