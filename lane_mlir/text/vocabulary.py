"""The vocabulary of a checkpoint: token texts, their kinds, and the ids that mean something to a generator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from lane_mlir.checkpoint import Metadata
from lane_mlir.diagnostics import LaneError


class TokenType(IntEnum):
    """What a token is, by the number that GGUF's `tokenizer.ggml.token_type` gives it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts of tokens that end a turn or a document whatever a file's keys say; files often name one of several.
_ENDS = frozenset(
    {
        "</s>",
        "<eos>",
        "[EOS]",
        "[EOT]",
        "<EOT>",
        "_<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|call|>",
        "<|calls|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
# Code models mark the end of a file, a repository or padding with these; what follows is no continuation.
_FILE_ENDS = frozenset(
    {
        "<|file_sep|>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    }
)
_FILE_END_KEYS = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")
# In vocabularies with both of a pair, <|end|> closes one message of several and the text goes on.
_MESSAGE_END = "<|end|>"
_MESSAGE_VOCABULARIES = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
# Parts of a message's frame that belong to the shown text.
_SHOWN = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})

PREFIX = "tokenizer.ggml."


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """
    The tokens of a checkpoint in order of their ids.

    `types` holds each token's TokenType after correction: a token whose text marks an end is CONTROL even where a file
    says otherwise. `where` is the file, for messages.
    """

    where: str
    tokens: list[str]
    types: list[int]
    ends: frozenset[int]

    @staticmethod
    def from_metadata(where: str, metadata: Metadata) -> Vocabulary:
        """
        The vocabulary that the metadata describes.

        Raises LaneError for a missing or empty token list, duplicate tokens, a list of types of another length, and an
        id outside the vocabulary.
        """
        tokens = metadata.required_array(PREFIX + "tokens", str)
        if not tokens:
            raise LaneError(f"{where}: key '{PREFIX}tokens' is empty")
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        types = metadata.optional_array(PREFIX + "token_type", int) or [int(TokenType.NORMAL)] * len(tokens)
        if len(types) != len(tokens):
            raise LaneError(f"{where}: key '{PREFIX}token_type' has {len(types)} values for {len(tokens)} tokens")
        _refuse_duplicates(where, tokens)
        marks = {tokens[index]: index for index in _marked(tokens)}
        ends = _ends(where, metadata, tokens, marks)
        for text, index in marks.items():
            is_frame = text in _SHOWN or (text == _MESSAGE_END and index not in ends)
            types[index] = int(TokenType.USER_DEFINED if is_frame else TokenType.CONTROL)
        return Vocabulary(where, tokens, types, ends)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token's text."""
        return {token: index for index, token in enumerate(self.tokens)}

    def of_type(self, *types: TokenType) -> list[int]:
        """The ids of all tokens of some types, in order."""
        wanted = set(map(int, types))
        return [index for index, kind in enumerate(self.types) if kind in wanted]

    def has_type(self, index: int, *types: TokenType) -> bool:
        """Whether a token is of one of some types."""
        return self.types[index] in types


def special_id(where: str, metadata: Metadata, name: str, count: int, default: int | None = None) -> int | None:
    """The id under `tokenizer.ggml.<name>`, None if the file names none; LaneError if it is outside the vocabulary."""
    index = metadata.optional(PREFIX + name, int)
    if index is None:
        return default if default is not None and default < count else None
    if not 0 <= index < count:
        raise LaneError(f"{where}: key '{PREFIX}{name}' is {index}, expected an id below {count}")
    return index


def _marked(tokens: Iterable[str]) -> list[int]:
    marks = _ENDS | _FILE_ENDS | _SHOWN
    return [index for index, token in enumerate(tokens) if token in marks]


def _ends(where: str, metadata: Metadata, tokens: list[str], marks: dict[str, int]) -> frozenset[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id", *_FILE_END_KEYS)
    named = {special_id(where, metadata, key, len(tokens)) for key in keys}
    known = {index for text, index in marks.items() if text not in _SHOWN}
    if any(pair <= marks.keys() for pair in _MESSAGE_VOCABULARIES):
        known.discard(marks.get(_MESSAGE_END, -1))
    return frozenset(index for index in named | known if index is not None)


def _refuse_duplicates(where: str, tokens: list[str]) -> None:
    if len(set(tokens)) == len(tokens):
        return
    first: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in first:
            raise LaneError(f"{where}: token {token[:80]!r} has the ids {first[token]} and {index}")
        first[token] = index
