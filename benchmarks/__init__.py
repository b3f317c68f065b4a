"""Speed and memory of Potluck as ratios measured side by side in one run: `python -m benchmarks`."""
