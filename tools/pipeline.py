"""Pass pipelines as text: MLIR's and xDSL's spelling, and errors that name what is wrong with them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ArgSpecConvertible, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException
from xdsl.utils.hints import type_repr

from lane_mlir.diagnostics import UsageError, nearest, unknown

PartT = TypeVar("PartT", bound=ArgSpecConvertible)

_WRAPPER = re.compile(r"\s*builtin\.module\((.*)\)\s*", re.DOTALL)
_STRING = re.compile(r'"[^"]*"')
_OPTIONS = re.compile(r"([^\s,{}]+)\{([^{}]*)\}")
_COMMA_BETWEEN_PASSES = re.compile(r"\s*,\s*(?=[^{}]*(?:\{|$))")


def parse_passes(available: Mapping[str, Callable[[], type[ModulePass]]], text: str) -> tuple[ModulePass, ...]:
    """
    The passes that a pipeline such as `fuse{held=add_norm,gates},link,plan` names; MLIR's `builtin.module(…)` around it
    and spaces between passes are allowed.

    Raises: UsageError for a malformed pipeline, an unknown pass, an unknown option or a value of the wrong type.
    """
    specs = _specs(text)
    for spec in specs:
        if spec.name not in available:
            raise UsageError(f"{unknown('pass', spec.name, available)} (lane-opt --help lists all)")
    return tuple(parse_part("pass", available[spec.name], spec) for spec in specs)


def _specs(text: str) -> list[ArgSpec]:
    """Read the pipeline without looking at what the names mean."""
    while wrapped := _WRAPPER.fullmatch(text):
        text = wrapped[1]
    text = _COMMA_BETWEEN_PASSES.sub(",", text.strip())
    refuse_repeated("pass", text)
    try:
        return list(parse_pipeline(text))
    except ArgSpecParseError as error:
        raise spec_error(f"pass pipeline {text!r}", error) from error


def refuse_repeated(kind: str, text: str) -> None:
    """Refuse an option that is given twice, of which xDSL's parser keeps the last. Raises: UsageError naming it."""
    for part, options in _OPTIONS.findall(_STRING.sub("", text)):
        seen: set[str] = set()
        for word in options.split():
            name = word.partition("=")[0].replace("-", "_")
            if name in seen:
                raise UsageError(f"option {name!r} of {kind} {part} is given twice")
            seen.add(name)


def spec_error(what: str, error: ArgSpecParseError) -> UsageError:
    """xDSL's error, of several lines (title, name:line:column, text, carets, cause), as one."""
    lines = str(error).splitlines()
    column = lines[1].rpartition(":")[2]
    return UsageError(f"{what}, column {column}: {lines[-1].strip()}")


def parse_part(kind: str, factory: Callable[[], type[PartT]], spec: ArgSpec) -> PartT:
    """
    Make the pass (target, frontend) that a spec describes.

    Raises: UsageError naming the option that is unknown, missing, without a value or of the wrong type, or saying what
    the part itself refused.
    """
    part = factory()
    spec = spec.normalize_parameter_names()
    what = f"{kind} {spec.name}"
    options = {field.name for field in dataclasses.fields(part) if field.init and field.name != "name"}
    for option in spec.parameters:
        if option not in options:
            offer = nearest(option, options) if options else "it has none"
            raise UsageError(f"unknown option {option!r} of {what}; {offer}")
    for option, values in spec.parameters.items():
        if not values:
            raise UsageError(f"option {option!r} of {what} takes {_kind(get_type_hints(part)[option])}, not nothing")
    if missing := sorted(part.required_fields() - spec.parameters.keys()):
        raise UsageError(f"{what} needs the option {missing[0]!r}")
    try:
        return part.from_spec(spec)
    except (ValueError, DiagnosticException) as error:
        raise UsageError(_refusal(part, spec, what, str(error))) from error


def _refusal(part: type[ArgSpecConvertible], spec: ArgSpec, what: str, cause: str) -> str:
    """Name the option whose value has the wrong type; otherwise the part's own words."""
    if not cause.startswith(("Incompatible types", "Argument must contain")):
        return f"{what}: {cause}"
    types = get_type_hints(part)
    for option, values in spec.parameters.items():
        needed = {k: v for k, v in spec.parameters.items() if k in part.required_fields()}
        try:
            part.from_spec(ArgSpec(spec.name, needed | {option: values}))
        except ValueError:
            given = ",".join(map(str, values)) or "nothing"
            return f"option {option!r} of {what} takes {_kind(types[option])}, not {given}"
    return f"{what}: {cause}"


def _kind(hint: object) -> str:
    """A type of option in words."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_kind(part) for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return f"{_kind(get_args(hint)[0])} (or several, with commas between them)"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    names = {
        int: "an integer",
        str: "a name",
        bool: "true or false",
        float: "a number such as 0.5",
    }
    if isinstance(hint, type) and hint in names:
        return names[hint]
    return type_repr(hint)
