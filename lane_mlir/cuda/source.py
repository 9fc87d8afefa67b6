"""The kernel library as source: its files, and a unit with the files that it includes put in."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from lane_mlir.diagnostics import LaneError

_INCLUDE = re.compile(r'^#include "([\w.]+)"$')


@cache
def kernel_file(name: str) -> str:
    """A file of the kernel library. Raises LaneError if there is none of the name."""
    file = resources.files("lane_mlir.cuda.kernels").joinpath(name)
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise LaneError(f"the kernel library has no file {name}: is the package installed whole?") from error


def self_contained(unit: str, name: str) -> str:
    """
    A translation unit with every file that it includes in the place of its first include, so that the compiler needs
    no search path, and that the unit alone decides what is compiled. Messages keep the files' names and lines.

    Raises: LaneError if it includes a file that the kernel library has not.
    """
    return "\n".join(_expanded(unit, name, set())) + "\n"


def _expanded(text: str, name: str, included: set[str]) -> list[str]:
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(text.splitlines(), 1):
        match = _INCLUDE.match(line)
        if match is None:
            lines.append("" if line == "#pragma once" else line)
            continue
        if match[1] not in included:
            included.add(match[1])
            lines += _expanded(kernel_file(match[1]), match[1], included)
        lines.append(f'#line {number + 1} "{name}"')
    return lines
