"""lane-run: run a GGUF checkpoint: text from a prompt, token ids, logits, or only the tokens of a text."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from lane_mlir.diagnostics import LaneError, UsageError, atomic_write, read_text, run_tool
from lane_mlir.timeline import mark, phase
from lane_mlir.tools.arguments import ArgumentParser, names
from lane_mlir.tools.progress import ProgressLine

if TYPE_CHECKING:
    from lane_mlir.runtime import Generation, Step, Timing
    from lane_mlir.text import Sampler, Tokenizer

DEFAULT_TOKENS = 128
"""Tokens that are generated at most if nothing else is said."""

_EPILOG = """
Text goes to the standard output, everything else to the standard error. Generation is greedy unless --temperature says
otherwise, and ends at a token that ends a text, after -n tokens, or when the context is full; with --ids it is exactly
-n tokens. The text of the prompt itself is not repeated. Several prompts, up to 16, are continued together; their texts
come in their order, each under its number, their ids in a line each.
"""


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lane-run",
        description="Run a GGUF checkpoint on a CPU or a GPU.",
        epilog=_EPILOG,
        usage="%(prog)s MODEL.gguf [options]",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL.gguf", help="the checkpoint")
    _add_inputs(parser)
    _add_outputs(parser)
    _add_compilation(parser)
    _add_sampling(parser)
    parser.add_argument("--version", action="version", version=f"lane-run {version('lane-mlir')}")
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what goes in").add_argument
    add("-p", "--prompt", action="append", metavar="TEXT", help="a text to continue; several are continued together")
    add("-f", "--file", metavar="FILE", help="a file with the text ('-': the standard input), less its last newline")
    add("--tokens", action="append", metavar="IDS", help="token ids instead of a text: 1,2,3; several as --prompt")
    add("--no-special", action="store_true", help="put no BOS before the text and no EOS behind it")
    add("--plain", action="store_true", help="read special tokens in the text as plain text")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what comes out (the text that follows, if nothing else is said)").add_argument
    add("-n", "--count", type=int, metavar="N", help=f"tokens to make (default: {DEFAULT_TOKENS})")
    add("--ids", action="store_true", help="print the ids of the tokens that follow: 4,5,6")
    add("--logits", metavar="OUT.npy", help="write the logits after every given token, f32 [tokens, vocabulary]")
    add("--tokenize", metavar="TEXT", help="print the ids of a text, and run nothing")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times")
    add("--stats", action="store_true", help="print the rates at the end (on a terminal they are anyway)")


def _add_compilation(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how it is compiled").add_argument
    add("--device", default="auto", help="auto (the GPU if there is one), cpu or cuda")
    add("--numerics", default="dequant", help="arithmetic of products by weights: dequant, int8, two_pass_int8")
    add("--held", default="", metavar="RULES", help="rules not to apply: add_norm,act_gate")
    add("--context", type=int, metavar="N", help="positions (default: 2048, or what the model was trained for if less)")
    add("--chunk", type=int, default=64, metavar="N", help="rows of a chunk of the prompt at most (default: 64)")
    add("--chip", default="h200", help="the chip that launches are planned for (default: %(default)s)")
    add("--cache", default="f32", help="how keys and values are stored: f32, f16")
    add("--state", default="f32", help="how recurrent state is stored: f32, bf16")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how tokens are chosen").add_argument
    add("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (default)")
    add("--top-k", type=int, default=0, metavar="K", help="only the K likeliest; 0 for all")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest that together have this chance")
    add("--min-p", type=float, default=0.0, metavar="P", help="only those this fraction as likely as the likeliest")
    add("--seed", type=int, metavar="N", help="the same seed makes the same choices")


def run(arguments: argparse.Namespace) -> None:
    """What the command line asks for."""
    _refuse_contradictions(arguments)
    if arguments.tokenize is not None:
        print(*_encode(_tokenizer(arguments.model), arguments.tokenize, arguments), sep=",")
        return
    sampler = _sampler(arguments) if arguments.logits is None else None
    count = DEFAULT_TOKENS if arguments.count is None else arguments.count
    with ProgressLine() as progress:
        progress("loading")
        step = _load(arguments, progress)
        prompts = _input_ids(step, arguments)
        if arguments.logits is not None:
            _write_logits(step, prompts[0], arguments.logits)
        elif arguments.ids:
            for made in step.generate_ids_batch(prompts, count, sampler=sampler):
                _print_pieces(_separated(made), progress.clear)
        else:
            texts = step.generate_batch(prompts, max_tokens=count, sampler=sampler, stop=arguments.stop)
            _print_texts(texts, step.context, progress.clear)
    if arguments.stats or sys.stderr.isatty():
        print(_rates(step.timing), file=sys.stderr)


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    """Refuse options that cannot go together, and values that no checkpoint would make valid."""
    inputs = {"--prompt": arguments.prompt, "--file": arguments.file, "--tokens": arguments.tokens}
    given = [option for option, value in inputs.items() if value is not None]
    outputs = {"--ids": arguments.ids, "--logits": arguments.logits is not None}
    wanted = [option for option, value in outputs.items() if value]
    of_generation = _options_of_generation(arguments)
    if arguments.tokenize is not None:
        if others := given + wanted + of_generation:
            raise UsageError(f"--tokenize and {others[0]} exclude each other")
        return
    if not given:
        raise UsageError("nothing to run: give a text with --prompt or --file, or ids with --tokens")
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other")
    if len(wanted) > 1:
        raise UsageError("--ids and --logits exclude each other")
    if arguments.logits is not None and of_generation:
        raise UsageError(f"--logits and {of_generation[0]} exclude each other: nothing is generated")
    if arguments.ids and arguments.stop:
        raise UsageError("--ids and --stop exclude each other: with --ids there are always -n tokens")
    for option, texts in (("--prompt", arguments.prompt), ("--tokens", arguments.tokens)):
        _refuse_too_many(option, len(texts or ()), arguments.logits is not None)
    for option, value in (("-n", arguments.count), ("--chunk", arguments.chunk), ("--context", arguments.context)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is {value}, expected at least 1")


def _options_of_generation(arguments: argparse.Namespace) -> list[str]:
    """The options given that say how a text goes on, which mean nothing where none does."""
    a = arguments
    given = {
        "-n": a.count is not None,
        "--stop": bool(a.stop),
        "--temperature": a.temperature != 0,
        "--top-k": a.top_k != 0,
        "--top-p": a.top_p != 1,
        "--min-p": a.min_p != 0,
        "--seed": a.seed is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def _refuse_too_many(option: str, count: int, writes_logits: bool) -> None:
    if count < 2:
        return
    from lane_mlir.target import MAX_SEQUENCES

    if writes_logits:
        raise UsageError(f"{option} is given {count} times, but --logits writes those of one text")
    if count > MAX_SEQUENCES:
        raise UsageError(f"{option} is given {count} times, at most {MAX_SEQUENCES} sequences run together")


def _load(arguments: argparse.Namespace, progress: ProgressLine) -> Step:
    with phase("importing the runtime"):
        from lane_mlir.runtime import load

    return load(
        arguments.model,
        numerics=arguments.numerics,
        device=arguments.device,
        chip=arguments.chip,
        held=names(arguments.held),
        context=arguments.context,
        chunk=arguments.chunk,
        cache=arguments.cache,
        state=arguments.state,
        progress=progress,
    )


def _sampler(arguments: argparse.Namespace) -> Sampler | None:
    """How tokens are chosen; None for the device's own choice, the likeliest."""
    from lane_mlir.text import Sampler

    a = arguments
    try:
        sampler = Sampler(a.temperature, top_k=a.top_k, top_p=a.top_p, min_p=a.min_p, seed=a.seed)
    except LaneError as error:
        raise UsageError(str(error)) from None
    return sampler if sampler.temperature > 0 else None


# --- what goes in ---


def _tokenizer(model: str) -> Tokenizer:
    from lane_mlir.checkpoint import Checkpoint
    from lane_mlir.text import Tokenizer

    return Tokenizer.from_checkpoint(Checkpoint.open(model))


def _encode(tokenizer: Tokenizer, text: str, arguments: argparse.Namespace) -> list[int]:
    return tokenizer.encode(text, add_special=not arguments.no_special, parse_special=not arguments.plain)


def _input_ids(step: Step, arguments: argparse.Namespace) -> list[list[int]]:
    if arguments.tokens is not None:
        return [_parse_ids(text) for text in arguments.tokens]
    texts = arguments.prompt if arguments.prompt is not None else [_read_text(arguments.file)]
    return [_encode(step.tokenizer, text, arguments) for text in texts]


def _parse_ids(text: str) -> list[int]:
    ids: list[int] = []
    for word in text.split(","):
        # So many digits are more than any vocabulary, and few enough for Python to read.
        if not re.fullmatch(r"[0-9]{1,18}", word.strip()):
            raise UsageError(f"--tokens: {word.strip()!r} is no token id, expected numbers such as 1,2,3")
        ids.append(int(word))
    return ids


def _read_text(path: str) -> str:
    return read_text(path).removesuffix("\n").removesuffix("\r")


# --- what comes out ---


def _print_texts(texts: Sequence[Generation], context: int, before_first: Callable[[], None]) -> None:
    """Print every text as it comes, one after the other; several under their numbers."""
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            before_first()
            print(f"[{number}]" if number == 1 else f"\n[{number}]", flush=True)
        _print_text(text, before_first)
        if (remark := _remark(text, context)) is not None:
            print(f"lane-run: {remark}", file=sys.stderr)


def _print_text(generation: Iterator[str], before_first: Callable[[], None]) -> None:
    # A terminal's encoding may lack characters that a model makes.
    reconfigure: Callable[..., None] | None = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    _print_pieces(generation, before_first)


def _remark(generation: Generation, context: int) -> str | None:
    """What a person may want to know of how a text ended."""
    if generation.finish == "context":
        return f"the context of {context} positions is full; --context makes it larger"
    if generation.finish == "end" and len(generation.ids) == 1:
        return "the model ends the text at once; one that is made for chats needs the prompt in its chat format"
    return None


def _print_pieces(pieces: Iterator[str], before_first: Callable[[], None]) -> None:
    """Print text as it comes, and end the line; an interrupted one only on a terminal, where it is read by a person."""
    try:
        for i, piece in enumerate(pieces):
            if i == 0:
                mark("the first text")
                before_first()
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            sys.stdout.write("\n")
        raise
    sys.stdout.write("\n")
    sys.stdout.flush()


def _separated(ids: Iterator[int]) -> Iterator[str]:
    return (f",{index}" if i else str(index) for i, index in enumerate(ids))


def _write_logits(step: Step, ids: list[int], path: str) -> None:
    """Write an .npy file, block by block: all logits of a long text are more than memory should have to hold."""
    import numpy as np

    blocks = step.logit_blocks(ids)
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), step.vocabulary)}
    with atomic_write(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(block.astype("<f4", copy=False).tobytes())


def _rates(timing: Timing) -> str:
    prefill = f"prefill: {_rate(timing.prefill_tokens, timing.prefill_seconds)}"
    return (
        f"{prefill}; decode: {_rate(timing.decode_tokens, timing.decode_seconds)}" if timing.decode_tokens else prefill
    )


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens} tokens in {seconds:.2f} s, {tokens / max(seconds, 1e-9):.1f} tok/s"


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lane-run`."""
    return run_tool("lane-run", lambda: run(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
