"""Where results land: over a whole buffer, in rows of a table, in a part of every unit of a wider array."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from lane_mlir.cpu.buffers import Buffers, units
from lane_mlir.dialects.launch import Target
from lane_mlir.eval import Array, StateArray

Store: TypeAlias = Callable[[Array], object]
"""Takes a launch's result, of any shape, to where it lands, rounded to what is stored there."""


def fixed_place(buffers: Buffers, target: Target, count: int, width: int) -> StateArray | None:
    """The elements that a result of `count` units lands in, [count, width]; None if a parameter moves them."""
    dst = target.dst
    if dst.takes_param:
        return None
    start = 0 if dst.row is None else (dst.row.index or 0) * dst.row.pitch
    return units(buffers.plain(target.buffer)[start:], count, width, dst.unit)


def store_at(buffers: Buffers, target: Target, count: int, width: int) -> Store:
    """Stores a result of `count` units of `width` values where it lands."""
    place = fixed_place(buffers, target, count, width)
    if place is not None:
        return _store_into(place)
    row, part = target.dst.row, target.dst.unit
    assert row is not None
    flat, position = buffers.plain(target.buffer), buffers.position(target.param)
    if part is None:
        rows = count * width // row.pitch
        table = flat[: len(flat) // row.pitch * row.pitch].reshape(-1, row.pitch)
        buffers.limit(target.param, rows, len(table))

        def store_rows(values: Array) -> None:
            first = position()
            table[first : first + rows] = values.reshape(rows, row.pitch)

        return store_rows
    reach = (count - 1) * part.pitch + part.offset + width
    buffers.limit(target.param, 1, (len(flat) - reach) // row.pitch + 1)

    def store_units(values: Array) -> None:
        units(flat[position() * row.pitch :], count, width, part)[...] = values.reshape(count, width)

    return store_units


def _store_into(place: StateArray) -> Store:
    shape = place.shape

    def store(values: Array) -> None:
        place[...] = values.reshape(shape)

    return store


def store_forms(buffers: Buffers, out: SSAValue, f32: UnitAttr | None, quant: UnitAttr | None) -> Store:
    """Stores a result over a whole buffer, in the forms that its launch writes."""
    if quant is None:
        return _store_into(buffers.values(out))
    set_words = buffers.quantized(out).set
    if f32 is None:
        return set_words
    store = _store_into(buffers.values(out))

    def store_both(values: Array) -> None:
        store(values)
        set_words(values)

    return store_both


def store_apart(
    buffers: Buffers, table: SSAValue, param: SSAValue | None, rows: int, width: int, apart: int, pitch: int
) -> Store:
    """
    Stores row r of a result, one of every sequence, in the table of sequence r, `apart` elements after the one before:
    in the table's row that param[r] names, in rows of `pitch`, or at its beginning where there is no param.
    """
    flat = buffers.plain(table)
    positions = [buffers.position(param, r) for r in range(rows)]
    if param is not None:
        for r in range(rows):
            buffers.limit(param, 1, (apart - width) // pitch + 1, r)

    def store(values: Array) -> None:
        for r, row in enumerate(values.reshape(rows, width)):
            start = r * apart + positions[r]() * pitch
            flat[start : start + width] = row

    return store
