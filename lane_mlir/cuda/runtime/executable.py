"""
What the runtime needs of a compiled step, as plain data: the unit of its kernels, their launches in order, and where
everything lies that these touch. Nothing of the IR is in it, so that it can be kept and read without the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, cast

import numpy as np
from xdsl.utils.str_enum import StrEnum

from lane_mlir.cuda.runtime.gpu import Signature, Source
from lane_mlir.cuda.runtime.weights import Stored, Weight
from lane_mlir.formats import Format, StoredTensor
from lane_mlir.rope import RopeScaling, RopeTable

TOKEN, POSITION = "token", "position"
"""Kinds of arguments that the host sets."""


class Region(StrEnum):
    """What a place is in."""

    ARENA = "arena"
    """Of the program alone; holds nothing between two steps."""
    SCRATCH = "scratch"
    """Likewise, for one launch after the other."""
    COUNTERS = "counters"
    """Of the program alone; zero between two launches."""
    WEIGHT = "weight"
    STATE = "state"


@dataclass(frozen=True)
class Place:
    """
    A place in device memory: so many bytes into a region, or into a weight or an array of state, by its index among
    those of the step; of an array of state, into that of one of the step's sequences.
    """

    region: Region
    offset: int
    index: int = 0
    sequence: int = 0


@dataclass(frozen=True)
class KernelForm:
    """How a kernel of the unit is launched, and the types of its parameters in CUDA C."""

    parameters: tuple[str, ...]
    grid: tuple[int, int, int]
    block: int
    shared: int
    pdl: bool
    early: bool = False

    @property
    def signature(self) -> Signature:
        return Signature(self.parameters, self.shared)


@dataclass(frozen=True)
class Call:
    """
    A launch of a kernel of the unit. `origin` says what it was made from, and `names` what each argument is, for
    messages.
    """

    kernel: str
    places: tuple[Place, ...]
    origin: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class StateArray:
    """An array of state, as every program of the model knows it that reads it: that of one sequence."""

    kind: str | None
    name: str
    shape: tuple[int, ...]
    dtype: str
    """numpy's name."""

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class NumbersArgument:
    """
    An argument of whole numbers, tokens or positions: an array of state, and of which of the step's sequences.

    `vocabulary`: the tokens that there are, of the table that they point into. `advanced`: the step moves it on.
    """

    array: int
    sequence: int
    vocabulary: int | None = None
    advanced: bool = False


@dataclass(frozen=True)
class Output:
    place: Place
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Executable:
    """
    A compiled step: `text` is the unit, `kernels` its kernels by symbol, `calls` what is launched, in order.

    `rows` that each position stands for, `positions` of the context (None: any number), `sequences` that the step is
    for; `arena`, `scratch` and `counters` are the bytes of these regions.
    """

    name: str
    text: str
    kernels: Mapping[str, KernelForm]
    calls: tuple[Call, ...]
    weights: tuple[Weight, ...]
    state: tuple[StateArray, ...]
    token_arguments: tuple[NumbersArgument, ...]
    position_arguments: tuple[NumbersArgument, ...]
    outputs: tuple[Output, ...]
    rows: int
    positions: int | None
    sequences: int
    arena: int
    scratch: int
    counters: int

    @property
    def source(self) -> Source:
        """The unit as it is loaded."""
        kernels = {symbol: form.signature for symbol, form in self.kernels.items()}
        return Source(f"{self.name}.cu", self.text, kernels)

    def json(self) -> str:
        """The step as JSON, of which `executable_of` makes it again."""
        return json.dumps(asdict(self), separators=(",", ":"))


def executable_of(text: str) -> Executable:
    """A step from its JSON. Raises KeyError, TypeError or ValueError for what is none."""
    data: dict[str, Any] = json.loads(text)
    data["kernels"] = {symbol: KernelForm(**_fields(form)) for symbol, form in data["kernels"].items()}
    data["calls"] = tuple(map(_call, data["calls"]))
    data["weights"] = tuple(map(_weight, data["weights"]))
    data["state"] = tuple(StateArray(**_fields(array)) for array in data["state"])
    for name in ("token_arguments", "position_arguments"):
        data[name] = tuple(NumbersArgument(**argument) for argument in data[name])
    data["outputs"] = tuple(Output(**_fields(output, place=_place(output["place"]))) for output in data["outputs"])
    return Executable(**data)


def _fields(data: Mapping[str, Any], **made: object) -> dict[str, Any]:
    """Fields, the lists of JSON as tuples, some made already."""
    return {name: _tuple(value) for name, value in data.items()} | made


def _tuple(value: Any) -> Any:
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def _place(data: Mapping[str, Any]) -> Place:
    return Place(**_fields(data, region=Region(data["region"])))


def _call(data: Mapping[str, Any]) -> Call:
    return Call(**_fields(data, places=tuple(map(_place, data["places"]))))


def _weight(data: Mapping[str, Any]) -> Weight:
    source = data["source"]
    made: StoredTensor | RopeTable
    if "scaling" in source:
        factors = None if source["factors"] is None else _tensor(source["factors"])
        made = RopeTable(source["which"], RopeScaling(**source["scaling"]), factors)
    else:
        made = _tensor(source)
    return Weight(**_fields(data, source=made, stored=Stored(data["stored"])))


def _tensor(data: Mapping[str, Any]) -> StoredTensor:
    return StoredTensor(data["name"], Format(data["format"]))
