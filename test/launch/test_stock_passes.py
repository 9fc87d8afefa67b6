"""xDSL's own passes around our launches: they remove what is unused and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination

from lane_mlir.dialects.launch import ScheduleOp

STOCK: list[ModulePass] = [CanonicalizePass(), CommonSubexpressionElimination(), DeadCodeElimination()]


@pytest.mark.parametrize("stock", STOCK, ids=lambda p: p.name)
def test_launches_stay(schedule: Callable[[str], ScheduleOp], stock: ModulePass) -> None:
    # Two equal launches, one whose result nobody reads, a fold, and a state that is moved on twice.
    made = schedule(
        "launch.unary silu %x:8 into %y:8 (n = 8)\n"
        "launch.unary silu %x into %y (n = 8)\n"
        "launch.conv %x by %w:32 ring %r:32 into %z:8 (chan = 8, taps = 4, rows = 1)\n"
        "launch.conv %x by %w ring %r into %z (chan = 8, taps = 4, rows = 1)\n"
        "launch.fold { launch.unary silu %x into %y (n = 8) launch.unary silu %y into %x (n = 8) }"
    )
    module = made.parent_op()
    assert isinstance(module, ModuleOp)
    before = str(module)
    stock.apply(Context(), module)
    assert str(module) == before


@pytest.mark.parametrize("stock", STOCK, ids=lambda p: p.name)
def test_unused_buffers_go_and_equal_ones_stay(schedule: Callable[[str], ScheduleOp], stock: ModulePass) -> None:
    made = schedule('%u = launch.buffer "unused" f32[8] computed\n' + "launch.unary silu %x:8 into %y:8 (n = 8)")
    module = made.parent_op()
    assert isinstance(module, ModuleOp)
    stock.apply(Context(), module)
    assert [b.label.data for b in made.buffers()] == ["x", "y"]
