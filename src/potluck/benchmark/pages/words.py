"""Sentences that several pages share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from potluck.benchmark.store import Results
from potluck.benchmark.suite import Suite


def wrapped(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def with_spread(values: Sequence[float]) -> str:
    """A mean in per cent, and the standard deviation over seeds where there are several; nothing of nothing."""
    if not values:
        return ""
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def made_from(suite: Suite, results: Results) -> str:
    """Where the page's numbers are, and how to make it again."""
    commits = sorted({row.commit for row in results.rows if row.commit})
    trials = f" and {len(results.trials)} tuning trials" if results.trials else ""
    return (
        f"{suite.title} Made from `results/{results.name}.csv` and `results/{results.name}.json` by "
        f"`potluck benchmark {suite.name} --page`; a test fails when this page and the data disagree. "
        f"{len(results.rows)} runs{trials}; code of {', '.join(commits)}."
    )
