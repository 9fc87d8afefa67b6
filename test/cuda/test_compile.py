"""Printed units of the tiny models: compiled by NVRTC for four architectures; the text is always the same."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.chips import chip
from lane_mlir.cuda.compile import CompileOptions, compile_unit, program_cache
from lane_mlir.cuda.printer import print_unit
from lane_mlir.cuda.source import self_contained
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.target import make_target
from lane_mlir.tools.derive_models import VARIANTS, Variant, derive

MODELS = sorted((Path(__file__).parent.parent / "data" / "models").glob("*.gguf"))
NUMERICS = ("dequant", "int8", "two_pass_int8")
ARCHITECTURES = ("sm_90a", "sm_80", "sm_100", "sm_120")
ROWS = (1, 20)

USING = "using namespace lane;\n"
DEFINITION = re.compile(r'^extern "C" __global__ [^\n]*\n(\w+)\(.*?^}\n', re.MULTILINE | re.DOTALL)

needs_nvrtc = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia") is None,
    reason="NVRTC is not installed: pip install 'lane-mlir[cuda]'",
)


@cache
def schedule_of(model: Path, numerics: str, rows: int) -> ScheduleOp:
    recipe = Recipe(make_target(numerics, cache="f16"))
    module = recipe.lift(Checkpoint.open(model), rows, "last")
    recipe.lower(module)
    (schedule,) = (op for op in module.ops if isinstance(op, ScheduleOp))
    return schedule


@dataclass(frozen=True)
class Claims:
    """What the processes of a test run have compiled: each thing falls to the one that comes first."""

    folder: Path

    def take(self, *what: str) -> bool:
        name = hashlib.sha256("\n".join(what).encode()).hexdigest()
        try:
            self.folder.joinpath(name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@pytest.fixture(scope="module")
def claims(shared_folder: Path) -> Claims:
    folder = shared_folder / "compiled"
    folder.mkdir(exist_ok=True)
    return Claims(folder)


def form_of(definition: str, arch: str) -> str:
    """
    A kernel less what does not decide whether it compiles once the front end took it: its sizes. For the first of the
    architectures the int8 words of an activation are kept, so that there is a cubin of each numerics.
    """
    if os.environ.get("LANE_ALL_ARCHITECTURES") == "1":
        return definition

    def number(match: re.Match[str]) -> str:
        is_words = re.search(r"(\.words = |\bquant<|\w*norm<)$", definition[: match.start()]) is not None
        return match[0] if is_words and arch == ARCHITECTURES[0] else "#"

    return re.sub(r"(?<![\w.])\d+(\.\d+)?(e[-+]?\d+)?f?", number, definition)


@dataclass(frozen=True)
class Definition:
    """A kernel as it stands in a unit, and by a name of its own among those of other units."""

    text: str
    anonymous: str
    """Without the number that the unit gives it."""
    symbol: str
    decodes_in_int8: bool


def definitions(model: Path) -> tuple[str, list[Definition]]:
    """The includes and the kernels of a model's units, of each numerics and number of rows."""
    includes, found = dict[str, None](), list[Definition]()
    for numerics, rows in itertools.product(NUMERICS, ROWS):
        unit = print_unit(schedule_of(model, numerics, rows))
        names = {use.symbol: use.kernel.name for use in unit.uses}
        texts = {match[1]: match[0] for match in DEFINITION.finditer(unit.text)}
        assert texts.keys() == names.keys()
        head = unit.text[: unit.text.index(USING)]
        includes |= dict.fromkeys(line for line in head.splitlines() if line.startswith("#include"))
        for symbol, text in texts.items():
            own = f"{symbol}_{numerics}_{rows}"
            renamed, anonymous = (text.replace(symbol, name, 1) for name in (own, names[symbol]))
            found.append(Definition(renamed, anonymous, own, (numerics, rows) == ("int8", 1)))
    return "\n".join(includes) + f"\n\n{USING}", found


def compile_units(claims: Claims, model: Path) -> None:
    """
    Every kernel of every unit passes the front end for every architecture; for the first a cubin is made of every form
    of kernel, for the others of those that decode in int8; each once, whichever model has it first.
    LANE_ALL_ARCHITECTURES=1 makes cubins of every kernel, of any sizes, for all: that takes many times as long.
    """
    head, found = definitions(model)
    for arch in ARCHITECTURES:
        whole = arch == ARCHITECTURES[0] or os.environ.get("LANE_ALL_ARCHITECTURES") == "1"
        made = [d for d in found if whole or d.decodes_in_int8]
        made = [d for d in made if claims.take("cubin", arch, form_of(d.anonymous, arch))]
        if made:
            cubin = compile_unit(head + "".join(d.text for d in made), CompileOptions(arch, fast=True))
            assert cubin[:4] == b"\x7fELF"
            assert all(d.symbol.encode() in cubin for d in made)
        # What a cubin was made of has passed the front end.
        passed = {d.anonymous for d in made}
        fresh = [d for d in found if claims.take("front end", arch, d.anonymous)]
        new = [d.text for d in fresh if d.anonymous not in passed]
        if new:
            compile_unit(head + "".join(new), CompileOptions(arch, front_end_only=True))


@needs_nvrtc
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.stem)
def test_units_compile(claims: Claims, model: Path):
    compile_units(claims, model)


@needs_nvrtc
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_units_of_variants_compile(claims: Claims, variant: Variant, tmp_path: Path):
    """No tiny model has small gates in f32, for which there are kernels."""
    compile_units(claims, derive(variant, MODELS[0].parent, tmp_path))


@pytest.mark.parametrize("rows", ROWS)
def test_the_text_of_a_unit_is_always_the_same(rows: int):
    model = next(path for path in MODELS if path.stem == "qwen3-Q8_0")
    first = print_unit(schedule_of(model, "int8", rows)).text
    assert print_unit(schedule_of(model, "int8", rows)).text == first
    schedule_of.cache_clear()
    assert print_unit(schedule_of(model, "int8", rows)).text == first


def test_layers_share_kernels():
    """The two layers of the model run the same kernels on other buffers, and every kernel says what it covers."""
    model = next(path for path in MODELS if path.stem == "qwen3-Q8_0")
    unit = print_unit(schedule_of(model, "int8", 1))
    symbols = [use.symbol for use in unit.uses]
    kernels = unit.text.count('extern "C"')
    assert len(set(symbols)) == kernels == unit.text.count("// covers [")
    # At least the product with the gate, the attention and the product after it run in each of the two.
    assert len(symbols) >= kernels + 3
    assert unit.text.count("// runs 2 times") >= 3


def test_the_unit_for_another_chip():
    model = next(path for path in MODELS if path.stem == "qwen3-Q8_0")
    text = print_unit(schedule_of(model, "int8", 1), chip("b200")).text
    assert text.startswith("// Kernels of the step @step for b200 (sm_100), int8.\n")


@needs_nvrtc
def test_an_error_names_the_kernel_and_the_place():
    unit = (
        '#include "quant.cuh"\n\nusing namespace lane;\n\nextern "C" __global__ void __launch_bounds__(128)\n'
        "quant_0(const float* x, i8* y, float* d) {\n  quant<1>(x, wrong, y, d);\n}\n"
    )
    with pytest.raises(LaneError) as raised:
        compile_unit(unit, CompileOptions("sm_90a"), name="step.cu")
    expected = 'NVRTC refuses step.cu for sm_90a: in kernel quant_0: step.cu(7): error: identifier "wrong" is undefined'
    assert str(raised.value) == expected


SMALL = (
    '#include "quant.cuh"\n\nusing namespace lane;\n\nextern "C" __global__ void __launch_bounds__(128)\n'
    "quant_0(const float* x, i8* y, float* d) {\n  quant<1>(x, 64, y, d);\n}\n"
)

_COMPILE = """
import sys
from lane_mlir.cuda.compile import CompileOptions, compile_unit, program_cache
with program_cache(sys.argv[1]) as programs:
    print(len(compile_unit(open(sys.argv[2]).read(), CompileOptions("sm_80"), cache=programs)))
"""


@needs_nvrtc
def test_processes_that_start_at_once_share_the_cache(tmp_path: Path):
    unit, folder = tmp_path / "unit.cu", tmp_path / "programs"
    unit.write_text(SMALL)
    command = [sys.executable, "-c", _COMPILE, str(folder), str(unit)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sizes = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(sizes) == 1
    assert len(entries_of(folder)) == 1


@needs_nvrtc
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_cubin_is_compiled_again(tmp_path: Path, damage: str):
    options = CompileOptions("sm_80")
    with program_cache(tmp_path) as programs:
        cubin = compile_unit(SMALL, options, cache=programs)
    (file,) = entries_of(tmp_path)
    entry = file.read_bytes()
    # What reads cubins reads the file as one.
    assert entry.startswith(cubin)
    middle = len(entry) // 2
    file.write_bytes(
        entry[:middle] + (bytes([entry[middle] ^ 1]) + entry[middle + 1 :] if damage == "flipped" else b"")
    )
    with program_cache(tmp_path) as programs:
        assert compile_unit(SMALL, options, cache=programs) == cubin
    assert [path.read_bytes() for path in entries_of(tmp_path)] == [entry]


def entries_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 100]


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch):
    class Absent:
        @staticmethod
        def nvrtcVersion() -> None:
            raise RuntimeError("Failure finding libnvrtc.so.13: No such file")

    def module(name: str) -> Any:
        return Absent if name == "cuda.bindings.nvrtc" else object()

    monkeypatch.setattr("lane_mlir.cuda.compile.cuda_module", module)
    with pytest.raises(LaneError, match=r"NVRTC, which is not installed: pip install 'lane-mlir\[cuda\]'$"):
        compile_unit(SMALL, CompileOptions("sm_80"))


def test_a_file_that_the_library_has_not_is_refused():
    with pytest.raises(LaneError, match=r"the kernel library has no file nothing\.cuh"):
        self_contained('#include "nothing.cuh"\n', "step.cu")


def test_included_files_are_put_in_once_and_keep_their_names_and_lines():
    source = self_contained('#include "quant.cuh"\n#include "common.cuh"\nint last;\n', "step.cu")
    assert source.count('#line 1 "common.cuh"') == source.count('#line 1 "quant.cuh"') == 1
    assert source.endswith('#line 3 "step.cu"\nint last;\n')
