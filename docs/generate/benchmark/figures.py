"""Draw the benchmark's figure, a forest plot of gains, and what figures of other pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from potluck.suites.baselines import LINES
from potluck.suites.statistics import AHEAD, BEHIND, EQUAL, MARGIN, MethodSummary

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Distinguishable with colour-vision deficiency (after Okabe and Ito)."""
INK, SOFT = "#333333", "#999999"
Curve = Sequence[tuple[int, float]]
"""Rounds and accuracies of one run."""
VERDICT_COLOURS = {AHEAD: "#009E73", EQUAL: "#0072B2", BEHIND: "#D55E00"}


def gain_figure(tasks: Mapping[str, Sequence[MethodSummary]], names: Mapping[str, str], path: Path) -> None:
    """Draw a forest plot: a panel per task, a line per trained method with its gain over the reference and interval."""
    shown = {
        title: [line for line in lines if line.gain is not None and line.method not in LINES]
        for title, lines in tasks.items()
    }
    heights = [len(lines) for lines in shown.values()]
    figure = new_figure(7.0, 0.24 * sum(heights) + 0.9 * len(heights))
    panels = np.atleast_1d(figure.subplots(len(shown), 1, sharex=True, height_ratios=heights))
    for axes, (title, lines) in zip(panels, shown.items(), strict=True):
        _forest(axes, lines, names)
        axes.set_title(title, fontsize=9)
    panels[-1].set_xlabel("gain over training alone, points (grey band: within one point)")
    save(figure, path)


def _forest(axes: Any, lines: Sequence[MethodSummary], names: Mapping[str, str]) -> None:
    """Draw the lines of one task, the first one on top; baselines are grey, verdicts have colours."""
    axes.axvspan(-100 * MARGIN, 100 * MARGIN, color=SOFT, alpha=0.2, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, line in enumerate(reversed(lines)):
        assert line.gain is not None
        colour = SOFT if line.is_baseline else VERDICT_COLOURS.get(line.verdict, INK)
        low, high = 100 * line.gain.low, 100 * line.gain.high
        axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
        axes.scatter([100 * line.gain.mean], [place], color=colour, s=16, zorder=3)
    labels = [names.get(line.method, line.method) for line in reversed(lines)]
    axes.set_yticks(range(len(lines)), labels, fontsize=7)
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.grid(alpha=0.25, axis="x")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def curve_figure(curves: Mapping[str, Sequence[Curve]], names: Mapping[str, str], path: Path) -> None:
    """Draw accuracy over rounds: a line per method, the mean over seeds, with a band of one standard deviation."""
    figure, axes = new_axes(5.2, 3.0)
    for colour, (method, own) in zip(COLOURS, curves.items(), strict=False):
        rounds, mean, spread = mean_curve(own)
        axes.plot(rounds, mean, color=colour, linewidth=1.3, label=names.get(method, method))
        axes.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    save(figure, path)


def mean_curve(curves: Sequence[Curve]) -> tuple[list[int], Any, Any]:
    """Return the rounds that all seeds have, and mean and standard deviation over seeds, in per cent; 0 of one seed."""
    values = [dict(curve) for curve in curves]
    rounds = sorted(set.intersection(*(set(curve) for curve in values)))
    table = 100 * np.array([[curve[number] for number in rounds] for curve in values])
    spread = table.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(rounds))
    return rounds, table.mean(axis=0), spread


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float, height: float) -> tuple[Any, Any]:
    """An empty figure of so many inches with one plain pair of axes."""
    figure = new_figure(width, height)
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """The same bytes for the same picture."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "potluck", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
