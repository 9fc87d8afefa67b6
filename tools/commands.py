"""
Where the commands begin, before what they need is imported: Ctrl-C is clean from here on.

Each function is the command of its name.
"""

from __future__ import annotations

import sys
from importlib import import_module

_INTERRUPTED = 130
"""As `lane_mlir.diagnostics.INTERRUPTED`, which takes an import to know."""


def lane_opt() -> int:
    return _command("lane_opt")


def lane_import() -> int:
    return _command("lane_import")


def lane_run() -> int:
    return _command("lane_run")


def lane_report() -> int:
    return _command("lane_report")


def lane_bench() -> int:
    return _command("lane_bench")


def _command(module: str) -> int:
    name = f"lane_mlir.tools.{module}"
    try:
        import_module(name)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return sys.modules[name].main()
