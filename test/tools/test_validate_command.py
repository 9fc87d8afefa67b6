"""`lane-opt --validate` on tiny models: every rule of every pass computes what was there before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lane_mlir.tools.lane_opt import main

# What test_validate_models does not do: chunks, several sequences, state in 16 bits.
CASES = [
    ("llama-Q4_K_M", "two_pass_int8", "rows=7 logits=all"),
    ("gemma2-Q5_K_M", "two_pass_int8", "rows=1 cache=f16"),
    ("gpt-oss-moe-Q4_K_M", "dequant", "rows=7"),
    ("lfm2-Q4_K_M", "int8", "sequences=3"),
    ("qwen3next-moe-Q4_K_M", "int8", "rows=1 state=bf16"),
]


@pytest.mark.parametrize(("name", "numerics", "options"), CASES)
def test_each_pass_and_rule(
    name: str,
    numerics: str,
    options: str,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    # A reproducer is written to the current folder.
    monkeypatch.chdir(tmp_path)
    frontend = f"gguf{{context=40 numerics={numerics} {options}}}"
    arguments = [str(models / f"{name}.gguf"), "-f", frontend, "--validate", "-p", "fuse,link,plan", "-o", os.devnull]
    assert main(arguments) == 0, capsys.readouterr().err
    assert not list(tmp_path.iterdir())
