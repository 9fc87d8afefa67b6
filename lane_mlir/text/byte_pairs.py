"""
Byte-pair encoding as GPT-2 introduced it (Radford et al., 2019; Sennrich et al., 2016), on the tokenizers package.

Every byte of the text stands for itself as one character: printable ones as they are, the others from U+0100 on.
"""

from __future__ import annotations

from functools import cache

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from lane_mlir.checkpoint import Metadata
from lane_mlir.diagnostics import LaneError
from lane_mlir.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from lane_mlir.text.vocabulary import PREFIX, TokenType, Vocabulary


def pre_tokenizer(where: str, metadata: Metadata) -> PreTokenizer:
    """The pre-tokenizer that the file names; LaneError if it is not known."""
    name = metadata.optional(PREFIX + "pre", str, "default")
    if name not in PRE_TOKENIZERS:
        raise LaneError(f"{where}: unknown pre-tokenizer {name!r} ('{PREFIX}pre')")
    return PRE_TOKENIZERS[name]


class BytePairs:
    """Encodes text without special tokens, and gives the bytes that a token stands for."""

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata, words: PreTokenizer):
        self._vocabulary = vocabulary
        self._byte = _bytes_of_characters()
        merges = metadata.required_array(PREFIX + "merges", str)
        # A token may itself start with a space, so the separator is looked for from the second character on.
        pairs = [(merge[:cut], merge[cut + 1 :]) for merge in merges if (cut := merge.find(" ", 1)) > 0]
        self._refuse_unknown_parts(pairs)
        self._encoder = Tokenizer(models.BPE(vocabulary.ids, pairs, ignore_merges=words.whole_words))
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns]
        # With merges over the byte alphabet; the words are cut already.
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])

    def encode(self, text: str, after_special: bool) -> list[int]:
        """The ids of a text; it makes no difference what comes before it."""
        del after_special
        return self._encoder.encode(text, add_special_tokens=False).ids

    def piece(self, index: int) -> bytes:
        """The bytes that a token stands for; control and user-defined tokens stand for their text."""
        token = self._vocabulary.tokens[index]
        if self._vocabulary.has_type(index, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
            return token.encode()
        return b"".join(self._byte.get(character) or character.encode() for character in token)

    def _refuse_unknown_parts(self, pairs: list[tuple[str, str]]) -> None:
        ids, where = self._vocabulary.ids, self._vocabulary.where
        for left, right in pairs:
            for part in (left, right, left + right):
                if part not in ids:
                    raise LaneError(
                        f"{where}: merge {f'{left} {right}'[:80]!r} needs the token {part[:80]!r}, which is missing"
                    )


@cache
def _bytes_of_characters() -> dict[str, bytes]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): bytes([byte]) for byte in printable}
    return characters | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}
