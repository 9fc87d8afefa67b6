"""
derive_models: variants of the tiny models with other formats, which have rules and launches that no such file has.

What the reference engine computes of a file stays true of a variant that holds the same values.
`python -m lane_mlir.tools.derive_models MODELS FOLDER` writes them and prints the path of each.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor, quants
from numpy.typing import NDArray

from lane_mlir.diagnostics import run_tool
from lane_mlir.tools.arguments import ArgumentParser

Stored = tuple[NDArray[Any], GGMLQuantizationType]
"""A tensor's data as it is stored, and the format."""


@dataclass(frozen=True)
class Variant:
    """A file like the one that it is made from, but for the format of some tensors."""

    name: str
    source: str
    tensor: Callable[[ReaderTensor], Stored]
    """How the variant stores a tensor."""


def _gates_in_f32(tensor: ReaderTensor) -> Stored:
    """The same values; the products before the gates of the delta rule in f32."""
    if tensor.name.endswith(("ssm_alpha.weight", "ssm_beta.weight", "ssm_ba.weight")):
        return quants.dequantize(tensor.data, tensor.tensor_type), GGMLQuantizationType.F32
    return tensor.data, tensor.tensor_type


def _in_q8_0(tensor: ReaderTensor) -> Stored:
    """All weights of products in q8_0, as files of that name store them."""
    if len(tensor.shape) < 2:
        return tensor.data, tensor.tensor_type
    return quants.quantize(tensor.data, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0


VARIANTS: Sequence[Variant] = (
    Variant("qwen35moe-moe-Q4_K_M-f32-gates", "qwen35moe-moe-Q4_K_M", _gates_in_f32),
    Variant("qwen3next-moe-Q4_K_M-f32-gates", "qwen3next-moe-Q4_K_M", _gates_in_f32),
    Variant("llama-Q8_0", "llama-f32", _in_q8_0),
)


def derive(variant: Variant, models: Path, folder: Path) -> Path:
    """Write a variant of a file of `models` into a folder: its path."""
    reader = GGUFReader(models / f"{variant.source}.gguf")
    path = folder / f"{variant.name}.gguf"
    part = path.with_suffix(".part")
    _write(part, variant, reader)
    return part.replace(path)


def _write(path: Path, variant: Variant, reader: GGUFReader) -> None:
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(path, str(architecture))
    for field in reader.fields.values():
        # The writer adds these itself.
        if field.name.startswith(("GGUF.", "general.architecture")):
            continue
        kind, inner = field.types[0], field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        data, stored = variant.tensor(tensor)
        writer.add_tensor(tensor.name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(arguments: Namespace) -> None:
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        print(derive(variant, Path(arguments.models), folder))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the variants that the command line asks for."""
    parser = ArgumentParser(prog="derive_models", description="Write variants of the tiny models.", allow_abbrev=False)
    parser.add_argument("models", metavar="MODELS", help="the folder of the tiny models")
    parser.add_argument("folder", metavar="FOLDER", help="where to write the variants")
    return run_tool("derive_models", lambda: run(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
