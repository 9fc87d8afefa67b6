"""The positions that a step can take."""

from __future__ import annotations

from dataclasses import dataclass

from lane_mlir.diagnostics import LaneError


@dataclass(frozen=True)
class Limits:
    """The rows of a step that each position stands for, and the positions that there are (None: any)."""

    rows: int
    positions: int | None

    def check_position(self, position: int) -> None:
        """Raises LaneError for a position that leaves no room for the step's rows."""
        if position < 0 or (self.positions is not None and position + self.rows > self.positions):
            rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
            context = "" if self.positions is None else f" of {self.positions} positions"
            raise LaneError(f"position {position} with {rows} is not within the context{context}")

    def room(self, position: int) -> int | None:
        """How many steps of one row can run from a position on; None for any number."""
        return None if self.positions is None else max(self.positions - position, 0)
