"""The questions a launch answers, on both sides of each condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.delta import delta_chunks_take
from lane_mlir.cuda.kernels.gemm import GEMM_BLK_TILE_M, GEMM_TILE_N, gemm_blk_rows
from lane_mlir.cuda.kernels.gemv import GEMV_MMA_MIN_ROWS
from lane_mlir.dialects.launch import LaunchOp, ScheduleOp, Touch, buffer_of
from lane_mlir.dialects.tg import Numerics
from lane_mlir.formats import Format

DEQUANT, INT8, TWO_PASS = Numerics.DEQUANT, Numerics.INT8, Numerics.TWO_PASS_INT8
PLAIN, QUANT = Touch.PLAIN, Touch.QUANT

Launch = Callable[[str], LaunchOp]
Value = Callable[[LaunchOp, str], SSAValue]


def gemv(m: int = 1, n: int = 32, k: int = 64, fmt: str = "q8_0", tail: str = " f32") -> str:
    return f"launch.gemv %x:{m * k} by %w:{n * k}<{fmt}> into %y:{m * n} (k = {k}, n = {n}, m = {m}){tail}"


def gemm_parts(m: int = 1, n: int = 32, k: int = 64, fmt: str = "q8_0", tail: str = "") -> str:
    return (
        f"launch.gemm_parts %x:{m * k} by [%w:{n * k} into %y:{m * n} n = {n}, %v:{2 * n * k} into "
        f"%z:{m * 2 * n} n = {2 * n}] [{fmt}, {fmt}] (k = {k}, m = {m}){tail}"
    )


def glu(m: int = 1, n: int = 32, k: int = 64, fmts: str = "q8_0, q8_0", tail: str = " f32") -> str:
    return (
        f"launch.gemv_glu %x:{m * k} by %wg:{n * k}, %wu:{n * k} [{fmts}] into %y:{m * n} "
        f"(k = {k}, n = {n}, m = {m}){tail}"
    )


def moe(rows: int = 1, fmts: str = "q8_0, q8_0, q8_0", router: str = "", shared: str = "", tail: str = "") -> str:
    return (
        f"launch.moe %x:{rows * 64} router %wr:4x64{router} experts %wg:4x32x64, %wu:4x32x64, %wd:4x64x32 [{fmts}]"
        f"{shared} into %y:{rows * 64} score softmax act silu (d = 64, dff = 32, experts = 4, k = 2, rows = {rows}){tail}"
    )


def attention(
    rows: int = 17,
    hd: int = 64,
    vd: int = 64,
    vstride: int | None = None,
    voff: int = 0,
    seq: bool = False,
    tails: str = "",
    q: int | None = None,
    own: int | None = None,
) -> str:
    stride = vd if vstride is None else vstride
    length = 8
    key = length * (hd if own is None else own)
    value = length * (stride + voff)
    per = max(key, value)
    return (
        f"launch.attention %q:{q or rows * 2 * hd}, %k:{rows * per if seq else key}, %v:{rows * per if seq else value}"
        f"{tails} into %o:{rows * 2 * vd} (heads = 2, group = 2, hd = {hd}, vd = {vd}, len = {length}, rows = {rows}) "
        f"values {stride} + {voff} scale = 0.5 (per_block = 2, splits = 1){f' seq = {per}' if seq else ''} f32"
    )


def delta(rows: int = 17, d: int = 64) -> str:
    return (
        f"launch.delta %q:{rows * d}, %k:{rows * d}, %v:{rows * d} gate %z:{rows * d} beta %b:{rows} decay %a:{rows} "
        f"norm %g:{d} state %s:{d * d} into %o:{rows * d} blocked (hv = 1, hk = 1, d = {d}, rows = {rows}) eps = 0.1 f32"
    )


def heads(m: int = 17, a: int = 32, part: tuple[int, int] | None = None, tail: str = "") -> str:
    size = m * 2 * (a if part is None else part[0])
    where = "" if part is None else f" every {part[0]} from {part[1]}"
    return (
        f"launch.head_gemv %x:{size}{where} by %w:{2 * 16 * a}<q8_0> into %y:{m * 2 * 16} "
        f"(m = {m}, heads = 2, a = {a}, b = 16){tail}"
    )


def gemv_f32(m: int = 17, k: int = 64, place: str = "") -> str:
    size = m * 8 if not place else 64 * 8
    return f"launch.gemv_f32 %x:{m * k} by %w:{8 * k} into %y:{size}{place} (k = {k}, n = 8, m = {m})"


BATCH = " f32 batch"
MMA = GEMV_MMA_MIN_ROWS


@pytest.mark.parametrize(
    ("text", "numerics", "expected"),
    [
        (gemv(m=17), INT8, True),
        (gemv(m=17), TWO_PASS, True),
        (gemv(m=17), DEQUANT, False),
        (gemv(m=16), INT8, False),
        (gemv(m=17, tail=BATCH), INT8, False),
        (gemv(m=17, fmt="q4_1"), INT8, True),
        (gemv(m=17, fmt="f16"), INT8, False),
        (gemm_parts(m=17), INT8, True),
        (gemm_parts(m=16), INT8, False),
        (gemm_parts(m=17, tail=" batch"), INT8, False),
        (glu(m=17), INT8, True),
        (glu(m=16), INT8, False),
        (glu(m=17, tail=BATCH), INT8, False),
        (glu(m=17, fmts="q8_0, bf16"), INT8, False),
        (moe(rows=17), INT8, True),
        (moe(rows=16), INT8, False),
        (moe(rows=17, tail=" batch"), INT8, False),
        (gemv_f32(m=17), INT8, False),
        (heads(m=17), INT8, False),
    ],
)
def test_on_tensor_cores(launch: Launch, text: str, numerics: Numerics, expected: bool) -> None:
    assert launch(text).on_tensor_cores(numerics) is expected


@pytest.mark.parametrize(
    ("text", "numerics", "expected"),
    [
        (gemv(m=MMA, tail=BATCH), INT8, True),
        (gemv(m=MMA, tail=BATCH), DEQUANT, False),
        (gemv(m=MMA - 1, tail=BATCH), INT8, False),
        (gemv(m=MMA), INT8, False),
        (gemv(m=MMA, n=12, tail=BATCH), INT8, False),
        (gemv(m=MMA, k=48, tail=BATCH), INT8, False),
        (gemv(m=MMA, fmt="q4_0", tail=BATCH), INT8, False),
        (gemv(m=MMA, tail=" f32 quant batch"), INT8, False),
        (gemv(m=MMA, tail=" quant batch"), INT8, False),
        (gemm_parts(m=MMA, tail=" batch"), TWO_PASS, True),
        (gemm_parts(m=MMA - 1, tail=" batch"), INT8, False),
        (gemm_parts(m=MMA, n=12, tail=" batch"), INT8, False),
        (gemm_parts(m=MMA, k=48, tail=" batch"), INT8, False),
        (gemm_parts(m=MMA, fmt="q5_0", tail=" batch"), INT8, False),
        (gemm_parts(m=MMA), INT8, False),
        (glu(m=MMA, tail=BATCH), INT8, True),
        (glu(m=MMA, tail=" quant batch"), INT8, True),
        (glu(m=MMA, n=40, tail=BATCH), INT8, False),
        (glu(m=MMA, fmts="q8_0, q4_0", tail=BATCH), INT8, False),
        (moe(rows=MMA, tail=" batch"), INT8, False),
    ],
)
def test_batch_on_tensor_cores(launch: Launch, text: str, numerics: Numerics, expected: bool) -> None:
    assert launch(text).batch_on_tensor_cores(numerics) is expected


TAILS = " tails %qt:{qt}, %kt:{kt}[own = {own} q_pitch = {qp} q_tail {qtp} from {qto} k_tail {ktp} from {kto}]"


def split(
    own: int = 32, qp: int = 32, qtp: int = 32, qto: int = 0, ktp: int = 32, kto: int = 0, hd: int = 64, rows: int = 17
) -> str:
    tail = hd - own
    units = rows * 2
    qt, kt = (units - 1) * qtp + qto + tail, 7 * ktp + kto + tail
    tails = TAILS.format(qt=qt, kt=kt, own=own, qp=qp, qtp=qtp, qto=qto, ktp=ktp, kto=kto)
    return attention(rows=rows, hd=hd, tails=tails, own=own, q=rows * 2 * qp)


@pytest.mark.parametrize(
    ("text", "numerics", "expected"),
    [
        (attention(rows=17), INT8, True),
        (attention(rows=17), DEQUANT, False),
        (attention(rows=16), INT8, False),
        (attention(rows=17, seq=True), INT8, False),
        (attention(hd=66), INT8, False),
        (attention(vd=66), INT8, False),
        (attention(vd=512), INT8, True),
        (attention(vd=516), INT8, False),
        (attention(vstride=66), INT8, False),
        (attention(vstride=72, voff=2), INT8, False),
        (attention(vstride=72, voff=4), INT8, True),
        (split(), INT8, True),
        (split(own=30, qp=32, qtp=36, ktp=36), INT8, False),
        (split(qp=34), INT8, False),
        (split(qtp=34), INT8, False),
        (split(qtp=36, qto=2), INT8, False),
        (split(ktp=34), INT8, False),
        (split(ktp=36, kto=2), INT8, False),
        (split(ktp=36, kto=4), INT8, True),
    ],
)
def test_attends_in_tiles(launch: Launch, text: str, numerics: Numerics, expected: bool) -> None:
    assert launch(text).attends_in_tiles(numerics) is expected


@pytest.mark.parametrize(
    ("text", "numerics", "kernel"),
    [
        (attention(hd=64, vd=64), INT8, "tensor cores"),
        (attention(hd=80, vd=64), INT8, "tensor cores"),
        (attention(hd=72, vd=64), INT8, "flash"),
        (attention(hd=64, vd=72), INT8, "flash"),
        (attention(hd=256, vd=256), INT8, "tensor cores"),
        (attention(hd=272, vd=64), INT8, ""),
        (attention(hd=64, vd=272), INT8, ""),
        (attention(rows=16), INT8, ""),
        (attention(hd=64, vd=96), TWO_PASS, "two words"),
        (attention(hd=80, vd=64), TWO_PASS, "flash"),
        (attention(hd=64, vd=80), TWO_PASS, "flash"),
        (attention(hd=288, vd=64), TWO_PASS, ""),
        (attention(hd=64, vd=64), DEQUANT, ""),
    ],
)
def test_attention_kernel(launch: Launch, text: str, numerics: Numerics, kernel: str) -> None:
    op = launch(text)
    chosen = {
        "tensor cores": op.attends_on_tensor_cores(numerics),
        "two words": op.attends_in_two_words(numerics),
        "flash": op.attends_flash(numerics),
    }
    assert [name for name, on in chosen.items() if on] == ([kernel] if kernel else [])


@pytest.mark.parametrize(
    ("text", "numerics", "expected"),
    [
        (heads(), INT8, True),
        (heads(), DEQUANT, False),
        (heads(m=16), INT8, False),
        (heads(a=34), INT8, False),
        (heads(part=(36, 4)), INT8, True),
        (heads(part=(38, 4)), INT8, False),
        (heads(part=(36, 2)), INT8, False),
        (heads(tail=" batch"), INT8, False),
    ],
)
def test_heads_in_tiles(launch: Launch, value: Value, text: str, numerics: Numerics, expected: bool) -> None:
    op = launch(text)
    assert op.heads_in_tiles(numerics) is expected
    # The tile kernel reads an input of any type; the other one f32 only.
    assert op.typed(numerics) == ((value(op, "x"), value(op, "y")) if expected else (value(op, "y"),))


@pytest.mark.parametrize(
    ("text", "numerics", "expected"),
    [
        (delta(), INT8, True),
        (delta(), DEQUANT, False),
        (delta(rows=16), INT8, False),
        *((delta(d=d), TWO_PASS, delta_chunks_take(d)) for d in (16, 72, 128, 144, 1024)),
    ],
)
def test_delta_in_chunks(launch: Launch, text: str, numerics: Numerics, expected: bool) -> None:
    assert launch(text).delta_in_chunks(numerics) is expected


@pytest.mark.parametrize(
    ("text", "numerics", "expected"),
    [
        (gemv_f32(), INT8, True),
        (gemv_f32(), DEQUANT, False),
        (gemv_f32(m=16), INT8, False),
        (gemv_f32(k=66), INT8, False),
        (gemv_f32(place=" at row 1 pitch 8"), INT8, False),
        (gemv_f32().replace("m = 17)", "m = 17) batch"), INT8, False),
        (gemv(m=17), INT8, False),
    ],
)
def test_multiplies_in_tiles(launch: Launch, text: str, numerics: Numerics, expected: bool) -> None:
    assert launch(text).multiplies_in_tiles(numerics) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (moe(rows=17), True),
        (moe(rows=17, fmts="q8_0, q8_0, q4_0"), True),
        (moe(rows=17, fmts="q8_0, q4_0, q8_0"), False),
        (moe(rows=16), False),
        (glu(m=17), False),
    ],
)
def test_pairs_gate_and_up(launch: Launch, text: str, expected: bool) -> None:
    assert launch(text).pairs_gate_and_up(INT8) is expected
    assert not launch(text).pairs_gate_and_up(DEQUANT)


def test_tiles_of_products(launch: Launch) -> None:
    wide = GEMM_TILE_N
    assert launch(gemv(n=wide)).gemm_cols() == wide
    assert launch(gemv(n=wide)).gemm_tiles_wide() == 1
    assert launch(gemv(n=wide + 1)).gemm_tiles_wide() == 2
    # The columns of products side by side count together.
    assert launch(gemm_parts(n=wide // 2)).gemm_cols() == wide // 2 * 3
    assert launch(gemm_parts(n=wide // 2)).gemm_tiles_wide() == 2
    # A gated pair has a tile's columns half and half.
    assert launch(glu(n=wide // 2)).gemm_tiles_wide() == 1
    assert launch(glu(n=wide // 2 + 1)).gemm_tiles_wide() == 2
    assert launch(glu(n=wide)).gemm_cols() == 0


def test_rows_of_tiles(launch: Launch) -> None:
    formats = (Format.Q8_0, Format.IQ4_XS)
    for text in (gemv, gemm_parts):
        ops = [launch(text(fmt=str(f), k=256)) for f in formats]
        assert [op.gemm_rows(INT8) for op in ops] == [gemm_blk_rows(f, False) for f in formats]
        assert [op.gemm_rows(TWO_PASS) for op in ops] == [gemm_blk_rows(f, True) for f in formats]
    assert launch(glu(fmts="iq4_xs, q8_0", k=256)).gemm_rows(INT8) == gemm_blk_rows(Format.IQ4_XS, False)
    assert launch(moe()).gemm_rows(TWO_PASS) == GEMM_BLK_TILE_M


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (gemv(), "gemv_q8"),
        (gemm_parts(m=16), "gemv_parts"),
        (gemm_parts(m=17), "gemm_parts"),
        (gemm_parts(m=17, tail=" batch"), "gemv_parts"),
        ("launch.norm %x:32 out %y:32 (rows = 1, cols = 32) eps = 0.1 f32", "rmsnorm"),
        ("launch.l2_norm %x:32 into %y:32 (rows = 1, cols = 32) eps = 0.1", "l2norm"),
        ("launch.gates %b:2, %a:2, %t:2, %l:2 into %y:2, %z:2 (n = 2, heads = 2)", "gates"),
        ("launch.gate_proj %x:4 by %b:8, %a:8, %t:2, %l:2 into %y:2, %z:2 (k = 4, heads = 2)", "gates"),
        (gemv_f32(), "gemv_f32"),
        (glu(), "gemv_glu"),
        (moe(), "moe"),
        (heads(), "head_gemv"),
        (attention(), "attention"),
        (delta(), "delta"),
    ],
)
def test_kind(launch: Launch, text: str, kind: str) -> None:
    assert launch(text).kind() == kind


def names(values: Iterable[SSAValue | None]) -> list[str]:
    return [buffer_of(v).label.data for v in values if v is not None]


def touched(pairs: list[tuple[SSAValue, Touch]]) -> list[tuple[str, Touch]]:
    return [(buffer_of(v).label.data, form) for v, form in pairs]


@pytest.mark.parametrize(
    ("text", "numerics", "reads", "writes"),
    [
        (gemv(), DEQUANT, [("x", PLAIN), ("w", PLAIN)], [("y", PLAIN)]),
        (gemv(), INT8, [("w", PLAIN), ("x", QUANT)], [("y", PLAIN)]),
        (gemv(fmt="f16"), INT8, [("x", PLAIN), ("w", PLAIN)], [("y", PLAIN)]),
        (gemv(tail=" f32 quant"), INT8, [("w", PLAIN), ("x", QUANT)], [("y", PLAIN), ("y", QUANT)]),
        (
            glu(fmts="q8_0, f16", tail=" quant"),
            INT8,
            [("x", PLAIN), ("wg", PLAIN), ("wu", PLAIN), ("x", QUANT)],
            [("y", QUANT)],
        ),
        (
            moe(),
            INT8,
            [("x", PLAIN), ("wr", PLAIN), ("wg", PLAIN), ("wu", PLAIN), ("wd", PLAIN), ("x", QUANT)],
            [("y", PLAIN)],
        ),
        (
            moe(router=" rows<q8_0>"),
            INT8,
            [("wr", PLAIN), ("wg", PLAIN), ("wu", PLAIN), ("wd", PLAIN), ("x", QUANT)],
            [("y", PLAIN)],
        ),
        (
            moe(router=" rows<q8_0>", fmts="bf16, bf16, q8_0"),
            INT8,
            [("x", PLAIN), ("wr", PLAIN), ("wg", PLAIN), ("wu", PLAIN), ("wd", PLAIN)],
            [("y", PLAIN)],
        ),
        (heads(m=1), INT8, [("x", PLAIN), ("w", PLAIN)], [("y", PLAIN)]),
        ("launch.quant %x:32 (n = 32)", INT8, [("x", PLAIN)], [("x", QUANT)]),
        (
            "launch.set_row %x:32 into %t:64 at row 1 pitch 32 (cols = 32, count = 1) f32",
            INT8,
            [("t", PLAIN), ("x", PLAIN)],
            [("t", PLAIN)],
        ),
        (
            "launch.set_row %x:32 into %t:64 at row %p:1 pitch 32 (cols = 32, count = 1) quant",
            INT8,
            [("p", PLAIN), ("x", QUANT)],
            [("t", QUANT)],
        ),
        (
            "launch.norm %x:32 add %a:32 sum %s:32 out %y:32 (rows = 1, cols = 32) eps = 0.1 f32 quant",
            INT8,
            [("x", PLAIN), ("a", PLAIN)],
            [("y", PLAIN), ("y", QUANT), ("s", PLAIN)],
        ),
        (
            "launch.norm %x:32 out %y:32 into %t:64 every 64 from 32 (rows = 1, cols = 32) eps = 0.1 f32 quant",
            INT8,
            [("x", PLAIN)],
            [("t", PLAIN), ("y", QUANT)],
        ),
        (delta(rows=1, d=1), INT8, [(n, PLAIN) for n in "qkvzbasg"], [("o", PLAIN), ("s", PLAIN)]),
        (
            "launch.argmax %x:4 into %i:1 (n = 4, rows = 1) advance %t:1, %p:1 item 0",
            INT8,
            [("x", PLAIN)],
            [("i", PLAIN), ("t", PLAIN), ("p", PLAIN)],
        ),
        (
            "launch.fold { "
            "launch.norm %x:32 add %a:32 sum %s:32 out %y:32 (rows = 1, cols = 32) eps = 0.1 quant "
            "launch.gemv %y by %w:32x32<q8_0> into %z:32 (k = 32, n = 32, m = 1) f32 }",
            INT8,
            [("x", PLAIN), ("a", PLAIN), ("w", PLAIN)],
            [("y", QUANT), ("s", PLAIN), ("z", PLAIN)],
        ),
    ],
)
def test_touches(
    launch: Launch,
    text: str,
    numerics: Numerics,
    reads: list[tuple[str, Touch]],
    writes: list[tuple[str, Touch]],
) -> None:
    got_reads, got_writes = launch(text).touches(numerics)
    assert touched(got_reads) == reads
    assert touched(got_writes) == writes


def test_view_touches_nothing(schedule: Callable[[str], ScheduleOp]) -> None:
    made = schedule('%v = launch.buffer "v" f32[8] alias %x + 4\nlaunch.view %x:16 from 4 into %v')
    made.verify()
    (view,) = made.launches()
    assert view.touches(INT8) == ([], [])
    assert (names(view.reads()), names(view.writes()), names(view.typed(INT8))) == (["x"], ["v"], ["x", "v"])
    assert not view.writes_whole(view.writes()[0], PLAIN, 8)
    assert made.census() == {}


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        (gemv(), ["y"]),
        (gemm_parts(), ["y", "z"]),
        (gemv_f32(), ["y"]),
        (glu(), []),
        (moe(), []),
        (split(), ["k", "v", "kt"]),
        (attention(), ["k", "v"]),
        (delta(rows=1, d=1), ["s"]),
        ("launch.slice %x:8 into %y:4 (groups = 1, every = 8, start = 0, width = 4)", ["x"]),
        ("launch.join %a:4, %b:4 into %y:8 (rows = 1, heads = 1, ha = 4, hb = 4)", ["y"]),
        ("launch.norm %x:4 out %y:4 (rows = 1, cols = 4) eps = 0.1 f32", []),
        ("launch.norm %x:4 into %y:8 every 8 from 4 (rows = 1, cols = 4) eps = 0.1 f32", ["y"]),
        ("launch.set_row %x:4 into %t:8 at row 1 pitch 4 (cols = 4, count = 1) f32", ["t"]),
        ("launch.unary silu %x:4 into %y:4 (n = 4)", []),
    ],
)
def test_typed(launch: Launch, text: str, typed: list[str]) -> None:
    assert names(launch(text).typed(INT8)) == typed


@pytest.mark.parametrize(
    ("text", "buffer", "form", "length"),
    [
        (gemv(m=2), "y", PLAIN, 64),
        (gemm_parts(), "z", PLAIN, 64),
        (glu(m=2), "y", PLAIN, 64),
        (moe(rows=2), "y", PLAIN, 128),
        (heads(m=2), "y", PLAIN, 64),
        (attention(rows=1), "o", PLAIN, 128),
        (delta(rows=2, d=4), "o", PLAIN, 8),
        (delta(rows=2, d=4), "s", PLAIN, None),
        ("launch.norm %x:8 sum %s:8 out %y:8 (rows = 2, cols = 4) eps = 0.1 f32", "s", PLAIN, 8),
        ("launch.norm %x:8 sum %s:8 out %y:8 (rows = 2, cols = 4) eps = 0.1 f32", "s", QUANT, None),
        ("launch.norm %x:8 sum %s:8 out %y:8 (rows = 2, cols = 4) eps = 0.1 f32", "y", QUANT, 8),
        ("launch.norm %x:8 out %o:8 into %y:8 (rows = 2, cols = 4) eps = 0.1 f32", "o", PLAIN, None),
        ("launch.norm %x:8 out %o:8 into %y:8 (rows = 2, cols = 4) eps = 0.1 f32", "y", PLAIN, 8),
        ("launch.norm %x:8 into %y:16 every 8 from 0 (rows = 2, cols = 4) eps = 0.1 f32", "y", PLAIN, None),
        ("launch.gemv %x:4 by %w:8x4<f16> into %y:16 at row 1 pitch 8 (k = 4, n = 8, m = 1) f32", "y", PLAIN, None),
        ("launch.set_row %x:4 into %t:4 at row 0 pitch 4 (cols = 4, count = 1) f32", "t", PLAIN, None),
        ("launch.conv %x:4 by %w:8 ring %r:8 into %y:4 (chan = 4, taps = 2, rows = 1)", "y", PLAIN, 4),
        ("launch.conv %x:4 by %w:8 ring %r:8 into %y:4 (chan = 4, taps = 2, rows = 1)", "r", PLAIN, None),
        (
            "launch.conv_parts [%x:8 by %w:16 ring %r:32 into %y:8 chan = 4] (taps = 4, block = 4, seqs = 2)",
            "y",
            PLAIN,
            8,
        ),
        ("launch.argmax %x:8 into %i:2 (n = 4, rows = 2)", "i", PLAIN, 2),
        ("launch.slice %x:8 into %y:4 (groups = 2, every = 4, start = 1, width = 2)", "y", PLAIN, 4),
        ("launch.join %a:4, %b:2 into %y:6 (rows = 1, heads = 2, ha = 2, hb = 1)", "y", PLAIN, 6),
        (
            "launch.fold { launch.unary silu %x:8 into %s:8 (n = 8) launch.unary silu %s into %y:8 (n = 8) }",
            "s",
            PLAIN,
            8,
        ),
    ],
)
def test_writes_whole(launch: Launch, value: Value, text: str, buffer: str, form: Touch, length: int | None) -> None:
    op = launch(text)
    target = value(op, buffer)
    whole = buffer_of(target).length
    assert op.writes_whole(target, form, whole) is (length is not None)
    if length is not None:
        assert whole == length
        assert not op.writes_whole(target, form, length + 1)


ROPE = "launch.rope %x:64 by %c:8x8, %s:8x8 into {} pairing half (heads = 4, per_row = 4, hd = 16, half = 8)"


@pytest.mark.parametrize(
    ("text", "length", "part"),
    [
        (ROPE.format("%y:96 every 24 from 8"), 96, (24, 8, 16)),
        (ROPE.format("%y:96 every 24 from 0"), 96, (24, 0, 16)),
        (ROPE.format("%y:120 every 24 from 8"), 120, None),
        (ROPE.format("%y:64"), 64, None),
        (ROPE.format("%y:192 at row 1 pitch 96 every 24 from 8"), 192, None),
        ("launch.norm %x:8 into %y:16 every 8 from 4 (rows = 2, cols = 4) eps = 0.1 f32", 16, (8, 4, 4)),
        ("launch.norm %x:8 out %o:8 into %y:16 every 8 from 4 (rows = 2, cols = 4) eps = 0.1 f32 quant", 16, None),
        (
            "launch.head_gemv %x:8 by %w:16<q8_0> into %y:16 every 8 from 4 (m = 1, heads = 2, a = 4, b = 2)",
            16,
            (8, 4, 2),
        ),
        ("launch.gemv %x:4 by %w:16<f16> into %y:8 every 8 from 4 (k = 4, n = 4, m = 1) f32", 8, None),
    ],
)
def test_writes_part(launch: Launch, value: Value, text: str, length: int, part: tuple[int, int, int] | None) -> None:
    op = launch(text)
    assert op.writes_part(value(op, "y"), length) == part
    assert op.writes_part(value(op, "x"), length) is None


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (gemv(), "y"),
        ("launch.gemv %x:4 by %w:32<f16> into %y:16 at row 1 pitch 8 (k = 4, n = 8, m = 1) f32", None),
        (gemm_parts(), "y"),
        ("launch.norm %x:4 out %y:4 (rows = 1, cols = 4) eps = 0.1 f32", "y"),
        ("launch.norm %x:4 into %y:8 every 8 from 4 (rows = 1, cols = 4) eps = 0.1 f32", None),
        ("launch.set_row %x:4 into %t:8 at row 1 pitch 4 (cols = 4, count = 1) f32", None),
        ("launch.quant %x:32 (n = 32)", None),
        ("launch.gates %b:2, %a:2, %t:2, %l:2 into %y:2, %z:2 (n = 2, heads = 2)", None),
        ("launch.argmax %x:4 into %i:1 (n = 4, rows = 1)", "i"),
        (delta(rows=1, d=2), "o"),
        ("launch.fold { launch.unary silu %x:8 into %s:8 (n = 8) launch.unary silu %s into %y:8 (n = 8) }", "y"),
    ],
)
def test_result(launch: Launch, text: str, result: str | None) -> None:
    found = launch(text).result()
    assert (None if found is None else buffer_of(found).label.data) == result


NORM_AFTER = "launch.norm {} out %n:64 (rows = 1, cols = 64) eps = 0.1 f32"


def test_folds(launch: Launch) -> None:
    gathered = launch(
        "launch.fold { launch.gather %t:8x32 at %i:1 into %h:32 (rows = 1, cols = 32) "
        "launch.norm %h out %n:32 (rows = 1, cols = 32) eps = 0.1 f32 }"
    )
    assert (gathered.kind(), gathered.mixture(), gathered.finished_mixture()) == ("gather_norm", None, None)
    assert [part.kind() for part in gathered.parts()] == ["gather", "rmsnorm"]
    assert names(gathered.reads()) == ["t", "i"]
    assert names(gathered.writes()) == ["h", "n"]

    product = launch(f"launch.fold {{ {gemv(n=64)} {NORM_AFTER.format('%y')} }}")
    assert product.kind() == "gemv_norm"
    assert names([product.projected_input()]) == ["x"]

    rotated = launch(
        f"launch.fold {{ {gemm_parts(n=32)} launch.rope_parts [%y into %r:32 heads = 1 per_row = 1] "
        "by %c:8x8, %s:8x8 pairing half (hd = 32, half = 8) }"
    )
    assert rotated.kind() == "gemv_rope"

    finished = launch(f"launch.fold {{ {moe()} {NORM_AFTER.format('%y')} }}")
    assert finished.kind() == "moe_norm"
    mixture = finished.mixture()
    assert mixture is not None
    assert mixture.kind() == "moe"
    found = finished.finished_mixture()
    assert found is not None
    assert found[2] is None

    for order in ("%y, %r:64", "%r:64, %y"):
        summed = launch(
            f"launch.fold {{ launch.fold {{ {moe()} launch.binary add {order} into %s:64 (n = 64) f32 }} "
            f"{NORM_AFTER.format('%s')} }}"
        )
        found = summed.finished_mixture()
        assert found is not None
        assert found[2] is not None
        assert names(list(found[2])) == ["r", "s"]
        assert summed.kind() == "moe_norm"


def test_units(launch: Launch) -> None:
    assert launch(ROPE.format("%y:64")).unit_output() == (4, 16)
    assert launch(heads(m=2)).unit_output() == (4, 16)
    assert launch("launch.norm %x:8 out %y:8 (rows = 2, cols = 4) eps = 0.1 f32").unit_output() == (2, 4)
    assert launch("launch.norm %x:8 out %y:8 (rows = 2, cols = 4) eps = 0.1 f32 quant").unit_output() is None
    assert launch(gemv()).unit_output() is None


def test_batches(launch: Launch) -> None:
    batches = [gemv(tail=BATCH), gemm_parts(tail=" batch"), glu(tail=BATCH), moe(tail=" batch"), heads(tail=" batch")]
    assert all(launch(text).is_batch() for text in batches)
    assert not any(
        launch(text).is_batch() for text in (gemv(), gemm_parts(), glu(), moe(), heads(), attention(seq=True))
    )


def test_census_and_fired(schedule: Callable[[str], ScheduleOp]) -> None:
    made = schedule(
        "launch.unary silu %x:8 into %y:8 (n = 8) by [act_gate]\n"
        "launch.fold { launch.unary silu %y into %z:8 (n = 8) launch.quant %z (n = 8) } by [add_norm, rows_a_warp]\n"
        "launch.unary silu %z into %x (n = 8) covers [1, 2] by [rows_a_warp, rows_a_warp]"
    )
    assert made.census() == {"gemv_norm": 1, "unary": 2}
    assert [made.fired(rule) for rule in ("act_gate", "rows_a_warp", "sequences")] == [1, 3, 0]
