"""Token ids, token bytes and texts equal to llama.cpp's, for a byte-pair and a SentencePiece vocabulary."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.text import Tokenizer

DATA = Path(__file__).parent / "data"
VOCABULARIES = {
    "smollm2-135m-instruct-Q4_1": DATA / "smollm2-vocabulary.gguf",
    # Its licence keeps the vocabulary out of the repository.
    "gemma-3-270m-Q4_K_M": Path.home() / ".cache" / "lane-mlir" / "models" / "gemma-3-270m-q4_k_m.gguf",
}


def expected(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}-tokenize.json").read_text())


@cache
def tokenizer(name: str) -> Tokenizer:
    path = VOCABULARIES[name]
    if not path.exists():
        pytest.skip(f"{path.name} has not been fetched")
    return Tokenizer.from_checkpoint(Checkpoint.open(path))


CASES = [
    pytest.param(name, case, id=f"{name}-{index}")
    for name in VOCABULARIES
    for index, case in enumerate(expected(name)["cases"])
    if "\0" not in case["text"]
]


@pytest.mark.parametrize("name, case", CASES)
def test_ids_pieces_and_text(name: str, case: dict[str, Any]) -> None:
    ours = tokenizer(name)
    assert ours.encode(case["text"], case["add_special"], case["parse_special"]) == case["ids"]
    assert [ours.piece(index).hex() for index in case["ids"]] == case["pieces_hex"]
    assert ours.decode(case["ids"]).encode().hex() == case["detokenized_hex"]
    stream = ours.stream(special=True)
    assert "".join(map(stream.push, case["ids"])) + stream.finish() == ours.decode(case["ids"])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_special_ids(name: str) -> None:
    info = expected(name)["meta"]["info"]
    ours = tokenizer(name)
    assert sorted(ours.eos_ids) == info["eog_ids"]
    assert (ours.bos_id, ours.eos_id) == (info["bos"], info["eos"])


def test_both_files_have_all_cases() -> None:
    assert len(CASES) == 160
