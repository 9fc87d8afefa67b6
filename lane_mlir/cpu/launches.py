"""Which function binds which launch to the arrays of its buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from lane_mlir.cpu import attention, elementwise, mixture, movement, norms, products, recurrent, rotations
from lane_mlir.cpu.buffers import Buffers, Run, describe, in_order, refuse
from lane_mlir.diagnostics import LaneError
from lane_mlir.dialects import launch
from lane_mlir.dialects.launch import FoldOp, LaunchOp

BINDERS: Mapping[type[LaunchOp], Callable[..., Run | None]] = MappingProxyType(
    {
        launch.GatherOp: movement.bind_gather,
        launch.ViewOp: movement.bind_view,
        launch.NormOp: norms.bind_norm,
        launch.QuantOp: norms.bind_quant,
        launch.GemvOp: products.bind_gemv,
        launch.GemvF32Op: products.bind_gemv_f32,
        launch.GemmPartsOp: products.bind_gemm_parts,
        launch.BinaryOp: elementwise.bind_binary,
        launch.ScaleOp: elementwise.bind_scale,
        launch.SwiGluOp: elementwise.bind_swiglu,
        launch.UnaryOp: elementwise.bind_unary,
        launch.RopeOp: rotations.bind_rope,
        launch.RopePartsOp: rotations.bind_rope_parts,
        launch.SetRowOp: movement.bind_set_row,
        launch.AttentionOp: attention.bind_attention,
        launch.ArgMaxOp: movement.bind_argmax,
        launch.ConvOp: recurrent.bind_conv,
        launch.ConvPartsOp: recurrent.bind_conv_parts,
        launch.L2NormOp: norms.bind_l2_norm,
        launch.DecayOp: recurrent.bind_decay,
        launch.GatesOp: recurrent.bind_gates,
        launch.GateProjOp: recurrent.bind_gate_proj,
        launch.DeltaOp: recurrent.bind_delta,
        launch.MoeOp: mixture.bind_moe,
        launch.SliceOp: movement.bind_slice,
        launch.JoinOp: movement.bind_join,
        launch.HeadGemvOp: products.bind_head_gemv,
        launch.GemvGluOp: products.bind_gemv_glu,
    }
)
"""For each launch but the fold, the function that takes it and the buffers and returns what runs it; None: nothing."""


def bind(op: LaunchOp, buffers: Buffers) -> Run | None:
    """
    What runs a launch, with everything that can be known before it runs looked up.

    Raises: LaneError naming the launch, for one that cannot be executed, and for whatever its buffers refuse.
    """
    if isinstance(op, FoldOp):
        runs = [run for part in (op.first, op.then) if (run := bind(part, buffers)) is not None]
        return in_order(*runs)
    binder = BINDERS.get(type(op))
    if binder is None:
        refuse(op, "the CPU target does not know this launch")
    try:
        return binder(op, buffers)
    except LaneError as error:
        named = str(error) if str(error).startswith(op.name) else f"{describe(op)}: {error}"
        raise LaneError(named) from error
