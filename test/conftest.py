"""What tests of several areas need: tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType

MODELS = Path(__file__).parent / "data" / "models"

TalkingModel: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of the tiny models, each with what a reference engine computes from it."""
    return MODELS


@pytest.fixture
def talking_model(tmp_path: Path) -> TalkingModel:
    """
    Makes a model of the same weights as llama-f32 whose tokens have texts: `talking_model({"a": 115}, eos=68)`.

    The vocabulary is of SentencePiece, without BOS and without a space put before a text. Tokens that are not named
    are `[0]`, `[1]`, …; a text such as <0xF0> is a byte.
    """

    def make(tokens: Mapping[str, int], eos: int | None = None, controls: tuple[int, ...] = ()) -> Path:
        path = tmp_path / "talking.gguf"
        reader, writer = GGUFReader(MODELS / "llama-f32.gguf"), GGUFWriter(path, "llama")
        for field in reader.fields.values():
            if field.name.startswith("llama."):
                kind: GGUFValueType = field.types[0]
                writer.add_key_value(field.name, field.contents(), kind)
        _add_tokens(writer, {index: text for text, index in tokens.items()}, eos, controls)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def _add_tokens(writer: GGUFWriter, texts: Mapping[int, str], eos: int | None, controls: tuple[int, ...]) -> None:
    tokens = ["<unk>", *(texts.get(index, f"[{index}]") for index in range(1, 128))]
    types = [TokenType.BYTE if token.startswith("<0x") else TokenType.NORMAL for token in tokens]
    types[0] = TokenType.UNKNOWN
    for index in controls:
        types[index] = TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(128)])
    writer.add_token_types([int(kind) for kind in types])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    if eos is not None:
        writer.add_eos_token_id(eos)
