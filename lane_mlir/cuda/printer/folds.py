"""Printing of folds: two launches as one, the second done by the blocks of the first."""

from __future__ import annotations

from collections.abc import Sequence

from lane_mlir.cuda.printer import attention, mixture, movement, product_folds
from lane_mlir.cuda.printer.kernel import Folds, Kernel, Printers, Printing, refuse
from lane_mlir.dialects.launch import FoldOp

FOLDS: Folds = {
    **movement.FOLDS,
    **product_folds.FOLDS,
    **mixture.FOLDS,
    **attention.FOLDS,
}
"""How folds are printed, by the classes of their two launches."""


def print_fold(launch: FoldOp, printing: Printing) -> Sequence[Kernel]:
    """Raises LaneError for a fold of launches that have no kernel together."""
    printer = FOLDS.get((type(launch.first), type(launch.then)))
    if printer is None:
        raise refuse(launch, f"it is a fold of {launch.first.name} and {launch.then.name}")
    return printer(launch, printing)


PRINTERS: Printers = {FoldOp: print_fold}
