"""Steps that are kept: found by what they come from, without the compiler; damaged ones are compiled again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.chips import chip
from lane_mlir.cuda.compile import program_cache
from lane_mlir.cuda.runtime import kept
from lane_mlir.runtime.recipe import Recipe, StepIdentity
from lane_mlir.target import Numerics, Precision, Target

MODEL = Path(__file__).parents[2] / "data" / "models" / "qwen3-Q8_0.gguf"
STEP = StepIdentity("a checkpoint", Recipe(), 1, "last", 1)

needs_cuda_core = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import cuda.core.utils"], capture_output=True).returncode != 0,
    reason="cuda.core is not installed: pip install 'lane-mlir[cuda]'",
)


def plan_of(schedule: Any, planned: list[int]) -> Any:
    def plan() -> Any:
        planned.append(1)
        return schedule()

    return plan


def test_a_step_is_planned_once(new_device: Any, schedule: Any):
    programs, planned = dict[bytes, bytes](), list[int]()
    made: list[list[int]] = []
    for _ in range(2):
        device = new_device(kept=programs)
        program = device.compile_kept(STEP, plan_of(schedule, planned))
        program.set_tokens([3])
        made.append([token for (token,) in program.continued(5)])
    assert len(planned) == len(programs) == 1
    assert made[0] == made[1]


def test_what_a_step_is_found_by(monkeypatch: pytest.MonkeyPatch):
    h200 = chip("h200")
    steps = [
        STEP,
        replace(STEP, checkpoint="another checkpoint"),
        replace(STEP, rows=2),
        replace(STEP, rows=2, logits="all"),
        replace(STEP, sequences=2),
        *(
            replace(STEP, recipe=recipe)
            for recipe in (
                Recipe(Target(numerics=Numerics.INT8)),
                Recipe(Target(cache=Precision.F16)),
                Recipe(Target(state=Precision.BF16)),
                Recipe(Target(chip="b200")),
                Recipe(held=("add_norm",)),
                Recipe(context=96),
            )
        ),
    ]
    keys = [kept.key_of(step, h200) for step in steps]
    keys += [kept.key_of(STEP, replace(h200, multiprocessors=114)), kept.key_of(STEP, replace(h200, arch="sm_90"))]

    def another(package: str) -> str:
        return f"another version of {package}"

    monkeypatch.setattr(kept, "version", another)
    keys.append(kept.key_of(STEP, h200))
    assert len(set(keys)) == len(keys)
    assert kept.key_of(STEP, h200) == keys[-1]


def test_other_sources_are_another_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    before = kept.key_of(STEP, chip("h200"))
    names = {file.name for file in kept.source_files()}
    assert {"gemv.cuh", "importing.py", "schedule.py", "judge.py", "lowering.py"} <= names
    (tmp_path / "changed.py").write_text("# another rule\n")
    files = [*kept.source_files(), tmp_path / "changed.py"]
    monkeypatch.setattr(kept, "source_files", lambda: files)
    kept.sources_digest.cache_clear()
    assert kept.key_of(STEP, chip("h200")) != before
    monkeypatch.undo()
    kept.sources_digest.cache_clear()
    assert kept.key_of(STEP, chip("h200")) == before


def test_nowhere_to_keep(new_device: Any, schedule: Any):
    class Full(dict[bytes, bytes]):
        def __setitem__(self, key: bytes, value: bytes) -> None:
            raise OSError(28, "No space left on device")

    planned = list[int]()
    for programs in (None, Full()):
        new_device(kept=programs).compile_kept(STEP, plan_of(schedule, planned))
    assert len(planned) == 2


def test_the_digest_of_a_checkpoint(tmp_path: Path):
    """Of what the header says, not of the values."""
    values = bytearray(MODEL.read_bytes())
    values[-1] ^= 1
    (tmp_path / "values.gguf").write_bytes(values)
    other = MODEL.with_name("qwen2-Q8_0.gguf")
    digests = [Checkpoint.open(path).digest for path in (MODEL, tmp_path / "values.gguf", other)]
    assert digests[0] == digests[1] != digests[2]


_WARM = """
import sys
from lane_mlir.cuda.runtime import kept
from lane_mlir.runtime.step import load
import lane_mlir.cuda.runtime, lane_mlir.tools.lane_run
from lane_mlir.cuda.runtime.executable import executable_of
print(sorted(name for name in sys.modules if name.startswith("xdsl.") and name not in
    ("xdsl.utils", "xdsl.utils.exceptions", "xdsl.utils.str_enum")))
print(sorted(name for name in sys.modules if name.startswith("lane_mlir.") and name.split(".")[1] in
    ("passes", "dialects", "eval", "cpu")))
"""


def test_what_is_kept_takes_no_compiler():
    """The modules that run a step import neither xDSL's IR nor our dialects and passes: that takes half a second."""
    shown = subprocess.run([sys.executable, "-c", _WARM], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == ["[]", "[]"]


_RACE = """
import sys
from lane_mlir.cuda.compile import program_cache
from lane_mlir.cuda.runtime import kept
from lane_mlir.cuda.runtime.executable import executable_of
step = executable_of(open(sys.argv[1]).read())
for turn in range(40):
    with program_cache(sys.argv[2]) as programs:
        found = kept.find(programs, b"the key")
        assert found is None or found == step
        kept.keep(programs, b"the key", step)
print(kept.find(programs, b"the key") == step)
"""


@needs_cuda_core
def test_processes_share_the_cache(new_device: Any, schedule: Any, tmp_path: Path):
    """Two that read and write one entry at once find it whole or not at all."""
    text, folder = tmp_path / "step.json", tmp_path / "programs"
    text.write_text(new_device().compile(schedule()).executable.json())
    command = [sys.executable, "-c", _RACE, str(text), str(folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        out, error = process.communicate(timeout=120)
        assert (process.returncode, out.strip()) == (0, "True"), error


@needs_cuda_core
@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "replaced"])
def test_a_damaged_entry_is_compiled_again(
    new_device: Any, schedule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
):
    planned, files = list[int](), list[Path]()
    for _ in range(3):
        with program_cache(tmp_path) as programs:
            new_device(kept=programs).compile_kept(STEP, plan_of(schedule, planned))
        if len(planned) == 1:
            files = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1000]
            (file,) = files
            entry = file.read_bytes()
            at = entry.index(b'"arena"') + 2
            file.write_bytes(
                {
                    "cut": entry[:-100],
                    "flipped": entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :],
                    "emptied": b"",
                    "replaced": b"\x7fELF" + bytes(60),
                }[damage]
            )
    assert len(planned) == 2


@pytest.mark.parametrize("entry", [b"{}", b"null", b"\xff\xfe", b"[1, 2"])
def test_what_is_kept_and_no_step_is_compiled_again(entry: bytes):
    assert kept.find({b"key": entry}, b"key") is None
