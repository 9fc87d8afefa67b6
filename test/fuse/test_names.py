"""The public functions: each documented, and each name of the optimizer that these follow has what stands for it."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from lane_mlir.passes import forms, fuse, link, plan

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions.md"
ROWS = [
    (re.findall(r"`([^`]+)`", there), re.findall(r"`((?:passes|dialects)\.[^`]+)`", here))
    for there, here in re.findall(r"^\| (`.+?) \| (.+) \|$", DECISIONS.read_text(), re.MULTILINE)
]
THERE = """
BinaryForm ChipRule ConvForm Decision Fired GemvForm MoeForm NormForm Optimized Report Rewriter RopeForm Rule SliceForm
Outcome RuleKind Weights ADVANCE LATE RULES activation binary candidate class classes_built conv gates_rows gemv leaves moe
norm optimize read_in_place realizes rope rule_names set_dst slice steps unit_input unit_output weights written
""".split()


def test_every_name_has_one_that_stands_for_it():
    assert sorted(name for there, _ in ROWS for name in there) == sorted(THERE)


@pytest.mark.parametrize("path", [path for _, here in ROWS for path in here])
def test_what_stands_for_it_exists_and_is_documented(path: str):
    found = resolved(path)
    if callable(found):
        assert inspect.getdoc(found)


def resolved(path: str) -> object:
    """What a dotted path below lane_mlir names."""
    names = path.split(".")
    for length in range(len(names), 0, -1):
        try:
            found: object = import_module(".".join(("lane_mlir", *names[:length])))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize("module", [forms, fuse, link, plan], ids=["forms", "fuse", "link", "plan"])
def test_every_public_name_is_documented(module: ModuleType):
    for name in module.__all__:
        value = getattr(module, name)
        # A dataclass without a docstring has its signature as one.
        assert not callable(value) or (value.__doc__ and not value.__doc__.startswith(f"{name}(")), name
