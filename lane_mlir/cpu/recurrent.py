"""The recurrent layers: causal convolutions, the gates of the delta rule, the delta rule."""

from __future__ import annotations

from functools import partial

import numpy as np
from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, Run, in_order
from lane_mlir.cpu.landing import store_forms
from lane_mlir.dialects.launch import ConvOp, ConvPartsOp, DecayOp, DeltaOp, GateProjOp, GatesOp
from lane_mlir.eval import Array, StateArray
from lane_mlir.eval.elementwise import sigmoid, silu
from lane_mlir.eval.norms import l2_norm
from lane_mlir.eval.products import matmul
from lane_mlir.eval.recurrent import conv, decay, delta


def _convolve(
    x: Array, w: Array, ring: StateArray, y: Array, *, apply_silu: bool, l2: tuple[int, float] | None
) -> None:
    """One convolution and what follows it: x, y [rows, channels], w [channels, taps], ring [taps, channels]."""
    z = conv(x, w, ring)
    if apply_silu:
        z = silu(z)
    if l2 is not None:
        block, eps = l2
        z = l2_norm(z.reshape(-1, block), eps)
    y[...] = z.reshape(y.shape)


def bind_conv(op: ConvOp, buffers: Buffers) -> Run:
    chan, taps = op.chan.data, op.taps.data
    return partial(
        _convolve,
        buffers.matrix(op.x, chan),
        buffers.matrix(op.w, taps),
        buffers.plain(op.ring).reshape(taps, chan),
        buffers.matrix(op.y, chan),
        apply_silu=op.silu is not None,
        l2=op.l2,
    )


def bind_conv_parts(op: ConvPartsOp, buffers: Buffers) -> Run:
    taps, seqs, runs = op.taps.data, op.seqs.data, list[Run]()
    for c in op.each():
        x, y, w = buffers.matrix(c.x, c.chan), buffers.matrix(c.y, c.chan), buffers.matrix(c.w, taps)
        rings = buffers.plain(c.ring).reshape(seqs, taps, c.chan)
        l2 = (op.block.data, op.eps.data) if c.l2 and op.eps is not None else None
        for s in range(seqs):
            runs.append(partial(_convolve, x[s : s + 1], w, rings[s], y[s : s + 1], apply_silu=True, l2=l2))
    return in_order(*runs)


def _bind_decay(buffers: Buffers, ar: Array, dt: SSAValue, al: SSAValue, y: SSAValue) -> Run:
    """y = exp(al·softplus(ar + dt)), ar [rows, heads]."""
    out, dt_values, al_values = buffers.values(y).reshape(ar.shape), buffers.values(dt), buffers.values(al)

    def run() -> None:
        out[...] = decay(ar, dt_values, al_values)

    return run


def bind_decay(op: DecayOp, buffers: Buffers) -> Run:
    return _bind_decay(buffers, buffers.matrix(op.ar, op.heads.data), op.dt, op.al, op.y)


def _bind_beta(br: Array, beta: Array) -> Run:
    def run() -> None:
        beta[...] = sigmoid(br).reshape(beta.shape)

    return run


def bind_gates(op: GatesOp, buffers: Buffers) -> Run:
    set_decay = _bind_decay(buffers, buffers.matrix(op.ar, op.heads.data), op.dt, op.al, op.decay)
    return in_order(_bind_beta(buffers.values(op.br), buffers.values(op.beta)), set_decay)


def bind_gate_proj(op: GateProjOp, buffers: Buffers) -> Run:
    k, heads, x = op.k.data, op.heads.data, buffers.matrix(op.x, op.k.data)
    wb, wa = buffers.matrix(op.wb, k), buffers.matrix(op.wa, k)
    br, ar = np.empty((1, heads), np.float32), np.empty((1, heads), np.float32)

    def project() -> None:
        br[...] = matmul(x, wb)
        ar[...] = matmul(x, wa)

    set_decay = _bind_decay(buffers, ar, op.dt, op.al, op.decay)
    return in_order(project, _bind_beta(br, buffers.values(op.beta)), set_decay)


def bind_delta(op: DeltaOp, buffers: Buffers) -> Run:
    hv, hk, d, rows = op.hv.data, op.hk.data, op.d.data, op.rows.data
    q, k = buffers.matrix(op.q, hk * d), buffers.matrix(op.k, hk * d)
    v, z = buffers.matrix(op.v, hv * d), buffers.matrix(op.z, hv * d)
    beta, decay_, norm = buffers.matrix(op.b, hv), buffers.matrix(op.a, hv), buffers.values(op.gn)
    states = buffers.plain(op.st).reshape(op.seqs.data, hv * d, d)
    store = store_forms(buffers, op.out, op.f32, op.quant)
    order, eps = op.order.data, op.eps.data

    def step(sequence: int) -> Array:
        first, last = sequence * rows, (sequence + 1) * rows
        inputs = (q[first:last], k[first:last], v[first:last], z[first:last], beta[first:last], decay_[first:last])
        return delta(*inputs, norm, states[sequence], key_heads=hk, value_heads=hv, order=order, eps=eps)

    def run() -> None:
        store(np.concatenate([step(s) for s in range(len(states))]))

    return run
