"""How steps are run: for speed, or for finding out what is wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass

from lane_mlir.diagnostics import LaneError, unknown

VARIABLE = "LANE_CUDA_DEBUG"
"""The environment variable that turns things off, such as `checked` or `no-pdl,no-graphs`."""


@dataclass(frozen=True)
class Options:
    """
    `pdl`: kernels start before their predecessor has ended and wait by themselves, where the card can. `graphs`: a step
    is one CUDA graph. `checked`: instead each kernel is waited for before the next one is launched, so that one that
    fails is known. `steps`: steps in each graph of those that run ahead of the host. `ahead`: such graphs that are
    queued at once; after the last token that anybody takes, at most `steps`·`ahead` more steps run.
    """

    pdl: bool = True
    graphs: bool = True
    checked: bool = False
    steps: int = 4
    ahead: int = 3

    @staticmethod
    def from_environment() -> Options:
        """The options that LANE_CUDA_DEBUG asks for. Raises LaneError for one that there is not."""
        words = [word for word in os.environ.get(VARIABLE, "").split(",") if word]
        known = ("checked", "no-graphs", "no-pdl")
        for word in words:
            if word not in known:
                raise LaneError(f"{VARIABLE}: {unknown('option', word, known)}")
        return Options(pdl="no-pdl" not in words, graphs="no-graphs" not in words, checked="checked" in words)
