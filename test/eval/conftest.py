"""Running a few ops of `tg`, written as text, on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from lane_mlir.dialects.tg import TG, Numerics
from lane_mlir.eval import GivenWeights, run_step

Parse: TypeAlias = Callable[[str], ModuleOp]
Run: TypeAlias = Callable[..., Any]


@pytest.fixture
def ctx() -> Context:
    ctx = Context()
    for dialect in (Builtin, Func, TG):
        ctx.load_dialect(dialect)
    return ctx


@pytest.fixture
def parse(ctx: Context) -> Parse:
    def parse(text: str) -> ModuleOp:
        module = Parser(ctx, text).parse_module()
        module.verify()
        return module

    return parse


@pytest.fixture
def run(parse: Parse) -> Run:
    """
    `run(body, returned, x=…, pos=…)`: the value that a body returns for named arguments.

    Arguments become tensors of f32, or memrefs if they are integers or named in `state`; `types` overrides the type of
    one. `returned` is the name and type of the result, such as `%y : tensor<2x4xf32>`; empty for none.
    """

    def run(
        body: str,
        returned: str = "",
        *,
        state: tuple[str, ...] = (),
        types: Mapping[str, str] | None = None,
        weights: Mapping[str, NDArray[Any]] | None = None,
        numerics: Numerics = Numerics.DEQUANT,
        **arrays: NDArray[Any],
    ) -> Any:
        types = types or {}
        signature = ", ".join(
            f"%{name}: {types.get(name) or _type(array, name in state)}" for name, array in arrays.items()
        )
        results = returned.partition(" : ")[2]
        ending = f"func.return {returned}" if returned else "func.return"
        text = f"func.func @step({signature}) -> ({results}) {{\n{body}\n{ending}\n}}"
        outputs = run_step(parse(text), GivenWeights(weights or {}), list(arrays.values()), numerics)
        return outputs[0] if len(outputs) == 1 else outputs

    return run


def _type(array: NDArray[Any], is_state: bool) -> str:
    is_integer = array.dtype == np.int32
    shape = "x".join(map(str, array.shape))
    return f"{'memref' if is_state or is_integer else 'tensor'}<{shape}x{'i32' if is_integer else 'f32'}>"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
