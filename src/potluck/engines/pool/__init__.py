"""The pool: one worker process per core, clients resident in them, results as from the serial engine."""

from potluck.engines.pool.engine import PoolEngine

__all__ = ["PoolEngine"]
