"""What the pages about adding things show is the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
