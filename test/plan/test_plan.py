"""What the planner chooses, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.dialects.launch import (
    LAUNCH,
    AttentionOp,
    BufferOp,
    DType,
    FoldOp,
    GateProjOp,
    GemmPartsOp,
    GemvF32Op,
    GemvGluOp,
    GemvOp,
    LaunchOp,
    MoeOp,
    ScheduleOp,
    Touch,
)
from lane_mlir.dialects.tg import TG
from lane_mlir.formats import Format
from lane_mlir.passes.plan import NoKernel, PlanFailed, PlanPass, Shape, Unbound, check, counts

SHAPED = re.compile(r"%(\w+):(param|zero|cache|weight|f32|)([0-9x]+)")

FILLS = {
    "": "computed",
    "param": "param #tg.arg<position, 0>",
    "zero": "zero",
    "cache": "zero #tg.arg<kv_cache, 0>",
    "weight": 'constant #launch.tensor<"w", q8_0>',
    "f32": 'constant #launch.tensor<"w", f32>',
}


@pytest.fixture(autouse=True)
def kernel_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of kernels that no measurement changes: what is tested is which are asked for, and what becomes of them."""

    def rows_a_warp(fmt: Format, n: int, k: int, m: int, whole: int | None = None) -> int:
        return 1 if n < 2048 or m > 8 or (whole or n) % 2 else 2 if n < 4096 or fmt is Format.F16 else 4

    def gemv_f32_parts(n: int, k: int, multiprocessors: int) -> int:
        return 10_000 * n + k + multiprocessors

    def gemm_f32_splits(tiles: int, multiprocessors: int, steps: int) -> int:
        return 10_000 * tiles + 1_000 * steps + multiprocessors

    def attn_shared_splits(span: int, multiprocessors: int) -> int:
        return span + multiprocessors

    def attn_shared_smem_bytes(heads: int, hd: int) -> int:
        return heads * hd * 4

    for number in (rows_a_warp, gemv_f32_parts, gemm_f32_splits, attn_shared_splits, attn_shared_smem_bytes):
        monkeypatch.setattr(counts, number.__name__, number)
    monkeypatch.setattr(counts, "ATTN_SHARED_HEADS", 128)


def parse(text: str, outputs: str = "", target: str = "h200, int8, cache = f32, state = f32") -> ScheduleOp:
    """A schedule of launches in which the fill and shape of a buffer stand beside its first use: `%w:weight64x32`."""
    buffers = "".join(
        f'%{n} = launch.buffer "{n}" {"i32" if fill == "param" else "f32"}[{shape}] {FILLS[fill]}\n'
        for n, fill, shape in dict.fromkeys(SHAPED.findall(text))
    )
    context = Context()
    for dialect in (Builtin, TG, LAUNCH):
        context.load_dialect(dialect)
    body = SHAPED.sub(r"%\1", text)
    schedule = f"launch.schedule @s target<{target}> {{\n{buffers}{body}\nlaunch.yield {outputs}\n}}"
    module = Parser(context, schedule).parse_module()
    found = module.body.block.first_op
    assert isinstance(found, ScheduleOp)
    return found


def planned(text: str, outputs: str = "", *, held: Sequence[str] = (), **target: str) -> ScheduleOp:
    schedule = parse(text, outputs, **target)
    schedule.verify()
    module = schedule.parent_op()
    assert isinstance(module, ModuleOp)
    PlanPass(held=tuple(held)).apply(Context(), module)
    schedule.verify()
    return schedule


def launch(schedule: ScheduleOp, index: int = -1) -> LaunchOp:
    return schedule.launches()[index]


def buffer(schedule: ScheduleOp, name: str) -> BufferOp:
    return next(b for b in schedule.buffers() if b.label.data == name)


def source(name: str, n: int) -> str:
    """A launch that writes a computed buffer in both its forms."""
    return f"launch.binary add %in:zero{n}, %in into %{name}:{n} (n = {n}) f32 quant\n"


def gemv(n: int, k: int = 1024, m: int = 1, fmt: str = "q8_0") -> str:
    return source("x", m * k) + (
        f"launch.gemv %x by %w:weight{n}x{k}<{fmt}> into %y:{m * n} (k = {k}, n = {n}, m = {m}) f32 by [gemv_bias]"
    )


def test_rows_a_warp() -> None:
    schedule = planned(gemv(4096))
    op = launch(schedule)
    assert isinstance(op, GemvOp)
    assert op.per_warp.data == 4
    assert op.rules.data == ("gemv_bias", "rows_a_warp")
    assert schedule.fired("rows_a_warp") == 1


@pytest.mark.parametrize(
    ("text", "held", "reason"),
    [
        (gemv(1024), (), "too few rows"),
        (gemv(4096, m=9), (), "too many rows of activations"),
        (gemv(4096), ("rows_a_warp",), "held"),
    ],
)
def test_rows_a_warp_stays_one(text: str, held: Sequence[str], reason: str) -> None:
    schedule = planned(text, held=held)
    op = launch(schedule)
    assert isinstance(op, GemvOp)
    assert op.per_warp.data == 1, reason
    assert schedule.fired("rows_a_warp") == 0


def test_holding_rows_a_warp_undoes_what_the_judge_chose() -> None:
    schedule = planned(gemv(4096).replace("m = 1)", "m = 1) per_warp = 2"), held=("rows_a_warp",))
    op = launch(schedule)
    assert isinstance(op, GemvOp)
    assert op.per_warp.data == 1


PARTS = source("x", 1024) + (
    "launch.gemm_parts %x by [%a:weight4096x1024 into %y:4096 n = 4096, %b:weight4096x1024 into %z:4096 n = 4096, "
    "%c:weight{n}x1024 into %u:{n} n = {n}] [q8_0, q8_0, q8_0] (k = 1024, m = 1)"
)


def test_rows_a_warp_of_several_products_fires_for_each() -> None:
    schedule = planned(PARTS.format(n=1024))
    op = launch(schedule)
    assert isinstance(op, GemmPartsOp)
    # Their rows together decide, if as many a warp divide those of each.
    assert op.per_warp.data == 4
    assert schedule.fired("rows_a_warp") == 3
    odd = planned(PARTS.format(n=1023))
    assert odd.fired("rows_a_warp") == 0


def test_rows_a_warp_of_a_folded_product() -> None:
    text = source("x", 1024) + (
        "launch.fold { launch.gemv %x by %w:weight4096x1024<q8_0> into %y:4096 (k = 1024, n = 4096, m = 1) f32 "
        "launch.norm %y out %z:4096 (rows = 1, cols = 4096) eps = 0.1 f32 }"
    )
    schedule = planned(text)
    fold = launch(schedule)
    assert isinstance(fold, FoldOp)
    assert isinstance(fold.first, GemvOp)
    assert fold.first.per_warp.data == 4
    assert schedule.fired("rows_a_warp") == 1


def test_rows_a_warp_of_a_gated_pair_is_the_lesser() -> None:
    pair = source("x", 1024) + (
        "launch.gemv_glu %x by %a:weight4096x1024, %b:weight4096x1024 [q8_0, {f}] into %y:4096 "
        "(k = 1024, n = 4096, m = 1) f32"
    )
    both, mixed = launch(planned(pair.format(f="q4_0"))), launch(planned(pair.format(f="f16")))
    assert isinstance(both, GemvGluOp)
    assert isinstance(mixed, GemvGluOp)
    assert (both.per_warp.data, mixed.per_warp.data) == (4, 2)


def moe(rows: int = 1, d: int = 1024, shared: str = "", router: str = "", wr: str = "f32") -> str:
    return source("x", rows * d) + (
        f"launch.moe %x router %wr:{wr}16x{d}{router} experts %wg:weight16x1024x{d}, %wu:weight16x1024x{d}, "
        f"%wd:weight16x{d}x1024 [q8_0, q8_0, q8_0]{shared} into %y:{rows * d} score softmax act silu "
        f"(d = {d}, dff = 1024, experts = 16, k = 4, rows = {rows})"
    )


def test_rows_a_warp_of_a_mixture_counts_its_chosen_experts() -> None:
    alone = launch(planned(moe()))
    assert isinstance(alone, MoeOp)
    # 4 experts of 1024: as many rows as one product of 4096.
    assert alone.per_warp.data == 4
    shared = " shared %sg:weight1x1024, %su:weight1x1024, %sd:weight1024x1 [q8_0, q8_0, q8_0](sdff = 1)"
    odd = launch(planned(moe(shared=shared)))
    assert isinstance(odd, MoeOp)
    assert odd.per_warp.data == 1
    chunk = launch(planned(moe(rows=2)))
    assert isinstance(chunk, MoeOp)
    assert chunk.per_warp.data == 1


def split_of(text: str, chip: str = "h200") -> int:
    op = launch(planned(text, target=f"{chip}, int8, cache = f32, state = f32"))
    match op:
        case GemvF32Op() | GateProjOp():
            return op.split.data
        case MoeOp():
            return op.router_split.data
        case _:
            raise AssertionError(op)


def gemv_f32(m: int) -> str:
    return source("x", m * 4096) + (f"launch.gemv_f32 %x by %w:f3270x4096 into %y:{70 * m} (k = 4096, n = 70, m = {m})")


GATES = source("x", 2048) + (
    "launch.gate_proj %x by %b:f3216x2048, %a:f3216x2048, %t:f3216, %l:f3216 into %y:16, %z:16 (k = 2048, heads = 16)"
)


@pytest.mark.parametrize(
    ("text", "chip", "split"),
    [
        (gemv_f32(1), "h200", 700_000 + 4096 + 132),
        (gemv_f32(1), "a100", 700_000 + 4096 + 108),
        # Tiles of 64 x 64: two over 70 columns, one over 17 rows, 128 steps of 32.
        (gemv_f32(17), "h200", 20_000 + 128_000 + 132),
        (gemv_f32(65), "h200", 40_000 + 128_000 + 132),
        (GATES, "h200", 160_000 + 2048 + 132),
        # The router of a chunk: one tile over 16 experts, 32 steps.
        (moe(rows=17), "h200", 10_000 + 32_000 + 132),
        (moe(rows=16), "h200", 1),
        (moe(rows=17, router=" rows<q8_0>", wr="weight"), "h200", 1),
    ],
)
def test_split_counts(text: str, chip: str, split: int) -> None:
    assert split_of(text, chip) == split


def test_split_counts_of_a_finished_mixture() -> None:
    before, mixture = moe(rows=17).split("\n")
    after = "launch.norm %y out %n:17408 (rows = 17, cols = 1024) eps = 0.1 f32"
    fold = launch(planned(f"{before}\nlaunch.fold {{ {mixture} {after} }}"))
    assert isinstance(fold, FoldOp)
    assert isinstance(fold.first, MoeOp)
    assert fold.first.router_split.data == 42_132


def attention(
    heads: int = 4,
    group: int = 4,
    hd: int = 64,
    vd: int = 32,
    voff: int = 0,
    values: str = "%k",
    vstride: int = 64,
    before: str = "",
    rows: int = 1,
) -> str:
    q = source("q", rows * heads * hd)
    return (
        q + before + f"launch.attention %q, %k, {values} at %p:param1 into %o:{rows * heads * vd} (heads = {heads}, "
        f"group = {group}, hd = {hd}, vd = {vd}, len = 128, rows = {rows}) values {vstride} + {voff} scale = 0.5 "
        "(per_block = 1, splits = 1) f32"
    ).replace("%k", f"%k:cache128x{heads // group * hd}", 1)


SLICED = "launch.slice %k into %v:4096 (groups = 128, every = 64, start = {start}, width = 32)\n"


@pytest.mark.parametrize(
    ("text", "numerics", "shared"),
    [
        (attention(), "int8", 260),
        (attention(), "two_pass_int8", 260),
        (attention(), "dequant", None),
        (attention(rows=17), "int8", None),
        (attention(group=2, vstride=128), "int8", None),
        (attention(hd=66, vstride=66), "int8", None),
        (attention(vd=33, vstride=64), "int8", None),
        (attention(heads=129, group=129), "int8", None),
        (attention(heads=100, group=100, hd=576, vstride=576), "int8", 260),
        (attention(heads=101, group=101, hd=576, vstride=576), "int8", None),
        (attention(voff=32), "int8", 260),
        (attention(voff=31), "int8", None),
        (attention(vstride=64, values="%v:cache128x64"), "int8", None),
        (attention(values="%v", vstride=32, before=SLICED.format(start=0)), "int8", 260),
        (attention(values="%v", vstride=32, before=SLICED.format(start=32)), "int8", 260),
        (attention(values="%v", vstride=32, before=SLICED.format(start=31)), "int8", None),
        (
            attention(
                values="%v",
                vstride=32,
                before=SLICED.format(start=0)
                + "launch.set_row %r:zero64 into %k at row 0 pitch 64 (cols = 64, count = 1) f32\n",
            ),
            "int8",
            None,
        ),
        (
            attention(
                values="%v",
                vstride=32,
                before="launch.set_row %r:zero64 into %k at row 0 pitch 64 (cols = 64, count = 1) f32\n"
                + SLICED.format(start=0),
            ),
            "int8",
            260,
        ),
    ],
)
def test_key_rows_are_shared(text: str, numerics: str, shared: int | None) -> None:
    op = launch(planned(text, target=f"h200, {numerics}, cache = f32, state = f32"))
    assert isinstance(op, AttentionOp)
    assert (None if op.shared is None else op.shared.data) == shared


def test_forms() -> None:
    # x is quantized for the product and read plain by nobody; its view reads its blocks in place.
    schedule = planned(
        source("h", 64)
        + "launch.norm %h out %x:64 (rows = 1, cols = 64) eps = 0.1 quant\n"
        + "launch.gemv %x by %w:weight8x64<q8_0> into %y:8 (k = 64, n = 8, m = 1) f32\n",
        "%y",
    )
    assert forms(schedule, "x") == [Touch.QUANT]
    assert forms(schedule, "h") == [Touch.PLAIN, Touch.QUANT]
    assert forms(schedule, "y") == [Touch.PLAIN]


def forms(schedule: ScheduleOp, name: str) -> list[Touch]:
    return [form for form in Touch if buffer(schedule, name).has(form)]


VIEWED = """
%v = launch.buffer "v" f32[32] alias %h + {offset}
launch.view %h from {offset} into %v
launch.quant %v (n = 32)
launch.gemv %v by %w:weight8x32<q8_0> into %y:8 (k = 32, n = 8, m = 1) f32
"""


def test_a_view_shares_the_blocks_of_what_it_views() -> None:
    schedule = planned("launch.unary silu %in:zero64 into %h:64 (n = 64)\n" + VIEWED.format(offset=32), "%y")
    assert forms(schedule, "h") == forms(schedule, "v") == [Touch.PLAIN, Touch.QUANT]
    assert buffer(schedule, "v").place(Touch.QUANT) is None
    assert buffer(schedule, "h").place(Touch.QUANT) is not None


def test_a_view_amid_a_block_has_blocks_of_its_own() -> None:
    schedule = planned("launch.unary silu %in:zero64 into %h:64 (n = 64)\n" + VIEWED.format(offset=16), "%y")
    assert forms(schedule, "h") == [Touch.PLAIN]
    assert buffer(schedule, "v").place(Touch.QUANT) is not None


def test_unused_buffers_go() -> None:
    schedule = planned(
        '%u = launch.buffer "u" f32[8] computed\n%v = launch.buffer "v" f32[8] alias %u + 0\n' + gemv(64)
    )
    assert {b.label.data for b in schedule.buffers()} == {"in", "x", "w", "y"}


TIED = (
    "launch.gather %e:f3232x64 at %t:param1 into %h:64 (rows = 1, cols = 64)\n"
    "launch.gemv_f32 %h by %e into %y:32 (k = 64, n = 32, m = 1)\n"
)


def test_plain_weights_are_transposed() -> None:
    schedule = planned("launch.gemv_f32 %x:zero64 by %w:f3232x64 into %y:32 (k = 64, n = 32, m = 1)\n")
    assert buffer(schedule, "w").transposed is not None
    # One that is read by row too is there twice.
    tied = planned(TIED)
    assert buffer(tied, "e").transposed is None
    op = launch(tied)
    assert isinstance(op, GemvF32Op)
    assert op.w.owner is buffer(tied, "e.transposed")
    assert buffer(tied, "e.transposed").transposed is not None


STATE = (
    "launch.delta %q:zero32, %k:zero32, %v:zero32 gate %z:zero32 beta %b:zero1 decay %a:zero1 norm %g:f3232 state "
    "%s:zero32x32 into %o:32 blocked (hv = 1, hk = 1, d = 32, rows = 1) eps = 0.1 f32\n"
)
CACHE = (
    "launch.gemv_f32 %x:zero64 by %w:f3232x64 into %kc:cache8x32 at row %p:param1 pitch 32 (k = 64, n = 32, m = 1)\n"
)


def test_sixteen_bit_state_and_cache() -> None:
    schedule = planned(STATE + CACHE, target="h200, int8, cache = f16, state = bf16")
    assert buffer(schedule, "s").dtype.data is DType.BF16
    assert buffer(schedule, "kc").dtype.data is DType.F16
    assert buffer(schedule, "z").dtype.data is DType.F32
    plain = planned(STATE + CACHE)
    assert buffer(plain, "s").dtype.data is buffer(plain, "kc").dtype.data is DType.F32


def test_an_alias_has_the_type_of_what_it_views() -> None:
    view = '%v = launch.buffer "v" f32[32] alias %kc + 32\nlaunch.view %kc:cache8x32 from 32 into %v\n'
    text = view + "launch.slice %v into %y:16 (groups = 1, every = 32, start = 0, width = 16)\n"
    assert buffer(planned(text, target="h200, int8, cache = f16, state = f32"), "v").dtype.data is DType.F16


@pytest.mark.parametrize(
    ("text", "error", "message", "where"),
    [
        (
            "launch.unary silu %k:cache8x32 into %y:256 (n = 256) covers [7, 9]\n",
            NoKernel,
            'no kernel for op 7 unary into "y": its kernel takes "k" as f32 only, and the step stores it as f16',
            (7, "unary", "y"),
        ),
        (
            "launch.gemv %x:zero48 by %w:weight8x48<q8_0> into %y:8 (k = 48, n = 8, m = 1) f32 covers [3]",
            Shape,
            '"x" of op 3 gemv_q8 into "y" has 48 elements, expected 64: it is read quantized, in blocks of 32 values',
            (3, "gemv_q8", "y"),
        ),
        (
            '%t = launch.buffer "t" i32[1] param\nlaunch.gather %e:f328x4 at %t into %y:4 (rows = 1, cols = 4)',
            Unbound,
            'unbound: the parameter "t" has no role in the step',
            (None, "buffer", "t"),
        ),
    ],
)
def test_refused(text: str, error: type[PlanFailed], message: str, where: tuple[int | None, str, str]) -> None:
    with pytest.raises(error, match=re.escape(message)) as refused:
        planned(text, target="h200, int8, cache = f16, state = f32")
    assert (refused.value.number, refused.value.kind, refused.value.output) == where
    assert message.endswith(f": {refused.value.reason}")


def test_partial_blocks_are_no_matter_without_quantized_activations() -> None:
    text = "launch.gemv %x:zero48 by %w:weight8x48<q8_0> into %y:8 (k = 48, n = 8, m = 1) f32"
    planned(text, target="h200, dequant, cache = f32, state = f32")


def test_unknown_rule() -> None:
    with pytest.raises(PassFailedException, match="unknown rule 'rows_a_wrap'; did you mean 'rows_a_warp'"):
        planned(gemv(64), held=("rows_a_wrap",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "launch.unary silu %x:f3264 into %w:f3264 (n = 64)",
            'unary into "w" writes the plain form of "w", a constant',
        ),
        (
            "launch.unary silu %i:zero64 into %x:64 (n = 64)\nlaunch.l2_norm %x into %x (rows = 1, cols = 64) eps = 0.1",
            'l2norm into "x" reads the plain form of "x" while it writes "x"',
        ),
        (
            "launch.gates %b:zero2, %b, %t:f322, %t into %y:2, %y (n = 2, heads = 2)",
            None,
        ),
        (
            '%v = launch.buffer "v" f32[32] alias %x + 16\n'
            "launch.unary silu %i:zero64 into %x:64 (n = 64)\n"
            '%u = launch.buffer "u" f32[32] alias %x + 0\n'
            "launch.unary silu %u into %v (n = 32)",
            'unary into "v" reads the plain form of "u" while it writes "v"',
        ),
        (
            '%v = launch.buffer "v" f32[32] alias %x + 32\n'
            "launch.unary silu %i:zero64 into %x:64 (n = 64)\n"
            '%u = launch.buffer "u" f32[32] alias %x + 0\n'
            "launch.unary silu %u into %v (n = 32)",
            None,
        ),
        ("launch.unary silu %i:zero64 into %x:64 (n = 64)\nlaunch.unary silu %x into %x (n = 64)", None),
        (
            '%v = launch.buffer "v" f32[32] alias %x + 32\n'
            '%u = launch.buffer "u" f32[32] alias %x + 0\n'
            "launch.unary silu %i:zero32 into %v (n = 32)\n"
            "launch.unary silu %x:64 into %y:64 (n = 64)",
            'unary into "y" reads the plain form of "x", which nothing before has written',
        ),
        (
            '%v = launch.buffer "v" f32[32] alias %x + 32\n'
            '%u = launch.buffer "u" f32[32] alias %x + 0\n'
            "launch.unary silu %i:zero32 into %v (n = 32)\n"
            "launch.unary silu %i into %u (n = 32)\n"
            "launch.unary silu %x:64 into %y:64 (n = 64)",
            None,
        ),
    ],
)
def test_the_checker_follows_elements(text: str, sentence: str | None) -> None:
    if sentence is None:
        check(planned(text))
        return
    with pytest.raises(PassFailedException, match=re.escape(sentence)):
        planned(text)
