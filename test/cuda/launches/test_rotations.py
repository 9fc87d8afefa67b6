"""Rotations on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

POSITION = np.array([5], np.int32)


@pytest.fixture
def tables() -> Any:
    def make(half: int, positions: int = 16) -> dict[str, Any]:
        angles = np.outer(np.arange(positions), 0.7 ** np.arange(half))
        return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32), "pos": POSITION}

    return make


@pytest.mark.parametrize("hd, half", [(64, 32), (128, 16), (128, 48), (128, 64), (96, 48), (20, 5), (256, 128)])
def test_rope(compare: Any, random: Any, out: Any, tables: Any, hd: int, half: int):
    """Exactly 2·half columns of every head turn, those after them are copied; of several rows, each at its position."""
    ways = {f"{pairing}_{norm}": (pairing, norm) for pairing in ("half", "interleaved") for norm in ("normed", "plain")}
    launches = "\n".join(
        f"launch.rope %x {'norm %w eps 1.0e-06' if norm == 'normed' else ''} by %cos, %sin at %pos into %{name}"
        f" pairing {pairing} (heads = 6, per_row = 3, hd = {hd}, half = {half})"
        for name, (pairing, norm) in ways.items()
    )
    compare(launches, x=random(6, hd), w=random(hd), **{name: out((6, hd)) for name in ways}, **tables(half)).check()


def test_rope_without_a_position_stands_at_0(compare: Any, random: Any, out: Any, tables: Any):
    compare(
        "launch.rope %x by %cos, %sin into %y pairing half (heads = 2, per_row = 1, hd = 64, half = 32)",
        x=random(2, 64), y=out((2, 64)), **tables(32),
    ).check()  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_parts_land_in_cache_rows_and_units(compare: Any, random: Any, out: Any, tables: Any, dtype: Any):
    got = compare(
        "launch.rope_parts [%q norm %wq eps 1.0e-05 into %qr heads = 8 per_row = 4,"
        " %k norm %wk eps 1.0e-02 into %kc at row %pos pitch 64 heads = 2 per_row = 1,"
        " %p every 96 from 32 into %u every 80 from 8 heads = 2 per_row = 1]"
        " by %cos, %sin at %pos pairing half (hd = 64, half = 32)",
        q=random(8, 64), k=random(2, 64), p=random(2, 96), wq=random(64), wk=random(64), qr=out((8, 64)),
        kc=np.full((9, 64), 7, dtype), u=np.ones((2, 80), np.float32), **tables(32),
    ).check()  # fmt: skip
    assert (got.emulated("kc")[[0, 4, 7, 8]] == 7).all()
    assert (got.emulated("u")[:, [0, 7, 72, 79]] == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sequences_stand_and_land_each_at_its_own(compare: Any, random: Any, out: Any, tables: Any, dtype: Any):
    positions = np.array([3, 0, 6], np.int32)
    compare(
        "launch.rope_parts [%q into %qr heads = 12 per_row = 4,"
        " %k norm %w eps 1.0e-05 into %kc at row %pos pitch 128 heads = 6 per_row = 2 apart 1024]"
        " by %cos, %sin at %pos pairing half (hd = 64, half = 32) seqs",
        q=random(12, 64), k=random(6, 64), w=random(64), qr=out((12, 64)),
        kc=np.full((3, 8, 128), 7, dtype), **{**tables(32), "pos": positions},
    ).check()  # fmt: skip
