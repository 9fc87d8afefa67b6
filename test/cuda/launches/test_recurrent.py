"""Convolutions, gates and the delta rule on emulated kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

NUMERICS = ["dequant", "int8", "two_pass_int8"]


@pytest.mark.parametrize("taps, rows", [(3, 1), (4, 1), (4, 2), (4, 3), (4, 5), (4, 40), (1, 2)])
def test_conv(compare: Any, random: Any, out: Any, taps: int, rows: int):
    """Fewer rows than taps shift the ring, more replace it; rows of several blocks."""
    compare(
        f"launch.conv %x by %w ring %r into %y (chan = 160, taps = {taps}, rows = {rows})\n"
        f"launch.conv %x by %w ring %s into %z (chan = 160, taps = {taps}, rows = {rows}) silu\n"
        f"launch.conv %x by %w ring %t into %u (chan = 160, taps = {taps}, rows = {rows}) silu l2 40 eps 1.0e-06",
        x=random(rows, 160), w=random(160, taps), r=random(taps, 160), s=random(taps, 160), t=random(taps, 160),
        y=out((rows, 160)), z=out((rows, 160)), u=out((rows, 160)),
    ).check()  # fmt: skip


@pytest.mark.parametrize("seqs", [1, 3])
def test_conv_parts(compare: Any, random: Any, out: Any, seqs: int):
    """Parts with a norm and without, of which one is no whole number of blocks; of sequences, each its own ring."""
    compare(
        "launch.conv_parts [%a by %wa ring %ra into %ya chan = 96, %b by %wb ring %rb into %yb chan = 128 l2,"
        f" %c by %wc ring %rc into %yc chan = 64 l2] (taps = 4, block = 64, seqs = {seqs}) eps = 1.0e-06",
        a=random(seqs, 96), wa=random(96, 4), ra=random(seqs * 4, 96), ya=out((seqs, 96)),
        b=random(seqs, 128), wb=random(128, 4), rb=random(seqs * 4, 128), yb=out((seqs, 128)),
        c=random(seqs, 64), wc=random(64, 4), rc=random(seqs * 4, 64), yc=out((seqs, 64)),
    ).check()  # fmt: skip


def test_gates(compare: Any, random: Any, out: Any):
    """Also far out, where softplus is the identity."""
    a = random(5, 6)
    a[0, 0] = 60
    compare(
        "launch.gates %b, %a, %dt, %al into %beta, %y (n = 30, heads = 6)\n"
        "launch.decay %a, %dt, %al into %z (n = 30, heads = 6)",
        b=random(5, 6), a=a, dt=random(6), al=-np.abs(random(6)), beta=out((5, 6)), y=out((5, 6)), z=out((5, 6)),
    ).check()  # fmt: skip


@pytest.mark.parametrize("heads, k, split", [(6, 256, 1), (40, 1000, 3), (32, 2048, 8)])
def test_gate_projections(compare: Any, random: Any, out: Any, transposed: Any, heads: int, k: int, split: int):
    """Weights stored by rows, and by columns."""
    wb, wa, common = random(heads, k) / 16, random(heads, k) / 16, {"dt": random(heads), "al": -np.abs(random(heads))}
    launches = "launch.gate_proj %x by %wb, %wa, %dt, %al into %beta, %y (k = {k}, heads = {h}) split = {s}"
    launches = launches.format(k=k, h=heads, s=split)
    for stored in (np.asarray, transposed):
        compare(
            launches, x=random(k), wb=stored(wb), wa=stored(wa), beta=out((heads,)), y=out((heads,)), **common
        ).check()


@pytest.mark.parametrize("order", ["blocked", "cyclic"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "hv, hk, d, rows, seqs", [(4, 2, 64, 1, 1), (2, 1, 128, 5, 1), (4, 4, 16, 3, 2), (4, 2, 32, 35, 1)]
)
def test_delta(
    compare: Any, random: Any, out: Any, order: str, dtype: Any, hv: int, hk: int, d: int, rows: int, seqs: int
):
    """Value heads at their key heads in both orders; rows one after the other; sequences each with its state."""
    n = rows * seqs
    compare(
        f"launch.delta %q, %k, %v gate %z beta %b decay %a norm %w state %s into %y {order}"
        f" (hv = {hv}, hk = {hk}, d = {d}, rows = {rows}) seqs = {seqs} eps = 1.0e-06 f32",
        q=unit(random(n, hk, d)), k=unit(random(n, hk, d)), v=random(n, hv * d), z=random(n, hv * d),
        b=1 / (1 + np.exp(-random(n, hv))), a=np.exp(-np.abs(random(n, hv))), w=random(d),
        s=random(seqs * hv * d, d).astype(dtype), y=out((n, hv * d)),
    ).check(4e-6)  # fmt: skip  # a chain of updates, each with the roundings of one


def unit(x: Any) -> Any:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(len(x), -1)


@pytest.mark.parametrize("numerics", ["int8", "two_pass_int8"])
@pytest.mark.parametrize("d, f32", [(64, "f32 "), (64, ""), (16, "f32 "), (16, "")])
def test_delta_quantized(compare: Any, random: Any, out: Any, numerics: str, d: int, f32: str):
    got = compare(
        "launch.delta %q, %k, %v gate %z beta %b decay %a norm %w state %s into %y blocked"
        f" (hv = 4, hk = 2, d = {d}, rows = 2) eps = 1.0e-06 {f32}quant", numerics,
        q=unit(random(2, 2, d)), k=unit(random(2, 2, d)), v=random(2, 4 * d), z=random(2, 4 * d),
        b=1 / (1 + np.exp(-random(2, 4))), a=np.exp(-np.abs(random(2, 4))), w=random(d), s=random(4 * d, d),
        y=out((2, 4 * d)),
    ).check(4e-6)  # fmt: skip
    assert [use.kernel.name for use in got.unit.uses] == (["delta"] if d == 64 else ["delta", "quant"])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "d, rows, seqs, order",
    [(64, 64, 1, "blocked"), (32, 33, 2, "cyclic"), (48, 31, 1, "blocked"), (128, 17, 1, "cyclic")],
)
def test_delta_in_chunks(compare: Any, random: Any, out: Any, dtype: Any, d: int, rows: int, seqs: int, order: str):
    """Whole chunks and ones that are not full; decays that forget everything between rows."""
    n = rows * seqs
    a = np.exp(-np.abs(random(n, 4)))
    a[5], a[-3, 1] = 0, 1e-30
    got = compare(
        f"launch.delta %q, %k, %v gate %z beta %b decay %a norm %w state %s into %y {order}"
        f" (hv = 4, hk = 2, d = {d}, rows = {rows}) seqs = {seqs} eps = 1.0e-06 f32 quant", "int8",
        q=unit(random(n, 2, d)), k=unit(random(n, 2, d)), v=random(n, 4 * d), z=random(n, 4 * d),
        b=1 / (1 + np.exp(-random(n, 4))), a=a, w=random(d), s=random(seqs * 4 * d, d).astype(dtype), y=out((n, 4 * d)),
    ).check(1e-5)  # fmt: skip  # a chunk's updates as products, in another order
    names = [use.kernel.name for use in got.unit.uses]
    assert names == ["delta_chunks", "delta_finish", *(["quant"] if d == 48 else [])]
