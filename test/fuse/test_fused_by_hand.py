"""Fused ops as people write them: whatever the class says, link runs the parts that it has, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import PassFailedException

from lane_mlir.dialects import tg
from lane_mlir.eval.step import the_step
from lane_mlir.passes.forms import RULE_OF_CLASS
from lane_mlir.passes.fuse import FusePass
from lane_mlir.passes.link import Judge, LinkPass, Refusal

Build = Callable[[Any], Any]
Lift = Callable[..., ModuleOp]
Equal = Callable[..., None]
Change = Callable[[tg.FusedOp], None]


class Fuse(Protocol):
    """See the fixture."""

    def __call__(self, build: Build, *only: str, **how: Any) -> Any: ...


def transformer(s: Any) -> Any:
    x, k, v = s.scale(s.embedding()), s.cache(64, "k"), s.cache(64, "v")
    y = s.norm(x)
    q = s.whole(s.rope(s.norm(s.heads(s.matmul(y)))))
    s.set_row(s.whole(s.rope(s.norm(s.heads(s.bias(s.matmul(y)))))), k)
    s.set_row(s.matmul(y), v)
    attended = s.attention(q, k, v)
    x = s.add(x, s.matmul(s.mul(attended, s.unary("sigmoid", s.matmul(y)))))
    y = s.norm(x)
    x = s.add(x, s.norm(s.matmul(s.mul(s.silu(s.matmul(y, 96)), s.matmul(y, 96)))))
    y = s.norm(x)
    shared = s.matmul(s.mul(s.silu(s.matmul(y, 32)), s.matmul(y, 32)))
    x = s.add(x, s.add(s.moe(y), s.mul(shared, s.unary("sigmoid", s.matmul(y, 1, None)))))
    token = s.add_op(tg.ArgmaxOp(s.matmul(s.norm(x), s.VOCABULARY)))
    s.add_op(tg.AdvanceOp(token, s.token, s.pos))
    return x, token


def recurrent(s: Any) -> Any:
    x = s.embedding()
    q, k = (s.whole(s.l2_norm(s.heads(s.silu(s.conv(s.matmul(x)))))) for _ in range(2))
    v = s.silu(s.conv(s.matmul(x)))
    beta, decay = s.unary("sigmoid", s.matmul(x, 2, None)), s.decay(s.matmul(x, 2, None))
    y = s.add(x, s.matmul(s.delta(q, k, v, s.matmul(x), beta, decay)))
    return s.norm(y), y


def latent(s: Any) -> Any:
    x, k = s.embedding(), s.cache(64, "k")
    heads = s.slice(s.matmul(x, 96), 48, 16, 32)
    q = s.join(s.head_matmul(s.whole(heads), 2, 16), s.whole(s.rope(s.view(s.matmul(x, 32), 2, 16), 8)), 2)
    s.set_row(s.matmul(x), k)
    y = s.attention(q, k, s.slice(k, 64, 16, 32), heads=1, kv_heads=1)
    return s.matmul(y), s.rope(s.heads(s.silu(x))), s.rope(s.heads(s.scale(x)))


STEPS = (transformer, recurrent, latent)


def fused_ops(module: ModuleOp) -> Iterator[tg.FusedOp]:
    return (op for op in the_step(module).body.block.ops if isinstance(op, tg.FusedOp))


def takes(judge: Judge, op: tg.FusedOp, change: Change) -> bool:
    """Whether link takes a fused op of a step once it is changed. Whatever else is raised is a fault."""
    copy = op.clone()
    change(copy)
    copy.verify()
    try:
        if copy.is_structurally_equivalent(op):
            return False
        judge.check(copy)
    except Refusal as refusal:
        assert refusal.args != ("",)  # noqa: PT017
        return False
    finally:
        copy.erase(safe_erase=False)
    return True


def check_launches(module: ModuleOp, taken: Sequence[Sequence[Change]], equal: Equal) -> None:
    """Whatever link takes is run by launches that compute the same: every change, of one op each at a time."""
    for round_ in zip_longest(*taken):
        changed = module.clone()
        for op, change in zip(fused_ops(changed), round_, strict=True):
            if change is not None:
                change(op)
        equal(changed, changed, positions=1)


def called(fusion_class: str) -> Change:
    return lambda op: setattr(op, "fusion_class", StringAttr(fusion_class))


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
@pytest.mark.parametrize("build", STEPS)
def test_any_class_on_any_parts(lift: Lift, equal: Equal, build: Build, numerics: str):
    module = lift(build, 1, numerics)
    FusePass().run(module)
    judge = Judge(the_step(module), tg.target_of(module))
    taken: list[list[Change]] = []
    for op in fused_ops(module):
        taken.append([called(name) for name in RULE_OF_CLASS if takes(judge, op, called(name))])
        # The few that mean the same.
        assert len(taken[-1]) < 10
        assert not takes(judge, op, called("nonsense"))
    check_launches(module, taken, equal)


def changes(op: tg.FusedOp) -> Iterator[Change]:
    """Ways in which the parts of a fused op can be other than its class says."""
    for i, leaf in enumerate(op.leaves()):
        match leaf:
            case tg.BinaryOp():
                others = [operator for operator in tg.BinaryOperator if operator is not leaf.operator.data]
                yield from (sets(i, "operator", tg.BinaryOperatorAttr(operator)) for operator in others)
            case tg.UnaryOp():
                yield sets(i, "activation", tg.ActivationAttr(tg.Activation.TANH))
            case tg.RopeOp():
                yield sets(i, "pairing", tg.PairingAttr(tg.Pairing.INTERLEAVED))
            case _:
                pass
        for j, operand in enumerate(leaf.operands):
            for k, other in enumerate(op.leaves()):
                if k < i and any(r.type == operand.type and r is not operand for r in other.results):
                    yield reads(i, j, k)


def sets(index: int, name: str, attribute: Attribute) -> Change:
    return lambda op: setattr(nth(op, index), name, attribute)


def reads(index: int, operand: int, other: int) -> Change:
    return lambda op: read(nth(op, index), operand, nth(op, other).results[0])


def nth(op: tg.FusedOp, index: int) -> Any:
    return list(op.leaves())[index]


def read(op: Operation, index: int, value: SSAValue) -> None:
    """Let an op read another value, if it can see it."""
    block, inside = value.owner.parent, op
    while inside is not None and inside.parent is not block:
        inside = inside.parent_op()
    if inside is not None:
        op.operands[index] = value


@pytest.mark.parametrize("numerics", ["dequant", "int8"])
@pytest.mark.parametrize("build", STEPS)
def test_parts_that_are_not_what_the_class_says(lift: Lift, equal: Equal, build: Build, numerics: str):
    module = lift(build, 1, numerics)
    FusePass().run(module)
    judge = Judge(the_step(module), tg.target_of(module))
    made = {op: list(changes(op)) for op in fused_ops(module)}
    taken = [[change for change in found if takes(judge, op, change)] for op, found in made.items()]
    assert sum(map(len, taken)) < sum(map(len, made.values()))
    check_launches(module, taken, equal)


@pytest.mark.parametrize("name", ["add_norm", "nonsense", "advance", "moe_rows"])
def test_an_op_alone_under_any_class(step: Any, name: str):
    s = step()
    x = s.embedding()
    body = Block([part := tg.UnaryOp(tg.Activation.SILU, x)])
    body.add_op(tg.YieldOp(part.result))
    module = s.module(s.add_op(tg.FusedOp(name, Region(body))))
    with pytest.raises(PassFailedException, match=rf'^step @step: no kernel for "{name}"\[1\].*, which computes %'):
        LinkPass().apply(Context(), module)


def inserted(s: Any, dst: SSAValue, src: SSAValue) -> SSAValue:
    return s.add_op(tg.InsertOp(src, dst, every=tg.size_of(dst), start=0))


def insert_into_a_constant(s: Any) -> Any:
    return inserted(s, s.constant(2, 64), s.embedding())


def insert_into_what_is_read(s: Any) -> Any:
    x = s.embedding()
    wide = s.view(s.matmul(x, 128), 2, 64)
    return inserted(s, wide, x), s.scale(wide)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (insert_into_a_constant, "it would write over a tensor that the step does not compute"),
        (insert_into_what_is_read, "reads the tensor that it would write over"),
    ],
)
def test_an_insert_writes_over_nothing_that_is_needed(lift: Lift, build: Build, message: str):
    with pytest.raises(PassFailedException, match=message):
        LinkPass().apply(Context(), lift(build))


def test_two_inserts_into_one_empty_tensor_are_two_tensors(lift: Lift, equal: Equal):
    def build(s: Any) -> Any:
        x = s.embedding()
        empty = s.add_op(tg.EmptyOp(x.type))
        return inserted(s, empty, x), inserted(s, empty, s.silu(x))

    module = lift(build)
    equal(module, module)


def test_fuse_leaves_what_is_fused_by_hand(lift: Lift, equal: Equal):
    """The rules after it build on it as on their own."""

    def build(s: Any) -> Any:
        x = s.embedding()
        y, residual = s.matmul(x), s.scale(x)
        w = s.constant(64)
        total = tg.BinaryOp(tg.BinaryOperator.ADD, residual, y)
        norm = tg.RmsNormOp(total.result, w, 1e-5)
        body = Block([total, norm, tg.YieldOp(total.result, norm.result)])
        return s.add_op(tg.FusedOp("add_norm", Region(body)))

    module = lift(build)
    lifted = module.clone()
    (optimized,) = FusePass().run(module)
    assert [fired.rule for fired in optimized.fired] == ["gemv_norm_epilogue"]
    equal(lifted, module)
