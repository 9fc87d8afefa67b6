"""Running planned steps on a GPU: memory, weights, kernels, graphs."""

from __future__ import annotations

from lane_mlir.cuda.runtime.device import CudaDevice
from lane_mlir.cuda.runtime.errors import DriverError, KernelFault
from lane_mlir.cuda.runtime.options import Options
from lane_mlir.cuda.runtime.program import CudaProgram

__all__ = ["CudaDevice", "CudaProgram", "DriverError", "KernelFault", "Options"]
