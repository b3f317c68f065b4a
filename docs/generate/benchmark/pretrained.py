"""Write `docs/pretrained-results.md`: what federating gains on top of frozen pretrained networks, and per byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from generate.benchmark import tasks
from generate.benchmark.figures import INK, SOFT, VERDICT_COLOURS, gain_figure, new_figure, save
from generate.benchmark.formatting import format_difference, format_share, wrap_text
from generate.text import table
from potluck.analysis.significance import holm
from potluck.suites.statistics import (
    AHEAD,
    LEVEL,
    MARGIN,
    REFERENCE,
    MethodSummary,
    compare_methods,
    task_power,
)
from potluck.suites.store import Results
from potluck.suites.suite import Suite

FIGURE = "pretrained-gains.svg"
BYTE_FIGURE = "pretrained-bytes.svg"
ONE_MESSAGE = "fedcgs"
BYTES = 4


def page(suite: Suite, results: Results) -> str:
    """The whole page; the same text for the same results."""
    text = tasks.page(suite, results).replace(tasks.FIGURE, FIGURE)
    title, _, rest = text.partition("\n\n")
    assert title.startswith("# ")
    first, mark, more = rest.partition("\n## ")
    intro = wrap_text(
        "Every client has a frozen pretrained network ([how](pretrained.md)) and trains a head on its features, on one task "
        "adapters inside it: the question is what "
        "learning together adds where training alone is good already. FedAvg averages heads "
        "and FedCGS adds up sums of features among clients of one network; logits, class means and heads behind a "
        "projection are exchanged between networks."
    )
    parts = (_who_gains(suite, results), _per_byte(suite, results))
    return f"# Pretrained networks: does federating pay?\n\n{intro}\n\n{first}\n{''.join(parts)}{mark}{more}"


def _who_gains(suite: Suite, results: Results) -> str:
    """A sentence or three per task: who is ahead of training alone, at what cost to whom, and what newcomers gain."""
    text = (
        "Gains over training alone in points, with 95 % intervals; a method counts as ahead, and newcomers as gaining, "
        "where a paired t-test over seeds says so after Holm's correction over the methods of the task at 5 %."
    )
    lines = [
        f"* **{task.title}** (alone {100 * reference.accuracy:.1f} %): {_gains(lines)}. {_joining(lines)}"
        for task, lines in tasks.measured_tasks(suite, results)
        for reference in lines
        if reference.method == REFERENCE
    ]
    return "\n## Where it pays, and for whom\n\n" + "\n".join([wrap_text(text), "", *lines]) + "\n"


def _gains(lines: Sequence[MethodSummary]) -> str:
    ahead = [line for line in lines if line.verdict == AHEAD]
    if not ahead:
        power = task_power(lines)
        found = (
            ""
            if power is None
            else f"; a gain of {100 * power.corrected_gain:.1f} would have been found in four of five repetitions"
        )
        return f"no method is ahead{found}"
    return "; ".join(
        f"{line.method} gains {format_difference(line.gain)}, and {format_share(line.below)} of clients end below themselves trained alone"
        for line in ahead
    )


def _joining(lines: Sequence[MethodSummary]) -> str:
    """What clients that join after the last round gain over training alone as long."""
    joining = {line.method: line.joining for line in lines if line.joining is not None}
    corrected = holm({name: gain.p for name, gain in joining.items() if gain.p is not None})
    gains = [
        f"{name} {format_difference(gain)}"
        for name, gain in joining.items()
        if corrected.get(name, 1.0) < LEVEL and gain.mean > 0
    ]
    return (
        f"Clients that join at the end gain with {', '.join(gains)}."
        if gains
        else "Clients that join at the end gain with none."
    )


def _per_byte(suite: Suite, results: Results) -> str:
    """Accuracy beside all bytes that a client sends and receives, against one message per client."""
    text = (
        "Gain over training alone, with its 95 % interval, against all that a client sends and receives in the whole run; "
        "the grey band is one point. Colours are those of the verdicts."
    )
    picture = f"![Gain over training alone against traffic](figures/{BYTE_FIGURE})"
    parts = [f"\n## Accuracy per byte\n\n{picture}\n\n{wrap_text(text)}\n"]
    for task, lines in tasks.measured_tasks(suite, results):
        methods = [line for line in lines if not line.is_baseline]
        rows = [
            (
                line.method,
                f"{100 * line.accuracy:.1f}",
                f"{_bytes(line) / 1000:,.1f}",
                _relation(results, task.name, line.method),
            )
            for line in sorted(methods, key=_bytes)
        ]
        header = (
            "method",
            "accuracy %",
            "kB per client, all rounds, both ways",
            "lead over FedCGS, points [95 %]",
        )
        parts.append(f"*{task.title}*\n\n{table(header, rows, numbers=(1, 2, 3))}\n")
    return "\n".join(parts)


def _bytes(line: MethodSummary) -> float:
    """Return the bytes of all rounds, at four bytes per number."""
    rounds = max(float(row.rounds or 0) for row in line.rows)
    return BYTES * line.floats * rounds


def _relation(results: Results, task: str, method: str) -> str:
    """Return the lead over one message with its interval, in points."""
    difference = compare_methods(results, task, method, ONE_MESSAGE)
    return "–" if method == ONE_MESSAGE else format_difference(difference)


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """Draw the forest plot, gains against traffic, and curves."""
    measurements = tasks.measured_tasks(suite, results)
    if measurements:
        panels = {task.title: lines for task, lines in measurements}
        gain_figure(panels, tasks.NAMES, folder / FIGURE)
        save(_byte_figure(panels), folder / BYTE_FIGURE)
    tasks.draw_curves(results, measurements, folder)


def _byte_figure(panels: Mapping[str, Sequence[MethodSummary]]) -> Any:
    """Return a figure with a panel per task: a method's gain over training alone against its traffic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = new_figure(7.0, 2.4 * -(-len(panels) // 2))
    grid = np.atleast_1d(figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False)).flatten()
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        axes.axhspan(-100 * MARGIN, 100 * MARGIN, color=SOFT, alpha=0.2, linewidth=0)
        axes.axhline(0, color=INK, linewidth=0.8)
        for line in lines:
            if line.is_baseline or line.gain is None:
                continue
            x, mean = _bytes(line) / 1000, 100 * line.gain.mean
            colour = VERDICT_COLOURS.get(line.verdict, INK)
            axes.plot([x, x], [100 * line.gain.low, 100 * line.gain.high], color=colour, linewidth=1)
            axes.scatter([x], [mean], color=colour, s=14, zorder=3)
            axes.annotate(
                line.method, (x, mean), (3, 2), textcoords="offset points", fontsize=6, color=colour
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(title, fontsize=8)
        axes.set_xlabel("kB per client", fontsize=7)
        axes.set_ylabel("gain, points", fontsize=7)
        axes.tick_params(labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure
