"""Launches of the recurrent layers: causal convolutions, the gates of the delta rule, the delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    SameVariadicOperandSize,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from lane_mlir.cuda.kernels.delta import delta_chunks_take
from lane_mlir.cuda.kernels.gemv import GEMV_ROWS
from lane_mlir.dialects.launch.attributes import ConvPart, ConvPartAttr, NumberAttr, RealAttr
from lane_mlir.dialects.launch.directives import ConvParts
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
from lane_mlir.dialects.tg.attributes import KeyHeadOrder, KeyHeadOrderAttr, Numerics

ONE = NumberAttr(1)


@irdl_op_definition
class ConvOp(LaunchOp):
    """
    Causal convolution of each channel over the last `taps` inputs: y[r, c] = Σₜ w[c, t]·h[r + t, c], h the ring's rows
    but the oldest, then x; the ring afterwards holds the last inputs, oldest first. Then, where they are wanted,
    SiLU, and an L2 norm of every `block` channels: z/max(√(Σz²), eps).

    x, y [rows, chan]; w [chan, taps]; ring [taps, chan].

    Example: `launch.conv %x by %w ring %r into %y (chan = 512, taps = 4, rows = 1) silu by [conv_silu]`
    """

    name = "launch.conv"
    KIND: ClassVar[str] = "conv"

    x = operand_def(BUFFER)
    w = operand_def(BUFFER)
    ring = operand_def(BUFFER)
    y = operand_def(BUFFER)
    chan = prop_def(NumberAttr)
    taps = prop_def(NumberAttr)
    rows = prop_def(NumberAttr)
    silu = opt_prop_def(UnitAttr)
    block = opt_prop_def(NumberAttr)
    """Channels that an L2 norm takes together; no norm if there is none."""
    eps = opt_prop_def(RealAttr)

    assembly_format = (
        "$x `by` $w `ring` $ring `into` $y"
        + sizes("chan", "taps", "rows")
        + flags("silu")
        + " (`l2` $block^ `eps` $eps)?"
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        ring: SSAValue,
        y: SSAValue,
        *,
        chan: int,
        taps: int,
        rows: int,
        silu: bool = False,
        l2: tuple[int, float] | None = None,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        block, eps = l2 if l2 is not None else (None, None)
        super().__init__(
            operands=[x, w, ring, y],
            properties=fields(chan=chan, taps=taps, rows=rows, silu=silu, block=block, eps=eps) | origin(covers, rules),
        )

    @property
    def l2(self) -> tuple[int, float] | None:
        """Channels that the L2 norm takes together, and its epsilon."""
        return (self.block.data, self.eps.data) if self.block is not None and self.eps is not None else None

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.w, self.ring)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y, self.ring)

    def updates(self) -> Sequence[SSAValue]:
        return (self.ring,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.rows.data * self.chan.data if t is not self.ring else None

    def verify_(self) -> None:
        chan, taps, rows = self.chan.data, self.taps.data, self.rows.data
        self.expect_positive("chan", "taps", "rows", "block")
        if (self.block is None) != (self.eps is None):
            raise self.refuse("takes an L2 norm of blocks with an epsilon, or none")
        if self.block is not None and chan % self.block.data:
            raise self.refuse(f"chan = {chan} is no multiple of the L2 norm's {self.block.data}")
        for name, value in (("x", self.x), ("y", self.y)):
            self.expect_length(name, value, rows * chan, f"rows = {rows} by chan = {chan}")
        for name, value in (("w", self.w), ("ring", self.ring)):
            self.expect_length(name, value, taps * chan, f"taps = {taps} by chan = {chan}")


@dataclass(frozen=True)
class Convolution:
    """One convolution of several: its operands, its channels, and whether an L2 norm follows."""

    x: SSAValue
    w: SSAValue
    ring: SSAValue
    y: SSAValue
    chan: int
    l2: bool = False


@irdl_op_definition
class ConvPartsOp(LaunchOp):
    """
    Several convolutions of one row in one launch, each as launch.conv with SiLU, and where `l2` an L2 norm of every
    `block` channels. `seqs`: as many sequences, their rows and rings one after the other.

    Example:
        `launch.conv_parts [%q by %wq ring %rq into %yq chan = 256 l2] (taps = 4, block = 128, seqs = 1) eps = 1.0e-06`
    """

    name = "launch.conv_parts"
    KIND: ClassVar[str] = "conv"
    irdl_options = (SameVariadicOperandSize(),)

    x = var_operand_def(BUFFER)
    w = var_operand_def(BUFFER)
    ring = var_operand_def(BUFFER)
    y = var_operand_def(BUFFER)
    convolutions = prop_def(ArrayAttr[ConvPartAttr])
    taps = prop_def(NumberAttr)
    block = prop_def(NumberAttr)
    seqs = prop_def(NumberAttr)
    eps = opt_prop_def(RealAttr)

    custom_directives = (ConvParts,)
    assembly_format = (
        "custom<ConvParts>($x, $w, $ring, $y, $convolutions)"
        + sizes("taps", "block", "seqs")
        + optional("eps")
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        convolutions: Sequence[Convolution],
        *,
        taps: int,
        block: int,
        eps: float | None = None,
        seqs: int = 1,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[
                [c.x for c in convolutions],
                [c.w for c in convolutions],
                [c.ring for c in convolutions],
                [c.y for c in convolutions],
            ],
            properties=fields(
                convolutions=ArrayAttr([ConvPartAttr(ConvPart(c.chan, c.l2)) for c in convolutions]),
                taps=taps,
                block=block,
                eps=eps,
                seqs=seqs,
            )
            | origin(covers, rules),
        )

    def each(self) -> list[Convolution]:
        """The convolutions, each with its operands."""
        rows = zip(self.x, self.w, self.ring, self.y, self.convolutions.data, strict=True)
        return [Convolution(x, w, ring, y, part.data.chan, part.data.l2) for x, w, ring, y, part in rows]

    def reads(self) -> Sequence[SSAValue]:
        return present(*(v for c in self.each() for v in (c.x, c.w, c.ring)))

    def writes(self) -> Sequence[SSAValue]:
        return tuple(v for c in self.each() for v in (c.y, c.ring))

    def updates(self) -> Sequence[SSAValue]:
        return tuple(self.ring)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return next((c.chan * self.seqs.data for c in self.each() if c.y is t), None)

    def verify_(self) -> None:
        taps, block, seqs = self.taps.data, self.block.data, self.seqs.data
        self.expect_positive("taps", "block", "seqs")
        if len(self.x) != len(self.convolutions) or not len(self.x):
            raise self.refuse(f"has {len(self.x)} inputs for {len(self.convolutions)} convolutions")
        if any(part.data.l2 for part in self.convolutions) != (self.eps is not None):
            raise self.refuse("has an epsilon if and only if one of its convolutions takes an L2 norm")
        for i, c in enumerate(self.each()):
            if c.chan == 0 or (c.l2 and c.chan % block):
                raise self.refuse(f"chan = {c.chan} of convolution {i} is no multiple of block = {block}")
            self.expect_length(f"x of convolution {i}", c.x, seqs * c.chan, f"seqs = {seqs} by chan = {c.chan}")
            self.expect_length(f"y of convolution {i}", c.y, seqs * c.chan, f"seqs = {seqs} by chan = {c.chan}")
            self.expect_length(f"w of convolution {i}", c.w, taps * c.chan, f"taps = {taps} by chan = {c.chan}")
            ring = f"seqs = {seqs} by taps = {taps} by chan = {c.chan}"
            self.expect_length(f"ring of convolution {i}", c.ring, seqs * taps * c.chan, ring)


@irdl_op_definition
class DecayOp(LaunchOp):
    """
    The decay of the gated delta rule: y[r, h] = exp(al[h]·softplus(ar[r, h] + dt[h])).

    ar, y [n], n a multiple of `heads`; dt, al [heads].

    Example: `launch.decay %a, %dt, %al into %y (n = 16, heads = 16)`
    """

    name = "launch.decay"
    KIND: ClassVar[str] = "decay"

    ar = operand_def(BUFFER)
    dt = operand_def(BUFFER)
    al = operand_def(BUFFER)
    y = operand_def(BUFFER)
    n = prop_def(NumberAttr)
    heads = prop_def(NumberAttr)

    assembly_format = "$ar `,` $dt `,` $al `into` $y" + sizes("n", "heads") + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        ar: SSAValue,
        dt: SSAValue,
        al: SSAValue,
        y: SSAValue,
        *,
        n: int,
        heads: int,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(operands=[ar, dt, al, y], properties=fields(n=n, heads=heads) | origin(covers, rules))

    def reads(self) -> Sequence[SSAValue]:
        return present(self.ar, self.dt, self.al)

    def writes(self) -> Sequence[SSAValue]:
        return (self.y,)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def verify_(self) -> None:
        expect_gates(self, self.n.data, self.heads.data, self.dt, self.al)
        for name, value in (("ar", self.ar), ("y", self.y)):
            self.expect_length(name, value, self.n.data, f"n = {self.n.data}")


def expect_gates(op: LaunchOp, n: int, heads: int, dt: SSAValue, al: SSAValue) -> None:
    op.expect_positive("n", "heads")
    if n % heads:
        raise op.refuse(f"n = {n} is no multiple of heads = {heads}")
    op.expect_length("dt", dt, heads, f"heads = {heads}")
    op.expect_length("al", al, heads, f"heads = {heads}")


@irdl_op_definition
class GatesOp(LaunchOp):
    """
    The gates of the delta rule: beta[r, h] = sigmoid(br[r, h]), and decay as launch.decay.

    br, ar, beta, decay [n], n a multiple of `heads`; dt, al [heads].

    Example: `launch.gates %b, %a, %dt, %al into %beta, %decay (n = 16, heads = 16) by [gates]`
    """

    name = "launch.gates"
    KIND: ClassVar[str] = "gates"

    br = operand_def(BUFFER)
    ar = operand_def(BUFFER)
    dt = operand_def(BUFFER)
    al = operand_def(BUFFER)
    beta = operand_def(BUFFER)
    decay = operand_def(BUFFER)
    n = prop_def(NumberAttr)
    heads = prop_def(NumberAttr)

    assembly_format = "$br `,` $ar `,` $dt `,` $al `into` $beta `,` $decay" + sizes("n", "heads") + ORIGIN
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        br: SSAValue,
        ar: SSAValue,
        dt: SSAValue,
        al: SSAValue,
        beta: SSAValue,
        decay: SSAValue,
        *,
        n: int,
        heads: int,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[br, ar, dt, al, beta, decay], properties=fields(n=n, heads=heads) | origin(covers, rules)
        )

    def reads(self) -> Sequence[SSAValue]:
        return present(self.br, self.ar, self.dt, self.al)

    def writes(self) -> Sequence[SSAValue]:
        return (self.beta, self.decay)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.n.data

    def result(self) -> SSAValue | None:
        return None

    def verify_(self) -> None:
        expect_gates(self, self.n.data, self.heads.data, self.dt, self.al)
        for name, value in (("br", self.br), ("ar", self.ar), ("beta", self.beta), ("decay", self.decay)):
            self.expect_length(name, value, self.n.data, f"n = {self.n.data}")


@irdl_op_definition
class GateProjOp(LaunchOp):
    """
    The two small products before the gates of the delta rule, by plain weights, and the gates, of one row:
    br = wb·x, ar = wa·x, then as launch.gates. The sums are split in `split` parts.

    x [k]; wb, wa [heads, k] (stored transposed by the plan); dt, al, beta, decay [heads].

    Example: `launch.gate_proj %x by %wb, %wa, %dt, %al into %beta, %decay (k = 2048, heads = 16) split = 8`
    """

    name = "launch.gate_proj"
    KIND: ClassVar[str] = "gates"

    x = operand_def(BUFFER)
    wb = operand_def(BUFFER)
    wa = operand_def(BUFFER)
    dt = operand_def(BUFFER)
    al = operand_def(BUFFER)
    beta = operand_def(BUFFER)
    decay = operand_def(BUFFER)
    k = prop_def(NumberAttr)
    heads = prop_def(NumberAttr)
    split = opt_prop_def(NumberAttr, default_value=ONE)

    assembly_format = (
        "$x `by` $wb `,` $wa `,` $dt `,` $al `into` $beta `,` $decay" + sizes("k", "heads") + optional("split") + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        x: SSAValue,
        wb: SSAValue,
        wa: SSAValue,
        dt: SSAValue,
        al: SSAValue,
        beta: SSAValue,
        decay: SSAValue,
        *,
        k: int,
        heads: int,
        split: int = 1,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[x, wb, wa, dt, al, beta, decay],
            properties=fields(k=k, heads=heads, split=split) | origin(covers, rules),
        )

    def reads(self) -> Sequence[SSAValue]:
        return present(self.x, self.wb, self.wa, self.dt, self.al)

    def writes(self) -> Sequence[SSAValue]:
        return (self.beta, self.decay)

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        return self.heads.data

    def result(self) -> SSAValue | None:
        return None

    def verify_(self) -> None:
        k, heads = self.k.data, self.heads.data
        self.expect_positive("k", "split")
        expect_gates(self, heads, heads, self.dt, self.al)
        self.expect_length("x", self.x, k, f"k = {k}")
        for name, value in (("wb", self.wb), ("wa", self.wa)):
            self.expect_length(name, value, heads * k, f"heads = {heads} by k = {k}")
        for name, value in (("beta", self.beta), ("decay", self.decay)):
            self.expect_length(name, value, heads, f"heads = {heads}")


@irdl_op_definition
class DeltaOp(LaunchOp):
    """
    The gated delta rule, row by row, and the gated norm of what it reads out. For value head h with key head g, S the
    head's state [d, d], q' = q[r, g]/√d, k' = k[r, g]:

        S ← a[r, h]·S;  S ← S + k'·(b[r, h]·(v[r, h] - Sᵀ·k'))ᵀ;  o = Sᵀ·q'
        out[r, h] = rms_norm(o, gn, eps)·silu(z[r, h])

    g is h div (hv/hk) in `blocked` order, h mod hk in `cyclic`. `seqs`: as many sequences of `rows` rows, each with
    a state of its own.

    q, k [rows, hk·d]; v, z, out [rows, hv·d]; b, a [rows, hv]; gn [d]; st [hv·d, d]; each `seqs` times.

    Example:
        `launch.delta %q, %k, %v gate %z beta %b decay %a norm %w state %s into %o blocked
        (hv = 16, hk = 8, d = 128, rows = 1) eps = 1.0e-06 quant`
    """

    name = "launch.delta"
    KIND: ClassVar[str] = "delta"

    q = operand_def(BUFFER)
    k = operand_def(BUFFER)
    v = operand_def(BUFFER)
    z = operand_def(BUFFER)
    b = operand_def(BUFFER)
    a = operand_def(BUFFER)
    st = operand_def(BUFFER)
    gn = operand_def(BUFFER)
    out = operand_def(BUFFER)
    order = prop_def(KeyHeadOrderAttr)
    hv = prop_def(NumberAttr)
    hk = prop_def(NumberAttr)
    d = prop_def(NumberAttr)
    rows = prop_def(NumberAttr)
    seqs = opt_prop_def(NumberAttr, default_value=ONE)
    eps = prop_def(RealAttr)
    f32 = opt_prop_def(UnitAttr)
    quant = opt_prop_def(UnitAttr)

    assembly_format = (
        "$q `,` $k `,` $v `gate` $z `beta` $b `decay` $a `norm` $gn `state` $st `into` $out $order"
        + sizes("hv", "hk", "d", "rows")
        + optional("seqs")
        + " `eps` `=` $eps"
        + FORMS
        + ORIGIN
    )
    traits = traits_def(LaunchEffects())

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        z: SSAValue,
        b: SSAValue,
        a: SSAValue,
        st: SSAValue,
        gn: SSAValue,
        out: SSAValue,
        *,
        hv: int,
        hk: int,
        d: int,
        rows: int,
        eps: float,
        order: KeyHeadOrder = KeyHeadOrder.BLOCKED,
        seqs: int = 1,
        f32: bool = True,
        quant: bool = False,
        covers: Sequence[int] = (),
        rules: Sequence[str] = (),
    ):
        super().__init__(
            operands=[q, k, v, z, b, a, st, gn, out],
            properties=fields(order=order, hv=hv, hk=hk, d=d, rows=rows, seqs=seqs, eps=eps, f32=f32, quant=quant)
            | origin(covers, rules),
        )

    def reads(self) -> Sequence[SSAValue]:
        return present(self.q, self.k, self.v, self.z, self.b, self.a, self.st, self.gn)

    def writes(self) -> Sequence[SSAValue]:
        return (self.out, self.st)

    def updates(self) -> Sequence[SSAValue]:
        return (self.st,)

    def typed(self, numerics: Numerics) -> Sequence[SSAValue]:
        return (self.st,)

    def touched_writes(self) -> Touched:
        return [*produced(self.out, self.f32, self.quant), (self.st, Touch.PLAIN)]

    def written(self, t: SSAValue, touch: Touch) -> int | None:
        whole = self.rows.data * self.hv.data * self.d.data * self.seqs.data
        return whole if t is not self.st else None

    def delta_in_chunks(self, numerics: Numerics) -> bool:
        return numerics is not Numerics.DEQUANT and self.rows.data > GEMV_ROWS and delta_chunks_take(self.d.data)

    def verify_(self) -> None:
        hv, hk, d, rows, seqs = (f.data for f in (self.hv, self.hk, self.d, self.rows, self.seqs))
        self.expect_positive("hv", "hk", "d", "rows", "seqs")
        self.expect_form(self.f32, self.quant)
        if hv % hk:
            raise self.refuse(f"hv = {hv} is no multiple of hk = {hk}")
        every = f"rows = {rows} by seqs = {seqs}"
        for name, value, width, what in (
            ("q", self.q, hk * d, f"hk = {hk} by d = {d}"),
            ("k", self.k, hk * d, f"hk = {hk} by d = {d}"),
            ("v", self.v, hv * d, f"hv = {hv} by d = {d}"),
            ("z", self.z, hv * d, f"hv = {hv} by d = {d}"),
            ("b", self.b, hv, f"hv = {hv}"),
            ("a", self.a, hv, f"hv = {hv}"),
            ("out", self.out, hv * d, f"hv = {hv} by d = {d}"),
        ):
            self.expect_length(name, value, rows * seqs * width, f"{every} by {what}")
        self.expect_length("st", self.st, seqs * hv * d * d, f"seqs = {seqs} by hv = {hv} by d = {d} by d = {d}")
        self.expect_length("gn", self.gn, d, f"d = {d}")
