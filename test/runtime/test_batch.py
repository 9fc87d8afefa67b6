"""Prompts generated together: the tokens of each are those it has alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lane_mlir.diagnostics import LaneError
from lane_mlir.runtime import Finish, Step, load
from lane_mlir.runtime.batch import Shares
from lane_mlir.text import Sampler

CONTEXT = 24

# One of each kind of state, and of mixtures.
KINDS = (
    "llama-f32",
    "qwen3-Q8_0",
    "gemma3-Q4_K_M",
    "gpt-oss-moe-Q4_K_M",
    "deepseek2-moe-Q4_K_M",
    "lfm2-Q4_K_M",
    "qwen3next-moe-Q4_K_M",
)
FAMILIES = sorted(path.stem for path in (Path(__file__).parents[1] / "data" / "models").glob("*.gguf"))
# int8 of all: there the least difference of a sum may move a value by a step of 127.
CASES = [(name, "int8", 3) for name in FAMILIES] + [
    (name, numerics, count) for name in KINDS for numerics, count in (("dequant", 16), ("two_pass_int8", 2))
]


def prompts_of(count: int) -> list[list[int]]:
    """Prompts of different lengths, one of them longer than a chunk."""
    random = np.random.default_rng(count)
    return [random.integers(0, 100, 1 + 4 * i % 11).tolist() for i in range(count)]


@dataclass(frozen=True)
class Recording(Sampler):
    """The likeliest token; what it was chosen by is kept."""

    seen: list[NDArray[np.float32]] = field(default_factory=list[NDArray[np.float32]])

    def __call__(self, logits: NDArray[np.float32]) -> int:
        self.seen.append(logits.copy())
        return super().__call__(logits)


def logits_of(made: Sequence[Iterator[int]], sampler: Recording, rounds: int) -> NDArray[np.float32]:
    """The logits of each sequence in every round of decoding, [rounds, sequences, vocabulary]."""
    for ids in made:
        next(ids)
    sampler.seen.clear()  # what the prompts ended with
    for _ in range(rounds):
        for ids in made:
            next(ids)
    return np.array(sampler.seen).reshape(rounds, len(made), -1)


@pytest.mark.parametrize(("name", "numerics", "count"), CASES)
def test_each_is_as_alone(models: Path, name: str, numerics: str, count: int):
    """The same tokens, and the same logits to the bit, of every sequence."""
    step, prompts = load(models / f"{name}.gguf", context=CONTEXT, chunk=5, numerics=numerics), prompts_of(count)
    alone = [list(step.generate_ids(prompt, 8)) for prompt in prompts]
    assert [list(made) for made in step.generate_ids_batch(prompts, 8)] == alone
    sampler = Recording()
    one_by_one = [logits_of([step.generate_ids(prompt, 4, sampler=sampler)], sampler, rounds=3) for prompt in prompts]
    together = logits_of(step.generate_ids_batch(prompts, 4, sampler=sampler), sampler, rounds=3)
    np.testing.assert_array_equal(together, np.concatenate(one_by_one, axis=1))
    if count == 3:
        # They may be read in any order, and at any pace.
        made = step.generate_ids_batch(prompts, 8)
        assert [next(made[2]), next(made[0])] == [alone[2][0], alone[0][0]]
        assert [list(made[i]) for i in (1, 2, 0)] == [alone[1], alone[2][1:], alone[0][1:]]
        # And what is read alone afterwards is not disturbed.
        assert list(step.generate_ids(prompts[0], 8)) == alone[0]


@pytest.fixture
def llama(models: Path) -> Step:
    return load(models / "llama-f32.gguf", context=CONTEXT, chunk=5)


def test_precisions(models: Path):
    step = load(models / "qwen3-Q8_0.gguf", context=CONTEXT, numerics="int8", cache="f16")
    prompts = prompts_of(3)
    alone = [list(step.generate_ids(prompt, 6)) for prompt in prompts]
    assert [list(made) for made in step.generate_ids_batch(prompts, 6)] == alone


@pytest.mark.parametrize(("numerics", "held"), [("int8", ("deferred_norm",)), ("two_pass_int8", ())])
def test_many_on_tensor_cores(models: Path, numerics: str, held: tuple[str, ...]):
    """
    From 8 rows on, products have kernels that divide nothing, so norms divide: by another rule the same value, but not
    the same bits. Where the rule is held or refused, the logits of 16 are those of one.
    """
    step = load(models / "qwen3-Q8_0.gguf", context=CONTEXT, numerics=numerics, held=held)
    prompts, sampler = prompts_of(16), Recording()
    one_by_one = [logits_of([step.generate_ids(prompt, 4, sampler=sampler)], sampler, 3) for prompt in prompts]
    together = logits_of(step.generate_ids_batch(prompts, 4, sampler=sampler), sampler, 3)
    np.testing.assert_array_equal(together, np.concatenate(one_by_one, axis=1))


def test_held_rules(models: Path):
    prompts = prompts_of(3)
    merged, apart = (
        load(models / "lfm2-Q4_K_M.gguf", context=CONTEXT, held=held) for held in ((), ("sequences", "row_write"))
    )
    together = [list(made) for made in merged.generate_ids_batch(prompts, 6)]
    assert [list(made) for made in apart.generate_ids_batch(prompts, 6)] == together
    assert merged.compiled(sequences=3).schedule.fired("sequences") > 0
    assert apart.compiled(sequences=3).schedule.fired("sequences") == 0


def test_a_seed_gives_each_what_it_has_alone(llama: Step):
    prompts = prompts_of(3)
    alone = [list(llama.generate_ids(prompt, 8, sampler=Sampler(1.0, seed=5))) for prompt in prompts]
    assert [list(made) for made in llama.generate_ids_batch(prompts, 8, sampler=Sampler(1.0, seed=5))] == alone


def test_without_a_seed_equal_prompts_differ(llama: Step):
    made = [list(ids) for ids in llama.generate_ids_batch([[1]] * 4, 16, sampler=Sampler(3.0))]
    assert len({tuple(ids) for ids in made}) > 1


def test_a_full_context_ends_one_and_not_the_others(talking_model: Any):
    step = load(talking_model({}), context=CONTEXT, chunk=5)
    prompts = [[1] * CONTEXT, [1] * (CONTEXT - 3), [1, 2]]
    texts = step.generate_batch(prompts)
    # The last first: the others have ended meanwhile, and their tokens wait.
    lengths = [len(list(text) and text.ids) for text in reversed(texts)]
    assert lengths == [CONTEXT - 1, 4, 1]
    assert [text.finish for text in texts] == [Finish.CONTEXT] * 3
    alone = [step.generate(prompt) for prompt in prompts]
    for together, one in zip(texts, alone, strict=True):
        assert "".join(one)
        assert together.ids == one.ids


def test_texts_end_each_by_itself(talking_model: Any):
    plain = load(talking_model({}), context=CONTEXT)
    prompts = prompts_of(3)
    ids = [list(plain.generate_ids(prompt, 6)) for prompt in prompts]
    # What the first one makes third ends a text.
    step = load(talking_model({}, eos=ids[0][2]), context=CONTEXT)
    texts = step.generate_batch(prompts, max_tokens=6)
    for text, made in zip(texts, ids, strict=True):
        assert "".join(text) == "".join(
            f"[{i}]" for i in (made[: made.index(ids[0][2])] if ids[0][2] in made else made)
        )
    assert texts[0].finish is Finish.END
    assert texts[0].prompt_ids == prompts[0]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "0 prompts are given, expected 1 to 16"),
        ([[1]] * 17, "17 prompts are given, expected 1 to 16"),
        ([[1], []], "the prompt is empty"),
        ([[1], [500]], "token id 500 is outside the vocabulary of 128 tokens"),
        ([[1], [1] * CONTEXT], f"{CONTEXT} tokens and 2 new ones do not fit the context of {CONTEXT} positions"),
    ],
)
def test_prompts_that_are_refused(llama: Step, prompts: Sequence[Sequence[int]], message: str):
    with pytest.raises(LaneError, match=message):
        llama.generate_ids_batch(prompts, 2)


def test_another_generation_ends_a_batch(llama: Step):
    first, _ = llama.generate_ids_batch([[1], [2]], 8)
    next(first)
    list(llama.generate_ids([3], 2))
    with pytest.raises(LaneError, match="was ended by another one on the same step"):
        list(first)


def test_a_device_of_one_sequence(models: Path):
    class Alone:
        """A program that knows of no other sequences."""

        def __init__(self, program: Any):
            self.set_tokens, self.set_position = program.set_tokens, program.set_position
            self.run, self.output = program.run, program.output

    class OneSequence:
        name = "one"

        def __init__(self, checkpoint: Any):
            from lane_mlir.runtime.device import CpuDevice

            self._cpu = CpuDevice(checkpoint)
            self.reset = self._cpu.reset

        def compile(self, schedule: Any) -> Any:
            return Alone(self._cpu.compile(schedule))

    step = load(models / "llama-f32.gguf", context=CONTEXT, device=OneSequence)
    assert len(list(step.generate_ids([1, 2], 3))) == 3
    with pytest.raises(LaneError, match="one holds the state of one sequence; generate one prompt at a time there"):
        list(step.generate_ids_batch([[1], [2]], 2)[0])


def test_shares_wait_for_those_who_take_them():
    rounds: list[list[int | None]] = [[1, 10], [2, None], [3, None]]
    asked = list[int]()

    def made() -> Iterator[list[int | None]]:
        for i, tokens in enumerate(rounds):
            asked.append(i)
            yield tokens

    shares = Shares(made(), 2)
    second, first = shares.of(1), shares.of(0)
    assert (next(second), asked) == (10, [0])
    assert (next(first), asked) == (1, [0])
    assert (list(second), asked) == ([], [0, 1])
    assert (list(first), asked) == ([2, 3], [0, 1, 2])


def test_a_prompt_after_a_batch_is_alone_again(models: Path):
    """The step of one row has read the prompt of another sequence."""
    step = load(models / "llama-f32.gguf", context=CONTEXT)
    before = list(step.generate_ids([1, 2, 3, 4, 5], 6))
    assert [len(list(ids)) for ids in step.generate_ids_batch([[7, 8], [9]], 2)] == [2, 2]
    assert list(step.generate_ids([1, 2, 3, 4, 5], 6)) == before
