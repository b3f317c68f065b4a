"""Format sentences that several pages share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import numpy as np

from potluck.core.needs import Need
from potluck.methods import method_class
from potluck.suites.provenance import provenance_text
from potluck.suites.statistics import BASELINES, Difference
from potluck.suites.store import Results, Row
from potluck.suites.suite import Suite, Task


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


BELOW = (
    "*Below* is the share of clients, over all seeds, that end below themselves trained alone on the same samples: about "
    "half, less ties, where a method changes nothing but chance."
)
NO_BELOW = (
    "Training alone was not run on these clients and splits, so no column says which share of them ends below itself "
    "trained alone."
)


def same_split(first: Task, second: Task) -> bool:
    """Whether two tasks give clients the same samples: the same data, partition and newcomers."""
    parts = ("data", "partition")
    newcomers = [task.experiment.get("evaluate", {}).get("newcomers") for task in (first, second)]
    return newcomers[0] == newcomers[1] and all(
        first.experiment.get(part) == second.experiment.get(part) for part in parts
    )


def needs_public_data(method: str) -> bool:
    """Whether a method uses samples that all parties hold, which a split of its own sets apart."""
    return method not in BASELINES and Need.PUBLIC_DATA in method_class(method).needs


def format_share(share: float | None) -> str:
    """A share in per cent; nothing of nothing."""
    return "" if share is None else f"{share:.0%}"


def provenance_sentence(suite: Suite, results: Results) -> str:
    """Say where the page's numbers are stored, which commits made them and how many rows were confirmed later."""
    trials = f" and {len(results.trials)} tuning trials" if results.trials else ""
    return (
        f"{suite.title} `potluck benchmark {suite.name}` stores the numbers in `results/{results.name}.csv` and "
        f"`results/{results.name}.json`, and `make pages` writes this page from them. {len(results.rows)} runs{trials}. "
        f"{provenance_text(results.rows, results.confirmations)}"
    )
