"""Attributes of the tensor-graph dialect: how tensors are stored, what arguments are, what a step is compiled for."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Data, ParametrizedAttribute, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from lane_mlir.chips import CHIPS
from lane_mlir.diagnostics import unknown
from lane_mlir.formats import Format
from lane_mlir.target import MAX_SEQUENCES, Numerics, Precision, Target


class ArgumentKind(StrEnum):
    """What an argument of a step is."""

    TOKEN = "token"
    POSITION = "position"
    KV_CACHE = "kv_cache"
    CONV_RING = "conv_ring"
    DELTA_STATE = "delta_state"


class BinaryOperator(StrEnum):
    """An elementwise operator of two operands."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"


class Activation(StrEnum):
    """
    An elementwise function of one operand.

    `gelu` is the exact one, x·Φ(x) by erf; `gelu_tanh` its usual approximation
    0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). `softplus` is log(1 + eˣ), the identity for large x.
    """

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SIGMOID = "sigmoid"
    SOFTPLUS = "softplus"
    TANH = "tanh"
    RELU = "relu"
    EXP = "exp"


class Pairing(StrEnum):
    """
    Which columns a rotation pairs: `half` column i with i + half (GPT-NeoX), `interleaved` column 2i with 2i + 1.
    """

    HALF = "half"
    INTERLEAVED = "interleaved"


class KeyHeadOrder(StrEnum):
    """
    The key head of value head h where there are `ratio` value heads a key head: `blocked` h // ratio, `cyclic` h modulo
    the number of key heads.
    """

    BLOCKED = "blocked"
    CYCLIC = "cyclic"


class Scoring(StrEnum):
    """
    How a router turns the logits of a row into weights.

    `softmax` over all experts, then chosen; `sigmoid` of each, then chosen; `softmax_chosen`: chosen by logit, then
    softmax over the chosen ones.
    """

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SOFTMAX_CHOSEN = "softmax_chosen"


class ExpertActivation(StrEnum):
    """
    What an expert computes of its gate g and up projection u.

    `silu`: silu(g)·u. `gelu_tanh`: gelu_tanh(g)·u. `clamped_swiglu`: with g' = min(g, limit) and u' = u clamped to
    ±limit, g'·sigmoid(alpha·g')·(u' + 1).
    """

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    CLAMPED_SWIGLU = "clamped_swiglu"


@irdl_attr_definition
class _ArgumentKindAttr(EnumAttribute[ArgumentKind], SpacedOpaqueSyntaxAttribute):
    name = "tg.argument_kind"


@irdl_attr_definition
class _ChipAttr(Data[str]):
    name = "tg.chip"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            return parser.parse_identifier()

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


@irdl_attr_definition
class _PrecisionAttr(EnumAttribute[Precision], SpacedOpaqueSyntaxAttribute):
    name = "tg.precision"


@irdl_attr_definition
class NumericsAttr(EnumAttribute[Numerics], SpacedOpaqueSyntaxAttribute):
    name = "tg.numerics"


@irdl_attr_definition
class BinaryOperatorAttr(EnumAttribute[BinaryOperator], SpacedOpaqueSyntaxAttribute):
    name = "tg.binary_operator"


@irdl_attr_definition
class ActivationAttr(EnumAttribute[Activation], SpacedOpaqueSyntaxAttribute):
    name = "tg.activation"


@irdl_attr_definition
class PairingAttr(EnumAttribute[Pairing], SpacedOpaqueSyntaxAttribute):
    name = "tg.pairing"


@irdl_attr_definition
class KeyHeadOrderAttr(EnumAttribute[KeyHeadOrder], SpacedOpaqueSyntaxAttribute):
    name = "tg.key_head_order"


@irdl_attr_definition
class ScoringAttr(EnumAttribute[Scoring], SpacedOpaqueSyntaxAttribute):
    name = "tg.scoring"


@irdl_attr_definition
class ExpertActivationAttr(EnumAttribute[ExpertActivation], SpacedOpaqueSyntaxAttribute):
    name = "tg.expert_activation"


@irdl_attr_definition
class RowsAttr(Data[Format]):
    """
    The encoding of a weight's type: values of type f32, stored as rows of blocks in a format of the GGUF container.

    The last dimension is a row; it is a whole number of blocks. `tensor<576x576xf32, #tg.rows<q4_1>>`.
    """

    name = "tg.rows"

    @property
    def block(self) -> int:
        """Values in a block."""
        return self.data.values

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Format:
        with parser.in_angle_brackets():
            return parser.parse_str_enum(Format)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.data))


QUANTIZED_BLOCK = 32
"""Values that share a scale in a quantized activation."""


@irdl_attr_definition
class QuantizedAttr(Data[Numerics]):
    """
    The encoding of a quantized activation's type: rows of blocks of 32 values, as one int8 word with a scale (`int8`)
    or two (`two_pass_int8`). `tensor<1x576xf32, #tg.quantized<int8>>`.
    """

    name = "tg.quantized"

    @property
    def block(self) -> int:
        """Values that share a scale."""
        return QUANTIZED_BLOCK

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Numerics:
        with parser.in_angle_brackets():
            return parser.parse_str_enum(Numerics)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.data))

    def verify(self) -> None:
        if self.data is Numerics.DEQUANT:
            raise VerifyException("a quantized activation is int8 or two_pass_int8, not dequant")


@irdl_attr_definition
class ArgAttr(ParametrizedAttribute):
    """
    What an argument of a step is, of which sequence, and its name: `#tg.arg<kv_cache, 0, "blk.0.k">`, or without one
    `#tg.arg<token, 0>`.

    Stands in the argument attribute `tg.arg` of the step's function. The name is unique in its step; by it, steps
    compiled for different numbers of rows share their state.
    """

    name = "tg.arg"

    kind: _ArgumentKindAttr = param_def()
    sequence: IntAttr = param_def()
    label: StringAttr = param_def()
    """The argument's name; empty if it has none."""

    def __init__(self, kind: ArgumentKind, sequence: int = 0, name: str = ""):
        super().__init__(_ArgumentKindAttr(kind), IntAttr(sequence), StringAttr(name))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            kind = parser.parse_str_enum(ArgumentKind)
            parser.parse_punctuation(",")
            sequence = parser.parse_integer(allow_boolean=False)
            name = parser.parse_str_literal() if parser.parse_optional_punctuation(",") else ""
        return (_ArgumentKindAttr(kind), IntAttr(sequence), StringAttr(name))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.kind.data}, {self.sequence.data}")
            if self.label.data:
                printer.print_string(", ")
                printer.print_string_literal(self.label.data)

    def verify(self) -> None:
        if not 0 <= self.sequence.data < MAX_SEQUENCES:
            raise VerifyException(f"sequence is {self.sequence.data}, expected 0 to {MAX_SEQUENCES - 1}")


@irdl_attr_definition
class TargetAttr(ParametrizedAttribute):
    """
    What a step is compiled for: `#tg.target<h200, int8, cache = f16, state = f32>`.

    The chip is one of `lane_mlir.chips`; the cache is stored as f32 or f16, recurrent state as f32 or bf16. Stands in
    the attribute `tg.target` of the module.
    """

    name = "tg.target"

    chip: _ChipAttr = param_def()
    numerics: NumericsAttr = param_def()
    cache: _PrecisionAttr = param_def()
    state: _PrecisionAttr = param_def()

    def __init__(
        self,
        chip: str = "h200",
        numerics: Numerics = Numerics.DEQUANT,
        cache: Precision = Precision.F32,
        state: Precision = Precision.F32,
    ):
        super().__init__(_ChipAttr(chip), NumericsAttr(numerics), _PrecisionAttr(cache), _PrecisionAttr(state))

    @staticmethod
    def of(target: Target) -> TargetAttr:
        """A target as an attribute."""
        return TargetAttr(target.chip, target.numerics, target.cache, target.state)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            chip = parser.parse_identifier()
            parser.parse_punctuation(",")
            numerics = parser.parse_str_enum(Numerics)
            precisions: list[Attribute] = []
            for array in ("cache", "state"):
                parser.parse_punctuation(",")
                parser.parse_keyword(array)
                parser.parse_punctuation("=")
                precisions.append(_PrecisionAttr(parser.parse_str_enum(Precision)))
        return (_ChipAttr(chip), NumericsAttr(numerics), *precisions)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(
            f"<{self.chip.data}, {self.numerics.data}, cache = {self.cache.data}, state = {self.state.data}>"
        )

    def verify(self) -> None:
        if self.chip.data not in CHIPS:
            raise VerifyException(unknown("chip", self.chip.data, CHIPS))
        if self.cache.data is Precision.BF16:
            raise VerifyException("cache is bf16, expected f32 or f16")
        if self.state.data is Precision.F16:
            raise VerifyException("state is f16, expected f32 or bf16")
