"""
Compiled steps that are kept from one process to the next, beside the kernels that cuda.core's program cache keeps.

A step is found again by everything that it comes from: this package's own sources, the checkpoint's header, what the
step is compiled for, and the card. The cache writes entries whole, bounds their size, and has none that is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from lane_mlir.chips import Chip
from lane_mlir.cuda.runtime.executable import Executable, executable_of
from lane_mlir.cuda.runtime.gpu import Programs
from lane_mlir.runtime.recipe import StepIdentity

_PACKAGES = ("lane_mlir", "lane_mlir.dialects", "lane_mlir.passes")
"""Where the sources are that decide what a step becomes; in a clone not all of them lie in one folder."""


def key_of(what: StepIdentity, chip: Chip) -> bytes:
    """The key of a step that is compiled for a card."""
    inputs = {"step": asdict(what), "chip": asdict(chip), "sources": sources_digest(), "xdsl": version("xdsl")}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).digest()


def find(programs: Programs | None, key: bytes) -> Executable | None:
    """The step of a key; None if it is not kept."""
    entry = None if programs is None else programs.get(key)
    if entry is None:
        return None
    try:
        return executable_of(entry.decode())
    except (KeyError, TypeError, ValueError):
        return None  # whole, but no step: it is compiled again


def keep(programs: Programs | None, key: bytes, executable: Executable) -> None:
    """Keep a step; that there is no room for it is no error."""
    if programs is None:
        return
    with suppress(OSError):
        programs[key] = executable.json().encode()


@cache
def sources_digest() -> str:
    """A digest of this package's sources."""
    digest = hashlib.sha256()
    for file in sorted(source_files()):
        text = file.read_bytes()
        digest.update(f"{file.parent.name}/{file.name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


def source_files() -> Iterator[Path]:
    """The files of this package that decide what a step becomes."""
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations if spec is not None else None) or ():
            for pattern in ("*.py", "*.cuh"):
                yield from Path(folder).rglob(pattern)
