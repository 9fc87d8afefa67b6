"""
lane-opt: read IR or a GGUF checkpoint, run passes, print the result.

xDSL's optimizer driver with our dialects, passes, targets and frontends (which it finds through the universe), MLIR's
spelling `--pass-pipeline`, errors of one line with their place, and outputs that appear whole or not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
import time
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MethodType
from typing import IO, ClassVar, cast

from xdsl.dialects.builtin import FileLineColLoc, ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer
from xdsl.utils.arg_spec import ArgSpec, ArgSpecConvertible, parse_spec
from xdsl.utils.exceptions import (
    ArgSpecParseError,
    DiagnosticException,
    ParseError,
    ShrinkException,
)
from xdsl.xdsl_opt_main import xDSLOptMain

from lane_mlir.diagnostics import (
    LaneError,
    SourceError,
    UsageError,
    atomic_write,
    nearest,
    reason,
    run_tool,
)
from lane_mlir.locations import (
    LocatedParser,
    OpFailedException,
    decode,
    op_cause,
    place_of,
    source_error,
    verify,
)
from lane_mlir.tools.arguments import ArgumentParser
from lane_mlir.tools.pipeline import parse_part, parse_passes, refuse_repeated, spec_error


class LaneOptMain(xDSLOptMain):
    """The driver. Whatever the user did wrong is raised as a `LaneError`, in construction as in `run`."""

    version_format: ClassVar[str] = f"lane-opt {version('lane-mlir')} (xdsl {{xdsl_version}})"

    def __init__(self, args: Sequence[str] | None = None) -> None:
        self.positions: dict[Operation, FileLineColLoc] = {}
        self.running: ModulePass | None = None
        try:
            super().__init__("Run passes over the IR of a step, or over a GGUF checkpoint.", args)
        except ArgSpecParseError as error:
            raise spec_error("options of -t or -f", error) from error

    # --- command line ---

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = "lane-opt"
        arg_parser.error = MethodType(ArgumentParser.error, arg_parser)
        arg_parser.usage = "%(prog)s [options] [input_file]"
        super().register_all_arguments(arg_parser)
        arg_parser.add_argument(
            "--pass-pipeline",
            dest="passes",
            metavar="PASSES",
            default=argparse.SUPPRESS,
            help="The passes to run, as in MLIR: 'fuse{held=add_norm,gates},link,plan' or 'builtin.module(…)'",
        )
        arg_parser.add_argument(
            "--validate",
            default=False,
            action="store_true",
            help="After each pass and each rule, evaluate every function on random inputs, and stop at the first that "
            "changed a value",
        )

    def setup_pipeline(self) -> None:
        """Make the pipeline, and check the options of the target and the frontend before any work is done."""
        passes = parse_passes(self.available_passes, self.args.passes)
        self.pipeline = PassPipeline(passes, self.between_passes)
        self.started = time.perf_counter()
        for kind, text, entries in (
            ("target", self.args.target, self.available_targets),
            ("frontend", self.args.frontend, self.available_frontends),
        ):
            if text:
                refuse_repeated(kind, text)
                spec = parse_spec(text)
                check_part(kind, entries[spec.name], spec)

    def between_passes(
        self,
        previous: ModulePass | None,
        module: ModuleOp,
        following: ModulePass | None,
    ) -> None:
        """Verify the module; print it and the time of the pass on the standard error, if that is wanted."""
        if self.args.time_passes and previous is not None:
            print(
                f"{previous.name}: {time.perf_counter() - self.started:.3f} s",
                file=sys.stderr,
            )
        self.running = None
        if not self.args.disable_verify:
            when = f" (after pass {previous.name})" if previous is not None else ""
            verify(module, self.positions, self.get_input_name(), when)
        if self.args.print_between_passes and previous is not None and following is not None:
            print(f"// IR after {previous}:", file=sys.stderr)
            Printer(stream=sys.stderr).print_op(module)
            print("\n", file=sys.stderr)
        self.running = following
        self.started = time.perf_counter()

    # --- input ---

    def get_input_name(self) -> str:
        return "<stdin>" if self.args.input_file in (None, "-") else self.args.input_file

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        """The input and the extension that chooses its frontend; text from a pipe or a file without one is MLIR."""
        if self.args.input_file in (None, "-"):
            return sys.stdin.buffer, "mlir"
        path = Path(self.args.input_file)
        extension = path.suffix.removeprefix(".") or "mlir"
        if self.args.frontend:
            extension = parse_spec(self.args.frontend).name
        elif extension not in self.available_frontends:
            valid = nearest(extension, self.available_frontends)
            raise LaneError(f"{path}: unknown kind of file {'.' + extension!r}; {valid} (or choose one with -f)")
        try:
            return path.open("rb"), extension
        except OSError as error:
            raise LaneError(f"cannot read {path}: {reason(error)}") from error

    def parse_chunk(self, chunk: IO[bytes], file_extension: str, start_offset: int = 0) -> ModuleOp | None:
        """Parse MLIR with a place for every op; leave other kinds of file to their frontends."""
        if parse_spec(self.args.frontend or file_extension).name != "mlir":
            return super().parse_chunk(chunk, file_extension, start_offset)
        name = self.get_input_name()
        parser = LocatedParser(self.ctx, decode(chunk.read(), name), name, start_offset)
        self.positions = parser.positions
        return parser.parse_module(not self.args.no_implicit_module)

    # --- run ---

    def run(self) -> None:
        """
        Read, transform and print each chunk of the input.

        Raises: LaneError, with its place if it has one, unless --verify-diagnostics or --parsing-diagnostics ask for
        errors to be printed as results (that is for tests).
        """
        try:
            chunks, extension = self.prepare_input()
            with self.open_output() as output:
                for i, (chunk, offset) in enumerate(chunks):
                    if i > 0:
                        output.write("// -----\n")
                    with chunk:
                        self.process(chunk, extension, offset, output)
        except ShrinkException:
            if not self.args.shrink:
                raise
            print("Success, can shrink")
            return
        if self.args.shrink:
            print("Failure, can't shrink")
            sys.exit(1)

    def process(self, chunk: IO[bytes], extension: str, offset: int, output: IO[str]) -> None:
        """One chunk of the input: its result or its diagnostic."""
        try:
            module = self.parse_chunk(chunk, extension, offset)
            assert module is not None
            self.apply_passes(module)
            output.write(self.output_resulting_program(module))
            output.flush()
        except ParseError as error:
            located = source_error(error)
            # An attribute that refuses its own parameters is a verifier's error, found while parsing.
            wanted = self.args.parsing_diagnostics or (
                self.args.verify_diagnostics and isinstance(error.__cause__, DiagnosticException)
            )
            self.diagnose(located, wanted)
        except LaneError as error:
            self.diagnose(error, self.args.verify_diagnostics)
        except DiagnosticException as error:
            self.diagnose(self.pass_error(error), self.args.verify_diagnostics)

    def diagnose(self, error: LaneError, printed: bool) -> None:
        """Print the error as the result of its chunk, or raise it."""
        if not printed:
            raise error
        sys.stdout.write(f"{error.report('lane-opt')}\n")
        sys.stdout.flush()

    def apply_passes(self, prog: ModuleOp) -> None:
        if not self.args.validate:
            self.pipeline.apply(self.ctx, prog)
            return
        from lane_mlir.eval.validate import validate_pipeline

        validate_pipeline(self.ctx, prog, self.pipeline.passes, self.between_passes)

    def pass_error(self, error: DiagnosticException) -> LaneError:
        """What a pass, target or frontend complained of, with the pass that ran and the place of its op if known."""
        op = error.op if isinstance(error, OpFailedException) else None
        cause = str(error) if op is None else op_cause(op, str(error))
        if self.running is not None and self.running.name not in cause:
            cause = f"pass {self.running.name}: {cause}"
        place = place_of(op, self.positions) if op is not None else None
        return SourceError(place, cause) if place is not None else LaneError(cause)

    @contextlib.contextmanager
    def open_output(self) -> Generator[IO[str]]:
        if self.args.output_file in (None, "-"):
            yield sys.stdout
            return
        with atomic_write(self.args.output_file) as output:
            yield output


def check_part(kind: str, entry: Callable[..., object], spec: ArgSpec) -> None:
    """
    Check the options of a target or a frontend. Old-style ones are plain functions and take none.

    Raises: UsageError naming the option.
    """
    if not inspect.signature(entry).parameters:
        parse_part(kind, cast(Callable[[], type[ArgSpecConvertible]], entry), spec)
    elif spec.parameters:
        raise UsageError(f"{kind} {spec.name} has no options")


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lane-opt`."""
    return run_tool("lane-opt", lambda: LaneOptMain(argv).run())


if __name__ == "__main__":
    sys.exit(main())
