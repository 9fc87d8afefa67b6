"""Chips, and the numbers of the kernels: bounds that every choice keeps, and the choices for shapes of real models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lane_mlir.chips import CHIPS, DEFAULT_CHIP, chip
from lane_mlir.cuda.kernels.attention import (
    attended_span,
    attention_per_block,
    attention_splits,
    attn_shared_smem_bytes,
    attn_shared_splits,
    chunks_apart,
)
from lane_mlir.cuda.kernels.gemm import gemm_f32_splits
from lane_mlir.cuda.kernels.gemv import gemv_f32_parts, rows_a_warp, split_gemv
from lane_mlir.diagnostics import LaneError
from lane_mlir.formats import Format

SIZES = st.integers(1, 200_000)
FORMATS = st.sampled_from(list(Format))


def test_chips() -> None:
    assert chip().name == DEFAULT_CHIP == "h200"
    assert (chip().arch, chip().multiprocessors, chip().shared_memory_bytes) == ("sm_90a", 132, 227 * 1024)
    assert {name for name, c in CHIPS.items() if c.programmatic_launch} == {"h100", "h200", "b200", "rtx5090"}
    assert all(name == c.name for name, c in CHIPS.items())
    with pytest.raises(LaneError, match="unknown chip 'h20'; did you mean 'h200'"):
        chip("h20")


@given(FORMATS, SIZES, SIZES, st.integers(1, 16))
def test_rows_a_warp_are_whole(fmt: Format, n: int, k: int, m: int) -> None:
    rows = rows_a_warp(fmt, n, k, m)
    assert rows in (1, 2, 4)
    assert n % rows == 0


def test_rows_a_warp_grow_with_the_product() -> None:
    """As measured: a router's rows, those of a small or of a large model's products; products side by side."""
    assert [rows_a_warp(Format.Q8_0, n, 4096, 1) for n in (128, 4096, 14336)] == [1, 2, 4]
    assert rows_a_warp(Format.Q8_0, 4096 + 2 * 1024, 4096, 1, 1024) == 4
    assert rows_a_warp(Format.Q8_0, 9 + 8191, 4096, 1, 1) == 1
    assert rows_a_warp(Format.Q8_0, 4096, 4096, 16) == 2


def test_fewer_blocks_have_more_on_their_way() -> None:
    def split(n: int, k: int, weights: int = 1) -> tuple[int, int, int]:
        rows = rows_a_warp(Format.Q8_0, n, k, 1)
        found = split_gemv(
            Format.Q8_0, n, k, 1, words=1, per_warp=rows, whole_blocks=True, multiprocessors=132, weights=weights
        )
        return found.rows, found.warps, found.depth

    assert split(4096, 12288) == (2, 16, 4)
    assert split(12288, 4096, weights=2) == (4, 8, 1)
    assert split(151936, 4096) == (4, 8, 1)
    assert split(4096, 1024) == (2, 16, 1)  # a row is one step


@given(SIZES, SIZES, st.sampled_from([84, 132, 170]))
def test_f32_parts(n: int, k: int, multiprocessors: int) -> None:
    assert 1 <= gemv_f32_parts(n, k, multiprocessors) <= k


@given(st.integers(1, 4000), st.sampled_from([84, 132, 170]), st.integers(1, 500))
def test_f32_splits_keep_steps(tiles: int, multiprocessors: int, steps: int) -> None:
    splits = gemm_f32_splits(tiles, multiprocessors, steps)
    assert splits == 1 or (steps // splits >= 4 and tiles * splits <= multiprocessors)


@given(st.integers(1, 128))
def test_heads_a_block_divide_a_group(group: int) -> None:
    heads = attention_per_block(group)
    assert 1 <= heads <= 8
    assert group % heads == 0


@given(st.integers(1, 200_000), st.integers(1, 512), st.integers(1, 128))
def test_context_splits(span: int, rows: int, blocks: int) -> None:
    splits = attention_splits(span, rows, blocks, 132)
    assert 1 <= splits <= 64
    assert splits == 1 or rows * blocks * splits <= 2 * 132
    assert not chunks_apart(1, rows, blocks, 132)


def test_attention_of_real_models() -> None:
    # 8 key heads, one row: 8 blocks over heads leave the card idle; a chunk of 64 rows does not.
    splits = attention_splits(4096, 1, 8, 132)
    assert splits > 1
    assert chunks_apart(splits, 1, 8, 132)
    assert attention_splits(4096, 64, 8, 132) == 1
    assert not chunks_apart(2, 64, 8, 132)
    assert attended_span(4096, None) == 4096
    assert attended_span(4096, 512) == 512
    assert attended_span(256, 512) == 256
    assert 1 == attn_shared_splits(16, 132) < attn_shared_splits(4096, 132) <= 132
    # Absorbed latent attention: 16 heads of 576 fit a block of an H200, 128 of them do not.
    assert attn_shared_smem_bytes(16, 576) <= chip("h200").shared_memory_bytes < attn_shared_smem_bytes(128, 576)
