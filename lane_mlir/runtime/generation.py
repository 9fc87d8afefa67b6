"""The text of a continuation, as its tokens come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.utils.str_enum import StrEnum

from lane_mlir.text import Tokenizer


class Finish(StrEnum):
    """Why a generation ended."""

    END = "end"
    """The model made a token that ends a text."""
    STOP = "stop"
    """A text to stop at came."""
    LENGTH = "length"
    """There are as many tokens as were wanted."""
    CONTEXT = "context"
    """The context is full."""


class Generation(Iterator[str]):
    """
    Pieces of text, made as they are asked for.

    `prompt_ids` are the tokens of the prompt, `ids` those made so far (also one that ended the text), `finish` why no
    more come, None while they do.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        made: Iterator[int],
        tokenizer: Tokenizer,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ):
        self.prompt_ids = prompt_ids
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self._made = made
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._stop = StopTexts(stop)
        self._pieces = self._text()

    def __next__(self) -> str:
        return next(self._pieces)

    def _text(self) -> Iterator[str]:
        stream, ends = self._tokenizer.stream(), self._tokenizer.eos_ids
        for token in self._made:
            self.ids.append(token)
            if token in ends:
                self.finish = Finish.END
                break
            if piece := self._stop.push(stream.push(token)):
                yield piece
            if self._stop.found:
                self.finish = Finish.STOP
                return
            if len(self.ids) == self._max_tokens:
                self.finish = Finish.LENGTH
                break
        else:
            self.finish = Finish.CONTEXT
        if piece := self._stop.push(stream.finish()) + self._stop.rest():
            yield piece


class StopTexts:
    """Lets text pass up to the first of some texts, holding back only what may be the beginning of one."""

    def __init__(self, texts: Sequence[str]):
        self._texts = texts
        self._held: str = ""
        self.found: bool = False
        """Whether one of the texts came."""

    def push(self, text: str) -> str:
        """What may pass now that this text has come."""
        if self.found:
            return ""
        text = self._held + text
        self._held = ""
        places = [place for stop in self._texts if (place := text.find(stop)) >= 0]
        if places:
            self.found = True
            return text[: min(places)]
        held = max((_beginning(text, stop) for stop in self._texts), default=0)
        cut = len(text) - held
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> str:
        """What was held back, if no more text comes."""
        held = self._held
        self._held = ""
        return "" if self.found else held


def _beginning(text: str, stop: str) -> int:
    """Characters at the end of a text that begin another one."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
