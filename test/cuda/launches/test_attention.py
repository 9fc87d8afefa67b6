"""Attention on emulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.utils.exceptions import VerifyException

DTYPES = [np.float16, np.float32]
WEIGHTS = 4e-6
"""Of the largest result: sums of weights and products in another order, exponentials in base 2."""


@pytest.fixture
def cache(random: Any) -> Any:
    """Rows of a cache up to a position, NaN beyond: what is not attended must not be read."""

    def make(length: int, width: int, dtype: Any, position: int, first: int = 0) -> Any:
        rows = np.full((length, width), np.nan, dtype)
        rows[first : position + 1] = random(position + 1 - first, width)
        return rows

    return make


def at(position: int) -> Any:
    return np.array([position], np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 1, 127, 128, 255, 256, 300, 511])
def test_one_row(compare: Any, random: Any, out: Any, cache: Any, dtype: Any, position: int):
    """Contexts of one key, around the length from which there are several parts, and full."""
    got = compare(
        "launch.attention %q, %k, %v at %pos into %y (heads = 6, group = 3, hd = 64, vd = 64, len = 512, rows = 1)"
        " values 128 + 0 scale = 0.125 (per_block = 3, splits = 8) parallel f32 quant", "int8",
        q=random(1, 384), k=cache(512, 128, dtype, position), v=cache(512, 128, dtype, position), pos=at(position),
        y=out((1, 384)),
    ).check(WEIGHTS)  # fmt: skip
    assert [use.kernel.grid for use in got.unit.uses] == [(2 if dtype == np.float16 else 4, 2, 1)]


@pytest.mark.parametrize(
    "heads, group, hd, vd, per_block",
    [(4, 4, 128, 128, 4), (8, 8, 128, 128, 8), (7, 7, 64, 64, 7), (2, 1, 96, 80, 1), (4, 4, 256, 256, 4), (2, 2, 20, 12, 2),
     (4, 4, 16, 8, 4), (6, 6, 576, 512, 6)],
)  # fmt: skip
def test_head_widths_and_groups(
    compare: Any, random: Any, out: Any, cache: Any, heads: int, group: int, hd: int, vd: int, per_block: int
):
    kv, position = heads // group, 333
    compare(
        f"launch.attention %q, %k, %v at %pos into %y (heads = {heads}, group = {group}, hd = {hd}, vd = {vd}, len = 400,"
        f" rows = 1) values {kv * vd} + 0 scale = 0.1 (per_block = {per_block}, splits = 3) parallel f32",
        q=random(1, heads * hd), k=cache(400, kv * hd, np.float16, position), v=cache(400, kv * vd, np.float16, position),
        pos=at(position), y=out((1, heads * vd)),
    ).check(WEIGHTS)  # fmt: skip


@pytest.mark.parametrize("window", [1, 15, 16, 17, 200, 1000])
@pytest.mark.parametrize("position", [0, 16, 230])
def test_window_sinks_and_softcap(compare: Any, random: Any, out: Any, cache: Any, window: int, position: int):
    """Only rows inside the window are read; sinks take weight; the rows of a chunk have windows of their own."""
    first = max(0, position - window + 1)
    compare(
        "launch.attention %q, %k, %v at %pos sinks %s into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 1)"
        f" values 64 + 0 scale = 0.3 window = {window} softcap = 5.0 (per_block = 2, splits = 2) parallel f32",
        q=3 * random(1, 128), k=cache(256, 64, np.float16, position, first), v=cache(256, 64, np.float16, position, first),
        s=3 * random(4), pos=at(position), y=out((1, 128)),
    ).check(WEIGHTS)  # fmt: skip


def test_a_few_rows_of_a_chunk(compare: Any, random: Any, out: Any, cache: Any):
    compare(
        "launch.attention %q, %k, %v at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 5)"
        " values 64 + 0 scale = 0.3 window = 130 (per_block = 2, splits = 2) parallel f32 quant", "two_pass_int8",
        q=random(5, 128), k=cache(256, 64, np.float32, 204), v=cache(256, 64, np.float32, 204), pos=at(200),
        y=out((5, 128)),
    ).check(WEIGHTS)  # fmt: skip


def test_without_a_position_and_in_one_part(compare: Any, random: Any, out: Any, cache: Any):
    """The first rows of a step, whose keys are made in it."""
    compare(
        "launch.attention %q, %k, %v into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 3, rows = 3)"
        " values 64 + 0 scale = 0.3 (per_block = 2, splits = 1) f32",
        q=random(3, 128), k=random(3, 64), v=random(3, 64), y=out((3, 128)),
    ).check(WEIGHTS)  # fmt: skip


@pytest.mark.parametrize("act", ["sigmoid", "silu"])
def test_gate(compare: Any, random: Any, out: Any, cache: Any, act: str):
    compare(
        f"launch.attention %q, %k, %v at %pos gate {act} %g + 64 into %y"
        " (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 1)"
        " values 64 + 0 scale = 0.3 (per_block = 2, splits = 2) parallel f32",
        q=random(1, 128), k=cache(256, 64, np.float32, 204), v=cache(256, 64, np.float32, 204), g=random(200), pos=at(204),
        y=out((1, 128)),
    ).check(WEIGHTS)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_at_positions_of_their_own(compare: Any, random: Any, out: Any, cache: Any, dtype: Any):
    positions = [0, 255, 130]
    k, v = (np.concatenate([cache(256, 64, dtype, p) for p in positions]) for _ in range(2))
    compare(
        "launch.attention %q, %k, %v at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 3)"
        f" values 64 + 0 scale = 0.3 (per_block = 2, splits = 2) parallel seq = {256 * 64} f32 quant", "int8",
        q=random(3, 128), k=k, v=v, pos=np.array(positions, np.int32), y=out((3, 128)),
    ).check(WEIGHTS)  # fmt: skip


@pytest.mark.parametrize("position", [0, 31, 32, 150])
def test_all_heads_share_key_rows(compare: Any, random: Any, out: Any, cache: Any, position: int):
    """Absorbed MLA, the context in as many parts as `shared` says, of 32 positions at least."""
    got = compare(
        "launch.attention %q, %k, %k at %pos into %y (heads = 16, group = 16, hd = 96, vd = 64, len = 256, rows = 1)"
        " values 96 + 0 scale = 0.1 (per_block = 8, splits = 2) parallel shared = 8 f32 quant", "int8",
        q=random(1, 16 * 96), k=cache(256, 96, np.float16, position), pos=at(position), y=out((1, 16 * 64)),
    ).check(WEIGHTS)  # fmt: skip
    assert got.unit.uses[0].kernel.grid == (8, 2, 1)


@pytest.mark.parametrize("hd, vd", [(96, 64), (576, 512)])
def test_values_inside_the_key_rows(compare: Any, random: Any, out: Any, cache: Any, hd: int, vd: int):
    """Absorbed MLA with heads apart: one key row for all heads, whose first columns are the value."""
    position = 150
    compare(
        f"launch.attention %q, %k, %k at %pos into %y (heads = 4, group = 4, hd = {hd}, vd = {vd}, len = 256, rows = 1)"
        f" values {hd} + 0 scale = 0.1 (per_block = 4, splits = 2) parallel f32",
        q=random(1, 4 * hd), k=cache(256, hd, np.float16, position), pos=at(position), y=out((1, 4 * vd)),
    ).check(WEIGHTS)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_tails_in_arrays_of_their_own(compare: Any, random: Any, out: Any, cache: Any, dtype: Any):
    position = 150
    compare(
        "launch.attention %q, %k, %v at %pos tails %qt, %kt"
        "[own = 32 q_pitch = 48 q_tail 24 from 8 k_tail 40 from 24] into %y"
        " (heads = 4, group = 2, hd = 48, vd = 24, len = 256, rows = 1) values 96 + 48 scale = 0.3"
        " (per_block = 2, splits = 2) parallel f32",
        q=random(4, 48), qt=random(4, 24), k=cache(256, 64, np.float32, position), kt=cache(256, 40, dtype, position),
        v=cache(256, 96, dtype, position), pos=at(position), y=out((1, 96)),
    ).check(WEIGHTS)  # fmt: skip


def test_heads_that_share_blocks_are_quantized_apart(compare: Any, random: Any, out: Any, cache: Any):
    got = compare(
        "launch.attention %q, %k, %v at %pos into %y (heads = 4, group = 1, hd = 16, vd = 16, len = 64, rows = 1)"
        " values 64 + 0 scale = 0.3 (per_block = 1, splits = 1) quant", "int8",
        q=random(1, 64), k=cache(64, 64, np.float32, 40), v=cache(64, 64, np.float32, 40), pos=at(40), y=out((1, 64)),
    ).check(WEIGHTS)  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == ["attention", "quant"]


def test_large_scores_and_sinks(compare: Any, random: Any, out: Any, cache: Any):
    """Scores of several hundred, and a sink far above all of them: no overflow, no NaN."""
    sinks = np.array([-500, 90000, 0, 3], np.float32)
    got = compare(
        "launch.attention %q, %k, %v at %pos sinks %s into %y (heads = 4, group = 4, hd = 32, vd = 32, len = 256, rows = 1)"
        " values 32 + 0 scale = 8.0 (per_block = 4, splits = 2) parallel f32",
        q=8 * random(1, 128), k=cache(256, 32, np.float16, 250), v=cache(256, 32, np.float16, 250), s=sinks, pos=at(250),
        y=out((1, 128)),
    ).check(1e-4)  # fmt: skip  # weights of scores of 1e3, each with a relative error of 2^-24
    assert (np.abs(got.emulated("y")[0, 32:64]) < 1e-30).all()


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize(
    "heads, group, hd, vd, rows, position, how",
    [(4, 2, 64, 64, 40, 0, ""), (4, 4, 32, 32, 17, 100, "window = 20"), (3, 3, 80, 48, 34, 61, "softcap = 5.0"),
     (2, 1, 128, 128, 70, 5, ""), (2, 2, 256, 256, 18, 30, "window = 100")],
)  # fmt: skip
def test_chunk(
    compare: Any, random: Any, out: Any, cache: Any, numerics: str, heads: int, group: int, hd: int, vd: int, rows: int,
    position: int, how: str,
):  # fmt: skip
    """Rows at positions of their own, tiles that some of them attend, windows that begin inside one, sinks, a gate."""
    kv, length = heads // group, 256
    first = 0 if "window" not in how else max(0, position - int(how.split()[2]) + 1)
    got = compare(
        f"launch.attention %q, %k, %v at %pos sinks %s gate sigmoid %g into %y (heads = {heads}, group = {group}, hd = {hd},"
        f" vd = {vd}, len = {length}, rows = {rows}) values {kv * vd} + 0 scale = 0.1 {how} (per_block = {group}, splits = 2)"
        " parallel f32 quant", numerics,
        q=random(rows, heads * hd), k=cache(length, kv * hd, np.float16, position + rows - 1, first),
        v=cache(length, kv * vd, np.float16, position + rows - 1, first), s=random(heads), g=random(rows * heads * vd),
        pos=at(position), y=out((rows, heads * vd)),
    ).check(WEIGHTS)  # fmt: skip
    assert got.unit.uses[0].kernel.name == "attention_flash"


@pytest.fixture
def tables() -> dict[str, Any]:
    angles = np.outer(np.arange(400), 0.7 ** np.arange(16))
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


F16_KEY = 1e-3
"""Of the largest result: the newest key may be rounded to the other f16, which is 2⁻¹¹ of it."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 15, 16, 128, 399])
@pytest.mark.parametrize("heads, group, per_block", [(6, 3, 3), (2, 1, 1), (16, 16, 8)])
def test_blocks_rotate_the_heads_that_they_read(
    compare: Any, random: Any, out: Any, cache: Any, tables: Any,
    dtype: Any, position: int, heads: int, group: int, per_block: int,
):  # fmt: skip
    """The newest key is in no cache yet; it is normed, as the queries are, and its last columns are copied."""
    hd, kv = 64, heads // group
    keys = cache(400, kv * hd, dtype, position)
    keys[position] = np.nan
    got = compare(
        f"""launch.fold {{
          launch.rope_parts [%x norm %gq eps 1.0e-05 into %q heads = {heads} per_row = {heads},
            %xk norm %gk eps 1.0e-05 into %k at row %pos pitch {kv * hd} heads = {kv} per_row = {kv}]
            by %cos, %sin at %pos pairing half (hd = {hd}, half = 16)
          launch.attention %q, %k, %v at %pos into %y (heads = {heads}, group = {group}, hd = {hd}, vd = 32, len = 400,
            rows = 1) values {kv * 32} + 0 scale = 0.3 (per_block = {per_block}, splits = 3) parallel f32 quant
        }}""", "int8",
        x=random(1, heads * hd), xk=random(1, kv * hd), gq=random(hd), gk=random(hd), q=out((1, heads * hd)), k=keys,
        v=cache(400, kv * 32, dtype, position), pos=at(position), y=out((1, heads * 32)), **tables,
    ).check(F16_KEY if dtype == np.float16 else WEIGHTS)  # fmt: skip
    assert got.text.count("__global__") == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 3, 204])
def test_queries_alone_are_rotated(
    compare: Any, random: Any, out: Any, cache: Any, tables: Any, dtype: Any, position: int
):
    """The newest key is in the cache, among the first that a warp takes or not."""
    compare(
        """launch.fold {
          launch.rope %x by %cos, %sin at %pos into %q pairing interleaved (heads = 4, per_row = 4, hd = 32, half = 16)
          launch.attention %q, %k, %v at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 1)
            values 64 + 0 scale = 0.3 (per_block = 2, splits = 2) parallel f32
        }""",
        x=random(1, 128), q=out((1, 128)), k=cache(256, 64, dtype, position), v=cache(256, 64, dtype, position), pos=at(position),
        y=out((1, 128)), **tables,
    ).check(WEIGHTS)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_rotate_the_heads_of_sequences(compare: Any, random: Any, out: Any, cache: Any, tables: Any, dtype: Any):
    positions = [0, 255, 130]
    k, v = (np.concatenate([cache(256, 64, dtype, p) for p in positions]) for _ in range(2))
    for row, position in enumerate(positions):
        k[256 * row + position] = np.nan
    compare(
        f"""launch.fold {{
          launch.rope_parts [%x into %q heads = 12 per_row = 4,
            %xk into %k at row %pos pitch 64 heads = 6 per_row = 2 apart {256 * 64}]
            by %cos, %sin at %pos pairing half (hd = 32, half = 16) seqs
          launch.attention %q, %k, %v at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 3)
            values 64 + 0 scale = 0.3 (per_block = 2, splits = 2) parallel seq = {256 * 64} f32
        }}""",
        x=random(3, 128), xk=random(3, 64), q=out((3, 128)), k=k, v=v, pos=np.array(positions, np.int32),
        y=out((3, 128)), **tables,
    ).check(F16_KEY if dtype == np.float16 else WEIGHTS)  # fmt: skip


def test_rows_of_a_chunk_do_not_rotate_the_keys_of_others(compare: Any, random: Any, out: Any, cache: Any, tables: Any):
    with pytest.raises(VerifyException, match="each of its 2 rows attends keys that other rows rotate"):
        compare(
            """launch.fold {
              launch.rope %x by %cos, %sin at %pos into %q pairing half (heads = 8, per_row = 4, hd = 32, half = 16)
              launch.attention %q, %k, %v at %pos into %y (heads = 4, group = 2, hd = 32, vd = 32, len = 256, rows = 2)
                values 64 + 0 scale = 0.3 (per_block = 2, splits = 2) parallel f32
            }""",
            x=random(2, 128), q=out((2, 128)), k=cache(256, 64, np.float32, 205), v=cache(256, 64, np.float32, 205),
            pos=at(204), y=out((2, 128)), **tables,
        )  # fmt: skip
