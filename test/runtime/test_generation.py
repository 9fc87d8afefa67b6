"""Text from tokens: whole characters, texts to stop at, and why a generation ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.runtime.generation import Finish, Generation, StopTexts
from lane_mlir.text import Tokenizer

VOCABULARY = Path(__file__).parent.parent / "text" / "data" / "smollm2-vocabulary.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(Checkpoint.open(VOCABULARY))


def pieces_of(texts: list[str], stops: list[str]) -> tuple[list[str], bool]:
    until = StopTexts(stops)
    pieces = [until.push(text) for text in texts]
    return [*pieces, until.rest()], until.found


@pytest.mark.parametrize(
    ("texts", "stops", "pieces", "found"),
    [
        pytest.param(["ab", "cd"], [], ["ab", "cd", ""], False, id="none"),
        pytest.param(["ab", "cd"], ["x"], ["ab", "cd", ""], False, id="other"),
        pytest.param(["ab<", "/s>c"], ["</s>"], ["ab", "", ""], True, id="over two pieces"),
        pytest.param(["ab<", "/t>c"], ["</s>"], ["ab", "</t>c", ""], False, id="only begun"),
        pytest.param(["ab<"], ["</s>"], ["ab", "<"], False, id="held to the end"),
        pytest.param(["x\n", "\n", "y"], ["\n\n"], ["x", "", "", ""], True, id="itself twice"),
        pytest.param(["aab"], ["ab"], ["a", ""], True, id="begun twice"),
        pytest.param(["abcd"], ["cd", "bc"], ["a", ""], True, id="the first of several"),
    ],
)
def test_texts_to_stop_at(texts: list[str], stops: list[str], pieces: list[str], found: bool):
    assert pieces_of(texts, stops) == (pieces, found)


@given(st.lists(st.text("ab", max_size=3)), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_passes_ends_before_the_first_text_to_stop_at(texts: list[str], stops: list[str]):
    pieces, found = pieces_of(texts, stops)
    text = "".join(texts)
    places = [text.find(stop) for stop in stops if stop in text]
    assert found == bool(places)
    passed = "".join(pieces)
    if not places:
        assert passed == text
    else:
        # A stop that ends earlier than another begins may be found before that other one is complete.
        assert text.startswith(passed)
        assert any(text[len(passed) :].startswith(stop) for stop in stops)
        assert not any(stop in passed for stop in stops)


def test_an_emoji_comes_whole(tokenizer: Tokenizer):
    ids = tokenizer.encode("a 😀 b", add_special=False)
    assert len(ids) == 4  # The emoji is two of them.
    generation = Generation([1], iter(ids), tokenizer)
    pieces = list(generation)
    assert "".join(pieces) == "a 😀 b"
    assert not any("\ufffd" in piece for piece in pieces)
    assert (generation.ids, generation.finish) == (ids, Finish.CONTEXT)


def test_a_character_cut_by_the_end(tokenizer: Tokenizer):
    ids = tokenizer.encode("😀", add_special=False)
    assert "".join(Generation([1], iter(ids), tokenizer, max_tokens=len(ids) - 1)) == "\ufffd"


def test_ends_at_a_token_that_ends_a_text(tokenizer: Tokenizer):
    end = tokenizer.eos_id
    assert end is not None
    made = iter([*tokenizer.encode("Hi", add_special=False), end, 5])
    generation = Generation([1], made, tokenizer)
    assert generation.finish is None
    assert "".join(generation) == "Hi"
    assert generation.finish == Finish.END
    assert generation.ids[-1] == end
    assert list(made) == [5]


def test_no_token_is_made_beyond_the_wanted(tokenizer: Tokenizer):
    made: list[int] = []

    def tokens() -> Iterator[int]:
        for token in tokenizer.encode("one two three four", add_special=False):
            made.append(token)
            yield token

    generation = Generation([1], tokens(), tokenizer, max_tokens=2)
    assert "".join(generation) == "one two"
    assert len(made) == 2
    assert generation.finish == Finish.LENGTH


def test_stops_before_a_text(tokenizer: Tokenizer):
    ids = tokenizer.encode("one two three four", add_special=False)
    generation = Generation([1], iter(ids), tokenizer, stop=["o three"])
    assert "".join(generation) == "one tw"
    assert generation.finish == Finish.STOP
    assert generation.ids == ids[:3]
