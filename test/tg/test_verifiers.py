"""What the verifiers of `tg` refuse, and in which words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, FloatAttr, IntegerAttr, StringAttr, UnitAttr, f32, f64, i64
from xdsl.dialects.test import Test
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, OptOperandDef, OptPropertyDef
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from lane_mlir.dialects import tg

Part: TypeAlias = str | int | float | bool | Attribute | None
"""An operand or result by its type, or a property: a number, an attribute, True for a unit. None is left out."""


@cache
def parse_type(text: str) -> Attribute:
    context = Context()
    for dialect in (Builtin, tg.TG, Test):
        context.load_dialect(dialect)
    return Parser(context, text).parse_type()


def property_of(value: Part) -> Attribute | None:
    match value:
        case None | False:
            return None
        case True:
            return UnitAttr()
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(value, f64)
        case str():
            return StringAttr(value)
        case _:
            return value


def build(kind: type[IRDLOperation], parts: dict[str, Part]) -> IRDLOperation:
    """An op of that kind, unverified, from its operands, results and properties by name."""
    definition = kind.get_irdl_definition()

    def value_of(name: str) -> SSAValue | None:
        type_ = parts.get(name)
        return create_ssa_value(parse_type(type_)) if isinstance(type_, str) else None

    return kind.build(
        operands=[value_of(name) for name, _ in definition.operands],
        result_types=[parse_type(str(parts[name])) for name, _ in definition.results],
        properties={name: property_of(parts.get(name)) for name in definition.accessor_names},
    )


Q4_1 = "#tg.rows<q4_1>"
INT8 = "#tg.quantized<int8>"
CACHE = "memref<64x32xf32>"
POSITION = "memref<1xi32>"

VALID: dict[type[IRDLOperation], dict[str, Part]] = {
    tg.ConstantOp: {"tensor": "w", "result": f"tensor<8x32xf32, {Q4_1}>"},
    tg.RopeTableOp: {
        "factors": "tensor<8xf32>",
        "base": 1e4,
        "freq_scale": 0.25,
        "ext_factor": 1.0,
        "attn_factor": 1.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_context": 4096,
        "cos": "tensor<64x8xf32>",
        "sin": "tensor<64x8xf32>",
    },
    tg.EmptyOp: {"result": "tensor<2x32xf32>"},
    tg.GatherOp: {"table": f"tensor<9x32xf32, {Q4_1}>", "index": "memref<2xi32>", "result": "tensor<2x32xf32>"},
    tg.SetRowOp: {"src": "tensor<2x32xf32>", "table": CACHE, "pos": POSITION},
    tg.InsertOp: {
        "src": "tensor<2x16xf32>",
        "dst": "tensor<2x48xf32>",
        "every": 48,
        "start": 32,
        "result": "tensor<2x48xf32>",
    },
    tg.SliceOp: {"x": "tensor<2x48xf32>", "every": 48, "start": 32, "width": 16, "result": "tensor<2x16xf32>"},
    tg.JoinOp: {"a": "tensor<2x16xf32>", "b": "tensor<2x32xf32>", "heads": 2, "result": "tensor<2x48xf32>"},
    tg.ViewOp: {"x": "tensor<3x32xf32>", "offset": 32, "result": "tensor<4x16xf32>"},
    tg.QuantizeOp: {"x": "tensor<2x32xf32>", "result": f"tensor<2x32xf32, {INT8}>"},
    tg.MatmulOp: {
        "x": f"tensor<2x32xf32, {INT8}>",
        "w": f"tensor<8x32xf32, {Q4_1}>",
        "result": "tensor<2x8xf32>",
    },
    tg.HeadMatmulOp: {
        "x": "tensor<2x128xf32>",
        "w": f"tensor<4x16x32xf32, {Q4_1}>",
        "upto": POSITION,
        "result": "tensor<2x64xf32>",
    },
    tg.MoeOp: {
        "x": "tensor<2x32xf32>",
        "router": "tensor<8x32xf32>",
        "gate": f"tensor<8x64x32xf32, {Q4_1}>",
        "up": f"tensor<8x64x32xf32, {Q4_1}>",
        "down": f"tensor<8x32x64xf32, {Q4_1}>",
        "router_bias": "tensor<8xf32>",
        "selection_bias": "tensor<8xf32>",
        "gate_bias": "tensor<8x64xf32>",
        "up_bias": "tensor<8x64xf32>",
        "down_bias": "tensor<8x32xf32>",
        "quantized": f"tensor<2x32xf32, {INT8}>",
        "used": 2,
        "scoring": tg.ScoringAttr(tg.Scoring.SIGMOID),
        "renormalize": True,
        "scale": 2.5,
        "activation": tg.ExpertActivationAttr(tg.ExpertActivation.CLAMPED_SWIGLU),
        "groups": 4,
        "groups_used": 2,
        "alpha": 1.702,
        "limit": 7.0,
        "result": "tensor<2x32xf32>",
    },
    tg.RmsNormOp: {"x": "tensor<2x32xf32>", "w": "tensor<32xf32>", "eps": 1e-5, "result": "tensor<2x32xf32>"},
    tg.LayerNormOp: {
        "x": "tensor<2x32xf32>",
        "w": "tensor<32xf32>",
        "b": "tensor<32xf32>",
        "eps": 1e-5,
        "result": "tensor<2x32xf32>",
    },
    tg.L2NormOp: {"x": "tensor<2x32xf32>", "eps": 1e-6, "result": "tensor<2x32xf32>"},
    tg.BinaryOp: {
        "operator": tg.BinaryOperatorAttr(tg.BinaryOperator.ADD),
        "a": "tensor<2x32xf32>",
        "b": "tensor<2x32xf32>",
        "result": "tensor<2x32xf32>",
    },
    tg.UnaryOp: {
        "activation": tg.ActivationAttr(tg.Activation.SILU),
        "x": "tensor<2x32xf32>",
        "result": "tensor<2x32xf32>",
    },
    tg.ScaleOp: {"x": "tensor<2x32xf32>", "factor": -2.0, "result": "tensor<2x32xf32>"},
    tg.RopeOp: {
        "x": "tensor<8x16xf32>",
        "cos": "tensor<64x8xf32>",
        "sin": "tensor<64x8xf32>",
        "pos": POSITION,
        "per_row": 4,
        "pairing": tg.PairingAttr(tg.Pairing.HALF),
        "result": "tensor<8x16xf32>",
    },
    tg.AttentionOp: {
        "q": "tensor<2x64xf32>",
        "k": CACHE,
        "v": "memref<64x48xf32>",
        "pos": POSITION,
        "sinks": "tensor<4xf32>",
        "q_tail": "tensor<2x32xf32>",
        "k_tail": "memref<64x8xf32>",
        "heads": 4,
        "kv_heads": 2,
        "scale": 0.25,
        "window": 16,
        "softcap": 50.0,
        "result": "tensor<2x96xf32>",
    },
    tg.ConvOp: {
        "x": "tensor<2x96xf32>",
        "w": "tensor<96x4xf32>",
        "ring": "memref<4x96xf32>",
        "result": "tensor<2x96xf32>",
    },
    tg.DecayOp: {"a": "tensor<2x4xf32>", "dt": "tensor<4xf32>", "al": "tensor<4xf32>", "result": "tensor<2x4xf32>"},
    tg.DeltaOp: {
        "q": "tensor<2x32xf32>",
        "k": "tensor<2x32xf32>",
        "v": "tensor<2x64xf32>",
        "z": "tensor<2x64xf32>",
        "beta": "tensor<2x4xf32>",
        "decay": "tensor<2x4xf32>",
        "norm": "tensor<16xf32>",
        "state": "memref<64x16xf32>",
        "key_heads": 2,
        "value_heads": 4,
        "order": tg.KeyHeadOrderAttr(tg.KeyHeadOrder.CYCLIC),
        "eps": 1e-6,
        "result": "tensor<2x64xf32>",
    },
    tg.ArgmaxOp: {"x": "tensor<2x64xf32>", "result": "tensor<2xi32>"},
    tg.AdvanceOp: {"id": "tensor<1xi32>", "token": POSITION, "pos": POSITION},
}
"""Every op but the fused ones, with all that it can have."""

KINDS = [pytest.param(kind, id=kind.name) for kind in VALID]


def test_every_op_is_here() -> None:
    assert {*VALID, tg.FusedOp, tg.YieldOp} == set(tg.TG.operations)


@pytest.mark.parametrize("kind", KINDS)
def test_valid_ops_verify(kind: type[IRDLOperation]) -> None:
    build(kind, VALID[kind]).verify()
    if issubclass(kind, tg.LiftedOperation):
        build(kind, {**VALID[kind], "number": 0}).verify()


# The formula covers these too: other storage, state for values, what is optional left out.
@pytest.mark.parametrize(
    "kind, changes",
    [
        (tg.ConstantOp, {"result": "tensor<7xf32>"}),
        (tg.ConstantOp, {"result": "tensor<4x3x256xf32, #tg.rows<q6_k>>"}),
        (tg.RopeTableOp, {"factors": None, "ext_factor": 0.0, "original_context": 0}),
        (tg.GatherOp, {"table": "tensor<9x32xf32>"}),
        (tg.SliceOp, {"x": "memref<2x48xf32>"}),
        (tg.SliceOp, {"result": "tensor<4x8xf32>"}),
        (tg.ViewOp, {"x": f"tensor<3x64xf32, {INT8}>", "result": f"tensor<4x32xf32, {INT8}>"}),
        (tg.QuantizeOp, {"result": "tensor<2x32xf32, #tg.quantized<two_pass_int8>>"}),
        (tg.MatmulOp, {"x": "tensor<2x32xf32>", "w": "tensor<8x32xf32>"}),
        (tg.HeadMatmulOp, {"x": "tensor<2x32xf32>", "shared": True, "upto": None}),
        (tg.HeadMatmulOp, {"x": "memref<2x128xf32>"}),
        (tg.HeadMatmulOp, {"w": "tensor<4x32x16xf32>", "transposed": True}),
        (tg.MoeOp, {"quantized": None, "selection_bias": None, "groups": 1, "groups_used": 1}),
        (
            tg.MoeOp,
            {"activation": tg.ExpertActivationAttr(tg.ExpertActivation.SILU), "alpha": None, "limit": None},
        ),
        (tg.RmsNormOp, {"w": None, "eps": 0.0}),
        (tg.LayerNormOp, {"b": None}),
        (tg.BinaryOp, {"b": "tensor<32xf32>"}),
        (tg.BinaryOp, {"b": "tensor<1x32xf32>"}),
        (tg.BinaryOp, {"b": "tensor<2x1xf32>"}),
        (tg.RopeOp, {"cos": "tensor<64x4xf32>", "sin": "tensor<64x4xf32>"}),
        (tg.AttentionOp, {"sinks": None, "q_tail": None, "k_tail": None, "window": None, "softcap": None}),
        (tg.AttentionOp, {"k": "tensor<64x32xf32>", "v": "tensor<64x48xf32>"}),
    ],
)
def test_what_else_is_covered(kind: type[IRDLOperation], changes: dict[str, Part]) -> None:
    build(kind, {**VALID[kind], **changes}).verify()


REFUSED: list[tuple[type[IRDLOperation], dict[str, Part], str]] = [
    # What holds for every op.
    (tg.RmsNormOp, {"number": -1}, "number is -1, expected 0 or more"),
    (tg.ScaleOp, {"factor": float("nan")}, "factor is nan, expected a finite number"),
    (tg.ScaleOp, {"x": "tensor<2x?xf32>"}, "x is 2x?, expected a static shape without a dimension of 0"),
    (tg.ScaleOp, {"x": "tensor<0x32xf32>"}, "x is 0x32, expected a static shape without a dimension of 0"),
    (tg.ScaleOp, {"x": "tensor<f32>"}, "x is a scalar, expected at least one dimension"),
    (tg.ScaleOp, {"x": "tensor<2x32xf16>"}, "operand 'x' at position 0 does not verify:\nfound tensor<2x32xf16>, expected a tensor of f32"),
    (tg.ScaleOp, {"x": "tensor<*xf32>"}, "operand 'x' at position 0 does not verify"),
    (tg.ScaleOp, {"x": 'tensor<2x32xf32, "odd">'}, 'x is stored as "odd", expected plain f32 values'),
    (tg.ScaleOp, {"x": f"tensor<2x32xf32, {INT8}>"}, "x is stored as #tg.quantized<int8>, expected plain f32 values"),
    (
        tg.SetRowOp,
        {"table": "memref<64x32xf32, strided<[64, 1]>>"},
        "table is memref<64x32xf32, strided<[64, 1]>>, expected a memref without a layout or a memory space",
    ),
    (
        tg.SetRowOp,
        {"table": "memref<64x32xf32, 1 : i32>"},
        "table is memref<64x32xf32, 1 : i32>, expected a memref without a layout or a memory space",
    ),
    # Storage.
    (tg.ConstantOp, {"tensor": ""}, "names no tensor"),
    (tg.ConstantOp, {"result": "tensor<1x2x3x4xf32>"}, '"w" is 1x2x3x4, expected 1 to 3 dimensions'),
    (tg.ConstantOp, {"result": f"tensor<8x32xf32, {INT8}>"}, "result is stored as #tg.quantized<int8>, expected plain f32 values or #tg.rows"),
    (tg.ConstantOp, {"result": "tensor<8x288xf32, #tg.rows<q4_k>>"}, "result has rows of 288 values, no whole number of q4_k blocks of 256"),
    (tg.RopeTableOp, {"cos": "tensor<8xf32>"}, "cos is 8, expected 2 dimensions"),
    (tg.RopeTableOp, {"sin": "tensor<64x4xf32>"}, "sin is 64x4, expected 64x8 (the shape of cos)"),
    (tg.RopeTableOp, {"factors": "tensor<16xf32>"}, "factors is 16, expected 8 (one a column of cos)"),
    (tg.RopeTableOp, {"base": 0.0}, "base is 0.0, expected more than 0"),
    (tg.RopeTableOp, {"freq_scale": -1.0}, "freq_scale is -1.0, expected more than 0"),
    (tg.RopeTableOp, {"attn_factor": 0.0}, "attn_factor is 0.0, expected more than 0"),
    (tg.RopeTableOp, {"ext_factor": -1.0}, "ext_factor is -1.0, expected 0 or more"),
    (tg.RopeTableOp, {"original_context": -1}, "original_context is -1, expected 0 or more"),
    (tg.RopeTableOp, {"original_context": 0}, "has an ext_factor but no original_context"),
    (tg.RopeTableOp, {"base": 1.0}, "has an ext_factor and base 1.0, expected more than 1"),
    (tg.RopeTableOp, {"beta_slow": 64.0}, "turns beta 32.0 to 64.0 times, expected the first no less, both more than 0"),
    (tg.EmptyOp, {"result": "tensor<32xf32>"}, "result is 32, expected 2 dimensions"),
    (tg.GatherOp, {"table": "tensor<32xf32>"}, "table is 32, expected 2 dimensions"),
    (tg.GatherOp, {"index": "memref<2x1xi32>"}, "index is 2x1, expected 1 dimension"),
    (tg.GatherOp, {"index": "memref<2xi64>"}, "operand 'index' at position 1 does not verify:\nfound memref<2xi64>, expected a memref of i32"),
    (tg.GatherOp, {"result": "tensor<2x64xf32>"}, "result is 2x64, expected 2x32 (a row of the table for each index)"),
    (tg.SetRowOp, {"src": "tensor<32xf32>"}, "src is 32, expected 2 dimensions"),
    (tg.SetRowOp, {"pos": "memref<2xi32>"}, "pos is 2, expected 1"),
    (tg.SetRowOp, {"src": "tensor<2x16xf32>"}, "src is 2x16, but table is 64x32: their rows differ in width"),
    (tg.SetRowOp, {"src": "tensor<65x32xf32>"}, "src is 65x32, but table is 64x32: it has fewer rows"),
    (tg.InsertOp, {"src": "tensor<32xf32>"}, "src is 32, expected 2 dimensions"),
    (tg.InsertOp, {"every": 36}, "the size of dst (96) is no multiple of every (36)"),
    (tg.InsertOp, {"every": 0}, "the size of dst (96) is no multiple of every (0)"),
    (tg.InsertOp, {"src": "tensor<1x15xf32>"}, "the size of src (15) is no multiple of the number of units (2)"),
    (tg.InsertOp, {"start": 33}, "places 33 to 49 of a unit of 48"),
    (tg.InsertOp, {"start": -1}, "places -1 to 15 of a unit of 48"),
    (tg.InsertOp, {"result": "tensor<1x96xf32>"}, "result is 1x96, expected 2x48 (the shape of dst)"),
    (
        tg.InsertOp,
        {name: f"tensor<2x32xf32, {INT8}>" for name in ("dst", "result")} | {"every": 64, "start": 0},
        "src and dst are stored as plain f32 values and #tg.quantized<int8>, expected alike",
    ),
    (
        tg.InsertOp,
        {name: f"tensor<2x64xf32, {INT8}>" for name in ("dst", "result")}
        | {"src": f"tensor<1x32xf32, {INT8}>", "every": 128, "start": 16},
        "places 32 values from 16 on of units of 128, no whole int8 blocks of 32",
    ),
    (tg.SliceOp, {"x": "memref<96xf32>"}, "x is 96, expected 2 dimensions"),
    (tg.SliceOp, {"every": 36}, "the size of x (96) is no multiple of every (36)"),
    (tg.SliceOp, {"start": 33}, "takes 33 to 49 of a unit of 48"),
    (tg.SliceOp, {"width": 0}, "takes 32 to 32 of a unit of 48"),
    (tg.SliceOp, {"result": "tensor<2x17xf32>"}, "result is 2x17, 34 elements, expected 2 units times 16"),
    (tg.JoinOp, {"heads": 0}, "the columns of a (16) is no multiple of heads (0)"),
    (tg.JoinOp, {"heads": 32}, "the columns of a (16) is no multiple of heads (32)"),
    (tg.JoinOp, {"b": "tensor<3x32xf32>"}, "a is 2x16, but b is 3x32: they differ in rows"),
    (tg.JoinOp, {"result": "tensor<2x64xf32>"}, "result is 2x64, expected 2x48 (a and b side by side)"),
    (tg.ViewOp, {"x": "tensor<96xf32>"}, "x is 96, expected 2 dimensions"),
    (tg.ViewOp, {"offset": 33}, "takes elements 33 to 97 of x, which has 96 (3x32)"),
    (tg.ViewOp, {"offset": -1}, "takes elements -1 to 63 of x, which has 96 (3x32)"),
    (
        tg.ViewOp,
        {"x": f"tensor<3x32xf32, {INT8}>"},
        "x is stored as #tg.quantized<int8> and the result as plain f32 values, expected alike",
    ),
    (
        tg.ViewOp,
        {"x": f"tensor<3x32xf32, {INT8}>", "result": f"tensor<1x32xf32, {INT8}>", "offset": 16},
        "offset is 16, no whole number of int8 blocks of 32",
    ),
    # Products.
    (tg.QuantizeOp, {"result": "tensor<2x32xf32>"}, "result is stored as plain f32 values, expected #tg.quantized"),
    (tg.QuantizeOp, {"result": f"tensor<1x64xf32, {INT8}>"}, "result is 1x64, expected 2x32 (the shape of x)"),
    (
        tg.QuantizeOp,
        {"x": "tensor<2x33xf32>", "result": f"tensor<2x33xf32, {INT8}>"},
        "result has rows of 33 values, no whole number of int8 blocks of 32",
    ),
    (tg.MatmulOp, {"w": "tensor<8x8x32xf32>"}, "w is 8x8x32, expected 2 dimensions"),
    (tg.MatmulOp, {"w": "tensor<8x64xf32>"}, "x is 2x32, but w is 8x64: their rows differ in width"),
    (tg.MatmulOp, {"result": "tensor<8x2xf32>"}, "result is 8x2, expected 2x8 (rows of x by rows of w)"),
    (tg.MatmulOp, {"x": f"tensor<2x32xf32, {Q4_1}>"}, "x is stored as #tg.rows<q4_1>, expected plain f32 values or #tg.quantized"),
    (tg.MatmulOp, {"w": f"tensor<8x32xf32, {INT8}>"}, "w is stored as #tg.quantized<int8>, expected plain f32 values or #tg.rows"),
    (tg.HeadMatmulOp, {"w": "tensor<64x32xf32>"}, "w is 64x32, expected 3 dimensions"),
    (tg.HeadMatmulOp, {"x": "tensor<2x32xf32>"}, "x has rows of 32 values, but w (4x16x32) takes 128"),
    (tg.HeadMatmulOp, {"shared": True}, "x has rows of 128 values, but w (4x16x32) takes 32"),
    (
        tg.HeadMatmulOp,
        {"w": "tensor<4x16x32xf32>", "transposed": True},
        "x has rows of 128 values, but w (4x16x32) takes 64",
    ),
    (tg.HeadMatmulOp, {"upto": "memref<2xi32>"}, "upto is 2, expected 1"),
    (tg.HeadMatmulOp, {"result": "tensor<2x16xf32>"}, "result is 2x16, expected 2x64 (rows of x by heads of w)"),
    (tg.MoeOp, {"router": "tensor<8x16xf32>"}, "router is 8x16, expected 8x32"),
    (tg.MoeOp, {"gate": "tensor<64x32xf32>"}, "gate is 64x32, expected 3 dimensions"),
    (tg.MoeOp, {"down": "tensor<8x64x32xf32>"}, "down is 8x64x32, expected 8x32x64"),
    (tg.MoeOp, {"selection_bias": "tensor<1x8xf32>"}, "selection_bias is 1x8, expected 8"),
    (tg.MoeOp, {"up_bias": "tensor<8x32xf32>"}, "up_bias is 8x32, expected 8x64"),
    (tg.MoeOp, {"quantized": "tensor<2x32xf32>"}, "quantized is stored as plain f32 values, expected #tg.quantized"),
    (tg.MoeOp, {"quantized": f"tensor<1x32xf32, {INT8}>"}, "quantized is 1x32, expected 2x32"),
    (tg.MoeOp, {"used": 0}, "uses 0 of 8 experts"),
    (tg.MoeOp, {"used": 9}, "uses 9 of 8 experts"),
    (tg.MoeOp, {"used": 5}, "uses 5 experts, but 2 groups have 4"),
    (tg.MoeOp, {"groups": 3}, "the number of experts (8) is no multiple of groups (3)"),
    (tg.MoeOp, {"groups": 8}, "has 1 experts a group, expected 2 or more"),
    (tg.MoeOp, {"groups_used": 5}, "uses 5 of 4 groups"),
    (tg.MoeOp, {"scale": 0.0}, "scale is 0.0, expected more than 0"),
    (tg.MoeOp, {"alpha": None}, "has no alpha, but its activation is clamped_swiglu"),
    (tg.MoeOp, {"limit": 0.0}, "limit is 0.0, expected more than 0"),
    (
        tg.MoeOp,
        {"activation": tg.ExpertActivationAttr(tg.ExpertActivation.SILU), "limit": None},
        "has an alpha, but its activation is silu",
    ),
    # Norms.
    (tg.RmsNormOp, {"w": "tensor<64xf32>"}, "weight is 64, expected 32 (x has rows of 32)"),
    (tg.RmsNormOp, {"w": "tensor<1x32xf32>"}, "weight is 1x32, expected 32 (x has rows of 32)"),
    (tg.RmsNormOp, {"x": "tensor<2x2x32xf32>"}, "x is 2x2x32, expected 2 dimensions"),
    (tg.RmsNormOp, {"result": "tensor<32x2xf32>"}, "result is 32x2, expected 2x32 (the shape of x)"),
    (tg.RmsNormOp, {"eps": -1e-5}, "eps is -1e-05, expected 0 or more"),
    (tg.LayerNormOp, {"w": "tensor<2xf32>"}, "weight is 2, expected 32 (x has rows of 32)"),
    (tg.LayerNormOp, {"b": "tensor<2xf32>"}, "bias is 2, expected 32 (x has rows of 32)"),
    (tg.LayerNormOp, {"eps": -1.0}, "eps is -1.0, expected 0 or more"),
    (tg.L2NormOp, {"eps": 0.0}, "eps is 0.0, expected more than 0"),
    (tg.L2NormOp, {"result": "tensor<1x32xf32>"}, "result is 1x32, expected 2x32 (the shape of x)"),
    # Elementwise.
    (tg.BinaryOp, {"a": "tensor<32xf32>"}, "a is 32, expected 2 dimensions"),
    (tg.BinaryOp, {"b": "tensor<2xf32>"}, "b is 2, expected the shape of a (2x32), a row or a column of it, or one value"),
    (tg.BinaryOp, {"result": "tensor<1x32xf32>"}, "result is 1x32, expected 2x32 (the shape of a)"),
    (tg.UnaryOp, {"result": "tensor<1x32xf32>"}, "result is 1x32, expected 2x32 (the shape of x)"),
    (tg.ScaleOp, {"result": "tensor<1x32xf32>"}, "result is 1x32, expected 2x32 (the shape of x)"),
    # Rotation and attention.
    (tg.RopeOp, {"per_row": 3}, "the rows of x (8) is no multiple of the heads of a row (3)"),
    (tg.RopeOp, {"per_row": 0}, "the rows of x (8) is no multiple of the heads of a row (0)"),
    (tg.RopeOp, {"sin": "tensor<64x4xf32>"}, "sin is 64x4, expected 64x8 (the shape of cos)"),
    (
        tg.RopeOp,
        {"cos": "tensor<64x9xf32>", "sin": "tensor<64x9xf32>"},
        "cos is 64x9, but x is 8x16: more columns than half a head",
    ),
    (
        tg.RopeOp,
        {"cos": "tensor<1x8xf32>", "sin": "tensor<1x8xf32>"},
        "cos is 1x8, but x has 2 rows of 4 heads: fewer positions than rows",
    ),
    (tg.RopeOp, {"result": "tensor<4x32xf32>"}, "result is 4x32, expected 8x16 (the shape of x)"),
    (tg.AttentionOp, {"heads": 0}, "heads is 0, expected more than 0"),
    (tg.AttentionOp, {"kv_heads": 0}, "kv_heads is 0, expected more than 0"),
    (tg.AttentionOp, {"kv_heads": 8}, "heads (4) is no multiple of kv_heads (8)"),
    (tg.AttentionOp, {"scale": 0.0}, "scale is 0.0, expected more than 0"),
    (tg.AttentionOp, {"k": "memref<64x33xf32>"}, "the columns of k (33) is no multiple of kv_heads (2)"),
    (tg.AttentionOp, {"v": "memref<64x33xf32>"}, "the columns of v (33) is no multiple of kv_heads (2)"),
    (tg.AttentionOp, {"q": "tensor<2x32xf32>"}, "q is 2x32, expected 2x64 (heads of the width of k's)"),
    (tg.AttentionOp, {"v": "memref<63x48xf32>"}, "k is 64x32, but v is 63x48: they differ in rows"),
    (tg.AttentionOp, {"k": "memref<1x32xf32>", "v": "memref<1x48xf32>"}, "q is 2x64, but k is 1x32: it has fewer rows"),
    (tg.AttentionOp, {"result": "tensor<2x64xf32>"}, "result is 2x64, expected 2x96 (heads of the width of v's)"),
    (tg.AttentionOp, {"sinks": "tensor<2xf32>"}, "sinks is 2, expected 4 (one a head)"),
    (tg.AttentionOp, {"window": 0}, "window is 0, expected more than 0"),
    (tg.AttentionOp, {"softcap": 0.0}, "softcap is 0.0, expected more than 0"),
    (tg.AttentionOp, {"k_tail": None}, "has a tail of only one of q and k"),
    (tg.AttentionOp, {"k_tail": "memref<63x8xf32>"}, "k_tail is 63x8, expected 64x8 (a row for each of k)"),
    (tg.AttentionOp, {"q_tail": "tensor<2x8xf32>"}, "q_tail is 2x8, expected 2x32 (heads of the width of k_tail)"),
    # Recurrent state.
    (tg.ConvOp, {"w": "tensor<4x96xf32>"}, "w is 4x96, expected 96x96 (taps for each channel of x)"),
    (tg.ConvOp, {"ring": "memref<3x96xf32>"}, "ring is 3x96, expected 4x96 (an input for each tap)"),
    (tg.ConvOp, {"result": "tensor<1x96xf32>"}, "result is 1x96, expected 2x96 (the shape of x)"),
    (tg.DecayOp, {"dt": "tensor<2xf32>"}, "dt is 2, expected 4 (one a head of a)"),
    (tg.DecayOp, {"al": "tensor<2x4xf32>"}, "al is 2x4, expected 4 (one a head of a)"),
    (tg.DeltaOp, {"key_heads": 0}, "key_heads is 0, expected more than 0"),
    (tg.DeltaOp, {"key_heads": 3}, "value_heads (4) is no multiple of key_heads (3)"),
    (tg.DeltaOp, {"k": "tensor<1x32xf32>"}, "k is 1x32, expected 2x32"),
    (tg.DeltaOp, {"z": "tensor<2x32xf32>"}, "z is 2x32, expected 2x64"),
    (tg.DeltaOp, {"beta": "tensor<2x2xf32>"}, "beta is 2x2, expected 2x4"),
    (tg.DeltaOp, {"norm": "tensor<1x16xf32>"}, "norm is 1x16, expected 1 dimension"),
    (tg.DeltaOp, {"state": "memref<16x64xf32>"}, "state is 16x64, expected 64x16 (a square for each value head)"),
    (tg.DeltaOp, {"eps": -1.0}, "eps is -1.0, expected 0 or more"),
    # Sampling.
    (tg.ArgmaxOp, {"result": "tensor<1xi32>"}, "result is 1, expected 2 (one a row of x)"),
    (tg.ArgmaxOp, {"result": "tensor<2xi64>"}, "result 'result' at position 0 does not verify:\nfound tensor<2xi64>, expected a tensor of i32"),
    (tg.AdvanceOp, {"id": "tensor<2xi32>"}, "id is 2, expected 1"),
    (tg.AdvanceOp, {"token": "memref<2x1xi32>"}, "token is 2x1, expected 1 dimension"),
    (tg.AdvanceOp, {"token": "memref<2xi32>", "item": 2}, "moves on token 2 of 2"),
    (tg.AdvanceOp, {"pos": "memref<1xi64>"}, "operand 'pos' at position 2 does not verify"),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind, changes, message", [pytest.param(*case, id=f"{case[0].name}-{case[2][:50]}") for case in REFUSED]
)
def test_refusals(kind: type[IRDLOperation], changes: dict[str, Part], message: str) -> None:
    with pytest.raises(VerifyException, match=re.escape(message)):
        build(kind, {**VALID[kind], **changes}).verify()


FREE = {
    (tg.AdvanceOp, "token", 0),
    (tg.ConstantOp, "result", 0),
    (tg.ConstantOp, "result", 1),
    (tg.EmptyOp, "result", 0),
    (tg.EmptyOp, "result", 1),
    (tg.GatherOp, "table", 0),
    (tg.SetRowOp, "table", 0),
    (tg.SetRowOp, "src", 0),
    (tg.ViewOp, "x", 0),
    (tg.ViewOp, "x", 1),
    (tg.ArgmaxOp, "x", 1),
}
"""Dimensions that may change alone; all others are tied to another operand, to the result or to a property."""


def dimension_changes() -> Iterator[tuple[type[IRDLOperation], str, int, str]]:
    for kind, parts in VALID.items():
        for name, text in parts.items():
            match = re.fullmatch(r"(tensor|memref)<((?:\d+x)+)(.*)>", text) if isinstance(text, str) else None
            if match is None:
                continue
            shape = [int(d) for d in match[2].split("x")[:-1]]
            for i, d in enumerate(shape):
                # Rows of blocks grow by a block, so that only the other operands speak against them.
                larger = [*shape[:i], d + (32 if "#tg" in match[3] and i == len(shape) - 1 else 1), *shape[i + 1 :]]
                yield kind, name, i, f"{match[1]}<{'x'.join(map(str, larger))}x{match[3]}>"


@pytest.mark.parametrize(
    "kind, name, dimension, type_",
    [pytest.param(*change, id=f"{change[0].name}-{change[1]}-{change[2]}") for change in dimension_changes()],
)
def test_every_dimension_matters(kind: type[IRDLOperation], name: str, dimension: int, type_: str) -> None:
    op = build(kind, {**VALID[kind], name: type_})
    if (kind, name, dimension) in FREE:
        op.verify()
        return
    with pytest.raises(VerifyException):
        op.verify()


ODD_TYPES = (
    "tensor<f32>",
    "tensor<1xf32>",
    "tensor<2x32x1xf32>",
    "tensor<2x2x2x2xf32>",
    "tensor<0x32xf32>",
    "tensor<?x?xf32>",
    "tensor<2x32xf16>",
    "tensor<2x32xi32>",
    "tensor<2x32xindex>",
    "tensor<*xf32>",
    "tensor<2x32xf32, #tg.rows<q4_1>>",
    "tensor<2x33xf32, #tg.rows<q4_k>>",
    "tensor<3xf32, #tg.quantized<int8>>",
    'tensor<2x32xf32, "odd">',
    "memref<f32>",
    "memref<i32>",
    "memref<?xi32>",
    "memref<0xi32>",
    "memref<1xi64>",
    "memref<2x2x2xf32>",
    "memref<64x32xf16>",
    "memref<?x32xf32>",
    "memref<64x32xf32, strided<[32, 1], offset: ?>>",
    "f32",
    "index",
    "vector<2x32xf32>",
)

ODD_PROPERTIES: tuple[Part, ...] = (
    0, 1, -1, 2**62, -(2**62), 0.0, -0.0, -1.0, 1e300, float("inf"), float("-inf"), float("nan"), "odd", True, None, f32,
    IntegerAttr(1, 32), FloatAttr(1.0, f32),
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_raised(kind: type[IRDLOperation]) -> None:
    """Whatever stands where an operand, a result or a property should: a verifier passes or refuses, and never crashes."""
    definition = kind.get_irdl_definition()
    refused = 0
    for names, odd in (
        ((name for name, _ in (*definition.operands, *definition.results)), ODD_TYPES),
        (definition.accessor_names, ODD_PROPERTIES),
    ):
        for name in names:
            for part in odd:
                op = build(kind, {**VALID[kind], name: part})
                try:
                    op.verify()
                except VerifyException:
                    refused += 1
    assert refused > 10


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_required_is_left_out(kind: type[IRDLOperation]) -> None:
    definition = kind.get_irdl_definition()
    for name, property_ in definition.properties.items():
        if name in definition.accessor_names and not isinstance(property_, OptPropertyDef):
            with pytest.raises(VerifyException, match=name):
                build(kind, {**VALID[kind], name: None}).verify()
    optional = {name: None for name, operand in definition.operands if isinstance(operand, OptOperandDef)}
    op = build(kind, {**VALID[kind], **optional})
    if op.operands:
        op.operands = op.operands[:-1]
        with pytest.raises(VerifyException):
            op.verify()


def test_quantized_attributes_name_integer_numerics() -> None:
    with pytest.raises(VerifyException, match="a quantized activation is int8 or two_pass_int8, not dequant"):
        tg.QuantizedAttr(tg.Numerics.DEQUANT)
