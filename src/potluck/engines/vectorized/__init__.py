"""Clients of one architecture trained together, their parameters stacked: for small models and for GPUs."""

from potluck.engines.vectorized.engine import VectorizedEngine
from potluck.engines.vectorized.teams import Teams

__all__ = ["Teams", "VectorizedEngine"]
