"""What Potluck costs and gains, as ratios measured side by side in one run."""
