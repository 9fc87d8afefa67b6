"""
The CPU target: a planned schedule, executed in numpy.

The same buffers as on a device, in the same places, written in the same order: one arena in which every computed buffer
lies where the plan put it, so that a wrong plan shows here too. Weights are dequantized once, and state is shared by
all programs of one `Memory`. The formulas are those of `lane_mlir.eval`.

Products read a quantized activation from its stored int8 words and scales, but multiply its f32 values by the weight's:
they equal the integer dot products up to the order of f32 sums, a relative 1e-6.
"""

from __future__ import annotations

from lane_mlir.cpu.memory import Memory
from lane_mlir.cpu.program import CpuProgram, run_schedule
from lane_mlir.cpu.quantized import QuantizedForm

__all__ = ["CpuProgram", "Memory", "QuantizedForm", "run_schedule"]
