"""Text to token ids and back, as the metadata of a checkpoint says."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Protocol

from lane_mlir.checkpoint import Checkpoint, Metadata
from lane_mlir.diagnostics import LaneError
from lane_mlir.text.byte_pairs import BytePairs, pre_tokenizer
from lane_mlir.text.sentence_piece import SentencePieces
from lane_mlir.text.vocabulary import PREFIX, TokenType, Vocabulary, special_id
from lane_mlir.timeline import phase

_BYTE_PAIRS = "gpt2"
_SENTENCE_PIECE = "llama"


class Model(Protocol):
    """What a kind of vocabulary does: encode text that has no special tokens in it, and give a token's bytes."""

    def encode(self, text: str, after_special: bool) -> list[int]: ...
    def piece(self, index: int) -> bytes: ...


class Tokenizer:
    """
    The tokenizer of a checkpoint.

    Supported are the vocabularies `gpt2` (byte pairs) and `llama` (SentencePiece). Special tokens are found in the text
    first, longest first; the text between them is encoded by the vocabulary's own rules. Everything heavy is built on
    first use.
    """

    def __init__(self, where: str, metadata: Metadata):
        self._where = where
        self._metadata = metadata
        self._kind = metadata.required(PREFIX + "model", str)
        if self._kind not in (_BYTE_PAIRS, _SENTENCE_PIECE):
            raise LaneError(
                f"{where}: no text for tokenizer model {self._kind!r} ('{PREFIX}model'), only for "
                f"{_BYTE_PAIRS!r} and {_SENTENCE_PIECE!r}; give token ids instead"
            )
        is_pieces = self._kind == _SENTENCE_PIECE
        self._words = None if is_pieces else pre_tokenizer(where, metadata)
        self._add_bos = metadata.optional(PREFIX + "add_bos_token", bool)
        self._default_bos = self._words is None or self._words.add_bos
        self._add_eos = metadata.optional(PREFIX + "add_eos_token", bool, False)
        self._space_prefix = metadata.optional(PREFIX + "add_space_prefix", bool, is_pieces)

    @staticmethod
    def from_checkpoint(checkpoint: Checkpoint) -> Tokenizer:
        """
        The tokenizer that a checkpoint's metadata describes.

        Raises LaneError, then or on first use, for a vocabulary of another kind, an unknown pre-tokenizer, and
        missing, mistyped or contradicting keys.
        """
        return Tokenizer(str(checkpoint.path), checkpoint.metadata)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens, their types and the ends."""
        return Vocabulary.from_metadata(self._where, self._metadata)

    @property
    def eos_ids(self) -> frozenset[int]:
        """All tokens that end a text: of the end-of-text, end-of-turn and end-of-message keys, and well-known ones."""
        return self.vocabulary.ends

    @cached_property
    def bos_id(self) -> int | None:
        """The token that starts a text, None if the file names none."""
        return self._special_id("bos_token_id", 1)

    @cached_property
    def eos_id(self) -> int | None:
        """The token that ends a text, None if the file names none. See `eos_ids` for all that end one."""
        return self._special_id("eos_token_id", 2)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """
        The ids of a text.

        `add_special` puts BOS before and EOS behind as the file's flags say, even if the text has them itself.
        `parse_special` reads the texts of control tokens as these tokens; without it they are text like any other.
        User-defined tokens are always read.

        Raises LaneError if the text has lone surrogates (bytes that were not UTF-8).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise LaneError(f"the text is not valid Unicode at character {error.start}") from None
        ids: list[int] = self._start() if add_special else []
        after_special = True
        for part in self._parts(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._model.encode(part, after_special)
            after_special = isinstance(part, int)
        return ids + self._end() if add_special else ids

    def decode(self, ids: Iterable[int], special: bool = True) -> str:
        """
        The text of a whole sequence, without control tokens unless `special`; bytes that are no UTF-8 become U+FFFD.

        The space that the encoder puts before a text is taken off again. For a continuation use `stream`.
        """
        pieces = [(index, self.piece(index, special)) for index in ids]
        text = b"".join(piece for _, piece in pieces).decode(errors="replace")
        first = next((index for index, piece in pieces if piece), None)
        starts_as_text = first is not None and not self._is_control(first)
        return text.removeprefix(" ") if self._space_prefix and starts_as_text else text

    def piece(self, index: int, special: bool = True) -> bytes:
        """The bytes of one token, maybe a part of a character; nothing for a control token without `special`."""
        if not 0 <= index < len(self.vocabulary.tokens):
            raise LaneError(f"token id {index} is outside the vocabulary of {len(self.vocabulary.tokens)} tokens")
        return b"" if not special and self._is_control(index) else self._model.piece(index)

    def stream(self, special: bool = False) -> Stream:
        """A decoder of a continuation that comes token by token."""
        return Stream(self, special)

    def _is_control(self, index: int) -> bool:
        return self.vocabulary.has_type(index, TokenType.CONTROL, TokenType.UNKNOWN)

    def _special_id(self, name: str, pieces_default: int) -> int | None:
        default = pieces_default if self._kind == _SENTENCE_PIECE else None
        return special_id(self._where, self._metadata, name, len(self.vocabulary.tokens), default)

    def _start(self) -> list[int]:
        if self._add_bos and self.bos_id is None:
            raise LaneError(f"{self._where}: '{PREFIX}add_bos_token' is set but there is no '{PREFIX}bos_token_id'")
        wanted = self._default_bos if self._add_bos is None else self._add_bos
        return [self.bos_id] if wanted and self.bos_id is not None else []

    def _end(self) -> list[int]:
        if self._add_eos and self.eos_id is None:
            raise LaneError(f"{self._where}: '{PREFIX}add_eos_token' is set but there is no '{PREFIX}eos_token_id'")
        return [self.eos_id] if self._add_eos and self.eos_id is not None else []

    @cached_property
    def _model(self) -> Model:
        with phase("building the tokenizer"):
            return self._built()

    def _built(self) -> Model:
        if self._words is not None:
            return BytePairs(self.vocabulary, self._metadata, self._words)
        unknown = special_id(self._where, self._metadata, "unknown_token_id", len(self.vocabulary.tokens))
        if unknown is None:
            unknown = next(iter(self.vocabulary.of_type(TokenType.UNKNOWN)), 0)
        return SentencePieces(self.vocabulary, self._metadata, unknown, self._space_prefix)

    @cached_property
    def _specials(self) -> list[int]:
        """The tokens to look for in a text, by bytes, longest first."""
        found = self.vocabulary.of_type(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        return sorted(found, key=lambda index: -len(self.vocabulary.tokens[index].encode()))

    def _parts(self, text: str, parse_special: bool) -> Iterator[str | int]:
        """The text cut at the special tokens in it: ids of these, and the text between."""
        parts: list[str | int] = [text] if text else []
        for index in self._specials:
            token = self.vocabulary.tokens[index]
            if token in text and (parse_special or not self._is_control(index)):
                parts = [piece for part in parts for piece in _cut(part, token, index)]
        return iter(parts)


class Stream:
    """
    Text of tokens that come one by one, in whole characters only.

    The bytes of a character that is not complete are held back until the tokens with the rest of it have come.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool = False):
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """The characters that a token completes; often one word, sometimes none."""
        return self._decoder.decode(self._tokenizer.piece(index, self._special))

    def finish(self) -> str:
        """What was held back: U+FFFD if the text stops inside a character."""
        return self._decoder.decode(b"", final=True)


def _cut(part: str | int, token: str, index: int) -> Iterator[str | int]:
    if isinstance(part, int):
        yield part
        return
    first, *rest = part.split(token)
    if first:
        yield first
    for text in rest:
        yield index
        if text:
            yield text
