"""What the verifiers of the launches refuse, and in which words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from xdsl.utils.exceptions import VerifyException

from lane_mlir.dialects.launch import (
    BufferOp,
    DType,
    DTypeAttr,
    Fill,
    GemvOp,
    NumberAttr,
    RealAttr,
    ScheduleOp,
    StoredTensor,
    Target,
    TensorAttr,
    YieldOp,
)
from lane_mlir.dialects.tg import ArgAttr, ArgumentKind
from lane_mlir.formats import Format

GEMV = "launch.gemv %x:64 by %w:32x64<q8_0> into %y:32 (k = 64, n = 32, m = 1) f32"
PARTS = (
    "launch.gemm_parts %x:256 by [%w:32x256 into %y:32 n = 32, %v:8x256 into %z:8 n = 8] [q8_0, q6_k] (k = 256, m = 1)"
)
GLU = "launch.gemv_glu %x:64 by %wg:32x64, %wu:32x64 [q8_0, q8_0] into %y:32 (k = 64, n = 32, m = 1) f32"
NORM = "launch.norm %x:64 weight %w:64 out %o:64 (rows = 1, cols = 64) eps = 1.0e-05 f32"
ROPE = "launch.rope %x:64 by %cos:8x16, %sin:8x16 into %y:64 pairing half (heads = 2, per_row = 2, hd = 32, half = 16)"
SIDES = "launch.rope_parts [%x:64 into %y:64 heads = 2 per_row = 2] by %cos:8x16, %sin:8x16 pairing half (hd = 32, half = 16)"
ATTENTION = (
    "launch.attention %q:64, %k:8x32, %v:8x32 into %o:64 (heads = 2, group = 2, hd = 32, vd = 32, len = 8, rows = 1) "
    "values 32 + 0 scale = 0.5 (per_block = 2, splits = 1) f32"
)
MOE = (
    "launch.moe %x:64 router %wr:4x64 experts %wg:4x32x64, %wu:4x32x64, %wd:4x64x32 [q8_0, q8_0, q8_0] into %y:64 "
    "score softmax act silu (d = 64, dff = 32, experts = 4, k = 2, rows = 1)"
)
DELTA = (
    "launch.delta %q:32, %k:32, %v:64 gate %z:64 beta %b:2 decay %a:2 norm %g:32 state %s:64x32 into %o:64 blocked "
    "(hv = 2, hk = 1, d = 32, rows = 1) eps = 1.0e-06 f32"
)
HEADS = "launch.head_gemv %x:64 by %w:2x16x32<q8_0> into %y:32 (m = 1, heads = 2, a = 32, b = 16)"
CONVS = (
    "launch.conv_parts [%x:32 by %w:32x4 ring %r:4x32 into %y:32 chan = 32 l2] (taps = 4, block = 32, seqs = 1) "
    "eps = 1.0e-06"
)
SET_ROW = "launch.set_row %x:64 into %t:8x64 at row 3 pitch 64 (cols = 64, count = 1) f32"


def case(text: str, old: str, new: str, message: str) -> object:
    """A launch that is right with one thing changed, and what is wrong with it then."""
    assert old in text
    return pytest.param(text.replace(old, new, 1), message, id=f"{text.split()[0]}:{message[:40]}")


CASES = [
    # Lengths against fields: the buffer and both lengths are named.
    case(GEMV, "%x:64", "%x:65", 'x ("x") has 65 elements, expected 64 (m = 1 by k = 64)'),
    case(GEMV, "%w:32x64", "%w:31x64", 'w ("w") has 1984 elements, expected 2048 (n = 32 by k = 64)'),
    case(GEMV, "into", "bias %b:3 into", 'bias ("b") has 3 elements, expected 32 (n = 32)'),
    case(GEMV, "into", "scale %s:32 into", 'scale ("s") has 32 elements, expected 1 (one value)'),
    case(
        GEMV,
        "into",
        "bias %b:32 scaled_bias into",
        "scales a bias that is not there, or by nothing (scaled_bias needs scale and bias)",
    ),
    case(GEMV, "%y:32", "%y:33", 'y ("y") has 33 elements, expected 32 (1 by 32 values)'),
    case(GEMV, "%y:32", "%y:8x48 at row 1 pitch 48", "y gets 1 by 32 values, no whole number of rows of 48"),
    case(
        GEMV,
        "%y:32",
        "%y:8x32 at row 8 pitch 32",
        'y ("y") has 256 elements, expected at least 288 (1 by 32 values in rows of 32)',
    ),
    case(GEMV, "%y:32", "%y:32 every 40 from 16", "y has units of 32 from 16 on, beyond its pitch 40"),
    case(
        GEMV,
        "%y:32",
        "%y:40 every 64 from 32",
        'y ("y") has 40 elements, expected at least 64 (1 by 32 values, every 64 from 32)',
    ),
    case(GEMV, "m = 1", "m = 0", "m is 0, expected more"),
    case(GEMV, ") f32", ")", "writes its result neither as f32 nor quantized"),
    case(GEMV, ") f32", ") tail 3 of 4 f32", 'x ("x") has 64 elements, expected 256 (4 rows of the chunk by k = 64)'),
    case(GEMV, ") f32", ") tail 1 of 1 f32", "computes rows 1 to 2 of a chunk of 1"),
    case(PARTS, "[q8_0, q6_k]", "[q8_0]", "has 1 formats, expected 2: one for each product"),
    case(
        PARTS,
        "[q8_0, q6_k]",
        "[q8_0, f16]",
        "has weights that are read in different units (q8_0, f16)",
    ),
    case(GLU, "%wu:32x64", "%wu:32x63", 'wu ("wu") has 2016 elements, expected 2048 (n = 32 by k = 64)'),
    case(GLU, "[q8_0, q8_0]", "[q8_0]", "has 1 formats, expected 2: the gate's and the up weight's"),
    case(GLU, "into %y:32", "up_scale %s:2 into %y:32", 'scale of wu ("s") has 2 elements, expected 1 (one value)'),
    case(
        GLU,
        "into %y:32",
        "gate_scale %s:1 gate_scaled_bias into %y:32",
        "scales a bias of wg that is not there, or by nothing (scaled_bias needs scale and bias)",
    ),
    case(GLU, "into %y:32", "up_bias %b:1 into %y:32", 'bias of wu ("b") has 1 elements, expected 32 (n = 32)'),
    case(GLU, "%y:32", "%y:1", 'out ("y") has 1 elements, expected 32 (m = 1 by n = 32)'),
    case(HEADS, "%x:64", "%x:63", 'x ("x") has 63 elements, expected 64 (m = 1 by heads = 2 of a = 32)'),
    case(HEADS, "%x:64", "%x:64 every 40 from 10", "x has units of 32 from 10 on, beyond its pitch 40"),
    case(HEADS, "%y:32", "%y:31", 'y ("y") has 31 elements, expected 32 (2 by 16 values)'),
    case(HEADS, ", b = 16)", ", b = 16) shared", 'x ("x") has 64 elements, expected 32 (m = 1 rows of a = 32)'),
    case(NORM, "%x:64", "%x:32", 'x ("x") has 32 elements, expected 64 (rows = 1 by cols = 64)'),
    case(NORM, "%x:64", "%x:64 add %a:63", 'add ("a") has 63 elements, expected 64 (rows = 1 by cols = 64)'),
    case(NORM, "%x:64", "%x:64 pre 1.0e-05", "norms x beforehand but adds nothing to it"),
    case(NORM, "%x:64", "%x:64 pre_weight %p:64 add %a:64", "has a weight for a norm beforehand that it does not take"),
    case(NORM, "%w:64", "%w:64 bias %b:64", "has a bias but does not center: only a layer norm has one"),
    case(NORM, "out %o:64", "", "has no out for its result"),
    case(NORM, "out %o:64", "into %y:128 every 128 from 96", "y has units of 64 from 96 on, beyond its pitch 128"),
    case("launch.quant %x:64 (n = 64)", "n = 64", "n = 60", 'x ("x") has 64 elements, expected 60 (n = 60)'),
    case("launch.quant %x:64 (n = 64)", "%x:64 (n = 64", "%x:60 (n = 60", "60 values, no whole number of blocks of 32"),
    case("launch.l2_norm %x:64 into %y:64 (rows = 2, cols = 32) eps = 1.0e-06", "%y:64", "%y:32", 'y ("y") has 32'),
    case(ROPE, "half = 16)", "half = 17)", "rotates 2 x half = 34 columns of heads of 32"),
    case(ROPE, "%cos:8x16", "%cos:8x15", 'cos ("cos") has 120 elements, no rows of half = 16'),
    case(ROPE, "%sin:8x16", "%sin:7x16", 'sin ("sin") has 112 elements, expected 128 (as many as cos)'),
    case(ROPE, "per_row = 2", "per_row = 3", "heads = 2 is no multiple of per_row = 3"),
    case(ROPE, "%x:64", "%x:64 norm %n:16 eps 1.0e-06", 'norm ("n") has 16 elements, expected 32 (hd = 32)'),
    case(SIDES, "%x:64", "%x:63", 'x of rotation 0 ("x") has 63 elements, expected 64 (heads = 2 by hd = 32)'),
    case(SIDES, "heads = 2", "heads = 3", "heads = 3 is no multiple of per_row = 2"),
    case(SIDES, "per_row = 2]", "per_row = 1 apart 64]", 'y of rotation 0 ("y") has 64 elements, expected 128'),
    case(SIDES, "%x:64 into %y:64 heads = 2 per_row = 2", "", "has 0 inputs, 0 results, 0 norms"),
    case(ATTENTION, "%q:64", "%q:32", 'q ("q") has 32 elements, expected 64 (rows = 1 by heads = 2 by hd = 32)'),
    case(ATTENTION, "%k:8x32", "%k:7x32", 'kc ("k") has 224 elements, expected at least 256 (len = 8 rows of 32)'),
    case(ATTENTION, "32 + 0", "32 + 1", 'vc ("v") has 256 elements, expected at least 257 (len = 8 rows of 32)'),
    case(ATTENTION, "group = 2", "group = 3", "heads = 2 is no multiple of group = 3"),
    case(ATTENTION, "per_block = 2", "per_block = 3", "heads = 2 is no multiple of per_block = 3"),
    case(ATTENTION, " into", " sinks %s:3 into", 'sinks ("s") has 3 elements, expected 2 (heads = 2)'),
    case(
        ATTENTION,
        " into",
        " gate silu %g:64 + 1 into",
        'gate ("g") has 64 elements, expected at least 65 (goff = 1 and the size of out)',
    ),
    case(ATTENTION, "len = 8", "len = 0", "len is 0, expected more"),
    case(
        ATTENTION,
        " into",
        " tails %qt:8, %kt:8[own = 32 q_pitch = 32 q_tail 4 from 0 k_tail 4 from 0] into",
        "has no tail: own = 32 of hd = 32",
    ),
    case(SET_ROW, "pitch 64", "pitch 32", "sets whole rows: its place is a row of 64"),
    case(SET_ROW, "at row 3 pitch 64", "", "sets whole rows: its place is a row of 64"),
    case(
        SET_ROW, "row 3", "row 8", 'table ("t") has 512 elements, expected at least 576 (1 by 64 values in rows of 64)'
    ),
    case(SET_ROW, "%x:64", "%x:63", 'src ("x") has 63 elements, expected 64 (count = 1 by cols = 64)'),
    case(
        "launch.gather %t:8x64 at %i:1 into %o:64 (rows = 1, cols = 64)", "%t:8x64", "%t:100", "no whole number of rows"
    ),
    case(
        "launch.gather %t:8x64 at %i:1 into %o:64 (rows = 1, cols = 64)", "%i:1", "%i:2", 'index ("i") has 2 elements'
    ),
    case("launch.view %x:64 from 0 into %y:64", "%y:64", "%y:64", 'out ("y") is no alias of src ("x") + 0'),
    case(
        "launch.slice %x:96 into %y:32 (groups = 1, every = 96, start = 64, width = 32)",
        "start = 64",
        "start = 65",
        "takes 32 values from 65 on of units of 96",
    ),
    case("launch.join %a:8, %b:4 into %y:12 (rows = 1, heads = 2, ha = 4, hb = 2)", "%y:12", "%y:13", 'y ("y") has 13'),
    case("launch.argmax %x:64 into %i:1 (n = 64, rows = 1)", "%i:1", "%i:2", 'out ("i") has 2 elements, expected 1'),
    case(
        "launch.argmax %x:64 into %i:1 (n = 64, rows = 1) advance %t:1, %p:1 item 0",
        "item 0",
        "item 1",
        'token ("t") has 1 elements, expected at least 2 (item 1 and rows = 1)',
    ),
    case("launch.binary add %a:64, %b:64 into %y:64 (n = 64) f32", "%b:64", "%b:32", 'b ("b") has 32 elements'),
    case("launch.binary add %a:64, %b:48 into %y:64 (n = 64) row = 16 f32", "%b:48", "%b:48", "expected 16 (row = 16)"),
    case(
        "launch.binary add %a:64, %b:16 into %y:64 (n = 64) row = 16 f32",
        "row = 16",
        "row = 15",
        "multiple of row = 15",
    ),
    case("launch.binary mul %a:64, %b:2 into %y:64 (n = 64) column = 32 f32", "%b:2", "%b:3", "n = 64 by column = 32"),
    case(
        "launch.binary mul %a:64, %b:2 into %y:64 (n = 64) row = 2 column = 32 f32", "%b:2", "%b:2", "one row for all"
    ),
    case("launch.swiglu %g:64, %u:64 into %y:64 (n = 64) f32", "%u:64", "%u:1", 'u ("u") has 1 elements, expected 64'),
    case("launch.scale %x:64 into %y:64 (n = 64) factor = 2.0", "%y:64", "%y:1", 'y ("y") has 1 elements, expected 64'),
    case("launch.unary silu %x:64 into %y:64 (n = 64)", "%x:64", "%x:1", 'x ("x") has 1 elements, expected 64'),
    case("launch.gemv_f32 %x:64 by %w:8x64 into %y:8 (k = 64, n = 8, m = 1)", "%w:8x64", "%w:8x65", 'w ("w") has 520'),
    case(
        "launch.conv %x:32 by %w:32x4 ring %r:4x32 into %y:32 (chan = 32, taps = 4, rows = 1) l2 16 eps 1.0e-06",
        "l2 16",
        "l2 15",
        "chan = 32 is no multiple of the L2 norm's 15",
    ),
    case(CONVS, "%r:4x32", "%r:3x32", 'ring of convolution 0 ("r") has 96 elements, expected 128'),
    case(CONVS, "block = 32", "block = 31", "chan = 32 of convolution 0 is no multiple of block = 31"),
    case(CONVS, " l2]", "]", "has an epsilon if and only if one of its convolutions takes an L2 norm"),
    case(
        "launch.decay %a:4, %t:2, %l:2 into %y:4 (n = 4, heads = 2)", "heads = 2", "heads = 3", "n = 4 is no multiple"
    ),
    case(
        "launch.gates %b:4, %a:4, %t:2, %l:2 into %y:4, %z:4 (n = 4, heads = 2)",
        "%z:4",
        "%z:5",
        'decay ("z") has 5 elements, expected 4 (n = 4)',
    ),
    case(
        "launch.gate_proj %x:64 by %wb:2x64, %wa:2x64, %t:2, %l:2 into %y:2, %z:2 (k = 64, heads = 2)",
        "%wa:2x64",
        "%wa:2x65",
        'wa ("wa") has 130 elements, expected 128 (heads = 2 by k = 64)',
    ),
    case(DELTA, "hk = 1", "hk = 3", "hv = 2 is no multiple of hk = 3"),
    case(DELTA, "%s:64x32", "%s:32x32", 'st ("s") has 1024 elements, expected 2048'),
    case(DELTA, "%b:2", "%b:1", 'b ("b") has 1 elements, expected 2 (rows = 1 by seqs = 1 by hv = 2)'),
    case(MOE, "k = 2", "k = 5", "chooses k = 5 of experts = 4 in groups_used = 1 of groups = 1"),
    case(MOE, "[q8_0, q8_0, q8_0]", "[q8_0]", "has 1 formats, expected 3: of gate, up and down weights"),
    case(MOE, "act silu", "act clamped_swiglu", "has alpha and limit if and only if its activation is clamped_swiglu"),
    case(MOE, "%wd:4x64x32", "%wd:4x64x31", 'wd ("wd") has 7936 elements, expected 8192'),
    case(MOE, "into", "shared_gate %sg:64 into", "has three weights of a shared expert, their formats and its width"),
    case(
        MOE,
        "into",
        "shared %a:8x64, %b:8x64, %c:64x9 [q8_0, q8_0, q8_0](sdff = 8) into",
        'swd ("c") has 576 elements, expected 512 (sdff = 8 by d = 64)',
    ),
    case(
        "launch.fold { launch.quant %x:64 (n = 64) launch.quant %x (n = 64) }",
        "launch.quant %x (n = 64)",
        "",
        "two launches",
    ),
    (
        "launch.fold { launch.fold { launch.quant %x:64 (n = 64) launch.quant %x (n = 64) } launch.quant %x (n = 64) }",
        "holds a fold, expected none but that of a mixture and a sum, before a norm",
    ),
    (
        "launch.fold { launch.quant %x:64 (n = 64) launch.fold { launch.quant %x (n = 64) launch.quant %x (n = 64) } }",
        "holds a fold, expected none but that of a mixture and a sum, before a norm",
    ),
    case(
        GEMV, "x:64 by", "x:64 over rms %s:2 eps = -1.0 by", "divides by a root with eps = -1.0, expected more than 0"
    ),
    case(GEMV, "x:64 by", "x:64 over rms %s:3 eps = 1.0 by", 'squares ("s") has 3 elements, expected 2'),
    case(NORM, "weight", "squares %s:3 weight", 'squares ("s") has 3 elements, expected 2'),
    (
        f"launch.fold {{ {ROPE} {ATTENTION} }}",
        "leaves rotations to attention, but the rotation is not of the queries as attention reads them",
    ),
    (
        f"launch.fold {{ {ROPE.replace('%x:64', '%q:64').replace('%y:64', '%q')} {ATTENTION.replace('%q:64', '%q')} }}",
        "leaves rotations to attention, but one of the two reads what the other, or it itself, writes",
    ),
]


@pytest.mark.parametrize(("text", "message"), CASES)
def test_refused(schedule: Callable[[str], ScheduleOp], text: str, message: str) -> None:
    with pytest.raises(VerifyException, match=re.escape(message)):
        schedule(text).verify()


@pytest.mark.parametrize("text", [GEMV, GLU, NORM, ROPE, SIDES, ATTENTION, MOE, DELTA, HEADS, CONVS, SET_ROW])
def test_taken(schedule: Callable[[str], ScheduleOp], text: str) -> None:
    schedule(text).verify()


WEIGHT = TensorAttr(StoredTensor("w", Format.Q8_0))
OF = BufferOp("of", (64,), Fill.COMPUTED)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (BufferOp("b", (0, 4), Fill.COMPUTED), '"b" has the shape 0x4, expected sizes above 0'),
        (BufferOp("b", (4,), Fill.ALIAS), '"b" is alias: an alias, and nothing else, names a buffer and an offset'),
        (BufferOp("b", (4,), Fill.COMPUTED, offset=1), '"b" is computed: an alias, and nothing else, names a buffer'),
        (BufferOp("b", (4,), Fill.CONSTANT), '"b" is constant: a constant, and nothing else, says what it holds'),
        (BufferOp("b", (4,), Fill.ZERO, constant=WEIGHT), '"b" is zero: a constant, and nothing else, says what'),
        (
            BufferOp("b", (4,), Fill.COMPUTED, role=ArgAttr(ArgumentKind.TOKEN)),
            '"b" is computed: only a param, a zero or part of one has a role in the step',
        ),
        (
            BufferOp("b", (4,), Fill.ALIAS, of=OF.buffer, offset=61),
            '"b" is 4 elements from 61 on of "of", which has 64 elements',
        ),
        (
            BufferOp("b", (4,), Fill.CONSTANT, constant=WEIGHT, transposed=True),
            '"b" is transposed: only a constant of two dimensions can be',
        ),
    ],
)
def test_buffer_refused(buffer: BufferOp, message: str) -> None:
    with pytest.raises(VerifyException, match=re.escape(message)):
        buffer.verify()


def test_buffer_refused_a_place() -> None:
    zero = BufferOp("z", (4,), Fill.ZERO, plain=True)
    zero.at = NumberAttr(0)
    with pytest.raises(VerifyException, match='"z" is zero: only a computed buffer lies in the arena'):
        zero.verify()
    computed = BufferOp("c", (4,), Fill.COMPUTED, plain=True)
    computed.quantized_at = NumberAttr(0)
    with pytest.raises(VerifyException, match='"c" has a place in the arena for a form that it does not have'):
        computed.verify()


def test_row_parameter_refused() -> None:
    x, w, y = (BufferOp(n, s, Fill.COMPUTED) for n, s in (("x", (64,)), ("w", (32, 64)), ("y", (32,))))
    gemv = GemvOp(x.buffer, w.buffer, Target(y.buffer, x.buffer), format=Format.Q8_0, k=64, n=32, m=1)
    with pytest.raises(VerifyException, match="y has a row parameter if and only if its place names one"):
        gemv.verify()


def test_schedule_refused() -> None:
    pair = [BufferOp("b", (4,), Fill.COMPUTED), BufferOp("b", (4,), Fill.COMPUTED)]
    with pytest.raises(VerifyException, match='@s has two buffers named "b"'):
        ScheduleOp("s", [*pair, YieldOp()]).verify()
    with pytest.raises(VerifyException, match=r"@s holds launch.schedule, expected buffers, launches and a yield"):
        ScheduleOp("s", [ScheduleOp("t", [YieldOp()]), YieldOp()]).verify()


def test_numbers_refused() -> None:
    with pytest.raises(VerifyException, match="a number is -1, expected 0 or more"):
        NumberAttr(-1)
    with pytest.raises(VerifyException, match="a real is inf, expected a finite number"):
        RealAttr(float("inf"))
    assert [DTypeAttr(t).data.bytes for t in DType] == [4, 4, 2, 2]
