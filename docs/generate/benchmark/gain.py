"""Write the page on when federating helps: advice that rows support, and gains by samples per client and skew."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from generate.benchmark.figures import COLOURS, new_figure, save
from generate.benchmark.formatting import (
    BELOW,
    format_difference,
    format_share,
    provenance_sentence,
    wrap_text,
)
from generate.text import table
from potluck.suites.statistics import MethodSummary, summarise_task
from potluck.suites.store import Results
from potluck.suites.suite import Suite

FIGURE = "when-it-helps.svg"
Sizes = dict[str, dict[int, list[MethodSummary]]]
"""Skew, then training samples per client: the methods that have a gain."""


def gains(suite: Suite, results: Results) -> Sizes:
    """Return the methods of every task that has rows, by skew and samples per client."""
    sizes: Sizes = {}
    for task in suite.tasks:
        lines = [line for line in summarise_task(results, task.name) if line.gain is not None]
        if lines:
            sizes.setdefault(task.axes["skew"], {})[int(task.axes["samples"])] = lines
    return sizes


def page(suite: Suite, results: Results) -> str:
    """Return the page: advice first, then a table per skew, then where the numbers come from."""
    from generate.advice import hospital

    sizes = gains(suite, results)
    parts = [
        "# When does it help?",
        hospital(results.folder),
        "## By samples per client",
        wrap_text(_reading(suite)),
    ]
    if sizes:
        parts.append(f"![Gain over training alone against samples per client](figures/{FIGURE})")
        parts += [_table(skew, by_size) for skew, by_size in sizes.items()]
    else:
        parts.append(
            wrap_text(
                f"Not run yet: `potluck benchmark {suite.name} --estimate` measures what it takes on your machine, and "
                f"`potluck benchmark {suite.name} --resume` runs it."
            )
        )
    if results.rows:
        parts.append(f"## Provenance\n\n{wrap_text(provenance_sentence(suite, results))}")
    return "\n\n".join(parts) + "\n"


def _reading(suite: Suite) -> str:
    return (
        "The same clients, test samples and number of steps for every size: only how many of its rows a client trains on "
        "changes, and the smaller sets are parts of the larger ones. Gain is over standalone training, which is tuned alike "
        f"and trains longer, in points, with its 95 % interval over {len(suite.seeds)} seeds. {BELOW}"
    )


def _table(skew: str, by_size: dict[int, list[MethodSummary]]) -> str:
    methods = list(dict.fromkeys(line.method for lines in by_size.values() for line in lines))
    rows = []
    for method in methods:
        cells = {
            size: line.gain for size, lines in by_size.items() for line in lines if line.method == method
        }
        below = {
            size: line.below for size, lines in by_size.items() for line in lines if line.method == method
        }
        table_rows = [
            (format_difference(cells.get(size)), format_share(below.get(size))) for size in sorted(by_size)
        ]
        rows.append((method, *(text for pair in table_rows for text in pair)))
    head = (skew, *(text for size in sorted(by_size) for text in (f"{size:,}", "below")))
    return table(head, rows, numbers=range(1, len(head)))


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """Draw one panel per skew, one line with its intervals per method."""
    sizes = gains(suite, results)
    if not sizes:
        return
    figure = new_figure(3.4 * len(sizes) + 1.2, 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(sizes), sharey=True))
    for axes, (skew, by_size) in zip(panels, sizes.items(), strict=True):
        axes.axhline(0, color="#333333", linewidth=0.8)
        methods = dict.fromkeys(
            line.method for lines in by_size.values() for line in lines if not line.is_baseline
        )
        for colour, method in zip(COLOURS, methods, strict=False):
            points = [
                (size, line.gain)
                for size, lines in sorted(by_size.items())
                for line in lines
                if line.method == method and line.gain is not None
            ]
            means = [100 * gain.mean for _, gain in points]
            reach = [100 * (gain.high - gain.mean) for _, gain in points]
            axes.errorbar(
                [size for size, _ in points],
                means,
                reach,
                color=colour,
                label=method,
                marker="o",
                markersize=3,
            )
        axes.set_xscale("log")
        axes.set_title(skew, fontsize=9)
        axes.set_xlabel("training samples per client")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("gain over training alone, points")
    panels[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, folder / FIGURE)
