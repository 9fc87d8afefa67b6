"""What fuse and link need of a step first: a number for each lifted op, and activations quantized where read."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, UnknownLoc, f32, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from lane_mlir.dialects.tg import (
    QUANTIZED_BLOCK,
    AttentionOp,
    BinaryOp,
    DeltaOp,
    EmptyOp,
    FusedOp,
    InsertOp,
    LiftedOperation,
    MatmulOp,
    MoeOp,
    Numerics,
    QuantizedAttr,
    QuantizeOp,
    TargetAttr,
    ViewOp,
    arguments,
    encoding_of,
    format_of_weight,
    shape_of,
    verify_step,
)
from lane_mlir.dialects.tg.operation import is_shaped
from lane_mlir.dialects.tg.step import set_target
from lane_mlir.locations import OpFailedException


def set_target_of(module: ModuleOp, chip: str | None = None, numerics: str | None = None) -> TargetAttr:
    """
    Let the options of a pass override what a module says that it is compiled for; what it is then.

    Raises: OpFailedException at the module if that is no target.
    """
    try:
        return set_target(module, chip=chip, numerics=None if numerics is None else Numerics(numerics))
    except VerifyException as error:
        raise OpFailedException(module, str(error)) from error


def prepare(func: FuncOp, numerics: Numerics) -> None:
    """
    Number the lifted ops, quantize the activations, and number what that adds after all others.

    Raises: OpFailedException for a function that cannot be a step: of several blocks, with an argument or a value that
    is no tensor or memref of static shape, or, where any argument says what it is, refused by `verify_step`. A function
    none of whose arguments does is a part of a step, to look at what becomes of it.
    """
    _check_form(func)
    number_ops(func)
    quantize_activations(func, numerics)
    number_ops(func)


def _check_form(func: FuncOp) -> None:
    name = f'step "{func.sym_name.data}"'
    if len(func.body.blocks) != 1:
        raise OpFailedException(func, f"{name} has {len(func.body.blocks)} blocks, expected 1")
    try:
        if arguments(func):
            verify_step(func)
    except VerifyException as error:
        raise OpFailedException(func, str(error)) from error
    for i, type_ in enumerate(func.function_type.inputs):
        if not is_shaped(type_):
            raise OpFailedException(
                func, f"{name}: argument {i} is {type_}, expected a tensor or memref of static shape"
            )
    for op in func.body.block.ops:
        for type_ in op.result_types:
            if not is_shaped(type_):
                raise OpFailedException(op, f"{name}: computes {type_}, expected a tensor or memref of static shape")


def number_ops(func: FuncOp) -> None:
    """Give every lifted op that has no number one, in the order of the step, above those that others have."""
    lifted = [op for op in func.walk() if isinstance(op, LiftedOperation)]
    taken = [op.number.value.data for op in lifted if op.number is not None]
    following = max(taken, default=-1) + 1
    for op in lifted:
        if op.number is None:
            op.number = IntegerAttr(following, i64)
            following += 1


def quantize_activations(func: FuncOp, numerics: Numerics) -> None:
    """
    Put a quantize where a value is first read by a product in blocks of int8, one for all its products.

    Values do not change: such a product quantizes a plain activation itself. One inside a fused op whose activation is
    computed there too is left as it is.
    """
    if numerics is Numerics.DEQUANT:
        return
    quantized: dict[SSAValue, SSAValue] = {}
    for op in list(func.body.block.ops):
        if isinstance(op, QuantizeOp) and op.numerics is numerics:
            quantized.setdefault(op.x, op.result)
        for product in list(op.walk()):
            if isinstance(product, MatmulOp | MoeOp) and not _is_inside(product.x, op) and _takes_blocks(product):
                _take(product, _quantize(product.x, numerics, quantized))
    _drop_plain_rows(func)


def _is_inside(value: SSAValue, op: Operation) -> bool:
    return isinstance(value.owner, Operation) and value.owner is not op and op.is_ancestor(value.owner)


def _takes_blocks(product: MatmulOp | MoeOp) -> bool:
    """Whether a product reads its activation in blocks, which it would have to quantize."""
    if isinstance(product, MatmulOp):
        return encoding_of(product.x) is None and format_of_weight(product.w).is_block
    weights = (product.gate, product.up)
    return product.quantized is None and any(format_of_weight(weight).is_block for weight in weights)


def _take(product: MatmulOp | MoeOp, quantized: SSAValue) -> None:
    if isinstance(product, MatmulOp):
        product.operands[0] = quantized
    else:
        Rewriter.replace_op(product, product.taking(quantized))


def _quantize(x: SSAValue, numerics: Numerics, quantized: dict[SSAValue, SSAValue]) -> SSAValue:
    if x in quantized:
        return quantized[x]
    source = x.owner
    if isinstance(source, ViewOp) and _keeps_blocks(source):
        whole = _quantize(source.x, numerics, quantized)
        view = ViewOp(whole, TensorType(f32, shape_of(x), QuantizedAttr(numerics)), offset=source.offset.value.data)
        view.location, view.number = source.location, source.number
        view.result.name_hint = x.name_hint
        assert isinstance(whole.owner, Operation)
        Rewriter.insert_op(view, InsertPoint.after(whole.owner))
        quantized[x] = view.result
        return view.result
    if isinstance(source, InsertOp) and _is_of_quantizing_rows(source):
        return _quantize_rows(source, numerics, quantized)
    op = QuantizeOp(x, numerics)
    op.result.name_hint = x.name_hint
    op.location = source.location if isinstance(source, LiftedOperation | FusedOp) else UnknownLoc()
    point = InsertPoint.after(source) if not isinstance(source, Block) else InsertPoint.at_start(source)
    Rewriter.insert_op(op, point)
    quantized[x] = op.result
    return op.result


def _is_of_quantizing_rows(insert: InsertOp) -> bool:
    """
    Whether a tensor is put together of rows of whole blocks, nothing else, whose producers can quantize them: in it
    they lie as they would if it were quantized as a whole.
    """
    rows: SSAValue = insert.result
    while isinstance(op := rows.owner, InsertOp):
        whole_rows = op.units == 1 and op.width % QUANTIZED_BLOCK == 0 and op.start.value.data % QUANTIZED_BLOCK == 0
        if not whole_rows or not isinstance(op.src.owner, AttentionOp | DeltaOp | BinaryOp):
            return False
        rows = op.dst
    return isinstance(rows.owner, EmptyOp)


def _quantize_rows(insert: InsertOp, numerics: Numerics, quantized: dict[SSAValue, SSAValue]) -> SSAValue:
    """The tensor of quantized rows; that of plain ones goes where nothing reads it."""
    dst = insert.dst.owner
    if isinstance(dst, InsertOp):
        rows = quantized[insert.dst] if insert.dst in quantized else _quantize_rows(dst, numerics, quantized)
    else:
        empty = EmptyOp(TensorType(f32, shape_of(insert.dst), QuantizedAttr(numerics)))
        Rewriter.insert_op(empty, InsertPoint.before(insert))
        rows = empty.result
    row = _quantize(insert.src, numerics, quantized)
    made = InsertOp(row, rows, every=insert.every, start=insert.start)
    made.location, made.number = insert.location, insert.number
    made.result.name_hint = insert.result.name_hint
    Rewriter.insert_op(made, InsertPoint.after(insert))
    quantized[insert.result] = made.result
    return made.result


def _drop_plain_rows(func: FuncOp) -> None:
    """Remove tensors put together of rows that nothing reads, the last insert first."""
    for op in reversed(list(func.body.block.ops)):
        if isinstance(op, InsertOp | EmptyOp) and not op.result.uses:
            Rewriter.erase_op(op)


def _keeps_blocks(view: ViewOp) -> bool:
    """Whether a view of a quantized tensor is the quantized view: rows and offset are whole blocks."""
    columns = (shape_of(view.x)[1], shape_of(view.result)[1], view.offset.value.data)
    return all(count % QUANTIZED_BLOCK == 0 for count in columns)
