"""The work of the passes grows as the step does. Calls are counted, so that a busy machine does not matter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from lane_mlir.dialects import tg
from lane_mlir.passes.fuse import FusePass
from lane_mlir.passes.link import LinkPass
from lane_mlir.passes.plan import PlanPass

Lift = Callable[..., ModuleOp]


def layers(count: int) -> Callable[[Any], Any]:
    def build(s: Any) -> Any:
        x = s.embedding()
        for layer in range(count):
            k, v, y = s.cache(64, f"k{layer}"), s.cache(64, f"v{layer}"), s.norm(x)
            q = s.whole(s.rope(s.norm(s.heads(s.matmul(y)))))
            s.set_row(s.whole(s.rope(s.norm(s.heads(s.matmul(y))))), k)
            s.set_row(s.matmul(y), v)
            x = s.add(x, s.matmul(s.attention(q, k, v)))
            y = s.norm(x)
            x = s.add(x, s.matmul(s.mul(s.silu(s.matmul(y, 96)), s.matmul(y, 96))))
        token = s.add_op(tg.ArgmaxOp(s.matmul(s.norm(x), s.VOCABULARY)))
        s.add_op(tg.AdvanceOp(token, s.token, s.pos))
        return token

    return build


def calls(run: Callable[[], None]) -> int:
    """How many functions a run calls, of Python and of C."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("held", [(), ("add_norm", "row_write", "fused_quant")], ids=["all", "held"])
def test_twice_the_layers_take_at_most_twice_the_work(lift: Lift, held: tuple[str, ...]):
    work: list[int] = []
    for count in (5, 10):
        module = lift(layers(count), 1, "int8")
        run: list[Callable[[], None]] = [
            lambda module=module: FusePass(held).apply(Context(), module),
            lambda module=module: LinkPass().apply(Context(), module),
            lambda module=module: PlanPass().apply(Context(), module),
        ]
        work.append(sum(calls(part) for part in run))
    assert work[1] < 2.1 * work[0]
