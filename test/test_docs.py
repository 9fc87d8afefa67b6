"""What pages show of the code is the code as it is, and what they name is all there is."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from lane_mlir.dialects.launch import LAUNCH, LaunchOp
from lane_mlir.passes.forms import COMPOSITES
from lane_mlir.passes.forms.classes import FUSED_QUANT, RULE_OF_CLASS, classes_of
from lane_mlir.passes.fuse import Outcome

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        ("adding-a-model.md", ["lane_mlir/importers/qwen3.py", "lane_mlir/importers/registry.py"]),
        ("adding-a-rule.md", ["passes/fuse/norms.py"]),
    ],
)
def test_code_is_that_of_the_repository(page: str, sources: list[str]):
    text = (ROOT / "docs" / page).read_text()
    shown = re.findall(r"^( *)```python\n(.*?)\n\1```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == len(sources)
    for (indent, code), source in zip(shown, sources, strict=True):
        assert code.replace(f"\n{indent}", "\n").removeprefix(indent) in (ROOT / source).read_text()


def kinds() -> Iterator[tuple[str, str]]:
    """Every kind of launch that an op can be, with the op's name."""
    for op in LAUNCH.operations:
        if not issubclass(op, LaunchOp):
            continue
        yield op.KIND, op.name
        if op.kind is not LaunchOp.kind:
            # What it returns is KIND or one of the names in it.
            tree = ast.parse(textwrap.dedent(inspect.getsource(op.kind)))
            named = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            yield from ((kind, op.name) for kind in named if isinstance(kind, str) and kind.isidentifier())


def rows(section: str) -> list[list[str]]:
    """The rows of the table in a section of the page about reports, without its head."""
    text = (ROOT / "docs" / "report.md").read_text()
    lines = text.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    return [
        [cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")
    ]


def test_the_page_about_reports_says_what_each_kind_of_launch_is():
    table = rows("Kinds of launches")
    assert sorted((kind, op) for kind, op, _ in table) == sorted(set(kinds()))
    assert all(what for *_, what in table)


def test_the_page_about_reports_has_every_word_of_decisions():
    assert [name for name, _ in rows("Tables")] == [str(outcome) for outcome in Outcome]
    assert [name for name, _ in rows("Composites")] == list(COMPOSITES)
    assert [name for name, _ in rows("Classes")] == list(classes_of(FUSED_QUANT))
    assert all(name == rule for name, rule in RULE_OF_CLASS.items() if rule != FUSED_QUANT)
