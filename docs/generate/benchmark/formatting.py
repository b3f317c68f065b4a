"""Format sentences that several pages share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import numpy as np

from potluck.suites.provenance import provenance_text
from potluck.suites.statistics import Difference
from potluck.suites.store import Results, Row
from potluck.suites.suite import Suite


def wrap_text(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def format_mean_std(values: Sequence[float]) -> str:
    """A mean in per cent, and the standard deviation over seeds where there are several; nothing of nothing."""
    if not values:
        return ""
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def format_difference(difference: Difference | None) -> str:
    """A difference in points with its 95 % interval; without one from a single seed, and nothing of nothing."""
    if difference is None:
        return ""
    interval = f" [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]" if difference.seeds > 1 else ""
    return f"{100 * difference.mean:+.1f}{interval}"


def count_seeds(rows: Iterable[Row]) -> str:
    """How many seeds rows have, in words: one seed, 3 seeds."""
    seeds = len({row.seed for row in rows})
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def provenance_sentence(suite: Suite, results: Results) -> str:
    """Say where the page's numbers are stored, which commits made them and how many rows were confirmed later."""
    trials = f" and {len(results.trials)} tuning trials" if results.trials else ""
    return (
        f"{suite.title} `potluck benchmark {suite.name}` stores the numbers in `results/{results.name}.csv` and "
        f"`results/{results.name}.json`, and `make pages` writes this page from them. {len(results.rows)} runs{trials}. "
        f"{provenance_text(results.rows, results.confirmations)}"
    )
