"""How far the numerics move a model, and what cannot be measured on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lane_mlir.tools.measure_numerics import divergence, log_probabilities, main


def test_each_numerics_against_dequant(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps({"ids": list(range(20))}))
    assert main([str(models / "qwen3-Q8_0.gguf"), "--ids", str(ids), "--limit", "12"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["dequant", "int8", "two_pass_int8"]
    reference, int8, two_pass = (float(line.split()[2]) for line in lines)
    assert reference == 0
    # The second word takes up all but 1/254 of the first one's error, and a divergence goes by its square.
    assert 0 < 30 * two_pass < int8


def test_divergence_is_that_of_the_distributions():
    reference = log_probabilities(np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])))
    other = log_probabilities(np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]])))
    found = divergence("int8", reference, other, [0, 1])
    assert found.largest == pytest.approx(0.25 * np.log(2))
    assert found.mean == pytest.approx(0.125 * np.log(2))
    assert found.same_token == 0.5
    assert found.likelihood == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("text", "options", "status", "message"),
    [
        ("", [], 1, "ids.json: not JSON: "),
        pytest.param("[" * 100_000, [], 1, "ids.json: not JSON: ", id="deep"),
        ("{}", [], 1, "ids.json: holds no list of token ids, nor one under 'ids'"),
        ('[1, "a"]', [], 1, "ids.json: holds no list of token ids"),
        ("[1]", [], 1, "ids.json: 1 tokens, expected at least 2"),
        ("[1, 2]", ["--limit", "0"], 2, "--limit is 0, expected at least 2"),
        ("[1, 2]", ["--text", "a"], 2, "give a text (--text) or token ids (--ids) to measure on"),
    ],
)
def test_what_cannot_be_measured_on(
    text: str, options: list[str], status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    ids = tmp_path / "ids.json"
    ids.write_text(text)
    assert main(["model.gguf", "--ids", str(ids), *options]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("measure_numerics: error: ")
    assert message in line


def test_a_text_that_is_none(talking_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, text = str(talking_model({"a": 115})), tmp_path / "text"
    text.write_bytes(b"a\xff")
    assert main([model, "--text", str(text)]) == 1
    assert capsys.readouterr().err == f"measure_numerics: error: {text} is not text: byte 1 is not UTF-8\n"
    assert main([model, "--text", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"measure_numerics: error: cannot read {tmp_path}: Is a directory\n"
