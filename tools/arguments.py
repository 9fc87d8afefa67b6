"""Command lines, and what is said of wrong ones."""

from __future__ import annotations

import argparse
from typing import NoReturn

from lane_mlir.diagnostics import UsageError


class ArgumentParser(argparse.ArgumentParser):
    """Reports what is wrong in one line, as all our errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help lists the options)")


def names(text: str) -> tuple[str, ...]:
    """The names in a list such as `add_norm,gates`; none in an empty one."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
