"""Write the page of gains over standalone training by samples per client and skew."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from generate.benchmark.figures import COLOURS, new_figure, save
from generate.benchmark.formatting import provenance_sentence, wrap_text
from potluck.suites.statistics import REFERENCE
from potluck.suites.store import Results
from potluck.suites.suite import Suite

Gains = dict[str, dict[str, dict[int, list[float]]]]
"""Skew, then method, then samples per client: the gain of each seed in points."""


def gains(suite: Suite, results: Results) -> Gains:
    """The differences to standalone training, seed by seed."""
    scores = {(row.task, row.method, row.seed): row.accuracy for row in results.rows}
    found: Gains = {}
    for task in suite.tasks:
        for method in task.methods:
            for seed in suite.seeds:
                mine, alone = scores.get((task.name, method, seed)), scores.get((task.name, REFERENCE, seed))
                if mine is not None and alone is not None and method != REFERENCE:
                    by_method = found.setdefault(task.axes["skew"], {}).setdefault(method, {})
                    by_method.setdefault(int(task.axes["samples"]), []).append(100 * (mine - alone))
    return found


def page(suite: Suite, results: Results) -> str:
    """A table per skew, a picture, and what they show."""
    found = gains(suite, results)
    parts = [
        "# When does it help?",
        wrap_text(provenance_sentence(suite, results)),
        wrap_text(_reading(suite)),
    ]
    parts.append("![Gain over standalone training against samples per client](figures/when-it-helps.svg)")
    parts += [_table(skew, by_method) for skew, by_method in found.items()]
    parts.append(_words(found))
    return "\n\n".join(parts) + "\n"


def _reading(suite: Suite) -> str:
    return (
        "Gain is the accuracy of clients on their own test samples minus that of the same clients trained alone, in "
        f"points: mean and standard deviation over {len(suite.seeds)} seeds, or one seed where there is no ±. Samples "
        "are training samples per client on average. No method was tuned here: all train with one learning rate and "
        "default settings."
    )


def _table(skew: str, by_method: dict[str, dict[int, list[float]]]) -> str:
    sizes = sorted({size for points in by_method.values() for size in points})
    lines = [f"| {skew} | {' | '.join(f'{size:,}' for size in sizes)} |", f"|---|{'---:|' * len(sizes)}"]
    for method, points in by_method.items():
        cells = [_cell(points.get(size, [])) for size in sizes]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):+.1f}{spread}"


def _words(found: Gains) -> str:
    """Where the largest mean gain of each skew lies, and how many methods gain at both ends; one seed says nothing."""
    said = []
    for skew, by_method in found.items():
        means = {
            (m, size): float(np.mean(v))
            for m, points in by_method.items()
            for size, v in points.items()
            if all(len(others.get(size, ())) > 1 for others in by_method.values())
        }
        if not means:
            continue
        method, size = max(means, key=lambda key: means[key])
        sizes = sorted({size for _, size in means})
        ahead = {
            end: sum(means.get((method, end), 0) > 0 for method in by_method) for end in (sizes[0], sizes[-1])
        }
        said.append(
            f"* **{skew}**: the largest gain is {method}'s at {size:,} samples ({means[method, size]:+.1f} points). "
            f"With {sizes[0]:,} samples {ahead[sizes[0]]} of {len(by_method)} methods gain on average, with "
            f"{sizes[-1]:,} samples {ahead[sizes[-1]]}."
        )
    return "## What it shows\n\n" + "\n".join(said)


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """One panel per skew, one line with a band per method."""
    found = gains(suite, results)
    if not found:
        return
    figure = new_figure(3.4 * len(found) + 1.2, 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(found), sharey=True))
    for axes, (skew, by_method) in zip(panels, found.items(), strict=True):
        axes.axhline(0, color="#333333", linewidth=0.8)
        for colour, (method, points) in zip(COLOURS, by_method.items(), strict=False):
            sizes = sorted(points)
            mean = np.array([np.mean(points[size]) for size in sizes])
            spread = np.array(
                [np.std(points[size], ddof=1) if len(points[size]) > 1 else 0.0 for size in sizes]
            )
            axes.plot(sizes, mean, color=colour, label=method, marker="o", markersize=3, linewidth=1.2)
            axes.fill_between(sizes, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
        axes.set_xscale("log")
        axes.set_title(skew, fontsize=9)
        axes.set_xlabel("training samples per client")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("gain over standalone, points")
    panels[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, folder / "when-it-helps.svg")
