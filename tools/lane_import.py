"""lane-import: write the lifted step of a GGUF checkpoint as text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from xdsl.printer import Printer

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.chips import CHIPS, DEFAULT_CHIP
from lane_mlir.diagnostics import atomic_write, run_tool
from lane_mlir.dialects.tg import Numerics, Precision, TargetAttr
from lane_mlir.importers import import_step
from lane_mlir.importers.model import DEFAULT_CONTEXT
from lane_mlir.target import MAX_SEQUENCES
from lane_mlir.tools.arguments import ArgumentParser


def argument_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lane-import",
        description="Import the step of a GGUF checkpoint: a module of the tensor graph, as text.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL.gguf", help="the checkpoint")
    add(
        "--rows",
        type=int,
        default=1,
        metavar="N",
        help="tokens that enter at once: 1 decodes (default), more is a chunk",
    )
    add(
        "--context",
        type=int,
        metavar="N",
        help=f"positions of the caches (default: {DEFAULT_CONTEXT}, or what the model was trained for if that is less)",
    )
    add(
        "--sequences",
        type=int,
        default=1,
        metavar="N",
        help=f"sequences that decode together, a token of each (default: 1; at most {MAX_SEQUENCES})",
    )
    add("--logits", choices=("last", "all"), default="last", help="rows of a chunk whose logits are computed")
    add(
        "--chip",
        choices=tuple(CHIPS),
        default=DEFAULT_CHIP,
        help="what the step is compiled for (default: %(default)s)",
    )
    add(
        "--numerics",
        choices=[str(numerics) for numerics in Numerics],
        default="dequant",
        help="arithmetic of products by weights",
    )
    add("--cache", choices=("f32", "f16"), default="f32", help="how keys and values are stored")
    add("--state", choices=("f32", "bf16"), default="f32", help="how recurrent state is stored")
    add("-o", "--output", default="-", metavar="FILE", help="where the module goes (default: the standard output)")
    add("--locations", action="store_true", help="print the location of every op: the tensor it came from")
    add("--version", action="version", version=f"lane-import {version('lane-mlir')}")
    return parser


def import_to_text(arguments: argparse.Namespace) -> None:
    target = TargetAttr(
        arguments.chip, Numerics(arguments.numerics), Precision(arguments.cache), Precision(arguments.state)
    )
    module = import_step(
        Checkpoint.open(arguments.model),
        rows=arguments.rows,
        context=arguments.context,
        sequences=arguments.sequences,
        logits=arguments.logits,
        target=target,
    )
    if arguments.output == "-":
        Printer(sys.stdout, print_debuginfo=arguments.locations).print_op(module)
        sys.stdout.write("\n")
        return
    with atomic_write(arguments.output) as output:
        Printer(output, print_debuginfo=arguments.locations).print_op(module)
        output.write("\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lane-import`."""
    return run_tool("lane-import", lambda: import_to_text(argument_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
