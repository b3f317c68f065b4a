"""Bars and sweeps for print: accuracy by architecture, traffic, cost to a target, a setting varied."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from potluck.analysis.accounting import ledger_row
from potluck.analysis.comparison import compare
from potluck.analysis.difference import architecture_means
from potluck.analysis.groups import Group
from potluck.analysis.sweep import sweep
from potluck.core.errors import PotluckError
from potluck.report.options import Options
from potluck.report.palette import look
from potluck.report.style import WIDTH, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "|||")
_COSTS = (("rounds", "rounds", 1.0), ("bytes", "traffic (MiB)", 2.0**20), ("flops", "training (GFLOPs)", 1e9))


def architectures(groups: list[Group], options: Options) -> Figure:
    """The mean final accuracy of each architecture's clients, one bar per method."""
    means = [{each.name: each for each in architecture_means(group.counted)} for group in groups]
    names = sorted({name for each in means for name in each})
    if not names:
        raise PotluckError("No run has tested clients with a known architecture: choose another kind.")
    figure, axes = new_figure()
    width = 0.8 / len(groups)
    for position, (group, found) in enumerate(zip(groups, means, strict=True)):
        known = [(place, found[name]) for place, name in enumerate(names) if name in found]
        axes.bar(
            [place + (position - (len(groups) - 1) / 2) * width for place, _ in known],
            [100 * each.mean for _, each in known],
            width,
            yerr=[100 * each.std for _, each in known],
            error_kw={"linewidth": 0.7, "capsize": 1.5},
            color=look(position).light,
            hatch=_HATCHES[position % len(_HATCHES)],
            edgecolor="white",
            linewidth=0,
            label=group.label,
        )
    upright = len(names) * max(map(len, names)) > 40  # else they would run into each other
    axes.set_xticks(range(len(names)), names, rotation=90 if upright else 0)
    axes.set_ylabel("final accuracy (%)")
    _plain_bars(axes)
    rows = -(-len(groups) // 4)
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=min(4, len(groups)),
        fontsize=7 if rows < 4 else 5,
    )
    return figure


def traffic(groups: list[Group], options: Options) -> Figure:
    """Numbers sent up and down, per client and round."""
    rows = [ledger_row(group) for group in groups]
    figure, axes = new_figure(height=0.7 + 0.34 * len(rows))
    places = np.arange(len(rows))
    axes.barh(places - 0.19, [row.floats_up for row in rows], 0.36, color=look(0).light, label="up")
    axes.barh(
        places + 0.19,
        [row.floats_down for row in rows],
        0.36,
        color="#9aa5b1",
        hatch="///",
        edgecolor="white",
        label="down",
    )
    greatest = max(max(row.floats_up, row.floats_down) for row in rows)
    least = min((value for row in rows for value in (row.floats_up, row.floats_down) if value), default=1.0)
    if greatest > 100 * least:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
    _methods(axes, [row.label for row in rows])
    axes.set_xlabel("numbers per client and round")
    legend(axes)
    return figure


def target(groups: list[Group], options: Options) -> Figure:
    """Rounds, traffic and (where counted) FLOPs to a target accuracy, as bars side by side."""
    if options.target is None:
        raise PotluckError("kind 'target' needs a target accuracy: pass target=0.8 for 80 %.")
    rows = compare([run for group in groups for run in group.runs], options.target).rows
    spent = [
        [row.to_target.in_(cost) if row.to_target else math.nan for row in rows] for cost, _, _ in _COSTS
    ]
    shown = [position for position, values in enumerate(spent) if any(map(math.isfinite, values))]
    if not shown:
        raise PotluckError(f"No run reached the target of {100 * options.target:g} %: choose a lower one.")
    figure, first = new_figure(width=WIDTH * (1 + 0.5 * (len(shown) - 1)), height=0.7 + 0.26 * len(rows))
    first.remove()
    for place, position in enumerate(shown, 1):
        axes = figure.add_subplot(1, len(shown), place)
        _cost_bars(axes, spent[position], _COSTS[position][2])
        axes.set_xlabel(f"{_COSTS[position][1]} to {100 * options.target:g} %")
        _methods(axes, [row.label if place == 1 else "" for row in rows])
    return figure


def sweep_curve(groups: list[Group], options: Options) -> Figure:
    """Best accuracy against a setting, one curve per method, with the spread over seeds."""
    if options.field is None:
        raise PotluckError(
            "kind 'sweep' needs the setting that was varied: pass field='partition' or another."
        )
    result = sweep([run for group in groups for run in group.counted], options.field)
    figure, axes = new_figure()
    places = {value: place for place, value in enumerate(result.values)}
    for position, (method, points) in enumerate(result.methods.items()):
        style = look(position)
        axes.errorbar(
            [places[point.value] for point in points],
            [100 * point.mean for point in points],
            yerr=[100 * point.std for point in points],
            color=style.light,
            linestyle=style.linestyle,
            marker=style.marker,
            capsize=2,
            label=method,
        )
    axes.set_xticks(range(len(places)), [f"{v:g}" if isinstance(v, float) else str(v) for v in places])
    axes.set_xlabel(options.field)
    axes.set_ylabel("best accuracy (%)")
    legend(axes)
    return figure


def _cost_bars(axes: Axes, values: list[float], divisor: float) -> None:
    for place, value in enumerate(values):
        if math.isfinite(value):
            bar = axes.barh(place, value / divisor, 0.7, color=look(place).light)
            axes.bar_label(bar, fmt="{:,.4g}", padding=2, fontsize=6)
        else:
            axes.text(0, place, " not reached", va="center", fontsize=6, color="#666666")
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=4)


def _methods(axes: Axes, labels: list[str]) -> None:
    """Methods as rows, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _plain_bars(axes: Axes) -> None:
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=0)
