"""Fused ops: several ops that run as one launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.utils import AbstractYieldOperation
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import irdl_op_definition, lazy_traits_def, prop_def, region_def, traits_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure, RecursiveMemoryEffect

from lane_mlir.dialects.tg.attributes import QuantizedAttr
from lane_mlir.dialects.tg.operation import LiftedOperation, TensorGraphOperation


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """The results of a fused op."""

    name = "tg.yield"

    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(FusedOp), Pure()))


@irdl_op_definition
class FusedOp(TensorGraphOperation):
    """
    Ops that run as one launch. Its meaning is that of its parts, in order, and of nothing else; its class says which
    rule built it. A part is a lifted op or a fused one. The region reads values from outside it freely. Each part has a
    number, so that no pass takes it for an equal op outside.

    Example:
    ```
    %sum, %y = tg.fused "add_norm" {
      %s = tg.binary add %a, %b : …
      %n = tg.rms_norm %s weight %w eps 1.000000e-05 : …
      tg.yield %s, %n : tensor<1x576xf32>, tensor<1x576xf32>
    }
    ```
    """

    name = "tg.fused"

    fusion_class = prop_def(StringAttr)
    body = region_def("single_block")
    outputs = var_result_def()

    STORED_AS: ClassVar = {"outputs": (QuantizedAttr,)}

    traits = traits_def(RecursiveMemoryEffect())

    def __init__(self, fusion_class: str, body: Region):
        terminator = body.block.last_op
        assert isinstance(terminator, YieldOp)
        super().__init__(
            properties={"fusion_class": StringAttr(fusion_class)},
            regions=[body],
            result_types=[[value.type for value in terminator.arguments]],
        )

    @property
    def parts(self) -> Sequence[Operation]:
        """The ops that run as one, in order."""
        return tuple(op for op in self.body.block.ops if not isinstance(op, YieldOp))

    @property
    def yielded(self) -> Sequence[SSAValue]:
        """The values inside that the results are."""
        terminator = self.body.block.last_op
        assert isinstance(terminator, YieldOp)
        return tuple(terminator.arguments)

    def leaves(self) -> Iterator[LiftedOperation]:
        """The lifted ops that it computes, in the order they run."""
        for part in self.parts:
            if isinstance(part, FusedOp):
                yield from part.leaves()
            elif isinstance(part, LiftedOperation):
                yield part

    def memory_reads(self) -> Sequence[SSAValue]:
        return tuple(dict.fromkeys(memref for leaf in self.leaves() for memref in leaf.memory_reads()))

    def memory_writes(self) -> Sequence[SSAValue]:
        return tuple(dict.fromkeys(memref for leaf in self.leaves() for memref in leaf.memory_writes()))

    @classmethod
    def parse(cls, parser: Parser) -> FusedOp:
        fusion_class = parser.parse_str_literal()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        start = parser.pos
        body = parser.parse_region()
        if len(body.blocks) != 1 or not isinstance(body.block.last_op, YieldOp):
            parser.raise_error("a fused op is one block that ends in tg.yield", start, start + 1)
        op = cls(fusion_class, body)
        op.attributes |= attributes.data if attributes is not None else {}
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.fusion_class.data)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body)

    def verify_(self) -> None:
        terminator = self.body.block.last_op
        if not self.fusion_class.data:
            raise self.refuse("names no class")
        if not isinstance(terminator, YieldOp):
            raise self.refuse("does not end in tg.yield")
        if self.body.block.args:
            raise self.refuse(f"has {len(self.body.block.args)} block arguments, expected none")
        if not self.parts:
            raise self.refuse("has no parts")
        for part in self.parts:
            if not isinstance(part, LiftedOperation | FusedOp):
                raise self.refuse(f"has a part '{part.name}', expected ops of tg that become launches")
        inner, outer = [v.type for v in terminator.arguments], [v.type for v in self.outputs]
        if inner != outer:
            raise self.refuse(
                f"yields ({', '.join(map(str, inner))}), but its results are ({', '.join(map(str, outer))})"
            )
        if early := used_before_defined(self.body.block):
            raise self.refuse(f"has a part '{early.name}' that uses a value before it is defined")


def used_before_defined(block: Block) -> Operation | None:
    """The first op, in the block or in a region inside it, that uses a value which the block defines only later."""
    later = {result for op in block.ops for result in op.results}
    for op in block.ops:
        for inner in op.walk():
            if not later.isdisjoint(inner.operands):
                return inner
        later.difference_update(op.results)
    return None
