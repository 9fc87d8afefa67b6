"""GGUF files as an input of xDSL's tools: `lane-opt model.gguf`, `xdsl-opt model.gguf -p fuse`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.frontend import Frontend

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.chips import DEFAULT_CHIP
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.tg import TargetAttr
from lane_mlir.importers.importing import import_step
from lane_mlir.target import make_target


@dataclass(frozen=True)
class GgufFrontend(Frontend):
    """
    Imports the step of a checkpoint: `-f 'gguf{rows=64 context=1024}'`.

    The options are those of `lane-import`; the file is mapped by its name, not read from the stream.
    """

    name = "gguf"

    rows: int = 1
    context: int | None = None
    sequences: int = 1
    logits: Literal["last", "all"] = "last"
    chip: str = DEFAULT_CHIP
    numerics: Literal["dequant", "int8", "two_pass_int8"] = "dequant"
    cache: Literal["f32", "f16"] = "f32"
    state: Literal["f32", "bf16"] = "f32"

    def parse(self, ctx: Context, input: IO[bytes], input_name: str) -> ModuleOp:
        if input_name == "<stdin>":
            raise LaneError("a GGUF checkpoint is mapped, not read from the standard input: give its path")
        target = TargetAttr.of(make_target(self.numerics, self.chip, self.cache, self.state))
        return import_step(
            Checkpoint.open(input_name),
            rows=self.rows,
            context=self.context,
            sequences=self.sequences,
            logits=self.logits,
            target=target,
        )
