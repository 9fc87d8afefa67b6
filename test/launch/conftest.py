"""Launches from text in which a buffer's shape stands beside its first use: `launch.quant %x:64 (n = 64)`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from lane_mlir.dialects.launch import LAUNCH, LaunchOp, ScheduleOp
from lane_mlir.dialects.tg import TG

_SHAPED = re.compile(r"%(\w+):([0-9x]+)")


def parse_schedule(text: str) -> ScheduleOp:
    shapes = {name: shape for name, shape in _SHAPED.findall(text)}
    buffers = "".join(f'%{n} = launch.buffer "{n}" f32[{s}] computed\n' for n, s in shapes.items())
    context = Context()
    for dialect in (Builtin, TG, LAUNCH):
        context.load_dialect(dialect)
    body = _SHAPED.sub(r"%\1", text)
    module = Parser(context, f"launch.schedule @s {{\n{buffers}{body}\nlaunch.yield\n}}").parse_module()
    assert isinstance(module, ModuleOp)
    schedule = module.body.block.first_op
    assert isinstance(schedule, ScheduleOp)
    return schedule


@pytest.fixture
def schedule() -> Callable[[str], ScheduleOp]:
    """A schedule of some launches, unverified."""
    return parse_schedule


@pytest.fixture
def launch() -> Callable[[str], LaunchOp]:
    """One launch, verified."""

    def one(text: str) -> LaunchOp:
        made = parse_schedule(text)
        made.verify()
        (launch,) = made.launches()
        return launch

    return one


@pytest.fixture
def value() -> Callable[[LaunchOp, str], SSAValue]:
    """A buffer of the schedule of a launch, by name."""

    def by_name(launch: LaunchOp, name: str) -> SSAValue:
        schedule = launch.parent_op()
        assert isinstance(schedule, ScheduleOp)
        return next(b.buffer for b in schedule.buffers() if b.label.data == name)

    return by_name
