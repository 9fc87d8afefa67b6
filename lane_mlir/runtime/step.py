"""A model ready to run: its steps, compiled when they are first needed, and the state that they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.chips import DEFAULT_CHIP
from lane_mlir.diagnostics import LaneError, UsageError
from lane_mlir.importers.model import DEFAULT_CONTEXT, Model
from lane_mlir.runtime.batch import Shares, decode_together
from lane_mlir.runtime.device import (
    LOGITS,
    NEXT_ID,
    Batching,
    Device,
    Keeping,
    Program,
    Progress,
    SelfContinuing,
    WholeChunks,
    open_device,
    silent,
)
from lane_mlir.runtime.generation import Generation
from lane_mlir.runtime.recipe import Recipe, StepIdentity
from lane_mlir.target import MAX_SEQUENCES, make_target
from lane_mlir.text import Sampler, Tokenizer
from lane_mlir.timeline import phase

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from lane_mlir.dialects.launch import ScheduleOp
    from lane_mlir.importers.step import LogitRows
    from lane_mlir.passes.fuse import Report
    from lane_mlir.runtime.compilation import Planned

DEFAULT_CHUNK = 64
"""Rows of a chunk of a prompt, at most."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """
    A step compiled for a number of rows, or for one of each of several sequences: what runs it, its planned schedule,
    and the decisions that made it.

    `logits` says whether the logits of all its rows are computed or of the last. `modules` is the IR of every stage
    (lifted, fused, linked, planned). What a device had kept from before is compiled when the schedule, the decisions or
    the IR are asked for.
    """

    rows: int
    logits: LogitRows
    sequences: int
    program: Program = field(repr=False)
    _plan: Callable[[], Planned] = field(repr=False)
    _stages: Callable[[], Mapping[str, ModuleOp]] = field(repr=False)

    @property
    def schedule(self) -> ScheduleOp:
        return self._plan().schedule

    @property
    def report(self) -> Report:
        return self._plan().report

    @cached_property
    def modules(self) -> Mapping[str, ModuleOp]:
        return self._stages()


@dataclass
class Timing:
    """Tokens taken in and tokens made since the last reset, and the seconds that each took; compiling is neither."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0


class Step:
    """
    A model on a device: text or tokens in, text, tokens or logits out, and everything that was compiled for it.

    `load` makes one. A step has the state of one text, or of several that are generated together: whatever generates or
    computes logits begins with a fresh one, and ends what was running on it before.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recipe: Recipe,
        device: Device,
        *,
        chunk: int = DEFAULT_CHUNK,
        progress: Progress = silent,
    ):
        model = Model(checkpoint)
        self.checkpoint = checkpoint
        self.device = device
        self.vocabulary = model.vocabulary
        """Tokens of the vocabulary."""
        self.context = _context(model, recipe.context)
        """Positions that the step has room for."""
        self.chunk = min(_at_least_one("chunk", chunk), self.context)
        """Rows of a chunk of a prompt, at most."""
        self.timing = Timing()
        self.progress = progress
        self._recipe = Recipe(recipe.target, recipe.held, self.context)
        self._compiled: dict[tuple[int, LogitRows, int], Compiled] = {}
        self._position = 0
        self._generation = 0

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's own tokenizer. Raises LaneError if it has none that we know."""
        return Tokenizer.from_checkpoint(self.checkpoint)

    # --- what was compiled ---

    def compiled(self, rows: int = 1, logits: LogitRows = "last", sequences: int = 1) -> Compiled:
        """
        The step for a number of rows, or for a row of each of several sequences, compiled when it is first asked for.
        Raises LaneError if it cannot be.
        """
        # Of one row, the last are all.
        key = (rows, "last" if rows == 1 else logits, sequences)
        if key not in self._compiled:
            self._compiled[key] = self._compile(*key)
        return self._compiled[key]

    @property
    def modules(self) -> Mapping[str, ModuleOp]:
        """The IR of the decode step at every stage: lifted, fused, linked, planned."""
        return self.compiled().modules

    @property
    def module(self) -> ModuleOp:
        """The IR of the decode step as it runs, planned. See `modules` for the stages before."""
        return self.modules["planned"]

    @property
    def report(self) -> Report:
        """Every decision of the rules on the decode step."""
        return self.compiled().report

    @property
    def schedule(self) -> ScheduleOp:
        """The launches of the decode step."""
        return self.compiled().schedule

    def _compile(self, rows: int, logits: LogitRows, sequences: int) -> Compiled:
        recipe, checkpoint, progress = self._recipe, self.checkpoint, self.progress

        @cache
        def planned() -> Planned:
            # What was kept needs no compiler.
            from lane_mlir.runtime.compilation import plan

            of = f" of {sequences} sequences" if sequences > 1 else ""
            progress(f"compiling the step{of}" if rows == 1 else f"compiling a chunk of {rows} rows")
            with phase(f"planning a step of {rows} rows" if rows > 1 else "planning the step"):
                made = plan(recipe, checkpoint, rows, logits, sequences)
            progress(f"preparing the weights on {self.device.name}")
            return made

        def each_stage() -> Mapping[str, ModuleOp]:
            from lane_mlir.runtime.compilation import stages

            return stages(recipe, recipe.lift(checkpoint, rows, logits, sequences))

        if isinstance(self.device, Keeping):
            what = StepIdentity(checkpoint.digest, recipe, rows, logits, sequences)
            program = self.device.compile_kept(what, lambda: planned().schedule)
        else:
            program = self.device.compile(planned().schedule)
        return Compiled(rows, logits, sequences, program, planned, each_stage)

    # --- running ---

    def reset(self) -> None:
        """Forget everything that was read; whatever was generating on this step is ended."""
        self.device.reset()
        self.timing = Timing()
        self._position = 0
        self._generation += 1

    @property
    def position(self) -> int:
        """Tokens that the state holds; of several texts, those of the one that was read last."""
        return self._position

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: Sequence[str] = (),
    ) -> Generation:
        """
        The continuation of a prompt, a text or token ids, piece by piece as it is made, in whole characters.

        It ends at a token that ends a text, before any of the texts `stop`, after `max_tokens` tokens, or when the
        context is full; `Generation.finish` says which. Without a sampler the likeliest token is taken.

        Raises LaneError, before anything runs, for a prompt that is empty, too long for the context or outside the
        vocabulary, and for a checkpoint whose tokenizer we do not know.
        """
        (generation,) = self.generate_batch([prompt], max_tokens=max_tokens, sampler=sampler, stop=stop)
        return generation

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: Sequence[str] = (),
    ) -> list[Generation]:
        """
        The continuations of up to 16 prompts, each as `generate` makes it, made together: every step takes a token of
        each. They can be read in any order; a piece that is asked for makes those of the others too, which wait.

        Every prompt is sampled as if it were alone: from the sampler's seed on, or, without one, each in its own way.

        Raises as `generate`, and LaneError for no prompts or too many.
        """
        if max_tokens is not None:
            _at_least_one("max_tokens", max_tokens)
        if any(not text for text in stop):
            raise UsageError("a text to stop at is empty")
        ids = [self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        tokens = self._checked_batch(ids)
        return [
            Generation(prompt.tolist(), made, self.tokenizer, max_tokens, stop)
            for prompt, made in zip(tokens, self._continue_each(tokens, sampler), strict=True)
        ]

    def generate_ids(self, ids: Sequence[int], n: int, *, sampler: Sampler | None = None) -> Iterator[int]:
        """
        The n tokens that follow, one by one, whatever they are: a token that ends a text does not end them.

        Raises LaneError, before anything runs, for ids that are none, too many or outside the vocabulary, and for an n
        for which the context has no room.
        """
        (made,) = self.generate_ids_batch([ids], n, sampler=sampler)
        return made

    def generate_ids_batch(
        self, prompts: Sequence[Sequence[int]], n: int, *, sampler: Sampler | None = None
    ) -> list[Iterator[int]]:
        """
        The n tokens that follow each of up to 16 prompts, as `generate_ids` makes them and together as `generate_batch`
        does. Raises as these.
        """
        checked = self._checked_batch(prompts)
        _at_least_one("n", n)
        longest = max(map(len, checked))
        # The last token is not read any more.
        if longest + n - 1 > self.context:
            raise LaneError(
                f"{longest} tokens and {n} new ones do not fit the context of {self.context} positions; "
                "use a larger context, or fewer tokens"
            )
        return [islice(made, n) for made in self._continue_each(checked, sampler)]

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits after each token, [tokens, vocabulary], read from a fresh state. Raises as `generate_ids`."""
        return np.concatenate(list(self.logit_blocks(tokens)))

    def logit_blocks(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """The rows of `logits`, a chunk at a time: of a long text they may not fit into memory at once."""
        checked = self._checked(tokens)
        return self._logit_blocks(checked)

    def _logit_blocks(self, tokens: NDArray[np.int32]) -> Iterator[NDArray[np.float32]]:
        self.reset()
        for program in self._read(tokens, "all"):
            # The program writes its next logits into the same array.
            yield np.array(program.output(LOGITS), np.float32).reshape(-1, self.vocabulary)

    def _continue_each(self, prompts: Sequence[NDArray[np.int32]], sampler: Sampler | None) -> list[Iterator[int]]:
        if len(prompts) == 1:
            return [self._continue(prompts[0], sampler)]
        # Each begins where the seed does.
        samplers = None if sampler is None else [replace(sampler) for _ in prompts]
        shares = Shares(self._continue_together(prompts, samplers), len(prompts))
        return [shares.of(sequence) for sequence in range(len(prompts))]

    def _continue_together(
        self, prompts: Sequence[NDArray[np.int32]], samplers: Sequence[Sampler] | None
    ) -> Iterator[Sequence[int | None]]:
        """The tokens that follow every prompt, round by round, until all contexts are full."""
        self.reset()
        generation = self._generation
        decode = self.compiled(sequences=len(prompts)).program
        if not isinstance(decode, Batching):
            raise LaneError(f"{self.device.name} holds the state of one sequence; generate one prompt at a time there")
        tokens = [-1] * len(prompts)
        for sequence, prompt in enumerate(prompts):
            for program in self._read(prompt, "last", sequence):
                tokens[sequence] = _choose(program, None if samplers is None else samplers[sequence])
        yield tokens
        rounds = decode_together(decode, tokens, [len(prompt) for prompt in prompts], self.context, samplers)
        while True:
            self._expect_current(generation)
            started = time.perf_counter()
            made = next(rounds, None)
            if made is None:
                return
            self.timing.decode_tokens += sum(token is not None for token in made)
            self.timing.decode_seconds += time.perf_counter() - started
            yield made

    def _continue(self, tokens: NDArray[np.int32], sampler: Sampler | None) -> Iterator[int]:
        """The tokens that follow, one by one, until the context is full."""
        self.reset()
        generation = self._generation
        decode = self.compiled().program if len(tokens) < self.context else None
        token = -1
        for program in self._read(tokens, "last"):
            token = _choose(program, sampler)
        yield token
        if decode is None:
            return
        if isinstance(decode, Batching):
            decode.select(0)  # it may have read another sequence's prompt
        decode.set_tokens(np.array([token], np.int32))
        decode.set_position(self._position)
        if sampler is None and isinstance(decode, SelfContinuing):
            made = (token for (token,) in decode.continued(self.context - self._position))
        else:
            made = _one_by_one(decode, token, sampler)
        while self._position < self.context:
            self._expect_current(generation)
            started = time.perf_counter()
            token = next(made)
            self._position += 1
            self.timing.decode_tokens += 1
            self.timing.decode_seconds += time.perf_counter() - started
            yield token

    def _read(self, tokens: NDArray[np.int32], logits: LogitRows, sequence: int = 0) -> Iterator[Program]:
        """Read the tokens of a sequence from its beginning, chunk by chunk; the program of each, with its outputs."""
        self._position = 0
        generation = self._generation
        chunks = np.split(tokens, np.cumsum(self._chunk_rows(len(tokens)))[:-1])
        programs = [self.compiled(len(chunk), logits).program for chunk in chunks]
        done = 0
        for chunk, program in zip(chunks, programs, strict=True):
            self._expect_current(generation)
            self.progress("reading the prompt", done, len(tokens))
            started = time.perf_counter()
            if isinstance(program, Batching):
                program.select(sequence)
            program.set_tokens(chunk)
            program.set_position(self._position)
            program.run()
            # A device may still be at it.
            program.output(NEXT_ID)
            self.timing.prefill_seconds += time.perf_counter() - started
            self.timing.prefill_tokens += len(chunk)
            self._position += len(chunk)
            done += len(chunk)
            yield program

    def _chunk_rows(self, count: int) -> list[int]:
        """The rows of the chunks in which so many tokens are read."""
        whole, rest = divmod(count, self.chunk)
        if isinstance(self.device, WholeChunks) and self.device.whole_chunks:
            return [self.chunk] * whole + [1] * rest
        return [self.chunk] * whole + [rest] * (rest > 0)

    def _expect_current(self, generation: int) -> None:
        if self._generation != generation:
            raise LaneError("this generation was ended by another one on the same step")

    def _checked_batch(self, prompts: Sequence[Sequence[int]]) -> list[NDArray[np.int32]]:
        """The prompts of a batch as arrays, if they can be read at all, and together."""
        if not 1 <= len(prompts) <= MAX_SEQUENCES:
            raise LaneError(f"{len(prompts)} prompts are given, expected 1 to {MAX_SEQUENCES}")
        return [self._checked(ids) for ids in prompts]

    def _checked(self, ids: Sequence[int]) -> NDArray[np.int32]:
        """The ids of a prompt as an array, if they can be read at all."""
        if not len(ids):
            raise LaneError("the prompt is empty: there is no token to begin with")
        for index in ids:
            if not 0 <= index < self.vocabulary:
                raise LaneError(f"token id {index} is outside the vocabulary of {self.vocabulary} tokens")
        if len(ids) > self.context:
            raise LaneError(
                f"the prompt has {len(ids)} tokens, more than the context of {self.context} positions; "
                "use a larger context"
            )
        return np.asarray(ids, np.int32)


def load(
    path: str | Path,
    *,
    numerics: str = "dequant",
    device: str | Callable[[Checkpoint], Device] = "cpu",
    chip: str = DEFAULT_CHIP,
    held: Sequence[str] = (),
    context: int | None = None,
    chunk: int = DEFAULT_CHUNK,
    cache: str = "f32",
    state: str = "f32",
    progress: Progress = silent,
) -> Step:
    """
    A GGUF checkpoint, checked as a whole and ready to compile.

    - `numerics`: arithmetic of products by weights: dequant, int8 or two_pass_int8.
    - `device`: where it runs: cpu, cuda, auto (the GPU if there is one), or a function that makes a `Device`.
    - `chip`: the chip that the launches are planned for.
    - `held`: rules not to apply.
    - `context`: positions; by default 2048, or what the model was trained for if that is less.
    - `chunk`: rows of a chunk of a prompt at most; 1 reads token by token.
    - `cache`, `state`: how keys and values (f32, f16) and recurrent state (f32, bf16) are stored.
    - `progress`: is told what takes long.

    Steps are compiled when they are first needed. Raises LaneError, of one line, for a file that is no sound
    checkpoint of a supported family, and for an option that names nothing.
    """
    recipe = Recipe(make_target(numerics, chip, cache, state), _checked_rules(held), context)
    with phase("opening the checkpoint"):
        checkpoint = Checkpoint.open(path)
    with phase("opening the device"):
        made = open_device(device, checkpoint, progress) if isinstance(device, str) else device(checkpoint)
    return Step(checkpoint, recipe, made, chunk=chunk, progress=progress)


def _checked_rules(held: Sequence[str]) -> tuple[str, ...]:
    if not held:
        return ()
    # It takes the rules to know their names.
    from lane_mlir.runtime.compilation import check_rules

    return check_rules(held)


def _context(model: Model, context: int | None) -> int:
    if context is not None:
        return _at_least_one("context", context)
    return min(DEFAULT_CONTEXT, model.count("context_length") or DEFAULT_CONTEXT)


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{name} is {value}, expected at least 1")
    return value


def _one_by_one(decode: Program, token: int, sampler: Sampler | None) -> Iterator[int]:
    """The tokens that follow a token, each chosen by the host or looked at by it before the next step runs."""
    while True:
        # Without a sampler the device goes on by itself.
        if sampler is not None:
            decode.set_tokens(np.array([token], np.int32))
        decode.run()
        token = _choose(decode, sampler)
        yield token


def _choose(program: Program, sampler: Sampler | None) -> int:
    """The token that follows a run: the program's own choice, or the sampler's."""
    if sampler is None:
        return int(program.output(NEXT_ID).reshape(-1)[-1])
    logits: ArrayLike = program.output(LOGITS)
    return sampler(np.asarray(logits, np.float32).reshape(-1, np.shape(logits)[-1])[-1])
