"""Several sequences that decode together, a token of each in every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from lane_mlir.runtime.device import LOGITS, NEXT_ID, Program, SelfContinuing
from lane_mlir.text import Sampler


class Shares:
    """
    What comes in rounds, a token for each sequence, as an iterator for each: whoever asks first makes the next round,
    and the others' tokens wait for them. A sequence ends with a round that has None for it.
    """

    def __init__(self, rounds: Iterator[Sequence[int | None]], sequences: int):
        self._rounds = rounds
        self._waiting: list[deque[int]] = [deque() for _ in range(sequences)]
        self._ended = [False] * sequences

    def of(self, sequence: int) -> Iterator[int]:
        """The tokens of a sequence."""
        waiting = self._waiting[sequence]
        while True:
            while not waiting and not self._ended[sequence]:
                self._next_round()
            if not waiting:
                return
            yield waiting.popleft()

    def _next_round(self) -> None:
        tokens = next(self._rounds, None)
        for sequence, waiting in enumerate(self._waiting):
            token = None if tokens is None else tokens[sequence]
            if token is None:
                self._ended[sequence] = True
            else:
                waiting.append(token)


def decode_together(
    decode: Program, tokens: Sequence[int], positions: Sequence[int], context: int, samplers: Sequence[Sampler] | None
) -> Iterator[Sequence[int | None]]:
    """
    The tokens that follow one of each sequence at its position, round by round; None for a sequence whose context is
    full. Its row of the step still runs, from position 0 on, and nobody looks at it.
    """
    last, at = list(tokens), [position % context for position in positions]
    remaining = [context - position for position in positions]
    decode.set_tokens(np.array(last, np.int32))
    for sequence, position in enumerate(at):
        decode.set_position(position, sequence)
    if samplers is None and isinstance(decode, SelfContinuing):
        # Until the first context is full, none of them needs the host.
        together = min(remaining)
        yield from decode.continued(together)
        remaining = [left - together for left in remaining]
        at = [(position + together) % context for position in at]
        for sequence, position in enumerate(at):
            decode.set_position(position, sequence)
    while any(remaining):
        # Without a sampler the device goes on by itself.
        if samplers is not None:
            decode.set_tokens(np.array(last, np.int32))
        decode.run()
        last = _choose_each(decode, len(last), samplers)
        yield [token if left else None for token, left in zip(last, remaining, strict=True)]
        remaining = [max(0, left - 1) for left in remaining]
        for sequence, position in enumerate(at):
            at[sequence] = (position + 1) % context
            if at[sequence] == 0:
                decode.set_position(0, sequence)


def _choose_each(decode: Program, sequences: int, samplers: Sequence[Sampler] | None) -> list[int]:
    """The token that follows in each sequence: the program's own choice, or the samplers'."""
    if samplers is None:
        return [int(decode.output(NEXT_ID + sequence).item()) for sequence in range(sequences)]
    logits = np.asarray(decode.output(LOGITS), np.float32).reshape(sequences, -1)
    return [sampler(row) for sampler, row in zip(samplers, logits, strict=True)]
