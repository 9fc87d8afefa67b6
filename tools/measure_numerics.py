"""
How far the numerics move a model: the divergence of its next-token distributions from those under `dequant`.

`python -m lane_mlir.tools.measure_numerics MODEL.gguf --text FILE` prints, for int8 and two_pass_int8, the mean over
the text's positions of KL(p_dequant ‖ p) in nats, the largest, how often the most likely token is the same, and the
mean negative log likelihood of the text.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import lane_mlir
from lane_mlir.diagnostics import LaneError, UsageError, read_text, run_tool
from lane_mlir.tools.arguments import ArgumentParser

Logs = NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """From the distributions under dequant, over all positions."""

    numerics: str
    mean: float
    largest: float
    same_token: float
    likelihood: float
    """Mean negative log likelihood of the text's next tokens, in nats."""

    def line(self) -> str:
        return (
            f"{self.numerics:14} KL {self.mean:.3e} mean, {self.largest:.3e} largest; the same token at "
            f"{self.same_token:.1%}; text {self.likelihood:.4f} nats a token"
        )


def log_probabilities(logits: NDArray[Any]) -> Logs:
    """The logarithm of the softmax of every row, in f64."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def divergence(numerics: str, reference: Logs, logs: Logs, ids: list[int]) -> Divergence:
    """What a row of log probabilities for each position of a text says against the reference's."""
    each = (np.exp(reference) * (reference - logs)).sum(axis=1)
    same = (reference.argmax(axis=1) == logs.argmax(axis=1)).mean()
    likelihood = -logs[np.arange(len(ids) - 1), ids[1:]].mean()
    return Divergence(numerics, float(each.mean()), float(each.max()), float(same), float(likelihood))


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(prog="measure_numerics", description="How far the numerics move a model.")
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--text", type=Path, help="a text to measure on")
    parser.add_argument("--ids", type=Path, help="a JSON file with a list of token ids, or with one under 'ids'")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="only so many tokens")
    return parser


def tokens(arguments: Namespace) -> list[int]:
    """The tokens to measure on. Raises LaneError where what was given holds none."""
    if (arguments.ids is None) == (arguments.text is None):
        raise UsageError("give a text (--text) or token ids (--ids) to measure on")
    if arguments.limit is not None and arguments.limit < 2:
        raise UsageError(f"--limit is {arguments.limit}, expected at least 2: a token and the one that follows")
    if arguments.ids is not None:
        ids = _read_ids(arguments.ids)
    else:
        from lane_mlir.checkpoint import Checkpoint
        from lane_mlir.text import Tokenizer

        ids = Tokenizer.from_checkpoint(Checkpoint.open(arguments.model)).encode(read_text(arguments.text))
    if len(ids) < 2:
        raise LaneError(f"{arguments.ids or arguments.text}: {len(ids)} tokens, expected at least 2")
    return ids[: arguments.limit]


def _read_ids(path: Path) -> list[int]:
    try:
        read: Any = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise LaneError(f"{path}: not JSON: {error}") from None
    if isinstance(read, dict):
        read = cast("dict[str, Any]", read).get("ids")
    if not isinstance(read, list) or not all(type(index) is int for index in cast("list[object]", read)):
        raise LaneError(f"{path}: holds no list of token ids, nor one under 'ids'")
    return cast("list[int]", read)


def run(arguments: Namespace) -> int:
    ids = tokens(arguments)
    reference: Logs | None = None
    for numerics in ("dequant", "int8", "two_pass_int8"):
        step = lane_mlir.load(arguments.model, numerics=numerics, device=arguments.device, context=len(ids))
        logs = log_probabilities(step.logits(ids))
        reference = logs if reference is None else reference
        print(divergence(numerics, reference, logs, ids).line(), flush=True)
    return 0


def main(argv: list[str] | None = None) -> int:
    return run_tool("measure_numerics", lambda: run(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
