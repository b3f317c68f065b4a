"""Draw bars, strips and sweeps: accuracy by architecture and client, traffic, cost to a target, a varied setting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.clients import architecture_means, class_labels, client_differences, client_label
from potluck.analysis.cost import mean_target_cost, traffic_row
from potluck.analysis.groups import Group, method_rank, reference_group, sweep
from potluck.core.errors import PotluckError
from potluck.report.style import (
    WIDTH,
    FigureOptions,
    label_categories,
    legend,
    legend_above,
    log_scale,
    method_style,
    new_axes,
    new_figure,
    tick_step,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "|||")
_NAMED = 24  # clients of the bubble chart that are named
_COSTS = (("rounds", "rounds", 1.0), ("bytes", "MiB", 2.0**20), ("flops", "GFLOP", 1e9))


def architectures(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw the mean final accuracy of each architecture's clients, one bar per method."""
    means = [{each.name: each for each in architecture_means(group.counted_runs)} for group in groups]
    names = sorted({name for by_name in means for name in by_name})
    if not names:
        raise PotluckError("No run has tested clients of a recorded architecture: choose another kind.")
    figure, axes = new_figure(height=2.0)
    width = 0.8 / len(groups)
    for place, (group, by_name) in enumerate(zip(groups, means, strict=True)):
        present = [(at, by_name[name]) for at, name in enumerate(names) if name in by_name]
        axes.bar(
            [at + (place - (len(groups) - 1) / 2) * width for at, _ in present],
            [100 * each.mean for _, each in present],
            width,
            yerr=[100 * each.std for _, each in present],
            error_kw={"linewidth": 0.7, "capsize": min(1.5, 12 * width)},
            color=method_style(group.position).light,
            hatch=_HATCHES[group.position % len(_HATCHES)],
            edgecolor="white",
            linewidth=0,
            label=group.label,
        )
    axes.set_ylabel("final accuracy (%)")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.02)
    label_categories(axes, names)
    legend_above(axes)
    return figure


def traffic(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw the numbers sent up and down, per client and round."""
    rows = [traffic_row(group) for group in groups]
    figure, axes = new_figure(height=0.7 + 0.34 * len(rows))
    places = np.arange(len(rows))
    up, down = [row.floats_up for row in rows], [row.floats_down for row in rows]
    axes.barh(places - 0.19, up, 0.36, color=method_style(0).light, label="up")
    axes.barh(places + 0.19, down, 0.36, color="#9aa5b1", hatch="///", edgecolor="white", label="down")
    sent = [value for value in (*up, *down) if value]
    if sent and max(sent) > 100 * min(sent):
        log_scale(axes, form="{x:,.0f}")
    else:
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    _method_rows(axes, [row.label for row in rows])
    axes.set_xlabel("numbers per client and round")
    legend_above(axes)
    return figure


def target(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw rounds, traffic and (where recorded) FLOPs to a target accuracy, as bars side by side."""
    if options.target is None:
        raise PotluckError(
            "kind 'target' needs a target accuracy: pass --target 0.8 for 80 % (from Python: target=0.8)."
        )
    costs = [mean_target_cost(group.counted_runs, options.target)[1] for group in groups]
    shown = [each for each in _COSTS if any(math.isfinite(cost.amount(each[0])) for cost in costs)]
    if not shown:
        raise PotluckError(f"No run reached the target of {100 * options.target:g} %: choose a lower one.")
    figure, panels = new_axes(len(shown), height=0.6 + 0.2 * len(groups))
    for axes, (cost_name, unit, divisor) in zip(panels, shown, strict=True):
        for place, (group, cost) in enumerate(zip(groups, costs, strict=True)):
            value = cost.amount(cost_name)
            if math.isfinite(value):
                bar = axes.barh(place, value / divisor, 0.7, color=method_style(group.position).light)
                axes.bar_label(bar, fmt="{:,.3g}", padding=2, fontsize=6)
            else:
                axes.text(0, place, " not reached", va="center", fontsize=6, color="#666666")
        axes.set_xlabel(f"{unit}\nto {100 * options.target:g} %")
        axes.set_xlim(0, 1.55 * axes.dataLim.x1)
        axes.set_xticks([])
    _method_rows(panels[0], [group.label for group in groups])
    return figure


def sweep_curve(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw best accuracy against a setting, one curve per method, with the spread over seeds."""
    if options.field is None:
        raise PotluckError(
            "kind 'sweep' needs the setting that was varied: pass --field partition or another (from Python: field=)."
        )
    result = sweep([run for group in groups for run in group.counted_runs], options.field)
    figure, axes = new_figure()
    places = {value: place for place, value in enumerate(result.values)}
    ranked = sorted(result.methods, key=method_rank)
    for method, points in result.methods.items():
        style = method_style(ranked.index(method))
        axes.errorbar(
            [places[point.value] for point in points],
            [100 * point.mean for point in points],
            yerr=[100 * point.std for point in points],
            color=style.light,
            linestyle=style.linestyle,
            marker=style.marker,
            capsize=2,
            label=options.names.get(method, method),
        )
    axes.set_xlabel(options.field)
    axes.set_ylabel("best accuracy (%)")
    axes.margins(x=0.1)
    label_categories(axes, [f"{v:g}" if isinstance(v, float) else str(v) for v in places])
    legend(axes)
    return figure


def _method_rows(axes: Axes, labels: list[str]) -> None:
    """Name the rows, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def client_strip(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw every client's final accuracy, sorted, one strip per method."""
    figure, axes = new_figure()
    for group in groups:
        values = np.sort([client.accuracy for run in group.counted_runs for client in run.client_results])
        if not len(values):
            continue
        style, x = method_style(group.position), _percentiles(len(values))
        axes.plot(x, 100 * values, color=style.light, linewidth=0.5, linestyle=style.linestyle, alpha=0.6)
        axes.plot(
            x,
            100 * values,
            style.marker,
            color=style.light,
            markersize=3,
            fillstyle=style.fill,
            label=group.label,
        )
    axes.set_xlabel("clients, from worst to best (%)")
    axes.set_ylabel("final accuracy (%)")
    legend(axes)
    return figure


def difference(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw per-client differences to the reference, sorted, with the share of clients that gain."""
    if len(groups) < 2:
        raise PotluckError("kind 'difference' needs two methods: pass runs of both.")
    reference = reference_group(groups, options.reference)
    figure, axes = new_figure()
    for group in groups:
        if group is reference:
            continue
        differences = client_differences(group.counted_runs, reference.counted_runs)
        points = [100 * each.difference for each in differences.clients]
        style, share = method_style(group.position), f"{100 * differences.share_better:.0f} % better"
        label = f"{group.label}: {share}"
        axes.plot(
            _percentiles(len(points)),
            points,
            style.marker,
            color=style.light,
            markersize=3,
            fillstyle=style.fill,
            label=label,
        )
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_xlabel("clients, from greatest loss to greatest gain (%)")
    axes.set_ylabel(f"points above {reference.label}")
    legend(axes)
    return figure


def _percentiles(count: int) -> NDArray[np.float64]:
    return np.linspace(0, 100, count) if count > 1 else np.full(count, 50.0)


def class_bubbles(groups: list[Group], options: FigureOptions) -> Figure:
    """Draw how many training samples of each class each client holds, as the area of a bubble."""
    run = next((run for group in groups for run in group.runs if run.class_counts is not None), None)
    if run is None or run.class_counts is None:
        raise PotluckError(
            "kind 'bubbles' needs a finished run: only its summary has the samples of each class."
        )
    counts = run.class_counts
    height = min(4.5, max(1.8, 0.16 * counts.shape[1] + 0.6))
    figure, axes = new_figure(height=height)
    clients, classes = np.nonzero(counts)
    cell = 72 * WIDTH * 0.8 / max(counts.shape)  # points of room for one bubble
    largest = max(3.0, min(16.0, 1.3 * cell))
    sizes = largest**2 * counts[clients, classes] / counts.max()
    axes.scatter(clients, classes, s=sizes, color=method_style(0).light, alpha=0.75, linewidths=0)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_xlim(-0.8, counts.shape[0] - 0.2)
    axes.set_ylim(-0.8, counts.shape[1] - 0.2)
    axes.locator_params(integer=True)
    names = [client_label(run, index) for index in range(len(counts))]
    if len(names) <= _NAMED and any(name != f"client {index}" for index, name in enumerate(names)):
        label_categories(axes, names)
    if run.class_names:
        step = tick_step(counts.shape[1], height - 0.6)
        axes.set_yticks(range(0, counts.shape[1], step), class_labels(run, counts.shape[1])[::step])
    return figure
