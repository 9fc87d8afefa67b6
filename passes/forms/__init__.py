"""
What an op of a step is, whether lifted or already fused: the forms that rules and `link` read their inputs through.
"""

from __future__ import annotations

from lane_mlir.passes.forms.attention import AttentionForm, attention
from lane_mlir.passes.forms.classes import ADVANCE, FUSED_QUANT, RULE_OF_CLASS, classes_of, rules_of
from lane_mlir.passes.forms.composites import COMPOSITES, composites, realizes
from lane_mlir.passes.forms.convolutions import ConvForm, convolution
from lane_mlir.passes.forms.description import describe, locations, op_name, place_name
from lane_mlir.passes.forms.landing import Landing, landing
from lane_mlir.passes.forms.mixtures import (
    MixtureRowsForm,
    SharedExpertForm,
    mixture_of,
    mixture_rows,
    shared_expert,
)
from lane_mlir.passes.forms.norms import GatherForm, NormForm, gather, is_residual_add, norm
from lane_mlir.passes.forms.products import (
    GatedForm,
    GemvForm,
    GluForm,
    gated,
    gemv,
    glu,
    head_parts,
    is_bias_add,
    is_product_scale,
)
from lane_mlir.passes.forms.rotations import RopeForm, rope
from lane_mlir.passes.forms.scope import Scope, covers, is_quantization, is_reshape, leaves
from lane_mlir.passes.forms.slices import InPlace, in_place, is_view

__all__ = [
    "ADVANCE",
    "COMPOSITES",
    "FUSED_QUANT",
    "RULE_OF_CLASS",
    "AttentionForm",
    "ConvForm",
    "GatedForm",
    "GatherForm",
    "GemvForm",
    "GluForm",
    "InPlace",
    "Landing",
    "MixtureRowsForm",
    "NormForm",
    "RopeForm",
    "Scope",
    "SharedExpertForm",
    "attention",
    "classes_of",
    "composites",
    "convolution",
    "covers",
    "describe",
    "gated",
    "gather",
    "gemv",
    "glu",
    "head_parts",
    "in_place",
    "is_bias_add",
    "is_product_scale",
    "is_quantization",
    "is_reshape",
    "is_residual_add",
    "is_view",
    "landing",
    "leaves",
    "locations",
    "mixture_of",
    "mixture_rows",
    "norm",
    "op_name",
    "place_name",
    "realizes",
    "rope",
    "rules_of",
    "shared_expert",
]
