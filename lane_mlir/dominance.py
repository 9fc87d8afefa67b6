"""Values that are used where they are not defined: xDSL's parser and verifier let them pass."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo


def undominated_use(root: Operation) -> tuple[Operation, str] | None:
    """
    The first op under `root` that uses a value which is not defined whenever the op runs, and what is wrong; None if
    there is none. The ops directly in a module have no order.
    """
    order = {op: i for i, op in enumerate(root.walk())}
    dominance: dict[Region, DominanceInfo] = {}
    for op in order:
        for operand in op.operands:
            if not _is_defined_at(operand, op, order, dominance):
                name = f"%{operand.name_hint}" if operand.name_hint else "a value"
                return op, f"uses {name} where it is not defined"
    return None


def _is_defined_at(
    value: SSAValue, op: Operation, order: dict[Operation, int], dominance: dict[Region, DominanceInfo]
) -> bool:
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent
    region = None if block is None else block.parent
    if block is None or region is None:
        return False
    at: Operation | None = op
    while at is not None and at.parent_region() is not region:
        at = at.parent_op()
    if at is None or at.parent is None:
        return False
    if at.parent is not block:
        if region not in dominance:
            dominance[region] = DominanceInfo(region)
        return dominance[region].strictly_dominates(block, at.parent)
    return isinstance(owner, Block) or order[owner] < order[at] or isinstance(region.parent, ModuleOp)
