"""Clients of one architecture trained together, their parameters stacked: for small models and for GPUs."""

from potluck.engines.vectorized.engine import JobBatcher, VectorizedEngine

__all__ = ["JobBatcher", "VectorizedEngine"]
