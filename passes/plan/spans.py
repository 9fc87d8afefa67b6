"""Runs of elements of arrays: which have been touched, and whether others meet them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Spans:
    """Elements of one array: disjoint ranges, sorted."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def add(self, start: int, stop: int) -> None:
        ranges = self._ranges
        first = bisect_left(ranges, (start, start))
        if first and ranges[first - 1][1] >= start:
            first -= 1
        last = bisect_right(ranges, (stop, float("inf")))
        met = ranges[first:last]
        ranges[first:last] = [(min([start, *(a for a, _ in met)]), max([stop, *(b for _, b in met)]))]

    def cover(self, start: int, stop: int) -> bool:
        at = bisect_right(self._ranges, (start, float("inf"))) - 1
        return at >= 0 and self._ranges[at][0] <= start and stop <= self._ranges[at][1]

    def meet(self, start: int, stop: int) -> bool:
        """Whether one of the elements from `start` up to `stop` is among them."""
        at = bisect_left(self._ranges, (stop, stop)) - 1
        return at >= 0 and self._ranges[at][1] > start


class SpansOf(Generic[Key]):
    """Elements of several arrays, by array."""

    def __init__(self) -> None:
        self._of: dict[Key, Spans] = {}

    def add(self, array: Key, start: int, stop: int) -> None:
        self._of.setdefault(array, Spans()).add(start, stop)

    def meet(self, array: Key, start: int, stop: int) -> bool:
        return array in self._of and self._of[array].meet(start, stop)
