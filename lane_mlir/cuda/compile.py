"""
Compilation of a unit by NVRTC to a cubin: no GPU is needed, and no toolkit, only the package nvidia-cuda-nvrtc.

A cubin, not PTX, since a driver may be older than NVRTC. Results are kept in cuda.core's program cache, whose key is of
the whole source, the options and NVRTC's version.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from lane_mlir.cuda.source import self_contained
from lane_mlir.diagnostics import LaneError

ProgramCache: TypeAlias = Any
"""A `cuda.core.utils.ProgramCacheResource`: cuda.core chooses its version at run time, so checkers see no types."""

_MAX_CACHE_BYTES = 1 << 30
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class CompileOptions:
    """
    How a unit is compiled: for which architecture, whether with what profilers and debuggers read, and whether at all
    or only as far as the front end: types, templates, static assertions.
    """

    arch: str
    """NVRTC's name, such as `sm_90a`."""
    line_info: bool = False
    max_registers: int | None = None
    front_end_only: bool = False
    fast: bool = False
    """Whether to compile soon rather than well: to see that it compiles."""


def cuda_module(name: str) -> Any:
    """
    A module of cuda-python, `cuda.core` or `cuda.bindings.nvrtc`.

    Raises: LaneError if it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise LaneError(
            f"the CUDA target needs {name}, which is not installed: pip install 'lane-mlir[cuda]'"
        ) from error


def compile_unit(
    text: str, options: CompileOptions, *, name: str = "step.cu", cache: ProgramCache | None = None
) -> bytes:
    """
    Compile a translation unit as the printer writes it: the cubin.

    Raises: LaneError if NVRTC is missing, or refuses the unit: with the kernel, the place and the first error.
    """
    core, nvrtc = cuda_module("cuda.core"), cuda_module("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # the loader's own classes of errors are not public
        raise LaneError(
            "the CUDA target compiles with NVRTC, which is not installed: pip install 'lane-mlir[cuda]'"
        ) from error
    settings = core.ProgramOptions(
        name=name,
        arch=options.arch,
        std="c++20",
        # A lambda has no annotation, and NVRTC before 13.3 takes it for a function of the host.
        device_as_default_execution_space=True,
        lineinfo=options.line_info or None,
        max_register_count=options.max_registers,
        ofast_compile="max" if options.fast else None,
        fdevice_syntax_only=options.front_end_only or None,
    )
    source = self_contained(text, name)
    try:
        program = core.Program(source, "c++", settings)
        try:
            return program.compile("cubin", cache=cache).code
        finally:
            program.close()
    except Exception as error:  # cuda.core's own classes of errors are not public
        if "NVRTC" not in str(error):
            raise
        raise LaneError(f"NVRTC refuses {name} for {options.arch}: {explained(str(error), text, name)}") from error


def explained(log: str, text: str, name: str) -> str:
    """The first error of a log of NVRTC, and the kernel of the unit in which it arose, if the log says where."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = next((line for line in lines if re.search(r"\(\d+\): .*error", line)), lines[-1] if lines else "no reason")
    printed = list(pairwise(text.splitlines()))
    for number in re.findall(rf"at line (\d+) of {re.escape(name)}|^{re.escape(name)}\((\d+)\)", log, re.MULTILINE):
        for line, after in reversed(printed[: int("".join(number))]):
            if line.startswith('extern "C" __global__') and (symbol := re.match(r"\w+", after)) is not None:
                return f"in kernel {symbol[0]}: {first}"
    return first


@contextmanager
def program_cache(folder: str | Path | None = None) -> Generator[ProgramCache]:
    """
    The cache of compiled programs, which processes share safely: in `folder`, LANE_CUDA_CACHE or cuda.core's own place.
    An entry that is damaged is not there.

    Raises: LaneError if cuda.core is missing or the folder cannot be made.
    """
    folder = folder or os.environ.get("LANE_CUDA_CACHE")
    utils = cuda_module("cuda.core.utils")
    try:
        cache = utils.FileStreamProgramCache(folder, max_size_bytes=_MAX_CACHE_BYTES)
    except OSError as error:
        raise LaneError(f"cannot keep compiled programs in {folder}: {error.strerror or error}") from error
    with cache:
        yield _checked(cache)


def _checked(entries: ProgramCache) -> ProgramCache:
    """A cache each of whose entries has its SHA-256 behind it, which who reads a cubin does not see."""
    resource = cuda_module("cuda.core.utils").ProgramCacheResource

    class Checked(resource):
        def __getitem__(self, key: bytes | str) -> bytes:
            entry: bytes = entries[key]
            code, digest = entry[:-_DIGEST_BYTES], entry[-_DIGEST_BYTES:]
            if hashlib.sha256(code).digest() != digest:
                raise KeyError(key)
            return code

        def __setitem__(self, key: bytes | str, value: Any) -> None:
            code = bytes(getattr(value, "code", value))
            entries[key] = code + hashlib.sha256(code).digest()

        def __delitem__(self, key: bytes | str) -> None:
            del entries[key]

        def __len__(self) -> int:
            return len(entries)

        def clear(self) -> None:
            entries.clear()

    return Checked()
