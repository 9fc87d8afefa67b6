"""Rotary positions: what the metadata says of them, as the parameters of `tg.rope_table`."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from lane_mlir.importers.model import Model
from lane_mlir.rope import RopeScaling

_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Rotary:
    """How positions become angles; `columns`: the rotated columns of a head."""

    columns: int
    scaling: RopeScaling
    is_long: bool = False
    """Whether long rope takes its factors for contexts beyond the original one."""


def rotary_of(model: Model, context: int, *, columns: int | None = None, equal_magnitudes: bool = False) -> Rotary:
    """
    The rotation of a model, for positions below `context`.

    Keys: rope.dimension_count (the width of a key head if absent), rope.freq_base (10000), and of rope.scaling: type,
    factor (also rope.scale_linear), original_context_length, attn_factor, and for YaRN yarn_ext_factor,
    yarn_attn_factor, yarn_beta_fast, yarn_beta_slow, yarn_log_multiplier. Raises LaneError for an unknown type.

    Source: Peng et al., YaRN (2023), whose magnitude 1 + 0.1·log(factor) `tg.rope_table` applies where ext_factor
    is not 0.
    """
    columns = model.count("rope.dimension_count", model.key_width, least=1) if columns is None else columns
    if columns % 2 or columns > model.key_width:
        raise model.refuse_key("rope.dimension_count", f"is {columns}, expected even and at most {model.key_width}")
    base = model.positive("rope.freq_base", 10000.0)
    original = model.count("rope.scaling.original_context_length") or model.count("context_length")
    factor = model.factor("rope.scaling.factor", model.factor("rope.scale_linear", 1.0))
    kind = model.optional("rope.scaling.type", str, "linear")
    if kind not in _SCALINGS:
        raise model.refuse_key("rope.scaling.type", f"is '{kind}', expected one of {', '.join(_SCALINGS)}")
    if kind == "none":
        factor = 1.0
    ext_factor = model.optional("rope.scaling.yarn_ext_factor", float, -1.0)
    if ext_factor < 0:
        ext_factor = 1.0 if kind == "yarn" else 0.0
    if ext_factor:
        _refuse_no_yarn(model, base, factor, original)
    return Rotary(
        columns,
        RopeScaling(
            base=base,
            freq_scale=1.0 / factor,
            ext_factor=ext_factor,
            attn_factor=_attn_factor(model, factor, ext_factor, equal_magnitudes),
            beta_fast=model.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=model.positive("rope.scaling.yarn_beta_slow", 1.0),
            original_context=original if ext_factor else 0,
        ),
        is_long=context > original,
    )


def _refuse_no_yarn(model: Model, base: float, factor: float, original: int) -> None:
    """Refuse what YaRN's ramp and magnitude have no value for."""
    if original < 1:
        raise model.refuse_key("rope.scaling.original_context_length", "is missing, which YaRN needs")
    if base <= 1:
        raise model.refuse_key("rope.freq_base", f"is {base}, expected more than 1 under YaRN")
    if 1 + 0.1 * log(factor) <= 0:
        raise model.refuse_key("rope.scaling.factor", f"is {factor}, too small for YaRN")
    fast, slow = model.positive("rope.scaling.yarn_beta_fast", 32.0), model.positive("rope.scaling.yarn_beta_slow", 1.0)
    if slow > fast:
        raise model.refuse_key("rope.scaling.yarn_beta_slow", f"is {slow}, expected at most yarn_beta_fast, {fast}")


def _attn_factor(model: Model, factor: float, ext_factor: float, equal_magnitudes: bool) -> float:
    """
    The magnitude of cosines and sines, less the 1 + 0.1·log(factor) that `tg.rope_table` itself applies under YaRN.

    With rope.scaling.yarn_log_multiplier m, YaRN's magnitude is divided by 1 + 0.1·m·log(factor), or by itself where
    `equal_magnitudes`.
    """
    attn_factor = model.positive("rope.scaling.attn_factor", 1.0)
    yarn_attn_factor = model.positive("rope.scaling.yarn_attn_factor", 1.0)
    multiplier = model.optional("rope.scaling.yarn_log_multiplier", float, 0.0)
    if not ext_factor:
        return attn_factor * yarn_attn_factor
    applied = 1 + 0.1 * log(factor)
    magnitude = max(applied, 1.0)
    if multiplier:
        magnitude = 1.0 if equal_magnitudes else magnitude / max(1 + 0.1 * multiplier * log(factor), 1.0)
    return attn_factor * magnitude / applied


def sections_of(model: Model, rotary: Rotary, *, is_interleaved: bool = False) -> bool:
    """
    Whether the model rotates different pairs by different coordinates (rope.dimension_sections): time, height, width of
    an image. A token of text has one position in all three; the fourth coordinate of every token is 0.

    Raises LaneError if a pair would turn by the fourth.
    """
    name = "rope.dimension_sections"
    sections = model.checkpoint.metadata.optional_array(model.key(name), int) or []
    if len(sections) < 3 or not all(section > 0 for section in sections[:2]):
        return False
    pairs, (time, height, width) = rotary.columns // 2, sections[:3]
    cycle = sum(sections)
    is_covered = all(
        pair % cycle < (3 * (time, height, width)[pair % cycle % 3] if is_interleaved else time + height + width)
        for pair in range(pairs)
    )
    if not is_covered:
        raise model.refuse_key(name, f"is {sections}, which leaves some of {pairs} pairs without a position")
    return True
