"""The rules of both kinds of vocabulary on small ones written here, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType
from tokenizers import Regex, pre_tokenizers

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.diagnostics import LaneError
from lane_mlir.text import Tokenizer
from lane_mlir.text.pre_tokenizers import PRE_TOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER, BYTE = (
    TokenType.NORMAL,
    TokenType.UNKNOWN,
    TokenType.CONTROL,
    TokenType.USER_DEFINED,
    TokenType.BYTE,
)
Token = tuple[str, float, TokenType]
Change = Callable[[GGUFWriter], None]


def nothing(writer: GGUFWriter) -> None:
    del writer


def build(path: Path, kind: str, change: Change) -> Tokenizer:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Tokenizer.from_checkpoint(Checkpoint.open(path))


PIECES: list[Token] = [
    ("<unk>", 0, UNKNOWN),
    ("<s>", 0, CONTROL),
    ("</s>", 0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    *((letter, -100.0, NORMAL) for letter in "▁abcdel"),
    ("▁a", -1, NORMAL),
    ("ab", -2, NORMAL),
    ("▁ab", -3, NORMAL),
    ("cd", -1, NORMAL),
    ("bc", -1, NORMAL),
    ("[tool]", 0, USER),
    ("[tool]s", 0, USER),
]
PIECE = {token: index for index, (token, _, _) in enumerate(PIECES)}


def pieces(path: Path, change: Change = nothing, tokens: list[Token] | None = None) -> Tokenizer:
    tokens = PIECES if tokens is None else tokens

    def vocabulary(writer: GGUFWriter) -> None:
        writer.add_token_list([token for token, _, _ in tokens])
        writer.add_token_scores([float(score) for _, score, _ in tokens])
        writer.add_token_types([int(kind) for _, _, kind in tokens])
        change(writer)

    return build(path / "pieces.gguf", "llama", vocabulary)


def ids(*tokens: str) -> list[int]:
    return [PIECE[token] for token in tokens]


def utf8(text: str) -> list[int]:
    return ids(*(f"<0x{byte:02X}>" for byte in text.encode()))


class TestSentencePiece:
    def test_best_score_merges_first_and_the_left_of_equals(self, tmp_path: Path) -> None:
        encode = pieces(tmp_path).encode
        # "bc" and "cd" have the same score, and the space prefix makes "▁a" before them.
        assert encode("abcd", add_special=False) == ids("▁a", "bc", "d")
        assert encode("cd", add_special=False) == ids("▁", "cd")

    def test_bos_by_default_and_as_the_flags_say(self, tmp_path: Path) -> None:
        assert pieces(tmp_path).encode("a") == [1, *ids("▁a")]
        assert pieces(tmp_path).encode("") == [1]
        without = pieces(tmp_path, lambda w: w.add_add_bos_token(False))
        assert without.encode("a") == ids("▁a")
        both = pieces(tmp_path, lambda w: w.add_add_eos_token(True))
        assert both.encode("a") == [1, *ids("▁a"), 2]
        assert both.encode("a", add_special=False) == ids("▁a")

    def test_space_prefix_after_special_tokens_only(self, tmp_path: Path) -> None:
        tokenizer = pieces(tmp_path)
        assert tokenizer.encode("a</s>a", add_special=False) == [*ids("▁a"), 2, *ids("▁a")]
        bare = pieces(tmp_path, lambda w: w.add_add_space_prefix(False))
        assert bare.encode("a a", add_special=False) == ids("a", "▁a")

    def test_spaces_stay_unless_the_file_says_otherwise(self, tmp_path: Path) -> None:
        assert pieces(tmp_path).encode(" a  a ", add_special=False) == ids("▁", "▁a", "▁", "▁a", "▁")
        collapsing = pieces(tmp_path, lambda w: w.add_remove_extra_whitespaces(True))
        assert collapsing.encode(" a  a ", add_special=False) == ids("▁a", "▁a")

    def test_special_tokens_in_the_text(self, tmp_path: Path) -> None:
        tokenizer = pieces(tmp_path)
        assert tokenizer.encode("<s>", add_special=True) == [1, 1]
        plain = tokenizer.encode("<s>", add_special=False, parse_special=False)
        assert plain == [*ids("▁"), *utf8("<s>")]
        # User-defined tokens are read in any case, the longest first.
        for parse in (True, False):
            assert tokenizer.encode("[tool]s[tool]", False, parse) == ids("[tool]s", "[tool]")

    def test_bytes_for_what_is_unknown(self, tmp_path: Path) -> None:
        tokenizer = pieces(tmp_path)
        assert tokenizer.encode("aé😀", add_special=False) == [*ids("▁a"), *utf8("é😀")]
        few = [token for token in PIECES if token[2] is not BYTE]
        assert pieces(tmp_path, tokens=few).encode("é", add_special=False)[-1] == 0

    def test_the_unknown_token_is_the_one_of_that_type(self, tmp_path: Path) -> None:
        moved: list[Token] = [("a", 0, NORMAL), ("▁", 0, NORMAL), ("<unk>", 0, UNKNOWN)]
        assert pieces(tmp_path, tokens=moved).encode("aéa", add_special=False) == [1, 0, 2, 0]

    def test_byte_tokens_that_are_not_all_there(self, tmp_path: Path) -> None:
        fewer = [token for token in PIECES if token[0] != "<0xFF>"]
        assert pieces(tmp_path, tokens=fewer).encode("é", add_special=False)[-1] == 0

    def test_decoding_takes_the_space_prefix_off(self, tmp_path: Path) -> None:
        tokenizer = pieces(tmp_path)
        for text in ("ab cd", " a", "é😀", "  b  "):
            assert tokenizer.decode(tokenizer.encode(text), special=False) == text
            assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
        assert tokenizer.decode(ids("▁a", "▁ab")) == "a ab"
        assert tokenizer.decode([1, *ids("cd"), 2], special=False) == "cd"
        assert tokenizer.decode([1, *ids("cd"), 2]) == "<s>cd</s>"

    def test_an_emoji_over_four_tokens(self, tmp_path: Path) -> None:
        stream = pieces(tmp_path).stream()
        assert [stream.push(index) for index in [*ids("▁a"), *utf8("😀"), 2, *ids("b")]] == [
            " a", "", "", "", "😀", "", "b",
        ]  # fmt: skip
        assert stream.push(utf8("é")[0]) == ""
        assert stream.finish() == "\ufffd"

    def test_a_stream_replaces_what_is_no_utf8(self, tmp_path: Path) -> None:
        stream = pieces(tmp_path).stream()
        assert stream.push(PIECE["<0xFF>"]) == "\ufffd"
        assert stream.push(utf8("é")[0]) == ""
        assert stream.push(PIECE["a"]) == "\ufffda"

    def test_ends(self, tmp_path: Path) -> None:
        assert pieces(tmp_path).eos_ids == {2}
        more: list[Token] = [*PIECES, ("<end_of_turn>", 0, CONTROL), ("<|end|>", 0, CONTROL), ("over", 0, NORMAL)]
        first = len(PIECES)
        assert pieces(tmp_path, tokens=more).eos_ids == {2, first, first + 1}
        named = pieces(tmp_path, lambda w: w.add_eot_token_id(first + 2), more)
        assert named.eos_ids == {2, first, first + 1, first + 2}

    def test_an_end_of_message_is_no_end(self, tmp_path: Path) -> None:
        more: list[Token] = [*PIECES, ("<|end|>", 0, CONTROL), ("<|return|>", 0, CONTROL), ("<|call|>", 0, CONTROL)]
        first = len(PIECES)
        assert pieces(tmp_path, tokens=more).eos_ids == {2, first + 1, first + 2}


BYTES = [
    chr(byte) if 0x21 <= byte < 0x7F or (0xA1 <= byte and byte != 0xAD) else None for byte in range(256)
]  # fmt: skip


def byte_alphabet() -> list[str]:
    others = iter(range(0x100, 0x200))
    return [letter or chr(next(others)) for letter in BYTES]


def byte_pairs(
    path: Path, words: list[str], merges: list[str], change: Change = nothing, pre: str | None = "gpt-2"
) -> Tokenizer:
    # A file has at least one merge; this one concerns no text here.
    tokens = [*byte_alphabet(), *words, "<|im_end|>", "zz"]

    def vocabulary(writer: GGUFWriter) -> None:
        writer.add_token_list(tokens)
        writer.add_token_types([int(NORMAL)] * (len(tokens) - 2) + [int(CONTROL), int(NORMAL)])
        writer.add_token_merges([*merges, "z z"])
        writer.add_bos_token_id(len(tokens) - 2)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        change(writer)

    return build(path / "bpe.gguf", "gpt2", vocabulary)


class TestBytePairs:
    def test_merges_by_rank_within_words(self, tmp_path: Path) -> None:
        tokenizer = byte_pairs(tmp_path, ["bc", "ab", "Ġa"], ["b c", "a b", "Ġ a"])
        assert tokenizer.encode("abc") == [ord("a"), 256]
        assert tokenizer.encode("ab c") == [257, 32, ord("c")]
        assert tokenizer.encode(" a") == [258]

    def test_every_byte_has_a_token(self, tmp_path: Path) -> None:
        tokenizer = byte_pairs(tmp_path, [], [])
        text = "\x01 é😀\x7f\n"
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text

    def test_no_bos_unless_said(self, tmp_path: Path) -> None:
        assert byte_pairs(tmp_path, [], []).encode("a") == [97]
        assert byte_pairs(tmp_path, [], [], lambda w: w.add_add_bos_token(True)).encode("a") == [256, 97]
        assert byte_pairs(tmp_path, [], [], pre="llama-bpe").encode("a") == [256, 97]
        said = byte_pairs(tmp_path, [], [], lambda w: w.add_add_bos_token(False), pre="llama-bpe")
        assert said.encode("a") == [97]

    def test_special_tokens_in_the_text(self, tmp_path: Path) -> None:
        tokenizer = byte_pairs(tmp_path, [], [])
        assert tokenizer.encode("a<|im_end|>b") == [97, 256, 98]
        assert tokenizer.encode("<|im_end|>", parse_special=False) == list(b"<|im_end|>")
        assert tokenizer.eos_ids == {256}

    def test_whole_words_where_the_family_takes_them(self, tmp_path: Path) -> None:
        assert byte_pairs(tmp_path, ["abc"], [], pre="gpt-2").encode("abc") == list(b"abc")
        assert byte_pairs(tmp_path, ["abc"], [], pre="tekken").encode("abc", add_special=False) == [256]

    def test_an_emoji_over_four_tokens(self, tmp_path: Path) -> None:
        stream = byte_pairs(tmp_path, [], []).stream()
        assert [stream.push(byte) for byte in "a😀".encode()] == ["a", "", "", "", "😀"]
        assert stream.finish() == ""

    @pytest.mark.parametrize("pre", PRE_TOKENIZERS)
    def test_no_word_is_lost(self, pre: str, tmp_path: Path) -> None:
        text = "Hello,  World's 12345 ÉCOLE camelCase\r\n\n 你好 한국 \t end. "
        tokenizer = byte_pairs(tmp_path, [], [], pre=pre)
        assert tokenizer.encode(text, add_special=False) == list(text.encode())


@pytest.mark.parametrize(
    "pre, text, words",
    [
        ("default", "a12345, b", ["a", "123", "45", ",", " b"]),
        ("gpt-2", "it's 12345  ok", ["it", "'s", " 12345", " ", " ok"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("falcon", "x=12345`", ["x", "=", "123", "45", "`"]),
        ("llama-bpe", "IT'S 12345\n\n x", ["IT", "'S", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "a.b 123!\n", ["a", ".b", " ", "1", "2", "3", "!\n"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("qwen2", "e\u0301a", ["e", "\u0301a"]),
        ("gpt-4o", "camelCase HTTPServer it's", ["camel", "Case", " HTTPServer", " it's"]),
        ("tekken", "camelCase 12 it's", ["camel", "Case", " ", "1", "2", " it", "'s"]),
        ("deepseek-llm", "ab 12\nñ。", ["ab", " ", "12", "\n", "ñ", "。"]),
        ("deepseek-coder", "a 12,", ["a", " ", "1", "2", ","]),
        ("deepseek-v3", "a1234 你好b", ["a", "123", "4", " ", "你好", "b"]),
        ("glm4", "1234", ["123", "4"]),
    ],
)
def test_words(pre: str, text: str, words: list[str]) -> None:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre].patterns]
    assert [word for word, _ in pre_tokenizers.Sequence(list(splits)).pre_tokenize_str(text)] == words


class TestRefused:
    @pytest.mark.parametrize("kind", ["test", "no_vocab", "none", "t5", "bert", "rwkv"])
    def test_other_vocabularies(self, kind: str, tmp_path: Path) -> None:
        with pytest.raises(LaneError, match=f"no text for tokenizer model '{kind}'"):
            build(tmp_path / "other.gguf", kind, nothing)

    def test_unknown_pre_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(LaneError, match="unknown pre-tokenizer 'klingon'"):
            byte_pairs(tmp_path, [], [], pre="klingon")
        assert byte_pairs(tmp_path, [], [], pre=None).encode("a") == [97]

    def test_merge_of_missing_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LaneError, match="merge 'a b' needs the token 'ab', which is missing"):
            byte_pairs(tmp_path, [], ["a b"]).encode("ab")

    def test_missing_keys(self, tmp_path: Path) -> None:
        with pytest.raises(
            LaneError, match=r"'tokenizer.ggml.tokens' is missing, expected an array, each value a string"
        ):
            build(tmp_path / "a.gguf", "llama", nothing).encode("a")
        with pytest.raises(LaneError, match=r"'tokenizer.ggml.scores' is missing"):
            build(tmp_path / "a.gguf", "llama", lambda w: w.add_token_list(["a", "b"])).encode("a")
        with pytest.raises(LaneError, match=r"'tokenizer.ggml.merges' is missing"):
            build(tmp_path / "a.gguf", "gpt2", lambda w: w.add_token_list(["a"])).encode("a")

    def test_contradictions(self, tmp_path: Path) -> None:
        with pytest.raises(LaneError, match=r"token 'a' has the ids \d+ and \d+"):
            pieces(tmp_path, tokens=[*PIECES, ("a", 0, NORMAL)]).encode("a")
        with pytest.raises(LaneError, match=r"'tokenizer.ggml.eos_token_id' is 9999, expected an id below \d+"):
            pieces(tmp_path, lambda w: w.add_eos_token_id(9999)).encode("a")

        def short(writer: GGUFWriter) -> None:
            writer.add_token_list(["<unk>", "b"])
            writer.add_token_scores([1.0])

        with pytest.raises(LaneError, match=r"'tokenizer.ggml.scores' has 1 values for 2 tokens"):
            build(tmp_path / "short.gguf", "llama", short).encode("a")

    def test_bos_without_an_id(self, tmp_path: Path) -> None:
        def change(writer: GGUFWriter) -> None:
            writer.add_token_list([*byte_alphabet(), "zz"])
            writer.add_token_merges(["z z"])
            writer.add_add_bos_token(True)

        with pytest.raises(LaneError, match="add_bos_token' is set but there is no"):
            build(tmp_path / "bos.gguf", "gpt2", change).encode("a")

    def test_text_that_is_no_unicode(self, tmp_path: Path) -> None:
        with pytest.raises(LaneError, match="not valid Unicode at character 1"):
            pieces(tmp_path).encode("a\udcff")

    def test_ids_outside_the_vocabulary(self, tmp_path: Path) -> None:
        tokenizer = pieces(tmp_path)
        for index in (-1, len(PIECES)):
            with pytest.raises(LaneError, match=f"token id {index} is outside the vocabulary of {len(PIECES)} tokens"):
                tokenizer.decode([index])
