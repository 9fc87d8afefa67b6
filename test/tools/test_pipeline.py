"""Reading pass pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from lane_mlir.diagnostics import LaneError, UsageError, unknown
from lane_mlir.tools.pipeline import parse_passes


@dataclass(frozen=True)
class Fuse(ModulePass):
    name = "fuse"

    held: tuple[str, ...] = ()
    limit: int | None = None
    numerics: Literal["int8", "dequant"] = "int8"
    loud: bool = False

    def __post_init__(self):
        for rule in self.held:
            if rule != "add_norm":
                raise LaneError(unknown("rule", rule, ["add_norm"]))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


@dataclass(frozen=True)
class Link(ModulePass):
    name = "link"

    chip: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


AVAILABLE: dict[str, type[ModulePass]] = {"fuse": Fuse, "link": Link}


def parse(text: str) -> tuple[ModulePass, ...]:
    return parse_passes({name: lambda part=part: part for name, part in AVAILABLE.items()}, text)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", ()),
        ("fuse", (Fuse(),)),
        ("fuse,link{chip=h200}", (Fuse(), Link("h200"))),
        (" fuse , link{chip=h200} ", (Fuse(), Link("h200"))),
        ("builtin.module(fuse, link{chip=h200})", (Fuse(), Link("h200"))),
        ("fuse{held=add_norm,add_norm limit=3 loud=true}", (Fuse(("add_norm", "add_norm"), 3, "int8", True),)),
        ('link{chip="sm_90a, big"}', (Link("sm_90a, big"),)),
    ],
)
def test_passes(text: str, passes: tuple[ModulePass, ...]):
    assert parse(text) == passes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fues", "unknown pass 'fues'; did you mean 'fuse'? valid: fuse, link (lane-opt --help lists all)"),
        ("fuse{hold=a}", "unknown option 'hold' of pass fuse; did you mean 'held'? valid: held, limit, loud, numerics"),
        ("fuse{held=nope}", "pass fuse: unknown rule 'nope'; valid: add_norm"),
        ("fuse{limit=x}", "option 'limit' of pass fuse takes an integer, not x"),
        ("fuse{limit=1,2}", "option 'limit' of pass fuse takes an integer, not 1,2"),
        ("fuse{numerics=int9}", "option 'numerics' of pass fuse takes one of int8, dequant, not int9"),
        ("fuse{loud}", "option 'loud' of pass fuse takes true or false, not nothing"),
        ("fuse{held}", "option 'held' of pass fuse takes a name (or several, with commas between them), not nothing"),
        ("fuse{limit}", "option 'limit' of pass fuse takes an integer, not nothing"),
        ("fuse{limit=1 limit=2}", "option 'limit' of pass fuse is given twice"),
        ('fuse,link{chip="a b" chip=c}', "option 'chip' of pass link is given twice"),
        ("link", "pass link needs the option 'chip'"),
        ("link{chip=3}", "option 'chip' of pass link takes a name, not 3"),
        (
            "fuse{held=a, b}",
            "pass pipeline 'fuse{held=a, b}', column 13: Unknown argument value, "
            "wrap argument in quotes to pass arbitrary string values",
        ),
        ("fuse;link", "pass pipeline 'fuse;link', column 5: Unknown token"),
        ("fuse{", "pass pipeline 'fuse{', column 6: Expected argument name here"),
    ],
)
def test_refusals(text: str, message: str):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == message
