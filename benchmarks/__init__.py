"""What Potluck costs and gains, as ratios measured side by side in one run: `python -m benchmarks`."""

from benchmarks.suite import PARTS, run_suite

__all__ = ["PARTS", "run_suite"]
