"""Draw the benchmark's figures: accuracy against traffic with the Pareto front, and mean ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.suites.statistics import MethodSummary, pareto_front

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Distinguishable with colour-vision deficiency (after Okabe and Ito)."""
INK, SOFT, FRONT = "#333333", "#999999", "#0072B2"


def traffic_figure(title: str, found: Sequence[MethodSummary], path: Path) -> None:
    """Each method where its accuracy and its numbers per client and round put it; the front is joined by a line."""
    figure, axes = new_axes(7.0, 4.2)
    best = pareto_front(found)
    on_front = sorted((line for line in found if line.method in best), key=lambda line: line.floats)
    heights = [100 * line.accuracy for line in on_front]
    axes.step([line.floats for line in on_front], heights, where="post", color=FRONT)
    for line in found:
        place = line.floats, 100 * line.accuracy
        axes.scatter(*place, color=FRONT if line.method in best else SOFT, s=18, zorder=3)
        _label(axes, line.method, place)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlabel("numbers per client and round, both ways")
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, fontsize=10)
    save(figure, path)


def _label(axes: Any, text: str, place: tuple[float, float]) -> None:
    axes.annotate(text, place, xytext=(4, 3), textcoords="offset points", fontsize=7)


def rank_figure(ranks: Mapping[str, float], critical: float, path: Path) -> None:
    """Mean ranks from best to worst, with a bar as long as the critical difference."""
    ordered = sorted(ranks, key=lambda method: -ranks[method])
    figure, axes = new_axes(7.0, 0.25 * len(ordered) + 1.0)
    axes.scatter([ranks[method] for method in ordered], range(len(ordered)), color=FRONT, s=18)
    axes.set_yticks(range(len(ordered)), ordered, fontsize=8)
    axes.plot(
        [min(ranks.values()), min(ranks.values()) + critical], [len(ordered)] * 2, color=INK, linewidth=2
    )
    _label(axes, "critical difference", (min(ranks.values()), len(ordered)))
    axes.set_xlabel("mean rank over tasks (1 is best)")
    save(figure, path)


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
