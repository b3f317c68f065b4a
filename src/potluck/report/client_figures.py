"""Clients for print: sorted accuracies, differences between two methods, and how samples were dealt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.analysis.difference import client_differences
from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError
from potluck.report.options import Options
from potluck.report.palette import look
from potluck.report.style import WIDTH, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def strip(groups: list[Group], options: Options) -> Figure:
    """Every client's final accuracy, sorted, one strip per method."""
    figure, axes = new_figure()
    for position, group in enumerate(groups):
        values = np.sort([client.accuracy for run in group.counted for client in run.client_results])
        if not len(values):
            continue
        style = look(position)
        places = np.linspace(0, 100, len(values)) if len(values) > 1 else np.asarray([50.0])
        axes.plot(
            places, 100 * values, color=style.light, linewidth=0.5, linestyle=style.linestyle, alpha=0.6
        )
        axes.plot(places, 100 * values, style.marker, color=style.light, markersize=3, label=group.label)
    axes.set_xlabel("clients, from worst to best (%)")
    axes.set_ylabel("final accuracy (%)")
    legend(axes)
    return figure


def difference(groups: list[Group], options: Options) -> Figure:
    """Per-client differences to the reference, sorted, with the share of clients that gain."""
    if len(groups) < 2:
        raise PotluckError("kind 'difference' needs two methods: pass runs of both.")
    reference = options.reference_of(groups)
    figure, axes = new_figure()
    for position, group in enumerate(groups):
        if group is reference:
            continue
        found = client_differences(group.counted, reference.counted)
        points = [100 * each.difference for each in found.clients]
        places = np.linspace(0, 100, len(points)) if len(points) > 1 else np.asarray([50.0])
        style, share = look(position), f"{100 * found.share_better:.0f} % better"
        axes.plot(
            places, points, style.marker, color=style.light, markersize=3, label=f"{group.label}: {share}"
        )
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_xlabel("clients, from greatest loss to greatest gain (%)")
    axes.set_ylabel(f"points above {reference.label}")
    legend(axes)
    return figure


def bubbles(groups: list[Group], options: Options) -> Figure:
    """How many training samples of each class each client holds; the area of a bubble is the number."""
    run = next((run for group in groups for run in group.runs if run.class_counts is not None), None)
    if run is None or run.class_counts is None:
        raise PotluckError(
            "kind 'bubbles' needs a finished run: only its summary has the samples of each class."
        )
    counts = run.class_counts
    figure, axes = new_figure(height=min(4.5, max(1.8, 0.16 * counts.shape[1] + 0.6)))
    clients, classes = np.nonzero(counts)
    cell = 72 * WIDTH * 0.8 / max(counts.shape)  # points of room for one bubble
    largest = max(3.0, min(16.0, 1.3 * cell))
    sizes = largest**2 * counts[clients, classes] / counts.max()
    axes.scatter(clients, classes, s=sizes, color=look(0).light, alpha=0.75, linewidths=0)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_xlim(-0.8, counts.shape[0] - 0.2)
    axes.set_ylim(-0.8, counts.shape[1] - 0.2)
    axes.locator_params(integer=True)
    return figure
