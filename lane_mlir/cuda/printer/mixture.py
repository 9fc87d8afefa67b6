"""Printing of mixtures of experts, and of the norm that finishes one."""

from __future__ import annotations

from collections.abc import Sequence

from lane_mlir.cuda.printer.elementwise import print_binary
from lane_mlir.cuda.printer.experts import Mixture
from lane_mlir.cuda.printer.experts_sorted import SortedMixture
from lane_mlir.cuda.printer.kernel import Folds, Kernel, Printers, Printing, refuse
from lane_mlir.cuda.printer.norms import print_norm
from lane_mlir.dialects.launch import BinaryOp, FoldOp, MoeOp, NormOp
from lane_mlir.dialects.tg import BinaryOperator


def print_moe(launch: MoeOp, printing: Printing) -> Sequence[Kernel]:
    """Sorted by experts on tensor cores, or row by row."""
    mixture = Mixture.of(launch, printing)
    if launch.on_tensor_cores(printing.numerics):
        return SortedMixture.of(mixture, printing.numerics).kernels(printing)
    return mixture.kernels(printing)


def print_moe_norm(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """The norm is a kernel of its own: a row that the last block norms while nothing else runs takes longer."""
    moe, then = launch.first, launch.then
    assert isinstance(moe, MoeOp)
    assert isinstance(then, NormOp)
    return [*print_moe(moe, printing), *print_norm(then, printing)]


def print_moe_sum_norm(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """As above; the norm's kernel adds to the mixture first, where it can."""
    fold, then = launch.first, launch.then
    assert isinstance(fold, FoldOp)
    assert isinstance(then, NormOp)
    moe, binary = fold.first, fold.then
    if not isinstance(moe, MoeOp) or not isinstance(binary, BinaryOp):
        raise refuse(launch, f"it is a fold of a fold of {moe.name} and {binary.name}, and {then.name}")
    if not _only_adds(moe, binary, then):
        return [*print_moe(moe, printing), *print_binary(binary, printing), *print_norm(then, printing)]
    added = binary.b if binary.a is moe.y else binary.a
    given = {"x": moe.y, "add": added, "sum": binary.out}
    return [*print_moe(moe, printing), *print_norm(then, printing, given)]


def print_moe_sum(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """A mixture and what is added to it, where no norm follows."""
    moe, binary = launch.first, launch.then
    assert isinstance(moe, MoeOp)
    assert isinstance(binary, BinaryOp)
    return [*print_moe(moe, printing), *print_binary(binary, printing)]


def _only_adds(moe: MoeOp, binary: BinaryOp, norm: NormOp) -> bool:
    """Whether a sum is the mixture's rows plus others, as values alone, and the norm is of it and adds nothing."""
    plain = binary.gate is None and binary.row is None and binary.column is None and binary.quant is None
    of_rows = norm.x is binary.out and norm.part is None and norm.add is None and norm.sum is None
    own = moe.target.own is not None and (binary.a is moe.y) != (binary.b is moe.y)
    return plain and of_rows and own and binary.op.data is BinaryOperator.ADD


PRINTERS: Printers = {MoeOp: print_moe}

FOLDS: Folds = {
    (MoeOp, NormOp): print_moe_norm,
    (MoeOp, BinaryOp): print_moe_sum,
    (FoldOp, NormOp): print_moe_sum_norm,
}
