"""What a check found, and how it travels from the process that checks to the one that reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xdsl.utils.str_enum import StrEnum

MARK = "@lane-check "
"""What a line begins with that is a message, on the standard output of a process that checks."""

AGAIN = 75
"""Exit status of a process that met a fault: it has no GPU any more, and another is to do the rest."""

KERNEL_TESTS = "kernels"
"""The task whose cases are tests of kernels."""


class Verdict(StrEnum):
    HELD = "held"
    FAILED = "FAILED"
    SKIPPED = "skipped"
    """It says of something that nothing is there to check it with."""


@dataclass(frozen=True)
class Finding:
    """
    The verdict on one case. `error` and `tolerance` are relative unless `detail` says otherwise; `why` says where the
    tolerance comes from.
    """

    task: str
    case: str
    verdict: Verdict
    error: float | None = None
    tolerance: float | None = None
    why: str = ""
    detail: str = ""

    @property
    def name(self) -> str:
        return f"{self.task} {self.case}"

    def message(self) -> str:
        """The line that says so."""
        return MARK + json.dumps({"finding": asdict(self)})


def case_of(test: str) -> str:
    """A test of kernels as a case: `norms.test_l2_norm[64]`."""
    path, _, name = test.partition("::")
    return f"{Path(path).stem.removeprefix('test_')}.{name}"


def begins(case: str) -> str:
    """The line that says that a case begins, so that it is known which one ended a process."""
    return MARK + json.dumps({"begins": case})


def read_message(line: str) -> Mapping[str, Any] | None:
    """What a line says; None for one that is no message."""
    return json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None


def finding_of(fields: Mapping[str, Any]) -> Finding:
    values: dict[str, Any] = {**fields}
    values["verdict"] = Verdict(values["verdict"])
    return Finding(**values)
