"""The step under construction: ops with the names they came from, constants of the checkpoint, state, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    MemRefType,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
    TensorType,
    f32,
    i32,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from lane_mlir.dialects.tg import (
    Activation,
    AdvanceOp,
    ArgmaxOp,
    ArgumentKind,
    BinaryOp,
    BinaryOperator,
    ConstantOp,
    EmptyOp,
    GatherOp,
    InsertOp,
    LayerNormOp,
    MatmulOp,
    Pairing,
    Precision,
    RmsNormOp,
    RopeOp,
    RopeTableOp,
    RowsAttr,
    ScaleOp,
    SetRowOp,
    SliceOp,
    TargetAttr,
    UnaryOp,
    ViewOp,
    encoding_of,
    shape_of,
    size_of,
)
from lane_mlir.dialects.tg.step import TARGET, argument_attributes
from lane_mlir.formats import Format
from lane_mlir.importers.model import Model
from lane_mlir.importers.rotary import Rotary

LogitRows: TypeAlias = Literal["last", "all"]
"""Of which rows of a chunk the logits are wanted."""


SequenceBuilder: TypeAlias = "Callable[..., SSAValue]"
"""Makes the rows of one sequence: of the layer of that sequence, and of the rows of other values."""


@dataclass(frozen=True)
class Rotation:
    """The tables of a rotation, and which columns it pairs."""

    cos: SSAValue
    sin: SSAValue
    pairing: Pairing


class Scope:
    """
    Builds the ops of a step, or of one layer of it.

    Tensors, state and roles are named less the prefix of the scope; every op is located by the name of the tensor it
    reads, or else of the role that its result has. Shapes are checked against the checkpoint: LaneError names the
    tensor and both shapes.
    """

    step: Step
    prefix: str
    sequence: int
    """The sequence whose position and state the ops take."""

    def __init__(self, step: Step, prefix: str, sequence: int = 0):
        self.step = step
        self.prefix = prefix
        self.sequence = sequence

    @property
    def model(self) -> Model:
        return self.step.model

    @property
    def position(self) -> SSAValue:
        """The position of the first row of the sequence."""
        return self.step.positions[self.sequence]

    def append(self, op: Operation, location: str) -> None:
        """Append an op located by `location`."""
        op.location = NameLoc(StringAttr(self.prefix + location), NoneAttr())
        self.step.block.add_op(op)

    def emit(self, op: Operation, location: str, role: str = "") -> SSAValue:
        """Append an op; its result, named for its role (the location if none is given)."""
        self.append(op, location)
        (result,) = op.results
        result.name_hint = self.prefix + (role or location)
        return result

    # --- the checkpoint ---

    def has(self, tensor: str) -> bool:
        return self.prefix + tensor in self.model.checkpoint.tensors

    def constant(self, tensor: str, *shape: int) -> SSAValue:
        """
        A tensor of the checkpoint, in the format it is stored in: plain values where that is f32.

        The file does not tell leading dimensions of 1 from none: the constant has those of the shape that is asked for.
        """
        return self._constant(tensor, shape, is_projection=False)

    def projection(self, tensor: str, *shape: int) -> SSAValue:
        """
        The weight of a projection, or of several: rows of the format it is stored in, f32 like every other.

        As plain values a weight is read by kernels for few output columns, which keep it transposed, and which no rule
        fuses with what stands around them.
        """
        return self._constant(tensor, shape, is_projection=True)

    def _constant(self, tensor: str, shape: tuple[int, ...], *, is_projection: bool) -> SSAValue:
        name = self.prefix + tensor
        stored = self.model.checkpoint.tensor(name)
        shape = shape or stored.shape
        if _core(stored.shape) != _core(shape):
            # Refuses, naming both shapes.
            self.model.checkpoint.tensor(name, *shape)
        if self.step.projections.setdefault(name, is_projection) is not is_projection:
            raise ValueError(f"the importer takes '{name}' as the weight of a projection here, and otherwise there")
        known = self.step.constants.get((name, shape))
        if known is not None:
            return known
        is_plain = stored.format is Format.F32 and not is_projection
        encoding = NoneAttr() if is_plain else RowsAttr(stored.format)
        constant = self.emit(ConstantOp(name, TensorType(f32, shape, encoding)), tensor)
        self.step.constants[name, shape] = constant
        return constant

    def plain(self, tensor: str, *shape: int) -> SSAValue:
        """A tensor that must be stored as f32: the weight of a norm, a bias, a table of factors."""
        constant = self.constant(tensor, *shape)
        form = self.model.checkpoint.tensors[self.prefix + tensor].format
        if form is not Format.F32:
            raise self.model.refuse(f"tensor '{self.prefix}{tensor}' is stored as {form}, expected f32")
        return constant

    def has_optional(self, tensor: str) -> bool:
        """Whether the file has a tensor that all layers have, or none."""
        present = self.has(tensor)
        self.step.optional_tensors.setdefault(tensor, {})[self.prefix] = present
        return present

    def optional_plain(self, tensor: str, *shape: int) -> SSAValue | None:
        """A plain tensor that all layers have, or none."""
        return self.plain(tensor, *shape) if self.has_optional(tensor) else None

    # --- ops ---

    def linear(self, x: SSAValue, role: str, columns: int, *, scaled_bias: bool = False) -> SSAValue:
        """
        The projection x·wᵀ of the tensor `role.weight`, times `role.scale` and plus `role.bias` where the file has
        them; where `scaled_bias`, the sum of product and bias is what is scaled.
        """
        w = self.projection(f"{role}.weight", columns, shape_of(x)[1])
        return self._linear(x, w, role, scaled_bias=scaled_bias)

    def gate(self, x: SSAValue, role: str, columns: int) -> SSAValue:
        """
        As `linear`, for one column a head or an expert, or a single one: a weight stored as f32 is plain values, for
        the kernels of few output columns.
        """
        return self._linear(x, self.constant(f"{role}.weight", columns, shape_of(x)[1]), role)

    def _linear(self, x: SSAValue, w: SSAValue, role: str, *, scaled_bias: bool = False) -> SSAValue:
        y = self.emit(MatmulOp(x, w), f"{role}.weight", role)
        if not scaled_bias:
            y = self._scaled(y, role)
        bias = self.optional_plain(f"{role}.bias", shape_of(w)[0])
        if bias is not None:
            y = self.add(y, bias, f"{role}.bias")
        return self._scaled(y, role) if scaled_bias else y

    def _scaled(self, y: SSAValue, role: str) -> SSAValue:
        """Every element times the one of `role.scale`, if the file has it."""
        scale = self.optional_plain(f"{role}.scale", 1)
        if scale is None:
            return y
        # The scale of activations beside it says how to quantize them, not what the product is.
        if self.has(f"{role}.input_scale"):
            self.model.checkpoint.tensor(f"{self.prefix}{role}.input_scale")
        return self.multiply(y, scale, f"{role}.scale")

    def linear_parts(self, x: SSAValue, fused: str, parts: Mapping[str, int]) -> tuple[SSAValue, ...]:
        """The products of x by runs of rows of one tensor, `fused.weight`: as many columns each as `parts` says."""
        width = shape_of(x)[1]
        w = self.projection(f"{fused}.weight", sum(parts.values()), width)
        products: list[SSAValue] = []
        first = 0
        for role, columns in parts.items():
            part = self.view(w, columns, width, f"{role}.weight", first * width)
            products.append(self.emit(MatmulOp(x, part), f"{fused}.weight", role))
            first += columns
        return tuple(products)

    def rms_norm(self, x: SSAValue, role: str) -> SSAValue:
        w = self.plain(f"{role}.weight", shape_of(x)[1])
        return self.emit(RmsNormOp(x, w, self.model.rms_epsilon), f"{role}.weight", role)

    def layer_norm(self, x: SSAValue, role: str) -> SSAValue:
        columns = shape_of(x)[1]
        w = self.plain(f"{role}.weight", columns)
        b = self.plain(f"{role}.bias", columns)
        return self.emit(LayerNormOp(x, w, b, self.model.layer_norm_epsilon), f"{role}.weight", role)

    def binary(self, operator: BinaryOperator, a: SSAValue, b: SSAValue, role: str) -> SSAValue:
        return self.emit(BinaryOp(operator, a, b), role)

    def add(self, a: SSAValue, b: SSAValue, role: str) -> SSAValue:
        return self.binary(BinaryOperator.ADD, a, b, role)

    def multiply(self, a: SSAValue, b: SSAValue, role: str) -> SSAValue:
        return self.binary(BinaryOperator.MUL, a, b, role)

    def unary(self, activation: Activation, x: SSAValue, role: str) -> SSAValue:
        return self.emit(UnaryOp(activation, x), role)

    def scale(self, x: SSAValue, factor: float, role: str) -> SSAValue:
        """factor·x; nothing where the factor is 1."""
        return x if factor == 1 else self.emit(ScaleOp(x, factor), role)

    def view(self, x: SSAValue, rows: int, columns: int, role: str, offset: int = 0) -> SSAValue:
        """The elements of x from an offset on under another shape; x itself where they are the same."""
        if shape_of(x) == (rows, columns):
            return x
        encoding = encoding_of(x) or NoneAttr()
        return self.emit(ViewOp(x, TensorType(f32, (rows, columns), encoding), offset=offset), role)

    def columns(self, x: SSAValue, start: int, width: int, role: str, heads: int = 1) -> SSAValue:
        """Columns start to start + width of each of `heads` equal parts of every row."""
        rows, columns = shape_of(x)
        if width * heads == columns:
            return x
        result = TensorType(f32, (rows, heads * width))
        return self.emit(SliceOp(x, result, every=columns // heads, start=start, width=width), role)

    def rotate(self, x: SSAValue, rotation: Rotation, heads: int, role: str) -> SSAValue:
        """The rotation of x [rows·heads, width]."""
        cos, sin, pairing = rotation.cos, rotation.sin, rotation.pairing
        return self.emit(RopeOp(x, cos, sin, self.position, per_row=heads, pairing=pairing), role)

    def last_row(self, x: SSAValue, role: str) -> SSAValue:
        rows, columns = shape_of(x)
        return self.view(x, 1, columns, role, (rows - 1) * columns)


class Layer(Scope):
    """Builds the ops of one layer, for all sequences or, where there is state or a position, for one of them."""

    def __init__(self, step: Step, index: int, sequence: int = 0):
        super().__init__(step, f"blk.{index}.", sequence)
        self.index = index

    def each_sequence(self, build: SequenceBuilder, *rows: SSAValue, role: str) -> SSAValue:
        """
        What `build` makes of the rows of each sequence, put together again: it takes the layer of one sequence, and the
        rows of that. Values that are the same for all it takes from outside.
        """
        sequences = self.step.sequences
        if sequences == 1:
            return build(self, *rows)
        parts: list[SSAValue] = []
        for sequence in range(sequences):
            layer = Layer(self.step, self.index, sequence)
            parts.append(build(layer, *(layer.row(x, f"{role}.row") for x in rows)))
        return self._put_together(parts, role)

    def row(self, x: SSAValue, role: str) -> SSAValue:
        """The row of the sequence."""
        columns = shape_of(x)[1]
        return self.view(x, 1, columns, role, self.sequence * columns)

    def _put_together(self, parts: Sequence[SSAValue], role: str) -> SSAValue:
        columns = shape_of(parts[0])[1]
        empty = EmptyOp(TensorType(f32, (len(parts), columns)))
        self.append(empty, role)
        rows = empty.result
        for sequence, part in enumerate(parts):
            insert = InsertOp(part, rows, every=len(parts) * columns, start=sequence * columns)
            rows = self.emit(insert, role)
        return rows

    def state(self, kind: ArgumentKind, name: str, length: int, width: int) -> SSAValue:
        """A new array of state of the layer, [length, width]."""
        return self.step.argument(kind, self.prefix + name, MemRefType(f32, (length, width)), self.sequence)

    def cache(self, rows: SSAValue, name: str) -> SSAValue:
        """Set rows into a cache of their own from the step's position on; the cache."""
        cache = self.state(ArgumentKind.KV_CACHE, name, self.step.context, shape_of(rows)[1])
        self.append(SetRowOp(rows, cache, self.position), f"{name}_cache")
        return cache

    def tail(self, x: SSAValue, role: str) -> SSAValue:
        """
        What of x is still needed once the last layer has mixed the rows of a chunk: the last row, if only its logits
        are wanted.
        """
        is_last = self.index == self.model.layers - 1 and self.step.rows > 1
        return self.last_row(x, role) if is_last and self.step.logits == "last" else x

    def residual(self, x: SSAValue, y: SSAValue, role: str) -> SSAValue:
        """x + y, of the rows that y still has."""
        if shape_of(x)[0] != shape_of(y)[0]:
            x = self.last_row(x, f"{role}.tail")
        return self.add(x, y, role)


class Step(Scope):
    """
    A step: `rows` tokens of one sequence, or one token of each of several `sequences`, from the position of each on,
    with room for `context` positions. The rows of its values are tokens, those of the first sequence first.

    Builds what belongs to no layer; `layers()` has a builder for each layer.
    """

    def __init__(
        self, model: Model, *, rows: int, context: int, logits: LogitRows, target: TargetAttr, sequences: int = 1
    ):
        super().__init__(self, "")
        self._model = model
        self.rows = rows
        """Tokens of each sequence."""
        self.sequences = sequences
        self.context = context
        self.logits: LogitRows = logits
        self.target = target
        self.block = Block()
        self.constants: dict[tuple[str, tuple[int, ...]], SSAValue] = {}
        self.projections: dict[str, bool] = {}
        """Whether a tensor is the weight of a projection: it is stored in one way for all that read it."""
        self.optional_tensors: dict[str, dict[str, bool]] = {}
        self.state_bytes = 0
        """Bytes of the caches and the state, as the target stores them."""
        self._arguments: list[DictionaryAttr] = []
        self.token = self.argument(ArgumentKind.TOKEN, "token", MemRefType(i32, (rows * sequences,)))
        self.positions: Sequence[SSAValue] = [
            self.argument(ArgumentKind.POSITION, "position", MemRefType(i32, (1,)), sequence)
            for sequence in range(sequences)
        ]

    @property
    def model(self) -> Model:
        return self._model

    def layers(self) -> Iterator[Layer]:
        for index in range(self.model.layers):
            yield Layer(self, index)

    def argument(self, kind: ArgumentKind, name: str, type_: Attribute, sequence: int = 0) -> SSAValue:
        argument = self.block.insert_arg(type_, len(self.block.args))
        argument.name_hint = name
        self._arguments.append(argument_attributes(kind, sequence, name))
        if kind not in (ArgumentKind.TOKEN, ArgumentKind.POSITION):
            stored = self.target.cache.data if kind is ArgumentKind.KV_CACHE else self.target.state.data
            self.state_bytes += size_of(argument) * (4 if stored is Precision.F32 else 2)
        return argument

    def embedding(self) -> SSAValue:
        """The embedding of each token."""
        model = self.model
        table = self.projection("token_embd.weight", model.vocabulary, model.width)
        result = TensorType(f32, (self.rows * self.sequences, model.width))
        return self.emit(GatherOp(table, self.token, result), "token_embd.weight", "token_embd")

    def rotation(self, rotary: Rotary, pairing: Pairing) -> Rotation:
        """
        The tables of a rotation for every position of the step.

        Divisors of its frequencies, where the file has them: `rope_freqs`, or for long rope one of `rope_factors_long`
        and `rope_factors_short`.
        """
        half = rotary.columns // 2
        table = RopeTableOp(
            TensorType(f32, (self.context, half)),
            factors=self._frequency_factors(rotary, half),
            **asdict(rotary.scaling),
        )
        self.append(table, "rope_table")
        table.cos.name_hint, table.sin.name_hint = "rope_cos", "rope_sin"
        return Rotation(table.cos, table.sin, pairing)

    def _frequency_factors(self, rotary: Rotary, half: int) -> SSAValue | None:
        if not self.has("rope_factors_long.weight"):
            return self.optional_plain("rope_freqs.weight", half)
        used, unused = ("long", "short") if rotary.is_long else ("short", "long")
        self.model.checkpoint.tensor(f"rope_factors_{unused}.weight", half)
        return self.plain(f"rope_factors_{used}.weight", half)

    def soft_capped(self, logits: SSAValue, cap: float) -> SSAValue:
        """cap·tanh(logits/cap); the logits where the cap is 0."""
        if not cap:
            return logits
        bounded = self.unary(Activation.TANH, self.scale(logits, 1 / cap, "softcap_scale"), "softcap_tanh")
        return self.scale(bounded, cap, "softcap")

    def head(self, x: SSAValue) -> SSAValue:
        """The logits: a product by `output.weight`, or by the embedding table where the file has none."""
        vocabulary = self.model.vocabulary
        if self.has("output.weight"):
            return self.linear(x, "output", vocabulary)
        table = self.projection("token_embd.weight", vocabulary, self.model.width)
        return self.emit(MatmulOp(x, table), "token_embd.weight", "output")

    def close(self, logits: SSAValue) -> ModuleOp:
        """
        The arg-max of the last row of each sequence, the advance of a decode step, and the module around it all. It
        returns the logits, and the next token of each sequence.
        """
        columns, ids = shape_of(logits)[1], list[SSAValue]()
        for sequence, position in enumerate(self.positions):
            last = shape_of(logits)[0] - self.sequences + sequence
            ids.append(self.emit(ArgmaxOp(self.view(logits, 1, columns, "last_logits", last * columns)), "id"))
            if self.rows == 1:
                self.append(AdvanceOp(ids[-1], self.token, position, sequence), "advance")
        self.append(ReturnOp(logits, *ids), "return")
        self._refuse_uneven()
        inputs, outputs = [argument.type for argument in self.block.args], [v.type for v in (logits, *ids)]
        func = FuncOp("step", (inputs, outputs), Region(self.block), arg_attrs=ArrayAttr(self._arguments))
        return ModuleOp([func], {TARGET: self.target})

    def _refuse_uneven(self) -> None:
        for tensor, present in self.optional_tensors.items():
            if any(present.values()) and not all(present.values()):
                has = next(prefix for prefix, here in present.items() if here)
                lacks = next(prefix for prefix, here in present.items() if not here)
                raise self.model.refuse(f"tensor '{lacks}{tensor}' is missing, though there is '{has}{tensor}'")


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape less its leading ones."""
    first = next((i for i, dimension in enumerate(shape) if dimension != 1), len(shape) - 1)
    return shape[first:]
