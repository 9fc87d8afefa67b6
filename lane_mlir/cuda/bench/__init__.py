"""Measuring steps on a GPU: what `lane-bench` reports."""
