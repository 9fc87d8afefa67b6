"""Checks of kernels, weights and whole models on a real card: what `lane_mlir.tools.gpu_check` runs."""
