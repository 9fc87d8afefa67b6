"""Which linker links which op: by its type if it is lifted, by its class if it is fused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from xdsl.ir import Operation

from lane_mlir.dialects import tg
from lane_mlir.dialects.launch import LaunchOp
from lane_mlir.passes.forms import Scope, describe
from lane_mlir.passes.link import attention, elementwise, mixture, movement, norms, products, recurrent, rotations
from lane_mlir.passes.link.judge import Judge, Linker, Refusal

_LIFTED: Mapping[type[Operation], Linker] = MappingProxyType(
    {
        tg.GatherOp: norms.link_gather,
        tg.RmsNormOp: norms.link_norm,
        tg.LayerNormOp: norms.link_layer_norm,
        tg.L2NormOp: norms.link_l2_norm,
        tg.QuantizeOp: norms.link_quantize,
        tg.MatmulOp: products.link_gemv,
        tg.HeadMatmulOp: products.link_head_gemv,
        tg.MoeOp: mixture.link_moe,
        tg.BinaryOp: elementwise.link_binary,
        tg.UnaryOp: elementwise.link_unary,
        tg.ScaleOp: elementwise.link_scale,
        tg.RopeOp: rotations.link_rope,
        tg.SetRowOp: movement.link_set_row,
        tg.InsertOp: movement.link_insert,
        tg.SliceOp: movement.link_slice,
        tg.JoinOp: movement.link_join,
        tg.ViewOp: movement.link_view,
        tg.ArgmaxOp: movement.link_argmax,
        tg.AttentionOp: attention.link_attention,
        tg.ConvOp: recurrent.link_conv,
        tg.DecayOp: recurrent.link_decay,
        tg.DeltaOp: recurrent.link_delta,
    }
)

_FUSED: Mapping[str, Linker] = MappingProxyType(
    {
        "add_norm": norms.link_norm,
        "sandwich_norm": norms.link_norm,
        "norm_quant": norms.link_normed,
        "add_norm_quant": norms.link_normed,
        "gather_scale": norms.link_gather,
        "embed_norm": norms.link_normed,
        "embed_norm_quant": norms.link_normed,
        "gemv_norm_epilogue": norms.link_normed,
        "moe_deferred_finalize": norms.link_normed,
        "qkv_head_epilogue": products.link_head_epilogue,
        "gemv_bias": products.link_gemv,
        "gemv_quant": products.link_gemv,
        "gemv_parts": products.link_gemm_parts,
        "glu_pair": products.link_glu,
        "act_gate": elementwise.link_gated,
        "glu_act_mul_quant": elementwise.link_gating_quantized,
        "elementwise_quant": elementwise.link_elementwise_quantized,
        "conv_silu": recurrent.link_conv,
        "conv_silu_l2": recurrent.link_conv,
        "conv_parts": recurrent.link_conv_parts,
        "gates": recurrent.link_gates,
        "gate_projections": recurrent.link_gate_projections,
        "shared_expert": mixture.link_shared_expert,
        "moe_rows": mixture.link_moe_rows,
        "attn_output_gate": attention.link_attention,
        "attn_output_quant": attention.link_attention,
        "strided_values": attention.link_attention,
        "slice_read": movement.link_slice_read,
        "gdn_output_quant": recurrent.link_delta,
        "head_norm_rope": rotations.link_rope,
        "rope_parts": rotations.link_rope_parts,
        "join_in_place": movement.link_join_in_place,
        "row_write": movement.link_row_write,
        "advance": movement.link_argmax,
    }
)


def linker_of(op: Operation) -> Linker:
    """What links an op. Raises Refusal if nothing does."""
    if isinstance(op, tg.FusedOp):
        linker = _FUSED.get(op.fusion_class.data)
    else:
        linker = _LIFTED.get(type(op))
    return linker if linker is not None else _refuse


def _refuse(judge: Judge, op: Operation, scope: Scope) -> LaunchOp:
    if isinstance(op, tg.AdvanceOp):
        raise Refusal(f"{describe(op)} runs only with its arg-max: run fuse first, whose closing rule joins them")
    raise Refusal(f"no kernel runs {describe(op)}")
