"""Attention over the rows of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
)

from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.dialects.launch.attributes import NumberAttr, RealAttr, SplitKeys, SplitKeysAttr
from lane_mlir.dialects.launch.operation import (
    FORMS,
    ORIGIN,
    LaunchEffects,
    LaunchOp,
    Touch,
    Touched,
    fields,
    flags,
    optional,
    origin,
    present,
    produced,
    sizes,
)
from lane_mlir.dialects.launch.types import BUFFER
from lane_mlir.dialects.tg.attributes import Activation, ActivationAttr, Numerics


@dataclass(frozen=True)
class Tails:
    """The rotated tails of queries and keys that are stored in two arrays, and how they are."""

    q: SSAValue
    k: SSAValue
    how: SplitKeys


@irdl_op_definition
class AttentionOp(LaunchOp):
    """
    Causal attention of `rows` rows over the first rows of a key and a value array of `len` rows.

    Row r stands at p = pos + r and attends the positions j with p - window < j ≤ p (all j ≤ p without a window). Head
    h reads the key head g = h div group, group = query heads a key head; kv = heads/group. With

        s[j] = scale·Σᵢ q[r, h, i]·kc[j·kv·hd + g·hd + i]  (with a softcap c, c·tanh(s/c)),
        y[r, h, i] = Σⱼ softmax(s)[j]·vc[j·vstride + voff + g·vd + i]

    sinks[h] is one more logit that takes weight and adds nothing. `gate`: y[r, h, i] is multiplied by
    act(gate[goff + (r·heads + h)·vd + i]). `tails`: only the first `own` columns of a head are in q and kc, the other
    hd - own in the tails. `seq`: rows are sequences, each at a position of its own, row r with the arrays that begin
    r·seq elements on.

    How it runs: `per_block` heads a block, the context in `splits` parts, as blocks of their own where `parallel`;
    `shared`: one block serves all heads, which read the same key rows, the context in that many parts.

    q [rows, heads·hd]; out [rows, heads·vd]; sinks [heads].

    Example:
        `launch.attention %q, %kc, %vc at %pos into %o (heads = 9, group = 3, hd = 64, vd = 64, len = 1024, rows = 1)
        values 192 + 0 scale = 1.25e-01 (per_block = 3, splits = 16) parallel quant`
    """

    name = "launch.attention"
    KIND: ClassVar[str] = "attention"
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    q = operand_def(BUFFER)
    kc = operand_def(BUFFER)
    vc = operand_def(BUFFER)
    pos = opt_operand_def(BUFFER)
    sinks = opt_operand_def(BUFFER)
    q_tail = opt_operand_def(BUFFER)
    k_tail = opt_operand_def(BUFFER)
    gate = opt_operand_def(BUFFER)
    out = operand_def(BUFFER)
    split = opt_prop_def(SplitKeysAttr)
    gate_act = opt_prop_def(ActivationAttr)
    goff = opt_prop_def(NumberAttr, default_value=NumberAttr(0))
    heads = prop_def(NumberAttr)
    group = prop_def(NumberAttr)
    hd = prop_def(NumberAttr)
    vd = prop_def(NumberAttr)
    len = prop_def(NumberAttr)
    rows = prop_def(NumberAttr)
    vstride = prop_def(NumberAttr)
    voff = prop_def(NumberAttr)
    scale = prop_def(RealAttr)
    window = opt_prop_def(NumberAttr)
    softcap = opt_prop_def(RealAttr)
    per_block = prop_def(NumberAttr)
    splits = prop_def(NumberAttr)
    parallel = opt_prop_def(UnitAttr)
    shared = opt_prop_def(NumberAttr)
    seq = opt_prop_def(NumberAttr)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)

    assembly_format = (
        "$q `,` $kc `,` $vc (`at` $pos^)? (`sinks` $sinks^)? (`tails` $q_tail^ `,` $k_tail `` `[` $split `]`)?"
        " (`gate` $gate_act $gate^)? (`+` $goff^)? `into` $out"
        + sizes("heads", "group", "hd", "vd", "len", "rows")
        + "`values` $vstride `+` $voff `scale` `=` $scale"
        + optional("window", "softcap")
        + sizes("per_block", "splits")
        + flags("parallel")
        + optional("shared", "seq")
        + FORMS
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        q: SSAValue,
        kc: SSAValue,
        vc: SSAValue,
        pos: SSAValue | None,
        out: SSAValue,
        *,
        heads: int,
        group: int,
        hd: int,
        vd: int,
        len: int,
        rows: int,
        vstride: int,
        voff: int,
        scale: float,
        per_block: int,
        splits: int,
        parallel: bool,
        window: int | None = None,
        softcap: float | None = None,
        sinks: SSAValue | None = None,
        tails: Tails | None = None,
        shared: int | None = None,
        seq: int | None = None,
        f32: bool = True,
        quant: bool = False,
        gate: tuple[SSAValue, Activation] | None = None,
        goff: int = 0,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        q_tail, k_tail, split = (
            (tails.q, tails.k, SplitKeysAttr(tails.how)) if tails is not None else (None, None, None)
        )
        gate_value, gate_act = gate if gate is not None else (None, None)
        super().__init__(
            operands=[q, kc, vc, pos, sinks, q_tail, k_tail, gate_value, out],
            properties=fields(
                split=split,
                gate_act=gate_act,
                goff=goff,
                heads=heads,
                group=group,
                hd=hd,
                vd=vd,
                len=len,
                rows=rows,
                vstride=vstride,
                voff=voff,
                scale=scale,
                window=window,
                softcap=softcap,
                per_block=per_block,
                splits=splits,
                parallel=parallel,
                shared=shared,
                seq=seq,
                f32=f32,
                quant=quant,
            )
            | origin(covers, rules),
        )

    @property
    def tails(self) -> Tails | None:
        if self.q_tail is None or self.k_tail is None or self.split is None:
            return None
        return Tails(self.q_tail, self.k_tail, self.split.data)

    @property
    def key_width(self) -> int:
        """Columns of a row of kc."""
        own = self.hd.data if self.split is None else self.split.data.own
        return self.heads.data // self.group.data * own

    def reads(self) -> Sequence[SSAValue]:
        return present(self.q, self.kc, self.vc, self.pos, self.sinks, self.gate, self.q_tail, self.k_tail)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return present(self.kc, self.vc, self.k_tail)

    def touched_writes(self) -> Touched:
        return produced(self.out, self.f32, self.quant)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.rows.data * self.heads.data * self.vd.data

    def attends_in_tiles(self, numerics: Numerics) -> bool:
        strides = [self.hd.data, self.vd.data, self.vstride.data, self.voff.data, self.key_width]
        if self.split is not None:
            s = self.split.data
            strides += [s.own, s.q_pitch, s.q_tail.pitch, s.q_tail.offset, s.k_tail.pitch, s.k_tail.offset]
        return (
            numerics is not Numerics.DEQUANT
            and self.seq is None
            and self.rows.data > GEMV_ROWS
            and self.vd.data <= 512
            and all(stride % 4 == 0 for stride in strides)
        )

    def attends_on_tensor_cores(self, numerics: Numerics) -> bool:
        return numerics is Numerics.INT8 and self.attends_in_tiles(numerics) and self._heads_are_whole(16)

    def attends_in_two_words(self, numerics: Numerics) -> bool:
        return numerics is Numerics.TWO_PASS_INT8 and self.attends_in_tiles(numerics) and self._heads_are_whole(32)

    def attends_flash(self, numerics: Numerics) -> bool:
        return (
            self.attends_in_tiles(numerics)
            and not self.attends_on_tensor_cores(numerics)
            and not self.attends_in_two_words(numerics)
            and self._heads_are_whole(1)
        )

    def _heads_are_whole(self, unit: int) -> bool:
        """Whether key and value heads are whole units, and fit the tile kernels."""
        return all(d % unit == 0 and d <= 256 for d in (self.hd.data, self.vd.data))

    def verify_(self) -> None:
        heads, group, hd, vd, rows = (f.data for f in (self.heads, self.group, self.hd, self.vd, self.rows))
        self.expect_positive("heads", "group", "hd", "vd", "len", "rows", "window", "per_block", "splits", "shared")
        self.expect_form(self.f32, self.quant)
        if heads % group:
            raise self.refuse(f"heads = {heads} is no multiple of group = {group}")
        if heads % self.per_block.data:
            raise self.refuse(f"heads = {heads} is no multiple of per_block = {self.per_block.data}")
        self._verify_operands()
        self.expect_length("sinks", self.sinks, heads, f"heads = {heads}")
        self.expect_length("out", self.out, rows * heads * vd, f"rows = {rows} by heads = {heads} by vd = {vd}")
        if self.split is None:
            self.expect_length("q", self.q, rows * heads * hd, f"rows = {rows} by heads = {heads} by hd = {hd}")
        if self.gate is not None:
            reach = self.goff.data + rows * heads * vd
            self.expect_at_least("gate", self.gate, reach, f"goff = {self.goff.data} and the size of out")
        self._verify_arrays()

    def _verify_operands(self) -> None:
        if len({value is None for value in (self.q_tail, self.k_tail, self.split)}) > 1:
            raise self.refuse("has tails of queries and of keys and how they are stored, or none of them")
        if self.split is not None and self.split.data.own >= self.hd.data:
            raise self.refuse(f"has no tail: own = {self.split.data.own} of hd = {self.hd.data}")
        if (self.gate is None) != (self.gate_act is None):
            raise self.refuse("is gated by a buffer and an activation, or not at all")

    def _verify_arrays(self) -> None:
        """Keys and values of all positions that may be attended, in the arrays of every sequence."""
        length, kv = self.len.data, self.heads.data // self.group.data
        keys = (length - 1) * self.key_width + self.key_width
        values = (length - 1) * self.vstride.data + self.voff.data + kv * self.vd.data
        before = (self.rows.data - 1) * self.seq.data if self.seq is not None else 0
        self.expect_at_least("kc", self.kc, before + keys, f"len = {length} rows of {self.key_width}")
        self.expect_at_least("vc", self.vc, before + values, f"len = {length} rows of {self.vstride.data}")
        if (tails := self.tails) is not None:
            tail, how = self.hd.data - tails.how.own, tails.how
            units = self.rows.data * self.heads.data
            self.expect_units("q_tail", tails.q, units, tail, how.q_tail, f"{units} tails of {tail}")
            self.expect_units("k_tail", tails.k, length, tail, how.k_tail, f"len = {length} tails of {tail}")
