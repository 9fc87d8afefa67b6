"""Values used where they are not defined."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.dialects.test import TestTermOp as AnyTerminator
from xdsl.ir import Block, Region

from lane_mlir.dominance import undominated_use


def value(*operands: AnyOp) -> AnyOp:
    return AnyOp([op.results[0] for op in operands], [i32])


def holder(*blocks: Block) -> AnyOp:
    return AnyOp(regions=[Region(blocks)])


def test_in_order():
    made = value()
    inner = value(made)
    assert undominated_use(ModuleOp([holder(Block([made, holder(Block([inner])), value(made)]))])) is None


def test_ops_of_a_module_have_no_order():
    made = value()
    assert undominated_use(ModuleOp([value(made), made])) is None


def test_blocks_that_come_before():
    made = value()
    first, second = Block([made]), Block([value(made)])
    first.add_op(AnyTerminator(successors=[second]))
    assert undominated_use(ModuleOp([holder(first, second)])) is None


@pytest.mark.parametrize("kind", ["late", "inside", "sibling", "detached"])
def test_refused(kind: str):
    made = value()
    made.results[0].name_hint = "x"
    use = value(made)
    match kind:
        case "late":
            blocks = [Block([use, made])]
        case "inside":
            blocks = [Block([holder(Block([made])), use])]
        case "sibling":
            blocks = [Block(), Block([made]), Block([use])]
        case _:
            blocks = [Block([use])]
    assert undominated_use(ModuleOp([holder(*blocks)])) == (use, "uses %x where it is not defined")
