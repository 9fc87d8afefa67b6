"""Steps of random ops that contain the patterns of the rules, perturbed: whatever fires, values stay."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from lane_mlir.dialects import tg
from lane_mlir.passes.fuse import Outcome, steps

# LANE_EXAMPLES=2000 looks longer.
EXAMPLES = int(os.environ.get("LANE_EXAMPLES", "60"))
FORMATS = ("q8_0", "q8_0", "q4_0", "f16", None)
EPSILONS = (1e-5, 1e-6, 0.1)
ACTIVATIONS = ("silu", "silu", "sigmoid", "gelu", "gelu_tanh", "tanh", "relu")

T = TypeVar("T")
Choose = Callable[[int], int]
"""Draws one of so many."""


class RandomStep:
    """
    Draws a step op by op.

    `pool` are activations [rows, 64] that any later op may read, `other` those of other shapes, which are returned.
    """

    def __init__(self, step: Any, choose: Choose):
        self.s = step
        self.choose = choose
        self.pool: list[SSAValue] = [step.embedding()]
        self.other: list[SSAValue] = []
        self.caches: list[SSAValue] = []
        self.advanced = False

    def draw(self, options: Sequence[T]) -> T:
        return options[self.choose(len(options))]

    def one_in(self, count: int) -> bool:
        return self.choose(count) == 0

    def flip(self) -> bool:
        return self.one_in(2)

    def any(self) -> SSAValue:
        """A value, more often a late one."""
        late = self.pool[-3:]
        return self.draw(late if self.flip() else self.pool)

    def put(self, value: SSAValue) -> SSAValue:
        self.pool.append(value)
        return value

    def perhaps_read(self, value: SSAValue) -> None:
        """Give a value another reader now and then."""
        if self.one_in(6):
            self.put(self.s.scale(value, 0.5)) if tg.shape_of(value) == tg.shape_of(self.pool[0]) else None

    def reshaped(self, value: SSAValue) -> SSAValue:
        """The value, through views now and then."""
        match self.choose(7):
            case 0:
                return self.s.whole(self.s.heads(value))
            case 1:
                return self.s.view(value, *tg.shape_of(value))
            case _:
                return value

    def product(self, x: SSAValue, n: int = 64) -> SSAValue:
        y = self.s.matmul(x, n, self.draw(FORMATS))
        if self.one_in(4):
            self.perhaps_read(y)
            y = self.s.bias(y)
        if self.one_in(6):
            self.perhaps_read(y)
            y = self.s.product_scale(y)
            y = self.s.bias(y) if self.one_in(3) else y
        return y

    # What is built. Each leaves what it made in the pool.

    def norm(self) -> None:
        self.put(self.s.norm(self.reshaped(self.any()), self.draw(EPSILONS), self.flip()))

    def residual(self) -> None:
        a, b = self.any(), self.any()
        if self.flip():
            a = self.s.norm(a, self.draw(EPSILONS), self.flip())
            self.perhaps_read(a)
        if self.flip():
            b = self.product(b)
        total = self.put(self.s.add(a, b) if self.flip() else self.s.add(b, a))
        self.perhaps_read(total)
        self.put(self.s.norm(self.reshaped(total), self.draw(EPSILONS), self.flip()))

    def projection(self) -> None:
        self.put(self.product(self.reshaped(self.any())))

    def gating(self) -> None:
        gate, up = self.any(), self.any()
        if self.flip():
            x = self.any()
            gate, up = self.product(x), self.product(x if self.flip() else self.any())
        self.perhaps_read(gate)
        act = self.s.unary(self.draw(ACTIVATIONS), gate)
        self.perhaps_read(act)
        self.put(self.s.mul(act, self.reshaped(up)) if self.flip() else self.s.mul(up, act))

    def rotation(self) -> None:
        x = self.any() if self.flip() else self.product(self.any())
        self.perhaps_read(x)
        heads = self.s.heads(x)
        if self.flip():
            heads = self.s.norm(heads, self.draw(EPSILONS), not self.one_in(5))
        half = self.draw([16, 16, 8])
        y = self.s.whole(self.s.rope(heads, half, self.draw(["half", "half", "interleaved"])))
        if self.flip() and self.caches:
            self.s.set_row(y, self.draw(self.caches))
        if self.flip():
            self.put(y)

    def row(self) -> None:
        if not self.caches or self.one_in(3):
            self.caches.append(self.s.cache(64, f"cache{len(self.caches)}"))
            self.s.set_row(self.any(), self.caches[-1])
        value = self.product(self.any()) if self.flip() else self.any()
        self.s.set_row(self.reshaped(value), self.draw(self.caches))

    def attention(self) -> None:
        if not self.caches:
            self.row()
        q, k = self.any(), self.draw(self.caches)
        if self.one_in(4):
            v = self.s.slice(k, 64, 16, 32)
            if self.one_in(3):
                self.s.set_row(self.any(), self.draw(self.caches))
            self.other.append(self.s.attention(q, k, v, heads=2, kv_heads=2))
            return
        v = self.draw(self.caches)
        y = self.s.attention(q, k, v, window=self.draw([None, 3]))
        if self.flip():
            gate = self.s.unary(self.draw(ACTIVATIONS), self.any())
            self.perhaps_read(y)
            y = self.s.mul(gate, y) if self.flip() else self.s.mul(y, gate)
        self.put(y)

    def slices(self) -> None:
        wide = self.s.matmul(self.any(), 96, self.draw(FORMATS))
        part = self.s.slice(wide, 48, self.draw([0, 16]), 32)
        if self.flip():
            part = self.s.heads(self.s.whole(part))
        match self.choose(4):
            case 0:
                part = self.s.norm(part, self.draw(EPSILONS))
            case 1:
                part = self.s.rope(part)
            case 2:
                part = self.s.rope(self.s.norm(part))
            case _:
                self.other.append(self.s.head_matmul(self.s.whole(part), 2, 16))
        self.put(self.s.whole(part))

    def join(self) -> None:
        own = self.s.head_matmul(self.any(), 2, 16)
        tail = self.s.rope(self.s.view(self.product(self.any(), 32), 2 * self.s.rows, 16), 8)
        self.put(self.s.join(own, self.s.whole(tail), 2) if self.flip() else self.s.join(self.s.whole(tail), own, 2))

    def convolutions(self) -> None:
        for _ in range(1 + self.choose(3)):
            y = self.s.conv(self.any(), self.draw([4, 4, 3]))
            if not self.one_in(5):
                self.perhaps_read(y)
                y = self.s.silu(y)
            if self.flip():
                self.perhaps_read(y)
                y = self.s.whole(self.s.l2_norm(self.s.heads(y)))
            self.put(y)

    def delta_rule(self) -> None:
        x = self.any()
        first = self.s.matmul(x, 2, self.draw(FORMATS))
        second = first if self.one_in(5) else self.s.matmul(self.draw([x, self.any()]), 2, None)
        beta, decay = self.s.unary("sigmoid", first), self.s.decay(second)
        q, k, v, z = (self.any() for _ in range(4))
        self.put(self.s.delta(self.s.norm(q), self.s.whole(self.s.l2_norm(self.s.heads(k))), v, z, beta, decay))

    def mixture(self) -> None:
        x = self.any()
        y = self.s.moe(x, stored=self.draw(["q8_0", "q8_0", "f16", None]))
        if self.flip():
            down = self.s.matmul(self.s.mul(self.s.silu(self.s.matmul(x, 32)), self.s.matmul(x, 32)))
            if self.flip():
                down = self.s.mul(down, self.s.unary("sigmoid", self.s.matmul(x, 1, None)))
            self.perhaps_read(down)
            y = self.s.add(y, down) if self.flip() else self.s.add(down, y)
        self.perhaps_read(y)
        total = self.put(self.s.add(self.any(), y))
        self.put(self.s.norm(total))

    def odd_rows(self) -> None:
        """Some rows of a value, or rows cut at another place: views that are no reshapes."""
        x = self.any()
        rows, offset = self.draw([(1, (self.s.rows - 1) * 64), (max(1, self.s.rows - 1), 0)])
        part = self.s.view(x, rows, 64, offset)
        if self.flip():
            part = self.s.norm(part)
        self.other.append(self.s.matmul(part, 16, self.draw(FORMATS)))
        if self.caches and self.flip():
            self.s.set_row(part, self.draw(self.caches))

    def quantized(self) -> None:
        if self.s.target.numerics.data is not tg.Numerics.DEQUANT:
            self.put(self.s.matmul(self.s.quantize(self.any()), 64, self.draw(["q8_0", "q4_0"])))

    def close(self) -> None:
        if self.s.rows == 1 and not self.advanced:
            self.advanced = True
            token = self.s.add_op(tg.ArgmaxOp(self.any()))
            self.s.add_op(tg.AdvanceOp(token, self.s.token, self.s.pos))
            self.other.append(token)

    def build(self) -> ModuleOp:
        if self.flip():
            self.put(self.s.scale(self.pool[0], 2.0))
        kinds = (
            *(self.norm, self.residual, self.projection, self.gating, self.rotation, self.row, self.attention),
            *(self.slices, self.join, self.convolutions, self.delta_rule, self.mixture, self.odd_rows, self.quantized),
            self.residual,
        )
        for _ in range(1 + self.choose(8)):
            self.draw(kinds)()
        self.close()
        returned = [value for value in self.pool if not value.uses or self.one_in(8)]
        return self.s.module(*returned, *self.other)


def draw_options(choose: Choose) -> dict[str, Any]:
    """All rules, some held, some alone, or a limit."""
    rules = [rule for rule in steps() if rule != "advance"]
    some = [rule for rule in rules if choose(3) == 0]
    match choose(5):
        case 0:
            return {"held": some}
        case 1:
            return {"only": [*some, "advance"]}
        case 2:
            return {"limit": choose(20)}
        case _:
            return {}


def check(step: Any, rewrite: Any, choose: Choose, note: Callable[[str], object]) -> None:
    """Draw a step and options, and check its rewrite."""
    rows, numerics = (1, 1, 1, 2, 3, 16, 17)[choose(7)], ("dequant", "int8", "two_pass_int8")[choose(3)]
    module = RandomStep(step(rows, numerics, cache=("f32", "f16")[choose(2)]), choose).build()
    options = draw_options(choose)
    note(f"{options}\n{module}")
    done = rewrite(module, **options).check(positions=1)
    held = {decision.rule for decision in done.report if decision.outcome is Outcome.HELD}
    assert held <= set(options.get("held", ()))
    fired = [firing.rule for firing in done.report.fired() if firing.rule != "advance"]
    assert len(fired) <= options.get("limit", len(fired))
    if not options:
        again = rewrite(done.fused).check(positions=1)
        # A norm beside a quantize of a product can be fused with it once the quantize has been.
        assert numerics != "dequant" or not again.fired


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_whatever_fires_values_stay(step: Any, rewrite: Any, data: st.DataObject):
    check(step, rewrite, lambda count: data.draw(st.integers(0, count - 1)), note)
