"""The folders at the top of the repository are one package, whichever way it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
TABLE: dict[str, str] = SETTINGS["tool"]["setuptools"]["package-dir"]
PACKAGES: list[str] = SETTINGS["tool"]["setuptools"]["packages"]


def package_folders() -> dict[str, Path]:
    """Every folder with an __init__.py, by the name it is imported under; links are not followed."""
    found: dict[str, Path] = {}
    for package, folder in TABLE.items():
        stack = [(package, ROOT / folder)]
        while stack:
            name, path = stack.pop()
            found[name] = path
            stack += [
                (f"{name}.{child.name}", child)
                for child in path.iterdir()
                if (child / "__init__.py").is_file() and not child.is_symlink()
            ]
    return found


def modules() -> list[str]:
    names: list[str] = []
    for package, folder in package_folders().items():
        names += [package if file.stem == "__init__" else f"{package}.{file.stem}" for file in folder.glob("*.py")]
    return sorted(names)


def test_every_folder_is_a_package_of_the_table():
    assert sorted(PACKAGES) == sorted(package_folders())


@pytest.mark.parametrize("name", ["dialects", "passes", "tools"])
def test_links_for_type_checkers(name: str):
    link = ROOT / "lane_mlir" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("name", ["dialects", "passes", "tools"])
def test_top_level_import_is_refused(name: str):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"ImportError: import lane_mlir.{name}, not {name}" in result.stderr


def test_importing_everything_imports_no_cuda():
    """On a machine without the cuda extra no module may even try."""
    code = f"""
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cuda", "cupti", "nvtx"):
            raise AssertionError(f"{{name}} is imported")

sys.meta_path.insert(0, Refuse())
for name in {modules()!r}:
    importlib.import_module(name)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_universe_imports_nothing_heavy():
    """xdsl-opt loads the universe whatever it is used for."""
    code = (
        "import sys, lane_mlir.universe\n"
        "print(*sorted({'numpy', 'gguf', 'tokenizers', 'rich', 'lane_mlir.passes.fuse'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("command", sorted(SETTINGS["project"]["scripts"]))
def test_commands_are_installed(command: str):
    (script,) = entry_points(group="console_scripts", name=command)
    assert callable(script.load())


def test_wheel_has_every_file(tmp_path: Path):
    """A wheel is built from a checkout without links, as some archives unpack it, and has every source file."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "lane_mlir", tree / "lane_mlir", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dialects", "passes", "tools"):
        (tree / "lane_mlir" / name).unlink()
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(tree)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in result.stderr or "Could not find a version" in result.stderr:
        pytest.skip("setuptools cannot be downloaded to build the wheel")
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    expected = {
        f"{package.replace('.', '/')}/{file.name}"
        for package, folder in package_folders().items()
        for file in folder.iterdir()
        if file.suffix in (".py", ".cuh", ".typed")
    }
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
